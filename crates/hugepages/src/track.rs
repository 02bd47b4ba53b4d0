//! Cooperating programs: HPS's tracker, for programs that register themselves (Shimizu and Yamada, sections 4.1, 4.2
//! and 5.1).
//!
//! A program sends its session parameters over a socket. Each program has its own rounds, of the requested length:
//! one clear, scans at doubling ages, then the list of its active pages (`list`). At the requested number of active
//! pages it gets a signal (`notice`), fetches the list, and sends a verdict on each window; or it leaves that to the
//! rule. Windows are then promoted by benefit, within the limits on huge pages of a program and of a user (`share`).
//! `session` checks a client's messages; `watched` is one program with its rounds; `serve` the loop over all of them.
//!
//! | paper (5.1.1, 5.1.2)            | here                                                  |
//! | アクセストラッカー               | [`serve::serve`]                                      |
//! | `track_pages_tasks`             | [`watched::Watched`]                                  |
//! | 閾値 of active pages             | `Terms::threshold_pages`                              |
//! | 一定時間休止 (figure 7)          | `Terms::every_ms`, and [`schedule::rest`]             |
//! | 公平な割り当て (3.2)             | [`share::share`]                                      |

pub mod admission;
pub mod list;
pub mod notice;
pub mod schedule;
pub mod serve;
pub mod session;
pub mod share;
pub mod watched;
