//! Reasons for which a window that deserves a huge page does not get one. Pure.

use linux::symbol;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Reasons, as counted and printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// A file's pages or shared memory.
    NotAnonymous,
    /// The window reaches over the edge of its mapping, or into another with other permissions.
    CrossesMappings,
    /// The program used MADV_NOHUGEPAGE there, or the kernel can never make this mapping huge.
    Forbidden,
    /// A fork, or KSM, shares pages of it: a huge page would be a copy.
    Shared,
    /// Others split it soon after each promotion, as a fork does: it waits, longer each time.
    SplitAgain,
    /// Its mapping is offered to KSM, and pages of it are shared.
    Merged,
    /// Part of it is in swap.
    Swapped,
    /// It has guard pages.
    GuardPages,
    /// None of its pages is in memory any more.
    NotResident,
    /// The budget is spent.
    OverBudget,
    /// The program freed pages of it lazily (MADV_FREE). The budget would do for the missing pages, but not for those too,
    /// which reclaim could no longer take.
    LazilyFreed,
    /// The limit on huge pages of the program, its user or the host is reached by windows that save more.
    OverLimit,
    /// Its memory cgroup has no headroom for a huge page.
    CgroupLimit,
    /// ENOMEM: the kernel found no huge page.
    NoHugePage,
    /// EAGAIN: a page was in use for a moment.
    TryAgain,
    /// EAGAIN at several tries, rounds apart: pages of it have other users each time.
    Pinned,
    /// Locked in memory (mlock): the kernel neither probes nor splits it.
    Locked,
    /// userfaultfd reports faults there: the kernel fills in no page.
    UserFaults,
    /// EBUSY, or a huge page that did not split: a page has other users.
    Busy,
    /// EINVAL.
    Invalid,
    /// The call succeeded, and the window is not huge.
    NotHugeAfterwards,
    /// EPERM: the right to advise on the memory of others is missing, as in a user namespace.
    NotPermitted,
    /// The program moves the window (mremap) each time that it is to be split.
    Moved,
    /// Any other answer.
    Other,
}

impl Refusal {
    /// Reason for the kernel's answer to a collapse.
    pub fn of_collapse(errno: Errno) -> Refusal {
        match errno {
            Errno::AGAIN => Refusal::TryAgain,
            Errno::BUSY => Refusal::Busy,
            Errno::NOMEM => Refusal::NoHugePage,
            Errno::INVAL => Refusal::Invalid,
            Errno::PERM => Refusal::NotPermitted,
            _ => Refusal::Other,
        }
    }

    /// Name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::NotAnonymous => "not-anonymous",
            Refusal::CrossesMappings => "crosses-mappings",
            Refusal::Forbidden => "forbidden",
            Refusal::Shared => "shared",
            Refusal::SplitAgain => "split-again",
            Refusal::Merged => "merged",
            Refusal::Swapped => "swapped",
            Refusal::GuardPages => "guard-pages",
            Refusal::NotResident => "not-resident",
            Refusal::OverBudget => "over-budget",
            Refusal::LazilyFreed => "lazily-freed",
            Refusal::OverLimit => "over-limit",
            Refusal::CgroupLimit => "cgroup-limit",
            Refusal::NoHugePage => "no-huge-page",
            Refusal::TryAgain => "try-again",
            Refusal::Pinned => "pinned",
            Refusal::Locked => "locked",
            Refusal::UserFaults => "user-faults",
            Refusal::Busy => "busy",
            Refusal::Invalid => "invalid",
            Refusal::NotHugeAfterwards => "not-huge-afterwards",
            Refusal::NotPermitted => "not-permitted",
            Refusal::Moved => "moved",
            Refusal::Other => "other",
        }
    }

    /// One sentence for people.
    pub fn explanation(self) -> String {
        match self {
            Refusal::NotAnonymous => "file pages or shared memory, which masu leaves alone".to_owned(),
            Refusal::CrossesMappings => "the mapping does not cover the whole 2 MiB window".to_owned(),
            Refusal::Forbidden => "the program used MADV_NOHUGEPAGE there".to_owned(),
            Refusal::Shared => "a forked child, or KSM, shares pages of it".to_owned(),
            Refusal::SplitAgain => {
                "split soon after its promotion, as by a fork, or given back and filled again".to_owned()
            }
            Refusal::Merged => "KSM merges pages there (MADV_MERGEABLE)".to_owned(),
            Refusal::Swapped => "part of it is in swap".to_owned(),
            Refusal::GuardPages => "it has guard pages".to_owned(),
            Refusal::NotResident => "none of its pages is in memory any more".to_owned(),
            Refusal::OverBudget => "--max-extra-rss is spent".to_owned(),
            Refusal::LazilyFreed => {
                "freed lazily in part (MADV_FREE): that part would count as added memory, beyond its limit".to_owned()
            }
            Refusal::OverLimit => "a limit on huge pages is reached by windows that save more".to_owned(),
            Refusal::CgroupLimit => "no headroom in the program's memory cgroup".to_owned(),
            Refusal::NoHugePage => format!("the kernel found no free huge page ({})", symbol(Errno::NOMEM)),
            Refusal::TryAgain => {
                format!("a page was in use at the last try, for a moment or pinned ({})", symbol(Errno::AGAIN))
            }
            Refusal::Pinned => {
                format!("pages of it were in use at each try: pinned buffers, direct I/O ({})", symbol(Errno::AGAIN))
            }
            Refusal::Locked => "locked in memory (mlock): the kernel splits no locked huge page".to_owned(),
            Refusal::UserFaults => "userfaultfd reports faults there".to_owned(),
            Refusal::Busy => "its pages have other users for now: pinned buffers, direct I/O, vmsplice".to_owned(),
            Refusal::Invalid => format!("the kernel does not allow it there ({})", symbol(Errno::INVAL)),
            Refusal::NotHugeAfterwards => "the kernel reported success, and the window is not huge".to_owned(),
            Refusal::NotPermitted => {
                format!("masu lacks CAP_SYS_NICE of the host, as in a user namespace ({})", symbol(Errno::PERM))
            }
            Refusal::Moved => "the program moves it (mremap) again and again".to_owned(),
            Refusal::Other => "another answer of the kernel".to_owned(),
        }
    }

    /// Event that a window under `attach` waits for, if the reason passes by itself.
    pub fn wait(self) -> Option<&'static str> {
        match self {
            Refusal::Shared => Some("waits for the next pause between forks"),
            Refusal::SplitAgain => Some("waits longer each time"),
            _ => None,
        }
    }

    /// Refined reason, after `tries` tries in different rounds, by the properties of the mapping.
    ///
    /// EBUSY of a collapse is a failed charge to the memory cgroup, or a missing page under userfaultfd
    /// (`madvise_collapse_errno` in mm/khugepaged.c).
    #[must_use]
    pub fn refined(self, traits: Traits, tries: u32) -> Refusal {
        match self {
            Refusal::Invalid if traits.forbidden => Refusal::Forbidden,
            Refusal::Invalid | Refusal::Busy if traits.user_faults => Refusal::UserFaults,
            Refusal::Busy => Refusal::CgroupLimit,
            Refusal::Shared if traits.mergeable => Refusal::Merged,
            Refusal::TryAgain if tries >= PINNED_AFTER => Refusal::Pinned,
            other => other,
        }
    }

    /// Whether the reason may pass while masu waits some seconds.
    pub fn may_pass(self) -> bool {
        matches!(self, Refusal::Shared | Refusal::TryAgain | Refusal::CgroupLimit | Refusal::NoHugePage)
    }

    /// Rounds to wait before the window is tried again, after `refusals` refusals; `None` for a permanent one.
    pub fn retry_after_rounds(self, refusals: u32) -> Option<u32> {
        match self {
            // Decided anew in each round.
            Refusal::NotAnonymous
            | Refusal::CrossesMappings
            | Refusal::OverBudget
            | Refusal::LazilyFreed
            | Refusal::OverLimit
            | Refusal::SplitAgain => Some(0),
            Refusal::Shared => Some(1), // a look at the window, without a call for advice
            Refusal::Forbidden | Refusal::GuardPages => None,
            // EINVAL is temporary too: on some kernels (6.12) it also means that no page of the window is writable,
            // as after a fork that has ended, until the program writes to one of them.
            _ => Some(1 << refusals.min(6)),
        }
    }
}

