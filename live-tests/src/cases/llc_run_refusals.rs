//! Refusals of `masu llc run`: a line with the reason, one with the remedy, and nothing is changed.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use serde_json::Value;

use super::Outcome;
use super::command::{json, masu, said};
use super::llc_run::{Daemon, Place, by_pid, config, strings};
use super::programs::{Running, Said};
use super::run::{Folder, Result};
use crate::host::{Host, LiveTest, tests};
use crate::setting::Setting;
use crate::target_process::{Backing, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    llc_run_refusals requires [Root, MasuCommand];
    no_file_system_to_use;
    no_room_in_the_file_system [Fuse, ResctrlEmulator, RealProcessor];
    classes_used_up_by_others_are_named [Fuse, ResctrlEmulator, RealProcessor];
    a_thread_that_another_tool_takes_is_named_when_it_comes_back [Fuse, ResctrlEmulator, RealProcessor];
    a_configuration_that_cannot_be_meant [Fuse, ResctrlEmulator, RealProcessor];
    programs_that_are_not_there [Fuse, ResctrlEmulator, RealProcessor];
    a_file_system_that_goes_away_ends_it [Fuse, ResctrlEmulator, RealProcessor];
    one_at_a_time_and_only_root [Fuse, ResctrlEmulator, RealProcessor];
    without_ksm_and_without_partitions_there_is_nothing_to_do [Ksm];
    the_facts_tell_of_caches_and_their_division;
};

const OFF: &str =
    "With partition = \"off\" in the configuration masu keeps what is shared in the cache, without partitions.";
const NOBODY_UID: u32 = 65534;

fn run(arguments: &[impl AsRef<str>]) -> Result<Said> {
    Ok(Running::start(masu()?.args(["llc", "run"]).args(arguments.iter().map(AsRef::as_ref)))?.said()?)
}

/// Nothing is done, and these two lines give the reason and the remedy.
fn refused(said: &Said, line: &str, remedy: &str) {
    let expected = format!("masu: {line}\n    {remedy}\n");
    assert_eq!((said.err.as_str(), said.out.as_str(), said.code()), (expected.as_str(), "", 2));
}

/// The run is refused after its first change, which is undone.
fn refused_later(said: Said, line: &str, remedy: &str) {
    assert!(said.out.ends_with(" s  restored: 0 groups removed, the default group has its ways\n"), "{}", said.out);
    assert_eq!(said.out.lines().count(), 1);
    refused(&Said { out: String::new(), ..said }, line, remedy);
}

/// A configuration with a program that runs this test itself.
fn own() -> String {
    format!("pids = [{}]", std::process::id())
}

/// The message follows the kernel's facilities. Where resctrl is mounted, it is used.
fn no_file_system_to_use(_: &Host) -> Outcome {
    let folder = Folder::make("llc-refusals")?;
    let file = folder.0.join("llc.toml");
    fs::write(&file, config(&[("one", own())]))?;
    let file = file.display().to_string();
    let known = fs::read_to_string("/proc/filesystems")?.lines().any(|line| line.trim() == "nodev\tresctrl");
    let mounted = fs::read_to_string("/proc/mounts")?.lines().any(|line| line.split(' ').nth(2) == Some("resctrl"));
    if !mounted && known {
        let remedy = "`mount -t resctrl resctrl /sys/fs/resctrl` mounts it.";
        refused(&run(&["--config", &file])?, "cannot use resctrl: it is not mounted", remedy);
    } else if !mounted {
        let flags = fs::read_to_string("/proc/cpuinfo")?;
        let could = flags.split_ascii_whitespace().any(|flag| flag == "cat_l3");
        let remedy = if could {
            format!(
                "The processor could: the kernel lacks CONFIG_X86_CPU_RESCTRL, or was started with rdt=!l3cat. {OFF}"
            )
        } else {
            format!("It wants a processor with Intel CAT, AMD QoS or Arm MPAM; virtual machines have none. {OFF}")
        };
        refused(&run(&["--config", &file])?, "cannot use resctrl: this kernel does not offer it", &remedy);
    }
    let directory = folder.0.display().to_string();
    refused(
        &run(&["--config", &file, "--resctrl", &directory])?,
        &format!("cannot use {directory}: no resctrl file system is mounted there"),
        "/proc/mounts says where it is mounted; without --resctrl, masu looks there.",
    );
    refused(
        &run(&["--config", &file, "--resctrl", "/none"])?,
        "cannot use /none: no such file or directory (ENOENT)",
        "Name the directory at which resctrl, or an emulator of it, is mounted.",
    );
    Ok(())
}

