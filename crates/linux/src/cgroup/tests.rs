use proptest::prelude::*;

use super::*;
use crate::Rooted;
use crate::fake::FakeKernel;

const V1_MOUNT: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";
const V2_MOUNT: &str = "30 23 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const OTHERS: &str = "24 31 0:22 / /proc rw,relatime - proc proc rw\n\
    32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n";

fn tree(cgroup: &str, mounts: &str, groups: &[(&str, &str)]) -> FakeKernel {
    let kernel =
        FakeKernel::new().file("proc/42/cgroup", cgroup).file("proc/self/mountinfo", &format!("{OTHERS}{mounts}"));
    groups.iter().fold(kernel, |kernel, (name, text)| kernel.file(&format!("sys/fs/cgroup/{name}"), text))
}

fn found(kernel: &FakeKernel) -> Memory {
    memory(kernel, Pid(42)).unwrap().unwrap()
}

#[test]
fn the_limit_of_version_2_is_found_with_its_usage() {
    let kernel = tree(
        "0::/web\n",
        V2_MOUNT,
        &[("web/memory.max", "1048576\n"), ("web/memory.high", "max\n"), ("web/memory.current", "4096\n")],
    );
    let expected = Memory {
        limit: Limit::Bytes(Bytes::mib(1)),
        usage: Bytes(4096),
        idle_cache: Bytes(0),
        path: "/sys/fs/cgroup/web".to_owned(),
    };
    assert_eq!(found(&kernel), expected);
    assert_eq!(expected.headroom(), Some(Bytes::kib(1020)));
}

#[test]
fn kills_for_lack_of_memory_are_read_in_both_versions() {
    let kernel = tree("0::/web\n", V2_MOUNT, &[("web/memory.events", "oom 3\noom_kill 2\noom_group_kill 0\n")]);
    assert_eq!(oom_kills(&kernel, Pid(42)), Some(("sys/fs/cgroup/web".to_owned(), 2)));
    let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n";
    let kernel = tree("4:memory:/web\n", V1_MOUNT, &[("memory/web/memory.oom_control", text)]);
    assert_eq!(oom_kills(&kernel, Pid(42)), Some(("sys/fs/cgroup/memory/web".to_owned(), 7)));
    assert_eq!(oom_kills(&tree("0::/web\n", V2_MOUNT, &[]), Pid(42)), None);
}

#[test]
fn the_path_of_a_process_is_that_in_the_hierarchy_of_the_memory_controller() {
    let of = |text: &str| path_of(&FakeKernel::new().file("proc/42/cgroup", text), Pid(42));
    assert_eq!(of("0::/web\n").unwrap(), Some("/web".into()));
    assert_eq!(of("5:cpu:/a\n4:memory,x:/b\n0::/c\n").unwrap(), Some("/b".into()));
    let of_bytes = FakeKernel::new().file_of_bytes("proc/42/cgroup", b"0::/a:b\xff\x1b[2J\r\n");
    assert_eq!(path_of(&of_bytes, Pid(42)).unwrap(), Some(Untrusted::new(b"/a:b\xff\x1b[2J\r")));
    assert_eq!(of("").unwrap(), None);
    assert!(path_of(&FakeKernel::new(), Pid(42)).unwrap_err().is_gone());
    assert_eq!(path_of(&FakeKernel::new().file("proc/42/stat", ""), Pid(42)), Ok(None));
}

#[test]
fn idle_page_cache_is_room_in_both_versions() {
    let limits = [("web/memory.max", "100000\n"), ("web/memory.high", "max\n"), ("web/memory.current", "99000\n")];
    let stat = "anon 60000\nfile 39000\ninactive_file 30000\nactive_file 9000\n";
    let kernel = tree("0::/web\n", V2_MOUNT, &limits).file("sys/fs/cgroup/web/memory.stat", stat);
    assert_eq!(found(&kernel).headroom(), Some(Bytes(31_000)));
    let limits = [("memory/web/memory.limit_in_bytes", "100000\n"), ("memory/web/memory.usage_in_bytes", "99000\n")];
    let stat = "inactive_file 7\ntotal_inactive_file 30000\n";
    let kernel = tree("4:memory:/web\n", V1_MOUNT, &limits).file("sys/fs/cgroup/memory/web/memory.stat", stat);
    assert_eq!(found(&kernel).headroom(), Some(Bytes(31_000)));
}

