//! `masu llc plan` and `masu llc run` as users run them, on the emulator of resctrl: their writes, warm-up, output, and
//! restored settings.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use linux::Pid;
use rustix::fs::OFlags;
use rustix::pipe::PipeFlags;
use rustix::process::Signal;
use serde_json::Value;

use super::command::{masu, said};
use super::llc_shared::{Merging, merged, offering, until, until_merged};
use super::programs::{Running, Said, TIME_LIMIT};
use super::resctrl::Emulator;
use super::run::{Folder, Result};
use super::{Outcome, no_automatic_huge_pages};
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};
use crate::target_process::{Backing, Mapping, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    llc_run requires [Root, MasuCommand];
    a_dry_run_prints_each_write_and_changes_nothing [PageFrames, Ksm, Fuse, ResctrlEmulator];
    a_run_divides_fills_and_puts_everything_back [PageFrames, Ksm, Fuse, ResctrlEmulator];
    it_ends_by_each_signal_and_by_time_and_all_is_as_it_was [Fuse, ResctrlEmulator, RealProcessor];
    a_reader_who_stands_still_is_not_waited_for [Fuse, ResctrlEmulator, RealProcessor];
    what_a_killed_run_leaves_is_undone_and_what_is_others_stays [Fuse, ResctrlEmulator, RealProcessor];
    programs_that_join_and_end_are_planned_for [MemoryGroups, Fuse, ResctrlEmulator, RealProcessor];
    a_program_that_ends_at_any_moment_is_no_harm [Fuse, ResctrlEmulator, RealProcessor];
    without_partitions_shared_pages_are_kept_in_the_cache [PageFrames, Ksm];
};

/// Pages that two target processes share: 1.2 MiB, two ways of the emulator's.
const PAGES: u64 = 300;

/// An emulator, and a configuration beside it.
pub(super) struct Place {
    pub(super) emulator: Emulator,
    folder: Folder,
}

impl Place {
    pub(super) fn make(machine: &[&str]) -> Result<Place> {
        Ok(Place { emulator: Emulator::start(machine)?, folder: Folder::make("llc-run")? })
    }

    pub(super) fn root(&self) -> String {
        self.emulator.root().display().to_string()
    }

    /// The configuration, and the arguments that name it and the emulator.
    pub(super) fn with(&self, config: &str) -> Result<[String; 4]> {
        let file = self.config();
        fs::write(&file, config)?;
        Ok(["--config".to_owned(), file.display().to_string(), "--resctrl".to_owned(), self.root()])
    }

    pub(super) fn config(&self) -> PathBuf {
        self.folder.0.join("llc.toml")
    }

    pub(super) fn file(&self, name: &str) -> Result<String> {
        Ok(fs::read_to_string(self.emulator.root().join(name.trim_start_matches('/')))?)
    }

    /// All files with their contents, except the threads of the whole host, which come and go.
    pub(super) fn tree(&self) -> Result<BTreeMap<PathBuf, String>> {
        let mut tree = BTreeMap::new();
        read_all(&self.emulator.root(), &mut tree)?;
        tree.remove(&self.emulator.root().join("tasks"));
        Ok(tree)
    }

    /// The same, without the status of the last command.
    pub(super) fn state(&self) -> Result<BTreeMap<PathBuf, String>> {
        let mut tree = self.tree()?;
        tree.remove(&self.emulator.root().join("info/last_cmd_status"));
        Ok(tree)
    }
}

fn read_all(directory: &Path, tree: &mut BTreeMap<PathBuf, String>) -> Outcome {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            tree.insert(path.clone(), String::new());
            read_all(&path, tree)?;
        } else {
            let text = fs::read_to_string(&path).unwrap_or_else(|error| error.to_string());
            tree.insert(path, text);
        }
    }
    Ok(())
}