/// No free class, a name that is taken, ways that others hold exclusively.
fn no_room_in_the_file_system(_: &Host) -> Outcome {
    let process = TargetProcess::start()?;
    let place = Place::make(&["--classes", "3"])?;
    let root = place.emulator.root();
    let arguments = place.with(&config(&[("one", by_pid(&process))]))?;
    // Another living masu's: it holds a lock on its group.
    fs::create_dir(root.join("masu-one"))?;
    let alive = File::open(root.join("masu-one"))?;
    flock(&alive, FlockOperation::LockShared)?;
    let before = place.state()?;
    refused_later(
        run(&arguments)?,
        &format!("cannot make group masu-one: {}/masu-one: file exists (EEXIST)", root.display()),
        "Somebody else uses masu-one: give the program another name, or remove the group if nobody does.",
    );
    assert_eq!(place.state()?, before);
    fs::create_dir(root.join("theirs"))?;
    refused(
        &run(&arguments)?,
        "cannot make groups: 3 classes of service, the default group has one, other groups 2, needed: 1",
        &format!(
            "empty (no thread, no CPU): theirs of user 0; `rmdir {}/theirs` removes it; \
             in use: masu-one of user 0 (held by another masu)",
            root.display()
        ),
    );
    // Another user has nearly all ways exclusively.
    drop(alive);
    fs::remove_dir(root.join("masu-one"))?;
    fs::write(root.join("schemata"), "L3:0=80000\n")?;
    fs::write(root.join("theirs/schemata"), "L3:0=3ffff\n")?;
    fs::write(root.join("theirs/mode"), "exclusive\n")?;
    let before = place.state()?;
    refused(
        &run(&arguments)?,
        "cannot partition the cache: 20 of its 20 ways are taken, needed in a row: 1",
        "Give rest_ways, fixed masks or exclusive groups of others fewer ways.",
    );
    let fixed = config(&[("one", format!("{}\nmask = \"f\"", by_pid(&process)))]);
    refused(
        &run(&place.with(&fixed)?)?,
        &format!(
            "{} line 7: mask = f: overlaps the exclusive group theirs, whose mask is 3ffff",
            place.config().display()
        ),
        "`masu facts`, or info/L3 in the file system, says how many ways and classes there are.",
    );
    assert_eq!(place.state()?, before);
    Ok(())
}

/// 13 of 16 classes are other tools': of three programs two share a class, and one line names the groups, whether they are
/// in use, and how to remove those that are not.
fn classes_used_up_by_others_are_named(_: &Host) -> Outcome {
    let (theirs, one, two, three) =
        (TargetProcess::start()?, TargetProcess::start()?, TargetProcess::start()?, TargetProcess::start()?);
    let place = Place::make(&[])?;
    let root = place.emulator.root();
    for nth in 0..13 {
        fs::create_dir(root.join(format!("pod{nth}")))?;
    }
    fs::write(root.join("pod7/tasks"), format!("{}\n", theirs.pid()))?;
    let programs = [("one", by_pid(&one)), ("two", by_pid(&two)), ("three", by_pid(&three))];
    let arguments = place.with(&config(&programs))?;
    let before = place.state()?;
    let plan = |more: &str| said(&[&["llc", "plan", more][..], &strings(&arguments)].concat());
    let empty: Vec<String> = [0, 1, 10, 11, 12, 2, 3, 4, 5, 6, 8, 9].map(|nth| format!("pod{nth}")).into();
    let paths: Vec<String> = empty.iter().map(|name| format!("{}/{name}", root.display())).collect();
    let name = fs::read_to_string(format!("/proc/{}/comm", theirs.pid()))?;
    let line = format!(
        "one and two share a class of service: 16 classes, the default group has one, other groups 13; \
         empty (no thread, no CPU): {} of user 0; `rmdir {}` removes them; in use: pod7 of user 0 ({} {})",
        empty.join(" of user 0, "),
        paths.join(" "),
        name.trim(),
        theirs.pid()
    );
    let dry = plan("--dry-run")?;
    assert_eq!((dry.err.as_str(), dry.code()), (format!("masu: {line}\n").as_str(), 0));
    let text = said(&[&["llc", "plan"][..], &strings(&arguments)].concat())?;
    assert_eq!(text.out.lines().filter(|of| of.contains("pod7")).collect::<Vec<_>>().len(), 2, "{}", text.out);
    assert!(text.out.lines().any(|of| of == line), "{}", text.out);
    let report = json(&[&["llc", "plan", "--json"][..], &strings(&arguments)].concat())?;
    assert_eq!(report["shared_classes"]["together"], serde_json::json!([["one", "two"]]));
    assert_eq!(report["shared_classes"]["others"][10]["processes"][0]["pid"], theirs.pid().0);
    // A run says it before it changes anything, and removes nothing of others.
    let mut daemon = Daemon::start(&arguments)?;
    let event = daemon.until_event("shared_classes")?;
    assert_eq!((&event["classes"], event["others"].as_array().map(Vec::len)), (&16.into(), Some(13)));
    daemon.until_event("done")?;
    assert_eq!(daemon.end(Some(Signal::TERM))?.1.code(), 0);
    assert_eq!(place.state()?, before);
    // The command of the line makes room.
    for path in &paths {
        fs::remove_dir(path)?;
    }
    let report = json(&[&["llc", "plan", "--json"][..], &strings(&arguments)].concat())?;
    assert_eq!((&report["shared_classes"], report["groups"].as_array().map(Vec::len)), (&Value::Null, Some(4)));
    Ok(())
}

