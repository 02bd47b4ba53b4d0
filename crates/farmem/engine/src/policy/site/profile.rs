//! Saved profile of a site, for the program's next run.
//!
//! Saved are the properties of the site itself: its unit with the samples behind it, its step, the length of its lines,
//! and whether its pages pass. Not saved are the properties of the run: the positions of its streams, the lengths of
//! their windows, the shortage of memory.
//!
//! A profile is a hint. Any 24 bytes are valid, wrong ones cost only time, and earlier samples never weigh more than
//! half of the full weight, so that a changed site learns anew in a few dozen faults.

use super::super::density::Density;
use super::super::stream::{self, Streams};
use super::super::{MAX_UNIT_LOG2, spread};
use super::ahead::MAX_STEPS_LOG2;
use super::{SITES, Site, Sites, WAYS};
use crate::cast::{fits, index};

/// Length of a profile, in bytes.
pub const PROFILE_BYTES: usize = 24;

/// Words of a site with its profile.
pub const INITIAL_PROFILE_WORDS: usize = 1 + PROFILE_BYTES / 8;

/// Requests of a site before it is judged whether its pages pass.
pub(super) const JUDGED_REQUESTS: u16 = 16;

/// Saved profile of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteProfile {
    /// As in [`Site`]: 1 + log2 of its unit; 0: none.
    unit: u8,
    /// Used share of each level, in parts of 256, and its number of samples.
    used: [u8; 8],
    samples: [u8; 8],
    /// Pages; 0: none that is trusted.
    stride: i16,
    depth: u8,
    line: u16,
    probation: bool,
}

/// Site with its profile from an earlier run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitialProfile {
    /// The instruction.
    pub site: u64,
    /// Saved profile.
    pub profile: SiteProfile,
}

impl SiteProfile {
    /// Decodes any bytes: values out of bounds are clamped.
    pub fn of(bytes: &[u8; PROFILE_BYTES]) -> SiteProfile {
        let [unit, rest @ ..] = *bytes;
        let (used, rest) = rest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        let (samples, rest) = rest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        let [stride_low, stride_high, depth, line_low, line_high, probation, _] = *rest else {
            return SiteProfile::NONE;
        };
        let far: i16 = fits(stream::NEAR_PAGES);
        SiteProfile {
            unit: unit.min(MAX_UNIT_LOG2 + 1),
            used: *used,
            samples: samples.map(|samples| samples.min(Density::MAX_SAVED)),
            stride: i16::from_le_bytes([stride_low, stride_high]).clamp(-far, far),
            depth: depth.min(MAX_STEPS_LOG2),
            line: u16::from_le_bytes([line_low, line_high]),
            probation: probation == 1,
        }
    }

    const NONE: SiteProfile =
        SiteProfile { unit: 0, used: [0; 8], samples: [0; 8], stride: 0, depth: 0, line: 0, probation: false };

    /// Encodes the profile.
    pub fn bytes(&self) -> [u8; PROFILE_BYTES] {
        let mut bytes = [0; PROFILE_BYTES];
        let parts: [&[u8]; 7] = [
            &[self.unit],
            &self.used,
            &self.samples,
            &self.stride.to_le_bytes(),
            &[self.depth],
            &self.line.to_le_bytes(),
            &[u8::from(self.probation)],
        ];
        for (place, byte) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
            *place = *byte;
        }
        bytes
    }

    /// Profile of a site; `None` when it has learned nothing.
    fn of_site(site: &Site, probation: bool) -> Option<SiteProfile> {
        let (used, samples) = site.density.saved();
        // The program may have written any step, also one that no site has.
        let near = site.streams.stride.unsigned_abs() <= stream::NEAR_PAGES;
        let trusted = near && site.streams.trust >= stream::TRUSTED;
        let learned = samples.iter().any(|samples| *samples > 0) || trusted;
        learned.then_some(SiteProfile {
            unit: site.unit.min(MAX_UNIT_LOG2 + 1),
            used,
            samples,
            stride: if trusted { fits(site.streams.stride) } else { 0 },
            depth: if trusted { site.streams.depth.min(MAX_STEPS_LOG2) } else { 0 },
            line: if trusted { site.streams.line } else { 0 },
            probation,
        })
    }

    fn site(&self, address: u64) -> Site {
        let trust = if self.stride == 0 { 0 } else { stream::TRUSTED };
        let streams =
            Streams { stride: self.stride.into(), trust, depth: self.depth, line: self.line, ..Streams::UNKNOWN };
        Site {
            address,
            streams,
            density: Density::of_saved(self.used, self.samples),
            requests: if self.probation { JUDGED_REQUESTS } else { 0 },
            unit: self.unit,
            ..Site::NONE
        }
    }
}

impl InitialProfile {
    /// Encodes the site for the library.
    pub fn words(&self) -> [u64; INITIAL_PROFILE_WORDS] {
        let mut words = [self.site; INITIAL_PROFILE_WORDS];
        let bytes = self.profile.bytes();
        for (word, bytes) in words[1..].iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words
    }

