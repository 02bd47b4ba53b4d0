use std::time::Instant;

use super::*;
use crate::Rooted;
use crate::fake::FakeKernel;

#[test]
fn unknown_is_neither_yes_nor_no_and_says_why() {
    let unknown: Known<bool> = Err::<bool, _>(Error::of_host("read", "/x", Errno::ACCESS)).into();
    assert_eq!(unknown.why_unknown(), Some("cannot read /x: permission denied (EACCES)"));
    assert_eq!(unknown.value(), None);
    assert!(!unknown.is_yes());
    assert!(Known::Value(true).is_yes() && !Known::Value(false).is_yes());
}

#[test]
fn a_value_serialises_as_itself_and_unknown_as_its_reason() {
    let known = [Known::Value(4), Known::Unknown("why".to_owned())];
    assert_eq!(serde_json::to_string(&known).unwrap(), r#"[4,{"unknown":"why"}]"#);
}

#[test]
fn lockdown_is_the_word_in_brackets_none_where_missing_and_unknown_unmounted() {
    let of = |text: &str| lockdown(&FakeKernel::new().file("sys/kernel/security/lockdown", text));
    assert_eq!(of("none [integrity] confidentiality\n"), Known::Value(Lockdown::Integrity));
    assert_eq!(of("[none] integrity confidentiality\n"), Known::Value(Lockdown::None));
    assert!(of("[paranoia]\n").why_unknown().is_some());
    assert_eq!(lockdown(&FakeKernel::new()), Known::Value(Lockdown::None));
    let without = FakeKernel::new().file("sys/kernel/security/lsm", "capability\n");
    assert_eq!(lockdown(&without), Known::Value(Lockdown::None));
    let unmounted = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(unmounted.path().join("sys/kernel/security")).unwrap();
    assert!(lockdown(&Rooted::at(unmounted.path())).why_unknown().is_some());
}

#[test]
fn over_an_empty_tree_what_needs_its_files_is_no_or_unknown_and_nothing_is_written() {
    let kernel = FakeKernel::new();
    let facts = HostFacts::gather(&kernel);
    assert_eq!(facts.btf, Known::Value(false));
    assert_eq!(facts.khugepaged, Known::Value(false));
    assert_eq!(facts.thp_enabled, Known::Value(None));
    assert!(facts.capabilities.why_unknown().is_some());
    assert_eq!(facts.damon_operations, Known::Value(vec![]));
    assert!(facts.clear_refs.why_unknown().is_some());
    assert!(!facts.collapse.is_yes());
    assert_eq!(kernel.writes(), [""; 0]);
}

#[test]
fn the_facts_of_this_host_agree_with_each_other() {
    let _tree = crate::damon::tests::host_tree();
    let facts = HostFacts::gather(&Rooted::host());
    assert!(facts.memory_bytes.value().is_some_and(|memory| *memory > Bytes::mib(64)), "{facts:?}");
    assert!(facts.cores.value().is_some_and(|cores| *cores > 0), "{facts:?}");
    if facts.cold_splits.is_yes() {
        assert!(facts.collapse.is_yes(), "{facts:?}");
    }
    if facts.split_frees_zero_pages.is_yes() {
        assert!(facts.cold_splits.is_yes(), "{facts:?}");
    }
    let json = serde_json::to_value(&facts).unwrap();
    assert!(json["kernel_release"].is_string(), "{json}");
}

#[test]
fn gathering_gives_all_memory_back() {
    let own = || {
        let maps = crate::maps::maps(&Rooted::host(), Pid::own()).unwrap();
        maps.iter().filter(|mapping| mapping.range.start().0 == 1 << 50).count()
    };
    assert_eq!(own(), 0);
    let _tree = crate::damon::tests::host_tree();
    HostFacts::gather(&Rooted::host());
    assert_eq!(own(), 0);
}

#[test]
#[ignore = "a measurement; run it alone: cargo test -p linux facts -- --ignored --nocapture"]
fn how_long_gathering_takes() {
    let _tree = crate::damon::tests::host_tree();
    let start = Instant::now();
    let facts = HostFacts::gather(&Rooted::host());
    let took = start.elapsed();
    println!("{}\n{took:?}", serde_json::to_string_pretty(&facts).unwrap());
}
