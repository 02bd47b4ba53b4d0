//! Earlier counts of one process: windows that were huge, and the answers for windows that are small.
//!
//! Frames tell that a window was huge only while pages are where the huge page had them. After a fork the kernel copies
//! each page that is written, one by one and to any place; so an earlier count is the better witness. A child begins
//! with the memory of its parent, and hence with the parent's history; a child that still has a window huge shows that
//! the parent had it.
//!
//! A window that the program gave back whole and filled again between two counts looks like one that was split. The
//! kernel counts the splits of the host (`thp_split_pmd`), and such a window adds none: no more windows of the last count
//! were split than mappings on the host since.

use std::collections::{BTreeMap, BTreeSet};

use linux::maps::Mapping;
use linux::probe::Known;
use units::{Address, Window};

use super::{Counted, Superpages};

/// Places that the kernel chooses anew at each exec: the end of the first stack, and the vDSO. A forked child has those
/// of its parent.
type Space = (Option<Address>, Option<Address>);

/// Windows of small pages: number of resident pages, and whether they were huge once. The answer stays valid while
/// the number does.
pub type Judged = BTreeMap<Window, (u64, Option<bool>)>;

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub struct History {
    space: Option<Space>,
    /// Huge at an earlier count, and not empty since.
    huge: BTreeSet<Window>,
    /// Of these, the ones that were small at the last count already.
    small: BTreeSet<Window>,
    pub judged: Judged,
    /// Splits of huge mappings on the host before the last count; `None` if the kernel does not count them.
    splits: Option<u64>,
    /// Splits since, less those that explain a window.
    splits_left: Option<u64>,
}

impl History {
    /// Begins a count; `splits` is the host's present number. Forgets all that is of another address space (exec).
    pub fn begin(&mut self, mappings: &[Mapping], splits: Option<u64>) {
        let now = space(mappings);
        if self.space.replace(now).is_some_and(|before| before != now) {
            *self = History { space: Some(now), ..History::default() };
        }
        self.splits_left = splits.zip(self.splits).map(|(now, before)| now.saturating_sub(before));
        self.splits = splits;
    }

    /// Whether a window that has pages and is not huge now was so at an earlier count, and has had its pages since. Asked
    /// once for each window.
    pub fn was_huge(&mut self, window: Window) -> bool {
        let is_new = !self.small.contains(&window);
        let is_split = match &mut self.splits_left {
            Some(left) if is_new && self.huge.contains(&window) => {
                let is_split = *left > 0;
                *left = left.saturating_sub(1);
                is_split
            }
            _ => true,
        };
        is_split && self.huge.contains(&window)
    }

    /// Ends a count that has found these windows: huge now, and small and huge before.
    pub fn end(&mut self, huge: BTreeSet<Window>, small: BTreeSet<Window>, judged: Judged) {
        (self.huge, self.small, self.judged) = (&huge | &small, small, judged);
    }

    /// Learns from the first count of a child, which follows its fork: what is huge there was huge here. Windows that
    /// are empty here are dropped by the next count.
    /// Returns the number of windows that this count did not know.
    pub fn learn(&mut self, child: &History) -> u64 {
        let before = self.huge.len();
        if self.space.is_some() && self.space == child.space {
            // They may have been split before the last count.
            self.small.extend(child.huge.difference(&self.huge));
            self.huge.extend(&child.huge);
        }
        (self.huge.len() - before) as u64
    }
}

impl Counted {
    /// Moves `windows` from failed to downgraded: they were huge before this count, as is known since.
    pub fn were_huge(&mut self, windows: u64) {
        let mut left = windows;
        for superpages in self.by_kind.iter_mut().map(|of| &mut of.superpages) {
            left -= superpages.were_huge(left);
        }
        self.total.were_huge(windows - left);
    }
}