/// Tries that found a page in use, after which it counts as pinned.
const PINNED_AFTER: u32 = 3;

/// Properties of the mapping around a window (`VmFlags:` of smaps).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// MADV_NOHUGEPAGE.
    pub forbidden: bool,
    /// Locked by mlock, mlock2 or mlockall.
    pub locked: bool,
    /// Registered with userfaultfd.
    pub user_faults: bool,
    /// Offered to KSM.
    pub mergeable: bool,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_refusal_is_retried_at_growing_intervals_and_a_permanent_one_never() {
        assert_eq!([1, 2, 3].map(|n| Refusal::TryAgain.retry_after_rounds(n)), [Some(2), Some(4), Some(8)]);
        assert_eq!(Refusal::TryAgain.retry_after_rounds(1000), Some(64));
        assert_eq!(Refusal::Forbidden.retry_after_rounds(1), None);
    }

    #[test]
    fn a_reason_is_refined_by_the_mapping_and_by_the_number_of_tries() {
        let none = Traits::default();
        assert_eq!(Refusal::Busy.refined(none, 1), Refusal::CgroupLimit);
        assert_eq!(Refusal::Busy.refined(Traits { user_faults: true, ..none }, 1), Refusal::UserFaults);
        assert_eq!(Refusal::Invalid.refined(Traits { forbidden: true, ..none }, 1), Refusal::Forbidden);
        assert_eq!(Refusal::Invalid.refined(none, 9), Refusal::Invalid);
        assert_eq!(
            [1, 2, 3].map(|n| Refusal::TryAgain.refined(none, n)),
            [Refusal::TryAgain, Refusal::TryAgain, Refusal::Pinned]
        );
        let mergeable = Traits { mergeable: true, ..none };
        assert_eq!(Refusal::Shared.refined(mergeable, 1), Refusal::Merged);
        assert!(Refusal::Shared.may_pass() && !Refusal::Merged.may_pass() && !Refusal::Pinned.may_pass());
    }

    #[test]
    fn a_missing_right_is_a_reason_of_its_own() {
        assert_eq!(Refusal::of_collapse(Errno::PERM), Refusal::NotPermitted);
        assert!(Refusal::NotPermitted.explanation().contains("CAP_SYS_NICE"));
    }

    #[test]
    fn only_a_reason_that_passes_by_itself_has_a_wait_and_no_explanation_promises_one() {
        let waits: Vec<_> = [Refusal::Shared, Refusal::SplitAgain, Refusal::Merged, Refusal::Pinned, Refusal::Locked]
            .map(|why| (why.wait().is_some(), why.explanation().contains("wait")))
            .into();
        assert_eq!(waits, [(true, false), (true, false), (false, false), (false, false), (false, false)]);
    }

    #[test]
    fn an_invalid_window_may_be_one_that_a_fork_left_read_only() {
        assert_eq!(Refusal::Invalid.retry_after_rounds(1), Some(2));
    }
}
