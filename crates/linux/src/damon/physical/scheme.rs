//! One scheme: which pages of the physical memory, what to do with them, how much of it and how often.

use std::ops::RangeInclusive;
use std::time::Duration;

use rustix::io::Errno;
use units::Bytes;

use super::Looks;
use crate::{At, Error};

/// What is done with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Nothing: they are counted. What the filters let through is counted apart since Linux 6.14.
    Stat,
    /// Reclaimed. Without a filter for young pages, those that were touched since the kernel last looked are passed over.
    PageOut,
    /// Touched, as if a program had: to the active list. Up to Linux 6.19 it takes two passes.
    LruPrio,
    /// To the inactive list; where pages are aged by generations, to the oldest.
    LruDeprio,
}

impl Action {
    /// All of them.
    pub const ALL: [Action; 4] = [Action::Stat, Action::PageOut, Action::LruPrio, Action::LruDeprio];

    /// The kernel's word.
    pub const fn name(self) -> &'static str {
        match self {
            Action::Stat => "stat",
            Action::PageOut => "pageout",
            Action::LruPrio => "lru_prio",
            Action::LruDeprio => "lru_deprio",
        }
    }
}

/// By what a page can be told from others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Filter {
    /// Memory without a file. Shared memory and tmpfs do not count as such (Linux 6.3).
    Anon,
    /// In no page table (Linux 6.15).
    Unmapped,
    /// Touched since this was last asked; asking clears the accessed bits (Linux 6.10).
    Young,
    /// On the active list (Linux 6.15).
    Active,
    /// Charged to this memory control group, not to those below it: its path from where the controller is mounted, such
    /// as `/backup` (Linux 6.3).
    Group(String),
}

impl Filter {
    /// Its kind, which is what a kernel knows or does not.
    pub const fn kind(&self) -> FilterKind {
        match self {
            Filter::Anon => FilterKind::Anon,
            Filter::Unmapped => FilterKind::Unmapped,
            Filter::Young => FilterKind::Young,
            Filter::Active => FilterKind::Active,
            Filter::Group(_) => FilterKind::Group,
        }
    }
}

/// [`Filter`] without what a particular one holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FilterKind {
    /// [`Filter::Anon`].
    Anon,
    /// [`Filter::Unmapped`].
    Unmapped,
    /// [`Filter::Young`].
    Young,
    /// [`Filter::Active`].
    Active,
    /// [`Filter::Group`].
    Group,
}

impl FilterKind {
    /// All of them.
    pub const ALL: [FilterKind; 5] =
        [FilterKind::Anon, FilterKind::Unmapped, FilterKind::Young, FilterKind::Active, FilterKind::Group];

    /// The kernel's word.
    pub const fn name(self) -> &'static str {
        match self {
            FilterKind::Anon => "anon",
            FilterKind::Unmapped => "unmapped",
            FilterKind::Young => "young",
            FilterKind::Active => "active",
            FilterKind::Group => "memcg",
        }
    }
}

/// A rule about pages. The first whose filter fits a page decides. Where none does, the last rule decides: if it is one that
/// rejects, the page is let through, and if it is one that allows, kept out (Linux 6.14 let such a page through in any case).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterRule {
    /// Which pages.
    pub filter: Filter,
    /// The rule is for pages that are so, or for those that are not.
    pub matching: bool,
    /// They are let through, or kept out. To allow takes Linux 6.14.
    pub allow: bool,
}

impl FilterRule {
    /// Keeps out pages that are so.
    pub const fn reject(filter: Filter) -> FilterRule {
        FilterRule { filter, matching: true, allow: false }
    }

    /// Keeps out all pages that are not so: the others go on to the next rule.
    pub const fn only(filter: Filter) -> FilterRule {
        FilterRule { filter, matching: false, allow: false }
    }

    /// Lets pages through that are so, whatever later rules say.
    pub const fn allow(filter: Filter) -> FilterRule {
        FilterRule { filter, matching: true, allow: true }
    }
}

/// How much may be done in an interval. The memory has its turn by rising address, and the next interval goes on where the last
/// one stopped.
///
/// Kernels count the first interval from the first application on, and let that one do all it finds (6.12.117, measured: 1.5 GiB
/// under a quota of 8 MiB). See [`Scheme::bounded_from_the_start`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Bytes of the regions that are tried, with those pages that the filters keep out. `None` is without a bound.
    pub bytes: Option<Bytes>,
    /// Time of the kernel's thread, in whole milliseconds. `None` is without a bound.
    pub time: Option<Duration>,
    /// The interval, in whole milliseconds.
    pub reset_interval: Duration,
}

/// What to do with which pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// What.
    pub action: Action,
    /// With which pages of those in regions of this access.
    pub filters: Vec<FilterRule>,
    /// In how many looks of an aggregation interval the region was touched.
    pub nr_accesses: RangeInclusive<u32>,
    /// For how many aggregation intervals it has been about like this.
    pub age: RangeInclusive<u32>,
    /// How much of it.
    pub quota: Option<Quota>,
    /// How often; `None` after each aggregation interval. Anything else takes Linux 6.7.
    pub apply_interval: Option<Duration>,
}

/// A write to a file of a scheme.
pub(super) struct SchemeWrite {
    /// Below the scheme's directory.
    pub(super) name: String,
    pub(super) value: String,
    /// What this kernel lacks when it refuses the write.
    pub(super) lack: Lack,
}

