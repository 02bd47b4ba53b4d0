//! Learning of sites, in small cases, and invariants of every plan.

use super::*;
use proptest::prelude::*;

const AREA: Run = Run { first_page: 1 << 20, pages: 1 << 20 };

const LIMITS: Limits = Limits {
    budget_pages: 16_384,
    life_pages: 16_384,
    fault_ns: 5000,
    page_ns: 700,
    ahead_page_ns: 350,
    base_log2: 0,
    max_unit_log2: 8,
};

/// Program whose fetched pages all stay, and the policy that serves it.
struct Endless {
    sites: Box<Sites>,
    limits: Limits,
    here: std::collections::HashSet<u64>,
    markers: std::collections::HashSet<u64>,
    faults: u32,
    brought: u64,
}

impl Endless {
    fn new(limits: Limits) -> Endless {
        let sites = Box::new(Sites::UNKNOWN);
        Endless { sites, limits, here: Default::default(), markers: Default::default(), faults: 0, brought: 0 }
    }

    /// Touches a page of the area from a site.
    fn touch(&mut self, site: u64, page: u64) -> Option<FetchPlan> {
        let page = AREA.first_page + page;
        if self.here.contains(&page) && !self.markers.contains(&page) {
            return None;
        }
        self.faults += 1;
        let kind = if self.markers.remove(&page) { Kind::Marker } else { Kind::Stored };
        let fault = Fault { site, page, area: AREA, distance: 0, mark: 0, kind };
        let plan = self.sites.on_fault(&fault, &self.limits, |page| self.here.contains(&page));
        let runs = plan.ahead.iter().flat_map(|series| (0..series.runs).map(|n| series.run(n, AREA)));
        for run in runs.chain([plan.fetch]) {
            for page in run.first_page..run.end_page() {
                if self.here.insert(page) {
                    self.brought += 1;
                    if plan.has_marker(page) {
                        self.markers.insert(page);
                    }
                }
            }
        }
        Some(plan)
    }

    fn unit_of(&self, site: u64) -> u32 {
        self.sites.known().find(|view| view.site == site).unwrap().unit_pages
    }
}

#[test]
fn a_new_site_begins_with_a_moderate_unit() {
    let mut program = Endless::new(LIMITS);
    let plan = program.touch(7, 1000).unwrap();
    let whole: u32 = plan.fetch.pages + plan.ahead.iter().map(|series| series.pages()).sum::<u32>();
    assert!((8..=64).contains(&whole), "{plan:?}");
    assert!(plan.fetch.contains(AREA.first_page + 1000));
}

#[test]
fn a_sweep_faults_seldom_once_it_is_recognised() {
    let mut program = Endless::new(LIMITS);
    for page in 0..65_536 {
        program.touch(7, page);
    }
    // Windows of 1024 pages: some 64 markers, the first doublings, and watched pages.
    assert!(program.faults < 400, "{} faults for 65536 pages", program.faults);
    assert!(program.brought <= 65_536 + 2048);
}

#[test]
fn a_sweep_down_is_a_sweep_too() {
    let mut program = Endless::new(LIMITS);
    for page in (0..65_536).rev() {
        program.touch(7, page + 4096);
    }
    assert!(program.faults < 400, "{} faults for 65536 pages", program.faults);
}

#[test]
fn one_instruction_may_sweep_ten_arrays_at_a_time() {
    let mut program = Endless::new(LIMITS);
    for page in 0..8192 {
        for array in 0..10 {
            program.touch(7, array * 8192 + page);
        }
    }
    assert!(program.faults < 4000, "{} faults for 81920 pages", program.faults);
}

#[test]
fn a_walk_in_long_steps_is_followed_in_advance() {
    let mut program = Endless::new(LIMITS);
    for step in 0..1000 {
        program.touch(7, step * 1000);
    }
    assert!(program.faults < 300, "{} faults for 1000 steps", program.faults);
}

#[test]
fn without_a_background_a_sweep_grows_what_it_brings_at_once() {
    let mut program = Endless::new(Limits { ahead_page_ns: 0, ..LIMITS });
    for page in 0..65_536 {
        if let Some(plan) = program.touch(7, page) {
            assert_eq!(plan.ahead, [Series::NOTHING; SERIES]);
        }
    }
    // 256 units of 1 MiB at best. Several pages of each are watched, which costs a fault without a transfer each.
    assert!(program.faults < 256 * 4, "{} faults for 65536 pages", program.faults);
}

#[test]
fn a_site_whose_neighbours_are_never_used_ends_with_single_pages() {
    let mut program = Endless::new(Limits { budget_pages: 4096, life_pages: 4096, ..LIMITS });
    for n in 0..2000u64 {
        // All over a large area, far from each other.
        program.touch(7, spread(n) % u64::from(AREA.pages));
    }
    assert_eq!(program.unit_of(7), 1);
}

#[test]
fn two_sites_have_two_units() {
    let mut program = Endless::new(Limits { budget_pages: 4096, life_pages: 4096, ..LIMITS });
    for n in 0..4000u64 {
        program.touch(7, spread(n) % 500_000);
        program.touch(8, 500_000 + n * 8);
        for page in 0..8 {
            program.touch(8, 500_000 + n * 8 + page);
        }
    }
    assert_eq!(program.unit_of(7), 1);
    assert!(program.unit_of(8) >= 8);
}

