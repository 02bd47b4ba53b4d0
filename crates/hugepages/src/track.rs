//! Programs with a say: HPS's tracker, for programs that register themselves (Shimizu and Yamada, sections 4.1, 4.2 and 5.1).
//!
//! A program says over a socket what it wants to be watched for. Each has rounds of its own, as long as it asked: one clear,
//! looks at doubling ages, then the list of its active pages (`list`). When those are as many as it named it gets a signal
//! (`notice`), fetches the list, and says what is to become of its windows; or it leaves that to the rule. What is promoted
//! then is what limits on huge pages, of a program and of a user, leave room for, by benefit (`share`). `session` is what a
//! client may say; `watched` one program with its rounds; `serve` the loop over all of them.
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
