//! What a program with a say (`api/`, the C library) and the tracker (`masu track`) agree on. Pure.
//!
//! HPS (Shimizu and Yamada, sections 4.2 and 5.2) has the kernel send a signal with the number of active pages, and a system
//! call that fills a buffer with their addresses. Here the tracker is a process: the signal is the same, and what was the
//! system call is a request over a Unix socket (`wire`), whose answer carries the list as a sealed piece of memory
//! (`list`). `terms` is what a program asks to be watched for.
//!
//! | paper                      | here                                                   |
//! | `track_pages_tasks`        | [`terms::Terms`], one for each registered program      |
//! | シグナル, its `siginfo_t`   | a queued real-time signal; its value is the page count |
//! | システムコール              | [`wire::Request::Fetch`]                               |
//! | 構造体の配列                | [`list::Page`]s, by [`list::Window`]                   |

pub mod list;
pub mod terms;
pub mod wire;

/// Where the tracker listens.
pub const SOCKET: &str = "/run/masu/track.sock";

/// The environment variable that names another place.
pub const SOCKET_VARIABLE: &str = "MASU_TRACK";

/// The longest path of a socket, with the zero behind it: unix(7).
pub const SOCKET_PATH_BYTES: usize = 108;