/// What a refused write says about the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// Nothing in particular.
    Nothing,
    /// It has no such action.
    Action(Action),
    /// It has no filters.
    Filters,
    /// It has no such filter.
    Filter(FilterKind),
    /// Its filters cannot allow.
    Allowing,
    /// It applies schemes after aggregation intervals only.
    ApplyInterval,
}

impl Lack {
    /// The refusal in words; `None` when it says nothing about the kernel.
    pub(super) fn error(self, errno: Errno) -> Option<Error> {
        if !matches!(errno, Errno::INVAL | Errno::NOENT) {
            return None;
        }
        let (operation, object) = match self {
            Lack::Nothing => return None,
            Lack::Action(action) => {
                (format!("apply {:?} to", action.name()), "pages with DAMON, which does not know it here")
            }
            Lack::Filters => ("filter".to_owned(), "pages with DAMON, which has no filters here"),
            Lack::Filter(kind) => {
                (format!("filter by {:?}", kind.name()), "pages with DAMON, which does not know it here")
            }
            Lack::Allowing => ("allow".to_owned(), "pages with filters of DAMON, which can only reject here"),
            Lack::ApplyInterval => ("apply".to_owned(), "a scheme of DAMON at an interval of its own here"),
        };
        Some(Error::Unsupported(At { operation, object: object.to_owned(), errno }))
    }
}

impl Scheme {
    /// The same, such that its quota holds from the start: only for regions of an age at which the kernel keeps to it. Without
    /// a quota nothing changes.
    #[must_use]
    pub fn bounded_from_the_start(mut self, looks: Looks) -> Scheme {
        if let Some(quota) = self.quota {
            let first = self.apply_interval.unwrap_or(looks.aggregation_interval);
            let until = (first + quota.reset_interval).as_micros();
            let intervals = until.div_ceil(looks.aggregation_interval.as_micros().max(1)).saturating_add(1);
            let youngest = u32::try_from(intervals).unwrap_or(u32::MAX);
            let (start, end) = (youngest.max(*self.age.start()), youngest.max(*self.age.end()));
            self.age = start..=end;
        }
        self
    }

    /// Refuses what the kernel would take for something else, or refuse. `sample` is the shortest interval that it can keep.
    pub(super) fn check(&self, sample: Duration) -> Result<(), Error> {
        let senseless = |what: String| {
            let object = format!("{:?} with DAMON {what}", self.action.name());
            Err(Error::Other(At { operation: "apply".to_owned(), object, errno: Errno::INVAL }))
        };
        if self.nr_accesses.is_empty() || self.age.is_empty() {
            return senseless(format!("for {:?} accesses at the age of {:?}", self.nr_accesses, self.age));
        }
        if let Some(interval) = self.apply_interval
            && interval < sample
        {
            return senseless(format!("every {interval:?}, with looks every {sample:?}"));
        }
        if let Some(Quota { bytes, time, reset_interval }) = self.quota {
            // The kernel takes zero for no bound.
            let none = bytes == Some(Bytes(0)) || time.is_some_and(|time| time.as_millis() == 0);
            if none || reset_interval.as_millis() == 0 {
                return senseless(format!("for {bytes:?} and {time:?} every {reset_interval:?}"));
            }
        }
        for rule in &self.filters {
            if let Filter::Group(path) = &rule.filter
                && (!path.starts_with('/') || path.contains('\n'))
            {
                return senseless(format!("by control group {path:?}, expected a path from the mount point on"));
            }
        }
        Ok(())
    }

    /// All that is written to make it, in order.
    pub(super) fn writes(&self) -> Vec<SchemeWrite> {
        let mut writes = Vec::new();
        let mut add = |name: &str, value: String, lack| {
            writes.push(SchemeWrite { name: name.to_owned(), value, lack });
        };
        add("action", self.action.name().to_owned(), Lack::Action(self.action));
        for (name, value) in [
            ("sz/min", 0),
            ("sz/max", u64::MAX),
            ("nr_accesses/min", u64::from(*self.nr_accesses.start())),
            ("nr_accesses/max", u64::from(*self.nr_accesses.end())),
            ("age/min", u64::from(*self.age.start())),
            ("age/max", u64::from(*self.age.end())),
        ] {
            add(&format!("access_pattern/{name}"), value.to_string(), Lack::Nothing);
        }
        if let Some(interval) = self.apply_interval {
            add("apply_interval_us", interval.as_micros().to_string(), Lack::ApplyInterval);
        }
        if let Some(Quota { bytes, time, reset_interval }) = self.quota {
            add("quotas/ms", time.unwrap_or_default().as_millis().to_string(), Lack::Nothing);
            add("quotas/bytes", bytes.unwrap_or(Bytes(0)).0.to_string(), Lack::Nothing);
            add("quotas/reset_interval_ms", reset_interval.as_millis().to_string(), Lack::Nothing);
        }
        if !self.filters.is_empty() {
            add("filters/nr_filters", self.filters.len().to_string(), Lack::Filters);
        }
        for (number, rule) in self.filters.iter().enumerate() {
            let of = |name: &str| format!("filters/{number}/{name}");
            let kind = rule.filter.kind();
            add(&of("type"), kind.name().to_owned(), Lack::Filter(kind));
            if let Filter::Group(path) = &rule.filter {
                add(&of("memcg_path"), path.clone(), Lack::Nothing);
            }
            add(&of("matching"), yes_or_no(rule.matching).to_owned(), Lack::Nothing);
            if rule.allow {
                add(&of("allow"), yes_or_no(true).to_owned(), Lack::Allowing);
            }
        }
        writes
    }
}

const fn yes_or_no(it_is: bool) -> &'static str {
    if it_is { "Y" } else { "N" }
}