impl Superpages {
    /// Moves up to `windows` from failed to downgraded, and returns their number.
    fn were_huge(&mut self, windows: u64) -> u64 {
        let (Known::Value(failed), Known::Value(downgraded)) = (&mut self.failed_windows, &mut self.downgraded_windows)
        else {
            return 0;
        };
        let moved = windows.min(*failed);
        (*failed, *downgraded) = (*failed - moved, *downgraded + moved);
        moved
    }
}

fn space(mappings: &[Mapping]) -> Space {
    let named = |name: &str| mappings.iter().find(|mapping| mapping.path == name);
    (named("[stack]").map(|stack| stack.range.end()), named("[vdso]").map(|vdso| vdso.range.start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mappings(vdso: u64) -> Vec<Mapping> {
        let text = format!(
            "7f0000000000-7f0000800000 rw-p 00000000 00:00 0 \n\
             7ffd00000000-7ffd00400000 rw-p 00000000 00:00 0 [stack]\n\
             {vdso:x}-7ffd00602000 r-xp 00000000 00:00 0 [vdso]\n"
        );
        linux::maps::parse(&text, "maps").unwrap()
    }

    fn counted(vdso: u64, huge: &[u64]) -> History {
        let mut history = History::default();
        history.begin(&mappings(vdso), Some(5));
        history.end(huge.iter().map(|number| Window(*number)).collect(), BTreeSet::new(), Judged::new());
        history
    }

    #[test]
    fn a_window_is_remembered_until_it_is_empty_or_the_program_another() {
        let mut history = counted(0x7ffd_0060_0000, &[7]);
        history.begin(&mappings(0x7ffd_0060_0000), Some(7));
        assert!(history.was_huge(Window(7)) && !history.was_huge(Window(8)));
        history.end(BTreeSet::new(), BTreeSet::new(), Judged::new());
        assert!(!history.was_huge(Window(7)), "empty at a count");
        let mut history = counted(0x7ffd_0060_0000, &[7]);
        history.begin(&mappings(0x7ffd_0060_1000), Some(7));
        assert!(!history.was_huge(Window(7)), "exec");
    }

    #[test]
    fn no_more_windows_were_split_since_the_last_count_than_mappings_on_the_host() {
        let mut history = counted(0x7ffd_0060_0000, &[7, 8, 9]);
        history.begin(&mappings(0x7ffd_0060_0000), Some(6));
        assert_eq!([6, 7, 8, 9].map(|window| history.was_huge(Window(window))), [false, true, false, false]);
        history.end([Window(8)].into(), [Window(7)].into(), Judged::new());
        history.begin(&mappings(0x7ffd_0060_0000), Some(6));
        assert_eq!(
            [7, 8].map(|window| history.was_huge(Window(window))),
            [true, false],
            "7 was small at the last count"
        );
        history.end([Window(8)].into(), BTreeSet::new(), Judged::new());
        history.begin(&mappings(0x7ffd_0060_0000), None);
        assert!(history.was_huge(Window(8)), "not counted by this kernel");
    }

    #[test]
    fn a_child_has_its_parents_history_and_the_parent_learns_from_its_first_count() {
        let parent = counted(0x7ffd_0060_0000, &[7]);
        let mut child = parent.clone();
        child.begin(&mappings(0x7ffd_0060_0000), Some(7));
        assert!(child.was_huge(Window(7)));
        child.end([Window(7), Window(9)].into(), BTreeSet::new(), Judged::new());
        let mut parent = parent;
        assert_eq!(parent.learn(&child), 1);
        parent.begin(&mappings(0x7ffd_0060_0000), Some(5));
        assert!(parent.was_huge(Window(9)));
    }

    #[test]
    fn a_child_that_called_exec_shares_nothing_with_its_parent() {
        let mut parent = counted(0x7ffd_0060_0000, &[7]);
        let mut child = parent.clone();
        child.begin(&mappings(0x7ffd_0060_1000), Some(7));
        assert!(!child.was_huge(Window(7)));
        child.end([Window(9)].into(), BTreeSet::new(), Judged::new());
        assert_eq!(parent.learn(&child), 0);
        assert!(!parent.was_huge(Window(9)));
    }
}
