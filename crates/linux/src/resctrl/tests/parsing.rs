//! Parsing and writing back; refused text.

use proptest::prelude::*;
use units::{WayMask, Ways};

use super::*;
use crate::resctrl::info::{Usage, WaysInUse};
use crate::resctrl::schemata::{Difference, parse_masks, parse_size, parse_usage};
use crate::resctrl::tasks::parse_groups;

fn parse(text: &str) -> Result<Schemata, Error> {
    Schemata::parse("/schemata", text)
}

#[test]
fn padding_and_unknown_resources_are_read_and_the_latter_never_written() {
    let schemata = parse("    MB:0=  10;1= 100\n    L3:0=000ff;1=fffff;\n  L9MAX:0=50%/x\n\n").unwrap();
    assert_eq!(schemata.command(), "L3:0=ff;1=fffff\nMB:0=10;1=100\n");
    assert_eq!(schemata.0[&Resource::Other("L9MAX".to_owned())], Values::Other("0=50%/x".to_owned()));
}

#[test]
fn a_group_to_be_locked_has_no_masks_yet() {
    let schemata = parse("    L3:uninitialized\n").unwrap();
    assert_eq!((&schemata.0[&Resource::L3], schemata.command().as_str()), (&Values::Uninitialized, ""));
    assert_eq!(parse_size("/size", "L3:uninitialized\n").unwrap(), BTreeMap::new());
}

#[test]
fn odd_lines_are_named() {
    let expected = "cannot understand /schemata: \"L3:0=xyz\", expected a resource and its domains, such as L3:0=ff";
    assert_eq!(parse("  L3:0=xyz\n").unwrap_err().to_string(), expected);
    for odd in ["L3", ":0=1", "L3:0=1;0=2", "L3:a=1", "L3:0", "MB:0=ff", "L 3:0=1", "L3:0=11111111111111111"] {
        assert!(parse(odd).is_err(), "{odd}");
    }
}

#[test]
fn what_the_kernel_made_of_it_is_compared_value_by_value() {
    let asked = masks(Resource::L3, &[(0, 0x400), (1, 0x3), (7, 0x1)]);
    let found = parse("L3:0=600;1=3\nMB:0=100;1=100\n").unwrap();
    let difference = |domain, asked: &str, found: Option<&str>| Difference {
        resource: Resource::L3,
        domain: CacheId(domain),
        asked: asked.to_owned(),
        found: found.map(str::to_owned),
    };
    assert_eq!(asked.differences(&found), [difference(0, "400", Some("600")), difference(7, "1", None)]);
    assert_eq!(asked.differences(&asked), []);
}

#[test]
fn of_old_lines_only_what_has_a_place_and_differs_is_left_to_write() {
    let old = parse("L3:0=fffff;1=fffff;2=fffff\nL3CODE:0=f\nMB:0=100\n").unwrap();
    let present = parse("L3:0=ff;1=fffff\nMB:0=50\n").unwrap();
    assert_eq!(old.still_to_write(&present).command(), "L3:0=fffff\nMB:0=100\n");
    assert_eq!(old.still_to_write(&old).command(), "");
}

#[test]
fn the_groups_of_a_task_are_read_in_each_form() {
    let group = |class: Option<&str>, monitor: Option<&str>| {
        Some(Group { class: class.map(str::to_owned), monitor: monitor.map(str::to_owned) })
    };
    assert_eq!(parse_groups("res:/\nmon:\n"), group(None, None));
    assert_eq!(parse_groups("res:/\nmon:mon0\n"), group(None, Some("mon0")));
    assert_eq!(parse_groups("res:masu-web\nmon:mon1\n"), group(Some("masu-web"), Some("mon1")));
    assert_eq!(parse_groups("res:/masu-web\nmon:/\n"), group(Some("masu-web"), None));
    for odd in ["res:\nmon:\n", "", "res:/\n", "x"] {
        assert_eq!(parse_groups(odd), None, "{odd}");
    }
}

