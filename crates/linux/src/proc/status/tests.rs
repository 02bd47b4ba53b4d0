use procfs::process::Process;
use proptest::prelude::*;
use rustix::io::Errno;

use super::*;
use crate::Rooted;
use crate::fake::FakeKernel;
use crate::quiet_process::QuietProcess;

const RECORDED: &str = include_str!("../../../tests/recorded/6.18/status");

const KERNEL_THREAD: &str = "Name:\tkthreadd\nState:\tS (sleeping)\nTgid:\t2\nUid:\t0\t0\t0\t0\n\
    Threads:\t1\nCapEff:\t000001ffffffffff\n";

/// Recorded status with the line of this key replaced, or removed.
fn with_line(key: &str, replacement: Option<&str>) -> String {
    let of_key = |line: &str| line.starts_with(&format!("{key}:"));
    assert!(RECORDED.lines().any(of_key), "{key}");
    let lines = RECORDED.lines().filter_map(|line| if of_key(line) { replacement } else { Some(line) });
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_recorded_process_is_read_line_by_line() {
    let kernel = FakeKernel::new().file("proc/42/status", RECORDED);
    let expected = Status {
        name: "rec) (ord S 1 2".into(),
        thread_group: Pid(8266),
        uid: 0,
        uids: [0; 4],
        threads: 1,
        kernel_thread: false,
        zombie: false,
        huge_pages: HugePages::Allowed,
        tracer: None,
        seccomp: Seccomp::Off,
        rss: Bytes::kib(11348),
        rss_peak: Bytes::kib(11348),
        rss_anon: Bytes::kib(9364),
        rss_file: Bytes::kib(1920),
        rss_shmem: Bytes::kib(64),
        hugetlb: Bytes(0),
        locked: Bytes::kib(4),
        effective_capabilities: 0x1ff_feff_ffff,
    };
    assert_eq!(status(&kernel, Pid(42)), Ok(expected));
}

#[test]
fn the_name_is_the_bytes_that_the_process_chose() {
    for (printed, name) in [
        (&b"\xff\x1b[2J\r\x0b "[..], &b"\xff\x1b[2J\r\x0b "[..]),
        (br"a\nUid:\t7", b"a\nUid:\\t7"),
        (br"\\n\", b"\\n\\"),
        (b"", b""),
    ] {
        let text = [b"Name:\t", printed, b"\n", with_line("Name", None).as_bytes()].concat();
        let status = status(&FakeKernel::new().file_of_bytes("proc/42/status", &text), Pid(42)).unwrap();
        assert_eq!((status.name.bytes(), status.uid), (name, 0));
    }
}

#[test]
fn older_kernels_are_understood() {
    for recorded in
        [include_str!("../../../tests/recorded/6.1/status"), include_str!("../../../tests/recorded/6.12/status")]
    {
        let status = parse(recorded, "x").unwrap();
        assert_eq!(status.name, "rec) (ord S 1 2");
        assert!(!status.kernel_thread && !status.zombie && status.rss > Bytes::mib(8));
        assert_eq!((status.huge_pages, status.locked), (HugePages::Allowed, Bytes::kib(4)));
    }
}

#[test]
fn the_user_is_the_effective_one() {
    let text = with_line("Uid", Some("Uid:\t1\t2\t3\t4"));
    assert_eq!(parse(&text, "x").unwrap().uid, 2);
}

#[test]
fn huge_pages_are_allowed_forbidden_or_not_reported() {
    let of = |line| parse(&with_line("THP_enabled", line), "x").unwrap().huge_pages;
    assert_eq!(of(Some("THP_enabled:\t1")), HugePages::Allowed);
    assert_eq!(of(Some("THP_enabled:\t0")), HugePages::Forbidden);
    assert_eq!(of(None), HugePages::NotReported);
}

#[test]
fn a_kernel_thread_is_known_by_its_line_or_by_having_no_memory() {
    assert!(parse(KERNEL_THREAD, "x").unwrap().kernel_thread);
    assert!(parse(&format!("{KERNEL_THREAD}Kthread:\t1\n"), "x").unwrap().kernel_thread);
    assert!(!parse(&format!("{KERNEL_THREAD}Kthread:\t0\n"), "x").unwrap().kernel_thread);
    assert!(!parse(&with_line("Kthread", None), "x").unwrap().kernel_thread);
    assert_eq!(parse(KERNEL_THREAD, "x").unwrap().rss, Bytes(0));
}

#[test]
fn a_zombie_has_no_memory_and_is_no_kernel_thread() {
    let text = KERNEL_THREAD.replace("S (sleeping)", "Z (zombie)");
    let status = parse(&text, "x").unwrap();
    assert!(status.zombie && !status.kernel_thread);
}

#[test]
fn a_process_that_ended_is_gone_and_a_hidden_one_denied() {
    let kernel = FakeKernel::new().refusing("proc/43/status", Errno::PERM);
    assert!(status(&kernel, Pid(42)).unwrap_err().is_gone());
    assert!(matches!(status(&kernel, Pid(43)), Err(Error::Denied(_))));
}

#[test]
fn a_malformed_or_missing_line_is_named() {
    let error = parse(&with_line("VmRSS", Some("VmRSS:\tmuch")), "/proc/42/status").unwrap_err();
    assert_eq!(error.to_string(), "cannot understand /proc/42/status, VmRSS: \"much\", expected a number of kB");
    let error = parse(&with_line("Uid", None), "/proc/42/status").unwrap_err();
    assert_eq!(error.to_string(), "cannot understand /proc/42/status: no line \"Uid\"");
    assert!(parse(&with_line("Uid", Some("Uid:\t0")), "x").is_err());
    assert!(parse(&with_line("CapEff", Some("CapEff:\tall")), "x").is_err());
    assert!(parse(&with_line("THP_enabled", Some("THP_enabled:\tmaybe")), "x").is_err());
    assert!(parse("", "x").is_err());
}

#[test]
fn lines_of_a_newer_kernel_are_left_out() {
    let newer = format!("New_line:\t1\nsomething else\n{RECORDED}VmNew:\t many kB\n:\n");
    assert_eq!(parse(&newer, "x"), parse(RECORDED, "x"));
}

#[test]
fn procfs_sees_the_same() {
    let quiet = QuietProcess::start();
    let ours = status(&Rooted::host(), quiet.pid()).unwrap();
    let theirs = Process::new(quiet.pid().0).unwrap().status().unwrap();
    let kib = |kib: Option<u64>| Bytes::kib(kib.unwrap());
    assert_eq!(ours.name, theirs.name.as_str());
    assert_eq!(ours.thread_group, Pid(theirs.tgid));
    assert_eq!(ours.uid, theirs.euid);
    assert_eq!(u64::from(ours.threads), theirs.threads);
    assert_eq!((ours.rss, ours.rss_peak, ours.locked), (kib(theirs.vmrss), kib(theirs.vmhwm), kib(theirs.vmlck)));
    let parts = (ours.rss_anon, ours.rss_file, ours.rss_shmem);
    assert_eq!(parts, (kib(theirs.rssanon), kib(theirs.rssfile), kib(theirs.rssshmem)));
    assert_eq!(ours.effective_capabilities, theirs.capeff);
    assert!(!ours.kernel_thread && !ours.zombie);
}

#[test]
fn the_first_kernel_thread_of_this_host_is_one() {
    // Process 2 is kthreadd. In a container it is the second process started there, or missing.
    let Ok(second) = status(&Rooted::host(), Pid(2)) else { return };
    assert_eq!(second.kernel_thread, second.name == "kthreadd");
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_without_a_panic(text in "(?s).{0,200}") {
        let _ = parse(&text, "x");
    }

    #[test]
    fn any_value_is_read_or_refused_without_a_panic(
        key in "State|Tgid|Uid|Kthread|VmRSS|THP_enabled|Threads|CapEff", value in ".{0,30}"
    ) {
        let _ = parse(&with_line(&key, Some(&format!("{key}:\t{value}"))), "x");
    }
}

#[test]
fn a_traced_and_a_filtered_process_say_so() {
    let recorded = include_str!("../../../tests/recorded/6.18/status");
    let with = |key: &str, value: &str| {
        let lines = recorded.lines().map(|line| match line.split_once(':') {
            Some((found, _)) if found == key => format!("{key}:\t{value}\n"),
            _ => format!("{line}\n"),
        });
        parse(&lines.collect::<String>(), "status")
    };
    assert_eq!(with("TracerPid", "77").unwrap().tracer, Some(Pid(77)));
    assert!(with("TracerPid", "x").is_err());
    assert_eq!(with("Seccomp", "2").unwrap().seccomp, Seccomp::Filtered);
    assert_eq!(with("Seccomp", "1").unwrap().seccomp, Seccomp::Strict);
    assert_eq!(with("Seccomp", "3").unwrap().seccomp, Seccomp::Unknown);
    let older: String =
        recorded.lines().filter(|line| !line.starts_with("Seccomp:")).map(|l| format!("{l}\n")).collect();
    assert_eq!(parse(&older, "status").unwrap().seccomp, Seccomp::NotReported);
}