/// Configuration of these programs, which trust each other, with equal numbers of ways; their shared pages have a
/// partition.
pub(super) fn config(programs: &[(&str, String)]) -> String {
    let mut text = "policy = \"equal\"\nrest_ways = 2\ninterval_s = 0.1\n[region]\non = true\n".to_owned();
    for (name, whom) in programs {
        text += &format!("[[program]]\nname = \"{name}\"\n{whom}\ndomain = \"live\"\n");
    }
    text
}

pub(super) fn by_pid(process: &TargetProcess) -> String {
    format!("pids = [{}]", process.pid())
}

/// Two target processes that share `PAGES` pages, merged already; KSM goes on.
pub(super) struct Sharers {
    pub(super) one: TargetProcess,
    pub(super) two: TargetProcess,
    heaps: [Mapping; 2],
    _merging: Merging,
    _quiet: [crate::setting::Setting; 2],
}

impl Sharers {
    pub(super) fn start(seed: u64) -> Result<Sharers> {
        let quiet = no_automatic_huge_pages()?;
        let merging = Merging::start()?;
        let ((one, in_one), (two, in_two)) = (offering(seed, PAGES)?, offering(seed, PAGES)?);
        until_merged(&[(one.pid(), in_one.pages(0, PAGES)), (two.pid(), in_two.pages(0, PAGES))])?;
        Ok(Sharers { one, two, heaps: [in_one, in_two], _merging: merging, _quiet: quiet })
    }

    pub(super) fn config(&self) -> String {
        config(&[("one", by_pid(&self.one)), ("two", by_pid(&self.two))])
    }

    /// All pages are still merged, and keep their contents.
    fn are_merged(&mut self, seed: u64) -> Outcome {
        for (process, heap) in [(&mut self.one, self.heaps[0]), (&mut self.two, self.heaps[1])] {
            assert_eq!(merged(process.pid(), heap.pages(0, PAGES))?, usize::try_from(PAGES)?);
            process.check(heap.pages(0, PAGES), seed)?;
        }
        Ok(())
    }
}

/// A running `masu llc run --json`, and its output.
pub(super) struct Daemon {
    running: Option<Running>,
    lines: Receiver<Value>,
    pub(super) heard: Vec<Value>,
}

impl Daemon {
    pub(super) fn start(arguments: &[impl AsRef<str>]) -> Result<Daemon> {
        let mut command = masu()?;
        command.args(["llc", "run", "--json"]).args(arguments.iter().map(AsRef::as_ref));
        let mut running = Running::start(&mut command)?;
        let out = running.0.stdout.take().ok_or("no output")?;
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(std::io::Result::ok) {
                // A line that is not JSON is kept as a text, and fails the later look for fields.
                let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if tell.send(value).is_err() {
                    return;
                }
            }
        });
        Ok(Daemon { running: Some(running), lines, heard: Vec::new() })
    }

    pub(super) fn pid(&self) -> Result<Pid> {
        Ok(Pid(self.running.as_ref().ok_or("it has ended")?.pid()))
    }

    /// Waits for an event, and answers it.
    pub(super) fn until(&mut self, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + TIME_LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(event) = self.lines.recv_timeout(left) else {
                let said = self.running.take().map(Running::said).transpose()?;
                return Err(format!("waited in vain for {what}: {:#?}, {said:?}", self.heard).into());
            };
            self.heard.push(event.clone());
            if is(&event) {
                return Ok(event);
            }
        }
    }

    pub(super) fn until_event(&mut self, name: &str) -> Result<Value> {
        self.until(name, |event| event["event"] == name)
    }

    pub(super) fn until_filled(&mut self) -> Result<Value> {
        self.until("a filled region", |event| {
            event["event"] == "filled" && event["placed_pages"] == PAGES && event["merged_pages"] == PAGES
        })
    }

    /// Ends it; returns its last output and its exit status. Each line is JSON.
    pub(super) fn end(&mut self, signal: Option<Signal>) -> Result<(Value, Said)> {
        let running = self.running.take().ok_or("it has ended")?;
        if let Some(signal) = signal {
            running.signal(signal)?;
        }
        let said = running.said()?;
        self.heard.extend(self.lines.iter());
        let texts: Vec<&Value> = self.heard.iter().filter(|event| !event["event"].is_string()).collect();
        assert!(texts.is_empty(), "no events: {texts:?}");
        Ok((self.heard.last().cloned().unwrap_or_default(), said))
    }

    fn kill(&mut self) -> Outcome {
        let mut running = self.running.take().ok_or("it has ended")?;
        running.0.kill()?;
        running.0.wait()?;
        Ok(())
    }

    fn count(&self, name: &str) -> usize {
        self.heard.iter().filter(|event| event["event"] == name).count()
    }
}

