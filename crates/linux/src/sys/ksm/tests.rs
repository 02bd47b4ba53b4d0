use super::*;
use crate::Rooted;
use crate::fake::FakeKernel;

const RECORDED: &str = include_str!("../../../tests/recorded/6.18/ksm_stat");
const RECORDED_HOST: &str = include_str!("../../../tests/recorded/6.18/ksm");
const PID: Pid = Pid(42);

/// Recorded files, each a line with its name and its content, without `names`.
fn host_without(names: &[&str]) -> FakeKernel {
    let files = RECORDED_HOST.lines().filter_map(|line| line.split_once(' '));
    files
        .filter(|(name, _)| !names.contains(name))
        .fold(FakeKernel::new(), |kernel, (name, value)| kernel.file(&format!("{ROOT}/{name}"), &format!("{value}\n")))
}

#[test]
fn the_recorded_host_merges_64_pages_of_8_kinds() {
    let host = host(&host_without(&[])).unwrap();
    assert_eq!((host.run, host.pages_shared, host.pages_sharing), (Run::Merging, Pages(8), Pages(56)));
    assert_eq!((host.pages_to_scan, host.sleep_millisecs), (100, 20));
    assert_eq!(host.max_page_sharing, Reported::Value(256));
    assert_eq!((host.use_zero_pages, host.zero_pages), (Reported::Value(false), Reported::Value(Pages(0))));
    assert_eq!(host.general_profit_bytes, Reported::Value(225_280));
    assert_eq!(host.saved(), Bytes(56 * 4096));
    assert_eq!((host.smart_scan, host.pages_skipped), (Reported::Value(true), Reported::Value(1200)));
    assert_eq!((host.merged(), host.unmerged()), (Pages(64), Pages(0)));
}

#[test]
fn an_older_kernel_does_not_say_what_came_later() {
    let later =
        ["max_page_sharing", "use_zero_pages", "ksm_zero_pages", "general_profit", "smart_scan", "pages_skipped"];
    let host = host(&host_without(&later)).unwrap();
    assert_eq!((host.smart_scan, host.pages_skipped), (Reported::NotReported, Reported::NotReported));
    assert_eq!((host.max_page_sharing, host.use_zero_pages), (Reported::NotReported, Reported::NotReported));
    assert_eq!((host.zero_pages, host.general_profit_bytes), (Reported::NotReported, Reported::NotReported));
    assert_eq!(serde_json::to_value(host).unwrap()["zero_pages"], serde_json::Value::Null);
}

#[test]
fn a_kernel_without_ksm_is_unsupported_and_a_strange_one_malformed() {
    assert!(matches!(host(&FakeKernel::new()), Err(Error::Unsupported(_))));
    for (name, value) in [("run", "3"), ("pages_sharing", "many"), ("general_profit", "1.5")] {
        let kernel = host_without(&[name]).file(&format!("{ROOT}/{name}"), value);
        assert!(matches!(host(&kernel), Err(Error::Malformed { .. })), "{name}");
    }
    // A loss is a number.
    let kernel = host_without(&["general_profit"]).file(&format!("{ROOT}/general_profit"), "-4096\n");
    assert_eq!(host(&kernel).unwrap().general_profit_bytes, Reported::Value(-4096));
    let denied = host_without(&[]).refusing(&format!("{ROOT}/run"), Errno::ACCESS);
    assert!(matches!(host(&denied), Err(Error::Denied(_))));
}

fn of(text: &str) -> Result<Option<OfProcess>, Error> {
    of_process(&FakeKernel::new().file("proc/42/ksm_stat", text), PID)
}

#[test]
fn the_recorded_process_has_64_merged_pages_and_offered_them_by_madvise() {
    let process = of(RECORDED).unwrap().unwrap();
    assert_eq!((process.rmap_items, process.merging_pages), (Reported::Value(64), Reported::Value(Pages(64))));
    assert_eq!(process.zero_pages, Reported::Value(Pages(0)));
    assert_eq!((process.merge_any, process.mergeable), (Reported::Value(false), Reported::Value(true)));
}

#[test]
fn linux_6_1_has_one_line_and_a_file_beside_it() {
    let kernel = FakeKernel::new().file("proc/42/ksm_stat", "ksm_rmap_items 9\n");
    let process = of_process(&kernel, PID).unwrap().unwrap();
    assert_eq!((process.rmap_items, process.merging_pages), (Reported::Value(9), Reported::NotReported));
    assert_eq!((process.mergeable, process.merge_any), (Reported::NotReported, Reported::NotReported));
    let kernel = kernel.file("proc/42/ksm_merging_pages", "7\n");
    assert_eq!(of_process(&kernel, PID).unwrap().unwrap().merging_pages, Reported::Value(Pages(7)));
}

#[test]
fn a_newer_kernel_with_more_lines_reads_the_same() {
    let newer = format!("ksm_new 5\n{RECORDED}ksm_newer: perhaps\n");
    assert_eq!(of(&newer), of(RECORDED));
}

#[test]
fn no_memory_no_process_no_right_and_no_such_file_are_four_answers() {
    assert_eq!(of(""), Ok(None));
    assert!(of_process(&FakeKernel::new(), PID).unwrap_err().is_gone());
    let ended = FakeKernel::new().refusing("proc/42/ksm_stat", Errno::SRCH);
    assert!(of_process(&ended, PID).unwrap_err().is_gone());
    let foreign = FakeKernel::new().refusing("proc/42/ksm_stat", Errno::ACCESS);
    assert!(matches!(of_process(&foreign, PID), Err(Error::Denied(_))));
    let without = FakeKernel::new().file("proc/42/stat", "");
    assert!(matches!(of_process(&without, PID), Err(Error::Unsupported(_))));
}

#[test]
fn what_is_no_number_and_no_answer_is_malformed() {
    for (from, to) in [("pages 64", "pages x"), ("mergeable: yes", "mergeable: perhaps")] {
        assert!(matches!(of(&RECORDED.replacen(from, to, 1)), Err(Error::Malformed { .. })), "{to}");
    }
}

#[test]
fn this_process_is_read_where_the_kernel_has_the_file() {
    match of_process(&Rooted::host(), Pid::own()) {
        Err(Error::Unsupported(_)) => println!("SKIP: no ksm_stat here"),
        process => assert!(process.unwrap().is_some()),
    }
}