/// Another tool takes a thread into its group while masu divides: it is moved back, and the line names the group.
fn a_thread_that_another_tool_takes_is_named_when_it_comes_back(_: &Host) -> Outcome {
    let process = TargetProcess::start()?;
    let place = Place::make(&[])?;
    let root = place.emulator.root();
    fs::create_dir(root.join("pods"))?;
    let mut daemon = Daemon::start(&place.with(&config(&[("one", by_pid(&process))]))?)?;
    daemon.until_event("ready")?;
    fs::write(root.join("pods/tasks"), format!("{}\n", process.pid()))?;
    let back = daemon.until("a thread that is moved back", |event| event["from"] == serde_json::json!(["pods"]))?;
    let what = back["what"].as_str().ok_or("no words")?;
    assert!(what.ends_with("into group masu-one, back from group pods: another tool had moved them there"), "{what}");
    assert_eq!(daemon.end(Some(Signal::TERM))?.1.code(), 0);
    Ok(())
}

/// More ways than there are, exclusive ways of two, words that mean nothing, no file.
fn a_configuration_that_cannot_be_meant(_: &Host) -> Outcome {
    const EXAMPLE: &str = "integrations/llc/llc.toml is an example.";
    const PAGE: &str = "masu-llc-run(1) explains what can be said there.";
    const FACTS: &str = "`masu facts`, or info/L3 in the file system, says how many ways and classes there are.";
    let place = Place::make(&[])?;
    let before = place.tree()?;
    let usual = config(&[("one", own())]);
    let two =
        |one: &str, two: &str| config(&[("one", format!("pids = [1]\n{one}")), ("two", format!("pids = [2]\n{two}"))]);
    let cases = [
        (
            usual.replace("rest_ways = 2", "rest_ways = 30"),
            2,
            "rest_ways = 30: expected fewer than the 20 ways of this cache",
            FACTS,
        ),
        (usual.replace("on = true", "ways_max = 21"), 5, "ways_max = 21: expected 1 to 20", FACTS),
        (
            format!("{usual}mask = \"1fffff\"\n"),
            7,
            "mask = 1fffff: expected ways of fffff, of which this cache has 20",
            FACTS,
        ),
        (format!("{usual}l3 = [4]\n"), 7, "l3 = 4: expected a cache of this host: 0", FACTS),
        (
            format!("{usual}mask = \"c0000\"\nexclusive = true\n"),
            7,
            "mask = c0000: cannot be exclusive, since other hardware may use ways c0000",
            FACTS,
        ),
        (
            two("mask = \"f\"\nexclusive = true", "mask = \"18\""),
            13,
            "mask 18 of two overlaps mask f of one: expected none where one is exclusive",
            PAGE,
        ),
        (format!("{usual}mask = \"5\"\n"), 10, "mask = 5: expected at least one way, and ways in a row", PAGE),
        (
            usual.replace("name = \"one\"", "name = \"a/b\""),
            7,
            "name = a/b: expected 1 to 48 letters, digits, dashes, dots or underlines, and not shared. in front: its group is called so",
            PAGE,
        ),
        (
            usual.replace(&own(), ""),
            6,
            "program one: expected one of cgroup, pids, or user with executable or command, found 0",
            PAGE,
        ),
        (
            usual.replace("interval_s", "intervals"),
            3,
            "unknown field `intervals`, expected one of `policy`, `partition`, `rest_ways`, `interval_s`, `duty_fraction`, `domain`, `region`, `program`",
            PAGE,
        ),
        ("policy = \"sharing\"\n".to_owned(), 2, "no [[program]]: expected at least one", PAGE),
    ];
    for (text, line, what, remedy) in cases {
        let said = run(&place.with(&text)?)?;
        refused(&said, &format!("{} line {line}: {what}", place.config().display()), remedy);
    }
    fs::remove_file(place.config())?;
    let (file, root) = (place.config().display().to_string(), place.root());
    let unread = format!("cannot read {file}: no such file or directory (ENOENT)");
    for part in ["run", "plan"] {
        refused(&said(&["llc", part, "--config", &file, "--resctrl", &root])?, &unread, EXAMPLE);
    }
    let simulated = said(&["llc", "simulate", "/none.toml"])?;
    assert_eq!(simulated.first_line(), "masu: cannot read the scenario /none.toml: no such file or directory (ENOENT)");
    assert_eq!(place.tree()?, before);
    Ok(())
}