    /// Decodes the words from masu.
    pub fn of(words: [u64; INITIAL_PROFILE_WORDS]) -> InitialProfile {
        let mut bytes = [0; PROFILE_BYTES];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(&words[1..]) {
            *bytes = word.to_le_bytes();
        }
        InitialProfile { site: words[0], profile: SiteProfile::of(&bytes) }
    }
}

impl Sites {
    /// Profiles worth saving, with each site's faults; in no order.
    pub fn profiles(&self) -> impl Iterator<Item = (u32, InitialProfile)> + '_ {
        self.sites.iter().enumerate().filter(|(_, site)| site.address != 0).filter_map(|(at, site)| {
            let profile = SiteProfile::of_site(site, self.probation(at))?;
            Some((site.faults, InitialProfile { site: site.address, profile }))
        })
    }

    /// Creates a site from its profile. False when it is known already, or all its ways are taken: the first ones stay.
    pub fn preset(&mut self, initial: InitialProfile) -> bool {
        let address = initial.site;
        let first = Sites::set_of(address);
        let ways = first..(first + WAYS).min(SITES);
        if address == 0 || self.sites[ways.clone()].iter().any(|site| site.address == address) {
            return false;
        }
        let Some(place) = self.sites[ways].iter_mut().find(|site| site.address == 0) else { return false };
        *place = initial.profile.site(address);
        true
    }

    /// First way of a site in the table.
    pub(super) fn set_of(address: u64) -> usize {
        index(spread(address) % ((SITES / WAYS) as u64)) * WAYS
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fault, Kind, Limits};
    use super::*;
    use crate::policy::Run;
    use proptest::prelude::*;

    const AREA: Run = Run { first_page: 1 << 20, pages: 1 << 20 };
    const LIMITS: Limits = Limits {
        budget_pages: 4096,
        life_pages: 4096,
        fault_ns: 5000,
        page_ns: 700,
        ahead_page_ns: 0,
        base_log2: 0,
        max_unit_log2: 8,
    };

    fn fault(sites: &mut Sites, site: u64, page: u64) -> u32 {
        let page = AREA.first_page + page;
        let fault = Fault { site, page, area: AREA, distance: 0, mark: 0, kind: Kind::Stored };
        sites.on_fault(&fault, &LIMITS, |_| false).fetch.pages
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_habit_and_a_habit_is_kept_as_it_is(bytes: [u8; PROFILE_BYTES], site: u64) {
            let profile = SiteProfile::of(&bytes);
            prop_assert_eq!(SiteProfile::of(&profile.bytes()), profile);
            prop_assert_eq!(InitialProfile::of(InitialProfile { site, profile }.words()), InitialProfile { site, profile });
        }

        #[test]
        fn any_habit_makes_a_site_that_keeps_its_bounds(
            bytes: [u8; PROFILE_BYTES],
            pages in proptest::collection::vec(0_u64..1 << 20, 1..80),
        ) {
            let mut sites = Box::new(Sites::UNKNOWN);
            let preset = sites.preset(InitialProfile { site: 9, profile: SiteProfile::of(&bytes) });
            prop_assert!(preset);
            for page in pages {
                let fetched = fault(&mut sites, 9, page);
                prop_assert!((1..=256).contains(&fetched));
            }
            for (_, initial) in sites.profiles() {
                prop_assert_eq!(SiteProfile::of(&initial.profile.bytes()), initial.profile);
            }
        }
    }

    #[test]
    fn a_step_that_no_site_has_is_not_saved() {
        let site = |stride| Site {
            address: 1,
            streams: Streams { stride, trust: stream::TRUSTED, ..Streams::UNKNOWN },
            ..Site::NONE
        };
        let stride = |stride| SiteProfile::of_site(&site(stride), false).map(|profile| profile.stride);
        assert_eq!([stride(-4096), stride(4097), stride(i64::MIN)], [Some(-4096), None, None]);
    }

    #[test]
    fn a_site_begins_with_the_unit_that_it_ended_with() {
        let mut sites = Box::new(Sites::UNKNOWN);
        // Pages far from each other: no neighbour is ever used.
        (0..4000).for_each(|n| {
            fault(&mut sites, 7, n * 7919 % (1 << 20));
        });
        let (_, initial) = sites.profiles().next().unwrap();
        let mut again = Box::new(Sites::UNKNOWN);
        assert!(again.preset(initial));
        assert!(!again.preset(initial), "it is there already");
        assert_eq!(again.known().count(), 0, "it has not faulted yet");
        assert_eq!(fault(&mut again, 7, 500), 1);
        assert_eq!(again.known().map(|site| (site.site, site.faults)).collect::<Vec<_>>(), [(7, 1)]);
        assert!(fault(&mut again, 8, 900) > 1, "a site that was not known begins with a moderate unit");
    }

    #[test]
    fn no_more_sites_are_known_than_there_is_place_for() {
        let mut sites = Box::new(Sites::UNKNOWN);
        let taken = (1..10_000)
            .filter(|site| sites.preset(InitialProfile { site: *site, profile: SiteProfile::of(&[3; 24]) }))
            .count();
        assert_eq!(taken, SITES);
        assert!(!sites.preset(InitialProfile { site: 0, profile: SiteProfile::NONE }));
    }
}