#[test]
fn a_malformed_count_of_cache_is_named() {
    let limits = [("a/memory.max", "8192\n"), ("a/memory.current", "1\n"), ("a/memory.stat", "inactive_file few\n")];
    let error = memory(&tree("0::/a\n", V2_MOUNT, &limits), Pid(42)).unwrap_err();
    let expected = "cannot understand /sys/fs/cgroup/a/memory.stat: \"few\", expected a number of bytes";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn the_high_mark_counts_when_it_is_lower() {
    let kernel = tree(
        "0::/web\n",
        V2_MOUNT,
        &[("web/memory.max", "max\n"), ("web/memory.high", "8192\n"), ("web/memory.current", "9000\n")],
    );
    assert_eq!(found(&kernel).limit, Limit::Bytes(Bytes(8192)));
    assert_eq!(found(&kernel).headroom(), Some(Bytes(0)));
}

#[test]
fn the_group_above_counts_when_it_leaves_less_room() {
    let groups = [
        ("a/memory.max", "100000\n"),
        ("a/memory.current", "90000\n"),
        ("a/b/memory.max", "50000\n"),
        ("a/b/memory.current", "10000\n"),
        ("a/b/c/memory.max", "max\n"),
        ("a/b/c/memory.current", "5000\n"),
    ];
    assert_eq!(found(&tree("0::/a/b/c\n", V2_MOUNT, &groups)).path, "/sys/fs/cgroup/a");
}

#[test]
fn without_any_limit_the_own_group_is_reported_as_unlimited() {
    let groups = [
        ("a/memory.max", "max\n"),
        ("a/memory.current", "90000\n"),
        ("a/b/memory.max", "max\n"),
        ("a/b/memory.current", "10000\n"),
    ];
    let memory = found(&tree("0::/a/b\n", V2_MOUNT, &groups));
    assert_eq!((memory.limit, memory.headroom()), (Limit::Unlimited, None));
    assert_eq!((memory.usage, memory.path.as_str()), (Bytes(10000), "/sys/fs/cgroup/a/b"));
}

#[test]
fn a_group_without_the_controller_is_passed_over() {
    let groups = [("a/memory.max", "8192\n"), ("a/memory.current", "4096\n"), ("a/b/cgroup.procs", "42\n")];
    assert_eq!(found(&tree("0::/a/b\n", V2_MOUNT, &groups)).path, "/sys/fs/cgroup/a");
}

#[test]
fn version_1_is_taken_where_it_has_the_controller() {
    let cgroup = "5:cpu,cpuacct:/x\n4:memory:/box\n0::/y\n";
    let groups = [
        ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("memory/memory.usage_in_bytes", "300000\n"),
        ("memory/box/memory.limit_in_bytes", "200000\n"),
        ("memory/box/memory.usage_in_bytes", "100000\n"),
    ];
    let memory = found(&tree(cgroup, V1_MOUNT, &groups));
    assert_eq!((memory.limit, memory.usage), (Limit::Bytes(Bytes(200_000)), Bytes(100_000)));
    assert_eq!(memory.path, "/sys/fs/cgroup/memory/box");
}

#[test]
fn the_number_that_means_no_limit_in_version_1_is_no_limit() {
    let groups = [("memory/memory.limit_in_bytes", "9223372036854771712\n"), ("memory/memory.usage_in_bytes", "1\n")];
    assert_eq!(found(&tree("4:memory:/\n", V1_MOUNT, &groups)).limit, Limit::Unlimited);
}

#[test]
fn a_container_that_sees_only_its_part_finds_its_group_there() {
    let mount = "35 31 0:32 /docker/box /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
    let groups = [("memory/memory.limit_in_bytes", "8192\n"), ("memory/memory.usage_in_bytes", "4096\n")];
    assert_eq!(found(&tree("4:memory:/docker/box\n", mount, &groups)).path, "/sys/fs/cgroup/memory");
    let elsewhere = memory(&tree("4:memory:/docker/boxes\n", mount, &groups), Pid(42)).unwrap_err();
    let expected = "cannot find control group /docker/boxes of process 42 in what is mounted here: \
        no such file or directory (ENOENT)";
    assert_eq!(elsewhere.to_string(), expected);
    assert!(memory(&tree("0::/../other\n", V2_MOUNT, &[]), Pid(42)).is_err());
}

#[test]
fn a_mount_point_with_a_space_is_found() {
    let mount = "30 23 0:27 / /mnt/my\\040groups rw - cgroup2 cgroup2 rw\n";
    let kernel = tree("0::/a\n", mount, &[]).file("mnt/my groups/a/memory.current", "1\n");
    assert_eq!(found(&kernel).path, "/mnt/my groups/a");
}

#[test]
fn a_host_that_does_not_account_memory_has_none() {
    assert_eq!(memory(&tree("0::/\n", V2_MOUNT, &[]), Pid(42)), Ok(None)); // the topmost group has no files
    assert_eq!(memory(&tree("0::/a\n", "", &[]), Pid(42)), Ok(None)); // nothing mounted
    assert_eq!(memory(&tree("", V2_MOUNT, &[]), Pid(42)), Ok(None));
    let without_groups = FakeKernel::new().file("proc/42/status", "");
    assert_eq!(memory(&without_groups, Pid(42)), Ok(None));
}

#[test]
fn a_process_that_ended_is_gone() {
    assert!(memory(&FakeKernel::new(), Pid(42)).unwrap_err().is_gone());
}

#[test]
fn a_malformed_limit_is_named() {
    let kernel = tree("0::/a\n", V2_MOUNT, &[("a/memory.max", "much\n"), ("a/memory.current", "1\n")]);
    let error = memory(&kernel, Pid(42)).unwrap_err();
    let expected = "cannot understand /sys/fs/cgroup/a/memory.max: \"much\", expected a number of bytes or max";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn lines_and_fields_of_a_newer_kernel_are_left_out() {
    let mount = "a new line\n30 23 0:27 / /sys/fs/cgroup rw shared:4 new:1 - cgroup2 cgroup2 rw,new more\n";
    let groups = [("a/memory.max", "8192\n"), ("a/memory.current", "4096\n"), ("a/memory.new", "x\n")];
    assert_eq!(found(&tree("what\n13:new:/x\n0::/a\n", mount, &groups)).usage, Bytes(4096));
}

#[test]
fn this_process_has_its_usage_within_its_limit_if_it_has_one() {
    let Ok(Some(memory)) = memory(&Rooted::host(), Pid::own()) else { return };
    assert!(memory.usage > Bytes(0), "{memory:?}");
    if let Limit::Bytes(limit) = memory.limit {
        assert!(limit > Bytes(0), "{memory:?}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_without_a_panic(cgroup in "(?s).{0,60}", mounts in "(?s).{0,100}") {
        let _ = own_group(cgroup.as_bytes(), MEMORY);
        for line in mounts.lines() {
            let _ = (Mount::of(line, Version::V1, MEMORY), Mount::of(line, Version::V2, MEMORY));
        }
    }

    #[test]
    fn the_levels_are_the_group_and_all_above_it(parts in prop::collection::vec("[a-z.]{1,8}", 0..6)) {
        prop_assume!(parts.iter().all(|part| part != ".."));
        let mount = Mount { root: "/".to_owned(), point: "x".to_owned() };
        let group = format!("/{}", parts.join("/"));
        let levels = mount.levels_to(&group).unwrap();
        let expected: Vec<String> = (0..=parts.len()).rev().map(|n| parts[..n].join("/")).collect();
        prop_assert_eq!(levels, expected);
    }
}
