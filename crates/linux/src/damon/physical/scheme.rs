//! One scheme: selected pages of the physical memory, an action on them, its quota and its interval.

use std::ops::RangeInclusive;
use std::time::Duration;

use rustix::io::Errno;
use units::Bytes;

use super::Looks;
use crate::{At, Error};

/// Action on pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Counts pages only. Pages that the filters let through are counted separately since Linux 6.14.
    Stat,
    /// Reclaims pages. Without a filter for young pages, pages touched since the kernel's last check are skipped.
    PageOut,
    /// Marks pages as accessed, as a program would: to the active list. Up to Linux 6.19 it takes two passes.
    LruPrio,
    /// Moves pages to the inactive list; with multi-generational LRU, to the oldest generation.
    LruDeprio,
}

impl Action {
    /// All actions.
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

/// Property of a page to filter by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Filter {
    /// Anonymous memory. Shared memory and tmpfs do not count as such (Linux 6.3).
    Anon,
    /// In no page table (Linux 6.15).
    Unmapped,
    /// Touched since the last check; checking clears the accessed bits (Linux 6.10).
    Young,
    /// On the active list (Linux 6.15).
    Active,
    /// Charged to this memory control group, descendants excluded: its path from the controller's mount point, such as
    /// `/backup` (Linux 6.3).
    Group(String),
}

impl Filter {
    /// Kind of the filter, which a kernel supports or not.
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

/// [`Filter`] without its data.
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
    /// All kinds.
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

/// A rule about pages. The first rule whose filter fits a page decides. If none does, the last rule decides: a
/// rejecting rule lets the page through, an allowing rule keeps it out (Linux 6.14 let such a page through in any
/// case).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterRule {
    /// Filter of the rule.
    pub filter: Filter,
    /// True for pages that match the filter, false for the others.
    pub matching: bool,
    /// Lets the pages through (Linux 6.14), or keeps them out.
    pub allow: bool,
}

impl FilterRule {
    /// Keeps out pages that match.
    pub const fn reject(filter: Filter) -> FilterRule {
        FilterRule { filter, matching: true, allow: false }
    }

    /// Keeps out all pages that do not match; the others go on to the next rule.
    pub const fn only(filter: Filter) -> FilterRule {
        FilterRule { filter, matching: false, allow: false }
    }

    /// Lets matching pages through, regardless of later rules.
    pub const fn allow(filter: Filter) -> FilterRule {
        FilterRule { filter, matching: true, allow: true }
    }
}

/// Bound on the work in an interval. Memory is visited by rising address; the next interval continues at the last
/// position.
///
/// Kernels count the first interval from the first application on, and do not bound that application (6.12.117,
/// measured: 1.5 GiB under a quota of 8 MiB). See [`Scheme::bounded_from_the_start`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Bytes of the tried regions, filtered-out pages included. `None` is without a bound.
    pub bytes: Option<Bytes>,
    /// Time of the kernel's thread, in whole milliseconds. `None` is without a bound.
    pub time: Option<Duration>,
    /// The interval, in whole milliseconds.
    pub reset_interval: Duration,
}

/// An action with its filters, access pattern, quota and interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// Action on the selected pages.
    pub action: Action,
    /// Rules that select pages within the matching regions.
    pub filters: Vec<FilterRule>,
    /// Number of samples in an aggregation interval that found the region touched.
    pub nr_accesses: RangeInclusive<u32>,
    /// Aggregation intervals since the region's access last changed much.
    pub age: RangeInclusive<u32>,
    /// Bound on the work; `None` is without a bound.
    pub quota: Option<Quota>,
    /// Interval between applications; `None` after each aggregation interval. Any other value needs Linux 6.7.
    pub apply_interval: Option<Duration>,
}

/// A write to a file of a scheme.
pub(super) struct SchemeWrite {
    /// Path below the scheme's directory.
    pub(super) name: String,
    pub(super) value: String,
    /// Capability that this kernel lacks when it refuses the write.
    pub(super) lack: Lack,
}

/// Kernel capability that a refused write disproves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// None in particular.
    Nothing,
    /// This action.
    Action(Action),
    /// Filters at all.
    Filters,
    /// This filter.
    Filter(FilterKind),
    /// Filters that allow.
    Allowing,
    /// Intervals other than the aggregation interval.
    ApplyInterval,
}

impl Lack {
    /// The error for a refused write; `None` when the refusal says nothing about the kernel.
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
    /// The same scheme, with its quota valid from the start: restricted to regions of an age at which the kernel
    /// applies the quota. Without a quota nothing changes.
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

    /// Refuses values that the kernel would misread or refuse. `sample` is the shortest interval that the kernel can
    /// keep.
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
            // The kernel takes zero as "no bound".
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

    /// All writes that create the scheme, in order.
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