#[test]
fn zeros_are_a_policy_that_knows_nothing() {
    // `Sites::UNKNOWN` must mean the same as a segment full of zeros: nothing is known of any site.
    assert_eq!(Sites::UNKNOWN.known().count(), 0);
    assert_eq!((Sites::UNKNOWN.clock, Sites::UNKNOWN.epoch), (0, 0));
}

#[test]
fn what_is_known_of_all_sites_takes_a_megabyte() {
    let bytes = size_of::<Sites>();
    assert!((900 << 10..=1040 << 10).contains(&bytes), "{bytes} bytes");
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::FirstTouch),
        Just(Kind::Stored),
        Just(Kind::Stored),
        Just(Kind::Victim),
        Just(Kind::Marker),
        Just(Kind::InFlight)
    ]
}

fn page() -> impl Strategy<Value = u64> {
    // Mostly near each other, and at both ends of the address range.
    prop_oneof![
        (0u64..300),
        (0u64..300),
        (1u64 << 40..(1 << 40) + 5000),
        any::<u64>().prop_map(|address| address >> 12),
        (u64::MAX - 300..=u64::MAX).prop_map(|n| (n >> 12) - (n & 0xff)),
    ]
}

/// Found by fuzzing: the learned state lies where the program can write.
#[test]
fn counters_that_the_program_wrote_over_stay_where_they_are() {
    let mut sites = Box::new(Sites { soon: u32::MAX, ..Sites::UNKNOWN });
    let most = Streams { stride: 1, trust: u8::MAX, doubt: u8::MAX, ..Streams::UNKNOWN };
    let at = sites.site_at(7);
    sites.sites[at].streams = most;
    for page in [5, 6, 4000, 4001, 5, 9000] {
        let fault = Fault {
            site: 7,
            page,
            area: Run { first_page: 0, pages: 1 << 20 },
            distance: 1,
            mark: 0,
            kind: Kind::Stored,
        };
        assert!(sites.on_fault(&fault, &LIMITS, |_| false).fetch.contains(page));
    }
    sites.sites[at].streams = most;
    sites.sites[at].streams.judge(false);
    assert!(sites.sites[at].streams.doubt < u8::MAX);
}

proptest! {
    #[test]
    fn an_order_brings_its_page_stays_in_its_mapping_and_never_overflows(
        faults in prop::collection::vec((0u64..3, page(), kind(), any::<u32>(), any::<u16>()), 0..300),
        first_page in prop_oneof![Just(0u64), any::<u64>()], pages in any::<u32>(), budget_pages in any::<u32>(),
        fault_ns in any::<u32>(), page_ns in any::<u32>(), ahead_page_ns in prop_oneof![Just(0u32), any::<u32>()],
        base_log2 in any::<u8>(), max_unit_log2 in any::<u8>(), here in any::<u64>(),
    ) {
        let mut sites = Box::new(Sites::UNKNOWN);
        let limits = Limits { budget_pages, life_pages: budget_pages, fault_ns, page_ns, ahead_page_ns, base_log2, max_unit_log2 };
        for (site, page, kind, distance, mark) in faults {
            let area = Run { first_page, pages };
            let fault = Fault { site, page, area, distance, mark, kind };
            let plan = sites.on_fault(&fault, &limits, |page| here >> (page % 64) & 1 != 0);
            let area = if area.contains(page) { area } else { Run { first_page: page, pages: 1 } };
            prop_assert!(plan.fetch.contains(page), "{:?}", plan);
            prop_assert_eq!(plan.fetch, plan.fetch.within(area));
            prop_assert!(plan.fetch.pages <= 256);
            prop_assert!(!plan.has_marker(page));
            for series in plan.ahead {
                prop_assert!(series.run_pages <= 256);
                for n in 0..series.runs {
                    let run = series.run(n, area);
                    prop_assert_eq!(run, run.within(area));
                }
            }
        }
    }

    #[test]
    fn a_unit_is_an_aligned_power_of_two_between_base_and_largest(
        faults in prop::collection::vec((0u64..3, 0u64..1_000_000, kind()), 1..300),
        base_log2 in 0u8..=2, max_unit_log2 in 2u8..=8, ahead_page_ns in prop_oneof![Just(0u32), Just(350u32)],
    ) {
        let mut sites = Box::new(Sites::UNKNOWN);
        let limits = Limits { base_log2, max_unit_log2, ahead_page_ns, ..LIMITS };
        for (site, page, kind) in faults {
            let page = AREA.first_page + page;
            let fault = Fault { site, page, area: AREA, distance: 0, mark: 0, kind };
            let plan = sites.on_fault(&fault, &limits, |_| false);
            if matches!(kind, Kind::Stored | Kind::FirstTouch) {
                prop_assert!(plan.fetch.pages.is_power_of_two());
                prop_assert_eq!(plan.fetch.first_page % u64::from(plan.fetch.pages), 0);
                prop_assert!(plan.fetch.pages >= 1 << base_log2);
                prop_assert!(plan.fetch.pages <= 1 << max_unit_log2.max(4));
            }
        }
    }
}
