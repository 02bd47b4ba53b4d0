use procfs::process::Process;
use proptest::prelude::*;

use super::*;
use crate::Rooted;
use crate::fake::FakeKernel;
use crate::quiet_process::QuietProcess;

const RECORDED: [&str; 3] = [
    include_str!("../../../tests/recorded/6.1/stat"),
    include_str!("../../../tests/recorded/6.12/stat"),
    include_str!("../../../tests/recorded/6.18/stat"),
];

/// A line with 20 fields after the name; field `n` of the manual holds `n`.
fn counting(name: &str) -> String {
    let numbers: String = (4..=52).map(|n| format!(" {n}")).collect();
    format!("42 ({name}) S{numbers}\n")
}

#[test]
fn each_figure_is_the_field_that_the_manual_says() {
    let expected = Stat {
        state: 'S',
        parent: Pid(4),
        forked: false,
        of_kernel: false,
        start_ticks: 22,
        user: Duration::from_millis(140),
        system: Duration::from_millis(150),
        minor_faults: 10,
        major_faults: 12,
    };
    assert_eq!(parse(&counting("sh"), 100), Some(expected));
}

#[test]
fn threads_of_the_kernel_say_so() {
    let flags = |flags: &str| parse(&counting("sh").replacen(" 9 ", &format!(" {flags} "), 1), 100).unwrap();
    let worker = flags("69238880"); // of a kworker
    assert!(worker.of_kernel && worker.forked);
    assert!(!flags("4194368").of_kernel);
}

#[test]
fn the_time_is_in_the_ticks_of_a_start() {
    assert_eq!(ticks_of("350735.47 234388.90\n", 100), Some(35_073_547));
    assert_eq!(ticks_of("1.50 0.00\n", 1000), Some(1500));
    for odd in ["", "350735", "1.5 0.00", "x.00", "1.xx", "18446744073709551615.00"] {
        assert_eq!(ticks_of(odd, 100), None, "{odd:?}");
    }
    let kernel = crate::fake::FakeKernel::new();
    assert!(matches!(now_ticks(&kernel), Err(Error::Unsupported(_))));
    let (host, own) = (crate::Rooted::host(), Pid::own());
    let began = of_thread(&host, own, own).unwrap().start_ticks;
    assert_eq!(began, stat(&host, own).unwrap().start_ticks);
    assert!(began <= now_ticks(&host).unwrap());
}

#[test]
fn one_that_runs_what_it_was_forked_with_says_so() {
    let forked = |flags: &str| parse(&counting("sh").replacen(" 9 ", &format!(" {flags} "), 1), 100).unwrap().forked;
    assert!(forked("4194368") && forked("64"));
    assert!(!forked("4194304") && !forked("63"));
}

#[test]
fn a_name_may_hold_spaces_and_parentheses() {
    for name in ["a b", ") R 1 2 3", "((", "", "a\nb"] {
        assert_eq!(parse(&counting(name), 100), parse(&counting("sh"), 100), "{name}");
    }
}

#[test]
fn the_recorded_processes_are_read() {
    for recorded in RECORDED {
        let kernel = FakeKernel::new().file("proc/42/stat", recorded);
        let stat = stat(&kernel, Pid(42)).unwrap();
        assert!(recorded.contains(" (rec) (ord S 1 2) R "));
        assert_eq!(stat.state, 'R');
        assert!(stat.start_ticks > 0 && stat.minor_faults > 0);
    }
}

#[test]
fn a_process_that_ended_is_gone() {
    assert!(stat(&FakeKernel::new(), Pid(42)).unwrap_err().is_gone());
}

#[test]
fn a_malformed_line_is_refused() {
    for bad in [
        "",
        "42",
        "42 (sh)",
        "42 (sh) S 1 2 3",
        &counting("sh").replace(" 22 ", " x "),
        &counting("sh").replace('S', "SS"),
    ] {
        assert_eq!(parse(bad, 100), None, "{bad}");
    }
    let kernel = FakeKernel::new().file("proc/42/stat", "42 (sh) S");
    let error = stat(&kernel, Pid(42)).unwrap_err();
    assert!(error.to_string().starts_with("cannot understand /proc/42/stat: \"42 (sh) S\", expected"), "{error}");
}

#[test]
fn fields_of_a_newer_kernel_are_left_out() {
    let newer = format!("{} 53 54 new", counting("sh").trim_end());
    assert_eq!(parse(&newer, 100), parse(&counting("sh"), 100));
}

#[test]
fn procfs_sees_the_same() {
    let quiet = QuietProcess::start();
    let ours = stat(&Rooted::host(), quiet.pid()).unwrap();
    let theirs = Process::new(quiet.pid().0).unwrap().stat().unwrap();
    assert_eq!(ours.state, theirs.state);
    assert_eq!(ours.parent, Pid(theirs.ppid));
    assert_eq!(ours.parent, Pid::own());
    assert_eq!(ours.start_ticks, theirs.starttime);
    assert_eq!((ours.minor_faults, ours.major_faults), (theirs.minflt, theirs.majflt));
    let time = |ticks| ticks_to_time(ticks, rustix::param::clock_ticks_per_second()).unwrap();
    assert_eq!((ours.user, ours.system), (time(theirs.utime), time(theirs.stime)));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_without_a_panic(text in "(?s).{0,200}", ticks: u64) {
        let _ = parse(&text, ticks);
    }

    #[test]
    fn any_numbers_are_read_or_refused_without_a_panic(fields in prop::collection::vec(any::<i128>(), 0..30), ticks: u64) {
        let fields: String = fields.iter().map(|n| format!(" {n}")).collect();
        let _ = parse(&format!("1 (x) S{fields}"), ticks);
    }
}