/// A process and a cgroup that do not exist.
fn programs_that_are_not_there(_: &Host) -> Outcome {
    let place = Place::make(&[])?;
    let before = place.tree()?;
    // The kernel gives no number so high.
    refused(
        &run(&place.with(&config(&[("one", "pids = [4194305]".to_owned())]))?)?,
        "cannot read /proc/4194305/stat: no such file or directory (ENOENT)",
        "The configuration names a process that is not there; `pgrep -a NAME` finds a running one.",
    );
    let said = run(&place.with(&config(&[("one", "cgroup = \"no/such.slice\"".to_owned())]))?)?;
    assert!(
        said.first_line().starts_with("masu: cannot find control group no/such.slice in /sys/fs/cgroup"),
        "{}",
        said.err
    );
    assert!(said.first_line().ends_with(": no such file or directory (ENOENT)"), "{}", said.err);
    assert_eq!(said.err.lines().nth(1), Some("    `cat /proc/PID/cgroup` says in which control group a process is."));
    assert_eq!((said.err.lines().count(), said.code()), (2, 2));
    // A thread's number has a directory in /proc like a process's.
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.spin(heap.pages(0, 2), 1, false)?;
    let pid = process.pid();
    let threads = fs::read_dir(format!("/proc/{pid}/task"))?.collect::<std::io::Result<Vec<_>>>()?;
    let other = threads.iter().map(|entry| entry.file_name()).find(|name| name.to_string_lossy() != pid.to_string());
    let thread = other.ok_or("no second thread")?.to_string_lossy().into_owned();
    let name = fs::read_to_string(format!("/proc/{thread}/comm"))?;
    refused(
        &run(&place.with(&config(&[("one", format!("pids = [{thread}]"))]))?)?,
        &format!("cannot divide the cache for process {thread}: it is a thread of process {pid} ({})", name.trim()),
        &format!("Name the process, {pid}, in the configuration: all its threads go with it."),
    );
    process.rest()?;
    // kthreadd, where this container shows it, has all other threads of the kernel as children.
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        refused(
            &run(&place.with(&config(&[("one", "pids = [2]".to_owned())]))?)?,
            "cannot divide the cache for process 2 (kthreadd): it is a kernel thread",
            "Kernel threads work for all programs; name a program.",
        );
    }
    assert_eq!(place.tree()?, before);
    Ok(())
}

/// A second run while the first is active, and a user who is not root.
fn one_at_a_time_and_only_root(_: &Host) -> Outcome {
    let process = TargetProcess::start()?;
    let place = Place::make(&["--allow-other"])?;
    let before = place.state()?;
    let arguments = place.with(&config(&[("one", by_pid(&process))]))?;
    let mut daemon = Daemon::start(&arguments)?;
    daemon.until_event("ready")?;
    let during = place.state()?;
    let end = "End it, or name its programs and yours in one configuration.";
    let plan = "Its lines say what it has decided; end it first to plan another division.";
    for (part, cannot, remedy) in [("run", "divide the cache", end), ("plan", "plan from what is there", plan)] {
        let said = said(&[&["llc", part][..], &strings(&arguments)].concat())?;
        let line = format!("masu: cannot {cannot}: another masu llc run is at work (process {})", daemon.pid()?);
        let expected = format!("{line}\n    {remedy}\n");
        assert_eq!((said.err.as_str(), said.out.as_str(), said.code()), (expected.as_str(), "", 3));
    }
    assert_eq!(place.state()?, during);
    assert_eq!(daemon.end(Some(Signal::TERM))?.1.code(), 0);
    // The command's folder may be closed to others: they have it open already.
    fs::set_permissions(place.config(), fs::Permissions::from_mode(0o644))?;
    let mut command = masu()?;
    let program = File::open(command.get_program())?;
    rustix::io::fcntl_setfd(&program, rustix::io::FdFlags::empty())?;
    command = std::process::Command::new(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&program)));
    let unprivileged = command.args(["llc", "run"]).args(&arguments).uid(NOBODY_UID);
    let said = Running::start(unprivileged)?.said()?;
    let line = "cannot divide the cache: cannot open /run/masu/private: permission denied (EACCES)";
    refused(&said, line, "Run as root.");
    assert_eq!(place.state()?, before);
    Ok(())
}

