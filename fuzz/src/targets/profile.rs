//! Profiles of code sites, from any author: read or refused. A profile that was read is written again with the same
//! content; its saved sites begin a table of sites, and their fetch plans stay in their area.

use farmem::profile::{MOST_BYTES, bytes as written, parse};
use farmem_engine::policy::MAX_UNIT_LOG2;
use farmem_engine::policy::Run;
use farmem_engine::policy::site::{Fault, InitialProfile, Kind, Limits, Sites};

const AREA_PAGES: u32 = 1 << 13;

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let Ok(kept) = parse(bytes) else { return false };
    let again = written(&kept);
    assert!(again.len() == bytes.len() && again.len() <= MOST_BYTES);
    assert_eq!(parse(&again).as_ref(), Ok(&kept));
    let mut sites = Box::<Sites>::default();
    for (number, site) in kept.iter().enumerate() {
        let initial = InitialProfile { site: 0x1000 + number as u64 * 8, profile: site.profile };
        assert_eq!(InitialProfile::of(initial.words()), initial, "the library understands it otherwise");
        if !sites.preset(initial) {
            continue;
        }
        let mut page = site.offset % u64::from(AREA_PAGES);
        for _ in 0..4 {
            begins(&mut sites, initial.site, page);
            page = (page + 1 + site.offset % 7) % u64::from(AREA_PAGES);
        }
    }
    assert!(sites.known().all(|site| site.unit_pages <= 1 << MAX_UNIT_LOG2));
    !kept.is_empty()
}

/// A fault of a site that begins with its saved profile.
fn begins(sites: &mut Sites, site: u64, page: u64) {
    let area = Run { first_page: 0, pages: AREA_PAGES };
    let limits = Limits {
        budget_pages: 4096,
        life_pages: 4096,
        fault_ns: 35_000,
        page_ns: 3_000,
        ahead_page_ns: 2_000,
        base_log2: 0,
        max_unit_log2: MAX_UNIT_LOG2,
    };
    let fault = Fault { site, page, area, distance: 1, mark: 0, kind: Kind::Stored };
    let plan = sites.on_fault(&fault, &limits, |_| false);
    assert!(plan.fetch.contains(page) && plan.fetch.within(area) == plan.fetch, "{plan:?}");
    for series in plan.ahead {
        for run in (0..series.runs).map(|number| series.run(number, area)) {
            assert!(run.pages == 0 || run.within(area) == run, "{plan:?} leaves {area:?}");
        }
    }
}
