use linux::Rooted;
use linux::fake::FakeKernel;
use linux::thp::ROOT;

use super::*;

fn host(enabled: &str, huge: Option<&str>, small: Option<&str>) -> FakeKernel {
    let mut kernel = FakeKernel::new().file(thp::ENABLED, enabled);
    for (size, word) in [("2048", huge), ("64", small)] {
        if let Some(word) = word {
            kernel = kernel.file(&format!("{ROOT}/hugepages-{size}kB/enabled"), word);
        }
    }
    kernel
}

#[test]
fn huge_pages_may_have_a_mode_of_their_own() {
    let inherit = Some("always [inherit] madvise never\n");
    let always = Some("[always] inherit madvise never\n");
    let madvise = "always [madvise] never\n";
    assert_eq!(enabled_for_huge(&host(madvise, None, None)), Ok(Enabled::Madvise));
    assert_eq!(enabled_for_huge(&host(madvise, inherit, None)), Ok(Enabled::Madvise));
    assert_eq!(enabled_for_huge(&host(madvise, always, None)), Ok(Enabled::Always));
    assert_eq!(enabled_for_huge(&FakeKernel::new()), Ok(Enabled::Never), "a kernel without huge pages");
}

#[test]
fn smaller_sizes_are_counted_where_the_host_gives_any() {
    let never = "always madvise [never]\n";
    let madvise = "always [madvise] never\n";
    let given = |enabled, small| gives_small_sizes(&host(enabled, Some("always [inherit] madvise never\n"), small));
    assert_eq!(given(madvise, Some("always inherit madvise [never]\n")), Ok(false));
    assert_eq!(given(madvise, Some("always inherit [madvise] never\n")), Ok(true));
    assert_eq!(given(madvise, Some("always [inherit] madvise never\n")), Ok(true));
    assert_eq!(given(never, Some("always [inherit] madvise never\n")), Ok(false));
    assert_eq!(given(madvise, None), Ok(false));
    assert_eq!(gives_small_sizes(&FakeKernel::new()), Ok(false));
}

#[test]
fn what_is_not_known_is_not_zero() {
    let tally =
        Tally { reserved: 9, allocated: 3, failed: 1, not_known: 2, swapped_out: 1, torn_pages: 5, ..Tally::default() };
    let counted = Superpages::of(tally, "no frames");
    assert_eq!(counted.downgraded_windows, Known::Unknown("no frames".to_owned()));
    assert_eq!((counted.not_huge_windows, counted.untouched_windows), (3, 2));
    assert_eq!(counted.torn_bytes, Known::Unknown("no frames".to_owned()));
    let sure = Superpages::of(Tally { not_known: 0, ..tally }, "");
    assert_eq!((sure.failed_windows, sure.downgraded_windows), (Known::Value(1), Known::Value(0)));
    assert_eq!((sure.untouched_windows, sure.torn_bytes), (4, Known::Value(Bytes::kib(20))));
}

#[test]
fn the_names_in_json_carry_their_unit() {
    let superpages = Superpages::of(Tally { reserved: 2, allocated: 2, ..Tally::default() }, "");
    let json = serde_json::to_string(&OfKind { kind: Kind::Heap, superpages }).unwrap();
    let expected = r#"{"kind":"heap","reserved_windows":2,"allocated_windows":2,"failed_windows":0,"#;
    assert!(json.starts_with(expected), "{json}");
}

#[test]
fn a_process_that_ended_is_gone() {
    assert!(count(&FakeKernel::new(), Pid(42)).unwrap_err().is_gone());
}

#[test]
fn this_process_can_be_counted_again_and_again() {
    let mut counter = Counter::new(Pid::own());
    for _ in 0..3 {
        let counted = counter.count(&Rooted::host()).unwrap();
        let Superpages { reserved_windows, allocated_windows, not_huge_windows, .. } = counted.total;
        assert!(allocated_windows + not_huge_windows <= reserved_windows);
        assert_eq!(counted.by_kind.len(), Kind::ALL.len());
    }
}

#[test]
fn advice_is_read_again_when_a_mapping_with_room_for_a_window_has_come() {
    let parse = |text: &str| maps::parse(text, "maps").unwrap();
    let known = parse("200000-800000 rw-p 00000000 00:00 0 \n");
    let advice = Advice {
        read_again: Instant::now() + Duration::from_secs(100),
        not_before: Instant::now(),
        by_start: known.iter().map(|m| (m.range.start().0, (m.clone(), VmFlags::default()))).collect(),
    };
    assert!(advice.is_good_for(&known));
    assert!(advice.is_good_for(&parse("200000-c00000 rw-p 00000000 00:00 0 \n")), "it grew");
    assert!(advice.is_good_for(&parse("a00000-a10000 rw-p 00000000 00:00 0 \n")), "too small to matter");
    assert!(!advice.is_good_for(&parse("a00000-f00000 rw-p 00000000 00:00 0 \n")));
    assert!(!advice.is_good_for(&parse("200000-800000 r--p 00000000 00:00 0 \n")));
}