/// The file system is unmounted, or its server is killed, while the cache is divided: an error is printed, and masu
/// ends.
fn a_file_system_that_goes_away_ends_it(_: &Host) -> Outcome {
    for signal in [Signal::TERM, Signal::KILL] {
        let process = TargetProcess::start()?;
        let place = Place::make(&[])?;
        let mut daemon = Daemon::start(&place.with(&config(&[("one", by_pid(&process))]))?)?;
        daemon.until_event("ready")?;
        place.emulator.running().ok_or("no emulator")?.signal(signal)?;
        let (_, said) = daemon.end(None)?;
        assert_eq!(said.code(), 2, "{signal:?}: {said:?}");
        let lines: Vec<&str> = said.err.lines().collect();
        assert!(lines.len() == 2 && lines[0].starts_with("masu: cannot "), "{signal:?}: {lines:?}");
        let remedy = "    It was unmounted, or the emulator has ended: with that all groups are gone, and nothing is left to restore.";
        assert_eq!(lines[1], remedy, "{signal:?}");
        // Nothing of it is left for the next start.
        assert!(!super::command::said(&["facts", "--json"])?.err.contains("was killed"), "{signal:?}");
    }
    Ok(())
}

/// With partitions a run without KSM divides; without them it has nothing to keep.
fn without_ksm_and_without_partitions_there_is_nothing_to_do(_: &Host) -> Outcome {
    let _off = Setting::set("/sys/kernel/mm/ksm/run", "0")?;
    let folder = Folder::make("llc-refusals")?;
    let file = folder.0.join("llc.toml");
    fs::write(&file, format!("partition = \"off\"\n{}", config(&[("one", own())])))?;
    refused(
        &run(&["--config", &file.display().to_string()])?,
        "cannot keep shared pages in the cache: KSM is not running; `echo 1 > /sys/kernel/mm/ksm/run` starts it",
        "partition = \"off\" leaves nothing else to do; `masu llc shared` says what is shared.",
    );
    Ok(())
}

/// As text and as JSON, compared with the kernel's files.
fn the_facts_tell_of_caches_and_their_division(_: &Host) -> Outcome {
    let facts = json(&["facts", "--json"])?;
    let text = said(&["facts"])?.out;
    let row = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned());
    let kib = fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").unwrap_or_default();
    if let Ok(kib) = kib.trim().trim_end_matches('K').parse::<u64>() {
        assert_eq!(facts["last_level_caches"][0]["size_bytes"], kib * 1024);
        let size = units::Bytes::kib(kib).to_string();
        assert!(row("last-level cache ").is_some_and(|value| value.contains(&size)), "{text}");
    }
    let state = facts["host"]["resctrl"]["state"].as_str().ok_or("no state")?;
    let said = row("cache partitions (resctrl) ").ok_or("no row")?;
    match state {
        "not_in_kernel" => assert!(["not here", "not in this kernel; the processor could"].contains(&said.as_str())),
        "not_mounted" => assert_eq!(said, "not mounted"),
        _ => assert!(said.starts_with('/') && state == "mounted", "{state}: {said}"),
    }
    let features = facts["features"].as_array().ok_or("no features")?;
    let ours = features.iter().find(|feature| feature["feature"] == "last-level cache").ok_or("no feature")?;
    let parts: Vec<&Value> = ours["parts"].as_array().ok_or("no parts")?.iter().collect();
    assert_eq!(parts.iter().map(|part| &part["part"]).collect::<Vec<_>>(), ["dividing", "keeping shared pages"]);
    for missing in parts.iter().flat_map(|part| part["missing"].as_array().into_iter().flatten()) {
        let remedy = missing["remedy"].as_str().unwrap_or_default();
        assert!(!remedy.is_empty() && text.contains(remedy), "{remedy}");
    }
    Ok(())
}