pub(super) fn strings(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

fn threads(pid: Pid) -> Result<BTreeSet<String>> {
    let names = fs::read_dir(format!("/proc/{pid}/task"))?.map(|entry| Ok(entry?.file_name().display().to_string()));
    names.collect()
}

fn in_group(place: &Place, name: &str) -> Result<BTreeSet<String>> {
    Ok(place.file(&format!("{name}/tasks"))?.lines().map(str::to_owned).collect())
}

/// `path <- value` for each write, and not one of them made.
fn a_dry_run_prints_each_write_and_changes_nothing(_: &Host) -> Outcome {
    let sharers = Sharers::start(30)?;
    let place = Place::make(&["--machine", "broadwell-20"])?;
    let arguments = place.with(&sharers.config())?;
    let before = place.tree()?;
    let said_so = said(&[&["llc", "plan", "--dry-run"][..], &strings(&arguments)].concat())?;
    assert_eq!((said_so.code(), said_so.err.as_str()), (0, ""));
    let (root, one, two) = (place.root(), sharers.one.pid(), sharers.two.pid());
    let expected = format!(
        "{root}/schemata <- L3:0=c0000\nmkdir {root}/masu-one\nmkdir {root}/masu-two\nmkdir {root}/masu-shared.live\n\
         {root}/masu-one/schemata <- L3:0=ff\n{root}/masu-two/schemata <- L3:0=ff00\n\
         {root}/masu-shared.live/schemata <- L3:0=30000\n{root}/masu-shared.live/mode <- exclusive\n\
         {root}/masu-one/tasks <- {one}\n{root}/masu-two/tasks <- {two}\n\
         {root}/masu-shared.live/tasks <- (the thread that refills cache 0)\n"
    );
    assert_eq!(said_so.out, expected);
    let report = super::command::json(&[&["llc", "plan", "--json"][..], &strings(&arguments)].concat())?;
    let writes: Vec<&str> = report["writes"].as_array().ok_or("no writes")?.iter().filter_map(Value::as_str).collect();
    assert_eq!(writes, expected.lines().collect::<Vec<_>>());
    let table = said(&[&["llc", "plan"][..], &strings(&arguments)].concat())?;
    let has = |row: [&str; 5]| table.out.lines().any(|line| line.split_whitespace().eq(row));
    assert!(has(["masu-shared.live", "2", "30000", "exclusive", "live"]), "{}", table.out);
    assert!(table.out.contains("shared: 1.2 MiB in live by one, two"), "{}", table.out);
    assert_eq!(place.tree()?, before);
    // A run follows the plan: the last write to each file is the plan's value.
    let mut daemon = Daemon::start(&arguments)?;
    daemon.until_event("ready")?;
    for (path, value) in expected.lines().filter_map(|line| line.split_once(" <- ")) {
        let there = fs::read_to_string(path)?;
        let holds = there.lines().any(|line| line.trim() == value);
        assert!(holds || value.starts_with("(the thread"), "{path} says {there:?} and not {value}");
    }
    daemon.end(Some(Signal::INT))?;
    Ok(())
}

/// Groups, masks, threads and the region, while it runs; then nothing of them, and every page as merged as before.
fn a_run_divides_fills_and_puts_everything_back(_: &Host) -> Outcome {
    const DUTY: f64 = 0.02;
    let mut sharers = Sharers::start(31)?;
    let spun = sharers.one.map(Backing::Anonymous, 1)?;
    sharers.one.spin(spun.pages(0, 4), 3, false)?;
    let place = Place::make(&["--machine", "broadwell-20"])?;
    let before = place.state()?;
    let arguments = place.with(&format!("duty_fraction = {DUTY}\n{}", sharers.config()))?;
    let mut daemon = Daemon::start(&arguments)?;
    let ready = daemon.until_event("ready")?;
    assert_eq!((&ready["partition"], &ready["programs"]), (&true.into(), &serde_json::json!(["one", "two"])));
    let of_one = threads(sharers.one.pid())?;
    assert!(of_one.len() >= 4, "{of_one:?}");
    assert_eq!(
        (in_group(&place, "masu-one")?, in_group(&place, "masu-two")?),
        (of_one.clone(), threads(sharers.two.pid())?)
    );
    let moved = daemon.until("threads that are moved", |event| {
        event["what"].as_str().is_some_and(|what| what.contains("masu-one") && what.starts_with("put"))
    })?;
    assert_eq!(moved["what"], format!("put 1 process, {} threads, into group masu-one", of_one.len()));
    assert_eq!(moved["threads"], of_one.len());
    sharers.one.rest()?;

    // The region: one thread of masu's, on the CPUs of that cache.
    let filled = daemon.until_filled()?;
    assert_eq!((&filled["unmerged_pages"], &filled["parted_pages"]), (&0.into(), &0.into()));
    assert_eq!(place.file("masu-shared.live/mode")?, "exclusive\n");
    let refilling = in_group(&place, "masu-shared.live")?;
    assert_eq!(refilling.len(), 1, "{refilling:?}");
    assert!(refilling.is_subset(&threads(daemon.pid()?)?));
    let status = fs::read_to_string(format!("/proc/{}/status", refilling.first().ok_or("none")?))?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"));
    let of_cache = fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list").unwrap_or_default();
    assert_eq!(allowed, Some(of_cache.trim()));

    // The shared partition is empty, as far as the counter shows: it is warmed up again and again, within its duty
    // cycle.
    place.emulator.tell("occupancy masu-shared.live 0 0")?;
    std::thread::sleep(Duration::from_millis(1500));
    let (end, said) = daemon.end(Some(Signal::TERM))?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    let number = |name: &str| end[name].as_f64().ok_or(format!("no {name}: {end}"));
    assert_eq!((&end["event"], &end["end"], &end["plans"]), (&"end".into(), &true.into(), &1.into()));
    assert!(number("refilled_bytes")? > 4096.0 * 1.5 * 300.0, "{end}");
    assert_eq!((number("unmerged_pages")?, number("failures")?), (0.0, 0.0));
    // A piece that has begun is ended; a slow machine's pieces are long.
    let (spent, ran) = (number("refill_cpu_us")?, number("run_us")?);
    assert!(spent <= 2.0 * DUTY * ran + 30_000.0, "{end}");
    assert_eq!((daemon.count("decided"), daemon.count("put_back")), (1, 1));
    assert_eq!(place.state()?, before);
    sharers.are_merged(31)
}

/// Ctrl-C, a service manager's signal, a terminal that closes, and `--for`.
fn it_ends_by_each_signal_and_by_time_and_all_is_as_it_was(_: &Host) -> Outcome {
    let (one, two) = (TargetProcess::start()?, TargetProcess::start()?);
    let place = Place::make(&[])?;
    let before = place.state()?;
    let arguments = place.with(&config(&[("one", by_pid(&one)), ("two", by_pid(&two))]))?;
    for signal in [Some(Signal::INT), Some(Signal::TERM), Some(Signal::HUP), None] {
        let time: &[&str] = if signal.is_none() { &["--for", "250ms"] } else { &[] };
        let mut daemon = Daemon::start(&[&strings(&arguments)[..], time].concat())?;
        daemon.until_event("ready")?;
        // With `--for` it may be over by now.
        assert!(signal.is_none() || place.emulator.root().join("masu-one").exists());
        let (end, said) = daemon.end(signal)?;
        assert_eq!((said.code(), said.err.as_str(), &end["event"]), (0, "", &"end".into()), "{signal:?}");
        assert_eq!(daemon.heard.iter().rev().nth(1).map(|event| &event["groups"]), Some(&2.into()));
        assert_eq!(place.state()?, before, "{signal:?}");
    }
    // The same as text; a reader that closes the pipe ends nothing, and the state is restored all the same.
    let mut words = masu()?;
    let said = Running::start(words.args(["llc", "run", "--for", "250ms"]).args(&arguments))?.said()?;
    assert_eq!(said.code(), 0);
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(lines.first(), Some(&"dividing the cache between one, two, by equal; Ctrl-C puts it back"));
    let has = |end: &str| lines.iter().any(|line| line.ends_with(end));
    assert!(
        has("  one: 1 process, 1 thread") && has("  did put 1 process, 1 thread, into group masu-one"),
        "{lines:#?}"
    );
    assert!(has("  restored: 2 groups removed, the default group has its ways"), "{lines:#?}");
    assert!(lines.last().is_some_and(|line| line.contains(" s  1 plan; ")), "{lines:#?}");
    let mut reader = Running::start(masu()?.args(["llc", "run"]).args(&arguments))?;
    let mut first = String::new();
    BufReader::new(reader.0.stdout.take().ok_or("no output")?).read_line(&mut first)?;
    until("its group", || Ok(place.emulator.root().join("masu-two").exists()))?;
    drop(one);
    until("the group of an ended program to go", || Ok(!place.emulator.root().join("masu-one").exists()))?;
    assert!(place.emulator.root().join("masu-two").exists(), "it goes on for the other program");
    reader.signal(Signal::TERM)?;
    let said = reader.said()?;
    let lost = "masu: cannot write the lines any more: broken pipe (EPIPE); masu llc run goes on without them\n";
    assert_eq!((said.code(), said.err.as_str()), (1, lost), "{first}");
    assert_eq!(place.state()?, before);
    Ok(())
}

/// Its output is a full pipe without a reader: new threads are put into their groups, and SIGTERM restores everything.
fn a_reader_who_stands_still_is_not_waited_for(_: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    let place = Place::make(&[])?;
    let before = place.state()?;
    let arguments = place.with(&config(&[("one", by_pid(&process))]))?;
    let (_reader, full) = full_pipe()?;
    let mut command = masu()?;
    command.args(["llc", "run"]).args(&arguments).stdout(full).stderr(Stdio::piped());
    let running = Running(command.spawn()?);
    let come = |process: &TargetProcess| {
        until("its threads in its group", || {
            Ok(in_group(&place, "masu-one").is_ok_and(|tasks| threads(process.pid()).is_ok_and(|all| all == tasks)))
        })
    };
    come(&process)?;
    let spun = process.map(Backing::Anonymous, 1)?;
    process.spin(spun.pages(0, 4), 3, false)?;
    come(&process)?;
    assert!(in_group(&place, "masu-one")?.len() >= 4);
    process.rest()?;
    running.signal(Signal::TERM)?;
    let said = running.said()?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    assert_eq!(place.state()?, before);
    Ok(())
}

/// A full pipe: its read end is not read yet, and its write end accepts nothing any more.
fn full_pipe() -> Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let flags = rustix::fs::fcntl_getfl(&writer)?;
    rustix::fs::fcntl_setfl(&writer, flags | OFlags::NONBLOCK)?;
    while rustix::io::write(&writer, &[b'\n'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags)?;
    Ok((reader, writer))
}

/// The journal of a dead masu, a group that it left without one, and groups of others.
fn what_a_killed_run_leaves_is_undone_and_what_is_others_stays(_: &Host) -> Outcome {
    let process = TargetProcess::start()?;
    let place = Place::make(&[])?;
    let root = place.emulator.root();
    fs::create_dir(root.join("theirs"))?;
    fs::write(root.join("theirs/schemata"), "L3:0=f0000\n")?;
    fs::write(root.join("theirs/tasks"), format!("{}\n", process.pid()))?;
    // Another user may use this name for a group.
    let other = TargetProcess::start()?;
    fs::create_dir(root.join("masu-mine"))?;
    fs::write(root.join("masu-mine/schemata"), "L3:0=ff\n")?;
    fs::write(root.join("masu-mine/tasks"), format!("{}\n", other.pid()))?;
    let before = place.state()?;
    let arguments = place.with(&config(&[("one", by_pid(&process))]))?;
    let mut daemon = Daemon::start(&arguments)?;
    daemon.until_event("ready")?;
    let pid = daemon.pid()?;
    assert_eq!(in_group(&place, "masu-one")?, threads(process.pid())?);
    daemon.kill()?;
    assert_eq!(in_group(&place, "masu-one")?, threads(process.pid())?, "nobody has put it back yet");
    // Any start of masu does it, and reports it.
    let said_so = said(&["restore"])?;
    let counts = "restored 3, failed 0, left to other programs 0, left to a newer masu 0\n";
    assert_eq!((said_so.code(), said_so.out.as_str()), (0, counts), "{said_so:?}");
    for line in [
        format!("masu: process {pid} was killed: its group {}/masu-one is removed", root.display()),
        format!("masu: process {pid} was killed: its tasks are moved back to {}/theirs/tasks", root.display()),
    ] {
        assert!(said_so.err.lines().any(|said| said == line), "{line}\n{}", said_so.err);
    }
    assert_eq!(place.state()?, before);
    assert_eq!(said(&["restore"])?.out, "nothing to restore\n");
    // A group without its journal is still there. Other users' groups are untouched, whatever they hold.
    fs::create_dir(root.join("masu-stale"))?;
    let plan = said(&[&["llc", "plan", "--dry-run"][..], &strings(&arguments)].concat())?;
    assert_eq!(plan.out.lines().next(), Some(format!("rmdir {}/masu-stale", root.display()).as_str()));
    assert!(root.join("masu-stale").exists());
    let mut daemon = Daemon::start(&arguments)?;
    let removed = daemon.until_event("done")?;
    assert_eq!(removed["what"], "remove group masu-stale, in which nobody is and which no masu holds");
    daemon.until_event("measured")?;
    assert_eq!(daemon.end(Some(Signal::INT))?.1.code(), 0);
    assert_eq!(place.state()?, before);
    assert_eq!(in_group(&place, "theirs")?, threads(process.pid())?);
    Ok(())
}

/// A cgroup that is empty at first, and in the end.
fn programs_that_join_and_end_are_planned_for(_: &Host) -> Outcome {
    let group = Group::make("llc-run")?;
    let first = TargetProcess::start()?;
    let place = Place::make(&[])?;
    let before = place.state()?;
    let second = ("two", format!("cgroup = \"{}\"", group.name()));
    let arguments = place.with(&config(&[("one", by_pid(&first)), second]))?;
    let mut daemon = Daemon::start(&arguments)?;
    let groups = |event: &Value| event["groups"].as_array().map_or(0, Vec::len);
    let decided = daemon.until_event("decided")?;
    assert_eq!(groups(&decided), 2, "one and the default group: {decided}");
    let without = daemon.heard.iter().find(|event| event["event"] == "without").ok_or("nothing is missed")?;
    assert_eq!(without["why"], format!("control group {} has no process yet", group.name()));
    let joined = TargetProcess::start()?;
    group.take_in(joined.pid())?;
    let came = daemon.until("a program that comes", |event| event["program"] == "two")?;
    assert_eq!((&came["processes"], &came["began"]), (&1.into(), &1.into()));
    assert_eq!(groups(&daemon.until_event("decided")?), 3);
    daemon.until("its thread in its group", |event| event["what"] == "put 1 process, 1 thread, into group masu-two")?;
    assert_eq!(in_group(&place, "masu-two")?, threads(joined.pid())?);
    drop(joined);
    daemon.until("a program that ended", |event| event["program"] == "two" && event["processes"] == 0)?;
    assert_eq!(groups(&daemon.until_event("decided")?), 2);
    daemon.until("its group gone", |event| event["what"] == "remove group masu-two")?;
    assert!(!place.emulator.root().join("masu-two").exists());
    let (end, said) = daemon.end(Some(Signal::TERM))?;
    assert_eq!((said.code(), &end["plans"], &end["failures"]), (0, &3.into(), &0.into()));
    assert_eq!(place.state()?, before);
    // Where all programs are named by process ids, the run ends with the last of them.
    let arguments = place.with(&config(&[("one", by_pid(&first))]))?;
    let mut daemon = Daemon::start(&arguments)?;
    daemon.until_event("ready")?;
    drop(first);
    assert_eq!(daemon.end(None)?.1.code(), 0);
    assert_eq!(place.state()?, before);
    Ok(())
}

/// Killed after another time each: the program is there, or it is not; both outcomes are allowed.
fn a_program_that_ends_at_any_moment_is_no_harm(_: &Host) -> Outcome {
    let place = Place::make(&[])?;
    let before = place.state()?;
    for round in 0..8 {
        let (mut one, two) = (TargetProcess::start()?, TargetProcess::start()?);
        let arguments = place.with(&config(&[("one", by_pid(&one)), ("two", by_pid(&two))]))?;
        let part: &[&str] = if round % 2 == 0 { &["llc", "plan"] } else { &["llc", "run", "--for", "150ms"] };
        let running = Running::start(masu()?.args(part).args(&arguments))?;
        std::thread::sleep(Duration::from_millis(round * 12));
        let pid = one.pid();
        one.kill();
        let said = running.said()?;
        let gone = format!("masu: cannot read /proc/{pid}/stat: no such file or directory (ENOENT)");
        match said.code() {
            0 => assert_eq!(said.err, ""),
            _ => assert_eq!((said.first_line(), said.code()), (gone.as_str(), 2)),
        }
        assert_eq!(place.state()?, before, "round {round}");
    }
    Ok(())
}

/// No file system and no hardware: the lines are only kept in the cache.
fn without_partitions_shared_pages_are_kept_in_the_cache(_: &Host) -> Outcome {
    let mut sharers = Sharers::start(32)?;
    let folder = Folder::make("llc-run")?;
    let file = folder.0.join("llc.toml");
    fs::write(&file, format!("partition = \"off\"\n{}", sharers.config()))?;
    let mut daemon = Daemon::start(&["--config", &file.display().to_string()])?;
    let ready = daemon.until_event("ready")?;
    assert_eq!(ready["partition"], false);
    let filled = daemon.until_filled()?;
    assert_eq!((&filled["group"], &filled["by_occupancy"]), (&"live".into(), &false.into()));
    let (end, said) = daemon.end(Some(Signal::INT))?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    assert!(end["refilled_bytes"].as_u64() >= Some(PAGES * 4096), "{end}");
    assert_eq!((&end["unmerged_pages"], &end["plans"]), (&0.into(), &0.into()));
    assert_eq!((daemon.count("put_back"), daemon.count("done"), daemon.count("decided")), (0, 0, 0));
    sharers.are_merged(32)
}
