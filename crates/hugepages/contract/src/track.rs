//! Protocol between a cooperating program (`libmasu/`, the C library) and the tracker (`masu track`). Pure.
//!
//! In HPS (Shimizu and Yamada, sections 4.2 and 5.2) the kernel sends a signal with the number of active pages, and a
//! system call fills a buffer with their addresses. Here the tracker is a process: the signal is the same, and a
//! request over a Unix socket (`wire`) replaces the system call. Its answer carries the list as a sealed memfd
//! (`list`). `terms` are the session parameters.
//!
//! | paper                      | here                                                   |
//! | `track_pages_tasks`        | [`terms::Terms`], one for each registered program      |
//! | シグナル, its `siginfo_t`   | a queued real-time signal; its value is the page count |
//! | システムコール              | [`wire::Request::Fetch`]                               |
//! | 構造体の配列                | [`list::Page`]s, by [`list::Window`]                   |

pub mod list;
pub mod terms;
pub mod wire;

/// Path of the tracker's socket.
pub const SOCKET: &str = "/run/masu/track.sock";

/// Environment variable that names another path.
pub const SOCKET_VARIABLE: &str = "MASU_TRACK";

/// Longest path of a socket, including the terminating zero: unix(7).
pub const SOCKET_PATH_BYTES: usize = 108;