#[test]
fn names_of_ours_have_our_prefix_and_none_is_a_path() {
    let web = own("web");
    assert_eq!((web.to_string().as_str(), web.label(), web.is_ours()), ("masu-web", Some("web"), true));
    let inner = web.with_monitor("masu-a");
    assert_eq!((inner.to_string().as_str(), inner.class()), ("masu-web/mon_groups/masu-a", web));
    assert!(!Group::of_class("other").with_monitor("masu-a").class().is_ours());
    for bad in ["", "a/b", "é", "a\nb", "a b", &"x".repeat(201)] {
        assert!(Group::own(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn usage_has_its_highest_way_first() {
    let usage = parse_usage("0=XHSE0P;1=SSSSSZ").unwrap();
    let first = &usage[&CacheId(0)];
    let ways = |usage| first.ways(usage).0;
    assert_eq!([ways(Usage::PseudoLocked), ways(Usage::Unused), ways(Usage::Exclusive)], [1, 2, 4]);
    assert_eq!([ways(Usage::Shared), ways(Usage::Hardware), ways(Usage::HardwareAndGroups)], [8, 16, 32]);
    assert_eq!(usage[&CacheId(1)].ways(Usage::Unknown('Z')), WayMask(1));
    assert_eq!(parse_usage("0=S-S"), None);
}

/// The kernel's `cbm_validate`, bit by bit.
fn slowly(rules: MaskRules, mask: u64) -> bool {
    let bits: Vec<bool> = (0..64).map(|bit| mask >> bit & 1 == 1).collect();
    let (Some(first), Some(last)) = (bits.iter().position(|bit| *bit), bits.iter().rposition(|bit| *bit)) else {
        return rules.ways_min.0 == 0;
    };
    let in_range = (0..64).all(|bit| !bits[bit] || rules.full.0 >> bit & 1 == 1);
    let run = bits[first..].iter().take_while(|bit| **bit).count();
    in_range && (rules.sparse || run == last - first + 1) && run >= rules.ways_min.0 as usize
}

fn values() -> impl Strategy<Value = Schemata> {
    let domains = || prop::collection::btree_map(any::<u32>().prop_map(CacheId), any::<u64>(), 1..5);
    (domains(), domains(), domains()).prop_map(|(l3, l2, mb)| {
        let masks = |values: BTreeMap<CacheId, u64>| {
            Values::Masks(values.into_iter().map(|(domain, mask)| (domain, WayMask(mask))).collect())
        };
        Schemata([(Resource::L3, masks(l3)), (Resource::L2Data, masks(l2)), (Resource::Mb, Values::Numbers(mb))].into())
    })
}

proptest! {
    #[test]
    fn lines_that_are_written_are_read_back(schemata in values()) {
        let command = schemata.command();
        prop_assert!(command.ends_with('\n'));
        prop_assert_eq!(parse(&command), Ok(schemata));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[ -~\n]{0,60}") {
        if let Ok(schemata) = parse(&text) {
            let again = parse(&schemata.command()).unwrap();
            prop_assert_eq!(again.command(), schemata.command());
        }
        let _ = (parse_size("/size", &text), parse_usage(&text), parse_masks(&text), parse_groups(&text), Reading::parse(&text), Mount::of(&text));
    }

    #[test]
    fn usage_that_is_printed_is_read_back(letters in "[0HXSEPz]{1,64}") {
        let usage = WaysInUse::parse(&letters).unwrap();
        prop_assert_eq!(usage.to_string(), letters);
    }

    #[test]
    fn a_mask_is_taken_where_the_kernel_takes_it(mask: u64, cut in 0u32..64, ways in 1u32..=64, ways_min in 0u32..4, sparse: bool) {
        let rules = MaskRules { full: WayMask::lowest(Ways(ways)), ways_min: Ways(ways_min), sparse };
        for mask in [mask >> cut, WayMask::run(cut, Ways(ways_min)).0, WayMask::run(cut / 2, Ways(ways)).0] {
            prop_assert_eq!(rules.check(WayMask(mask)).is_ok(), slowly(rules, mask));
        }
    }
}
