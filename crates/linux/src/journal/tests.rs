use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::fs::MetadataExt;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::Rooted;
use crate::fake::FakeKernel;
use crate::quiet_process::QuietProcess;

const THP: &str = "sys/kernel/mm/transparent_hugepage/enabled";
const SCAN: &str = "sys/kernel/mm/ksm/pages_to_scan";

/// Directory for journals, made by the code under test; in memory if possible, like `/run`.
fn run() -> (TempDir, PathBuf) {
    let run = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let directory = run.path().join("masu");
    (run, directory)
}

fn private(directory: &Path) -> PathBuf {
    runtime_directory::private_path(directory)
}

fn stat_line(writer: Writer) -> String {
    format!("{} (masu) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {} 0 0\n", writer.pid, writer.start_ticks)
}

fn writer(pid: i32) -> Writer {
    Writer { pid: Pid(pid), start_ticks: 1000 + u64::from(pid.unsigned_abs()) }
}

fn born(kernel: FakeKernel, writer: Writer) -> FakeKernel {
    kernel.file(&writer.pid.file("stat"), &stat_line(writer))
}

/// Gives the pid to another process, which started later.
fn dies(kernel: &FakeKernel, writer: Writer) {
    let next = Writer { start_ticks: writer.start_ticks + 50_000, ..writer };
    kernel.write(&writer.pid.file("stat"), &stat_line(next)).unwrap();
}

/// Ends the process with its descriptors, without a restore.
pub(crate) fn abandon<F: KernelFiles>(mut knobs: HostSettings<'_, F>) {
    knobs.journal = None;
    std::mem::forget(knobs);
}

/// [`super::replay`] without clients.
fn replay(files: &impl KernelFiles, directory: &Path) -> Result<Vec<Restored>, Error> {
    super::replay(files, directory, &[])
}

fn kernel() -> FakeKernel {
    let kernel = FakeKernel::new()
        .file(THP, "always [madvise] never\n")
        .file(SCAN, "100\n")
        .file("proc/sys/kernel/random/boot_id", "this-boot\n");
    born(born(kernel, writer(7)), writer(8))
}

fn held(path: &str, old: &str) -> Held {
    Held::knob(path, old, None)
}

fn knob_writes(kernel: &FakeKernel) -> Vec<String> {
    kernel.writes().into_iter().filter(|write| write.starts_with("sys/")).collect()
}

#[test]
fn knobs_are_put_back_in_reverse_order_with_the_word_in_brackets() {
    let (_run, directory) = run();
    let kernel = kernel();
    let mut knobs = HostSettings::of_writer(&kernel, &directory, writer(7));
    knobs.set(THP, "always").unwrap();
    knobs.set(SCAN, "5000").unwrap();
    knobs.set(SCAN, "6000").unwrap();
    knobs.restore().unwrap();
    drop(knobs);
    let expected = [
        format!("{THP} <- always"),
        format!("{SCAN} <- 5000"),
        format!("{SCAN} <- 6000"),
        format!("{SCAN} <- 100"),
        format!("{THP} <- madvise"),
    ];
    assert_eq!(knob_writes(&kernel), expected);
    let left: Vec<_> = fs::read_dir(private(&directory)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"]);
}

#[test]
fn dropping_puts_back_and_turning_nothing_writes_nothing() {
    let (_run, directory) = run();
    let kernel = kernel();
    drop(HostSettings::of_writer(&kernel, &directory, writer(7)));
    assert!(!directory.exists());
    HostSettings::of_writer(&kernel, &directory, writer(7)).set(SCAN, "1").unwrap();
    assert_eq!(kernel.read(SCAN).unwrap(), "100");
}

#[test]
fn the_journal_is_written_before_the_knob_is_turned() {
    let (_run, directory) = run();
    let kernel = kernel().refusing(SCAN, Errno::ACCESS);
    let mut knobs = HostSettings::of_writer(&kernel, &directory, writer(7));
    knobs.set(THP, "always").unwrap();
    assert!(matches!(knobs.set(SCAN, "1"), Err(Error::Denied(_))));
    let journal = fs::read_to_string(private(&directory).join("7-1007.journal")).unwrap();
    let expected = format!("{{\"boot\":\"this-boot\"}}\n{{\"turned\":{{\"path\":\"{THP}\",\"old\":\"madvise\"}}}}\n");
    assert_eq!(journal, expected);
}

#[test]
fn a_crash_is_made_good_by_the_next_start() {
    let (_run, directory) = run();
    let kernel = kernel();
    let mut knobs = HostSettings::of_writer(&kernel, &directory, writer(7));
    knobs.set(THP, "never").unwrap();
    abandon(knobs);
    dies(&kernel, writer(7));
    let expected = Restored {
        path: THP.to_owned(),
        value: "madvise".to_owned(),
        undone: Undone::Written,
        writer: Pid(7),
        failure: None,
    };
    assert_eq!(replay(&kernel, &directory).unwrap(), [expected]);
    assert_eq!(kernel.read(THP).unwrap(), "madvise");
    assert_eq!(replay(&kernel, &directory).unwrap(), []);
}

#[test]
fn a_living_process_keeps_its_knobs() {
    let (_run, directory) = run();
    let kernel = kernel();
    let mut knobs = HostSettings::of_writer(&kernel, &directory, writer(7));
    knobs.set(THP, "never").unwrap();
    assert_eq!(replay(&kernel, &directory).unwrap(), []);
    assert_eq!(kernel.read(THP).unwrap(), "never");
    knobs.restore().unwrap();
    assert_eq!(kernel.read(THP).unwrap(), "madvise");
}

/// The PID namespace gives it the number of another process of ours, or of none.
#[test]
fn a_living_process_of_another_pid_namespace_keeps_its_knobs() {
    let (_run, directory) = run();
    let kernel = kernel();
    let mut knobs = HostSettings::of_writer(&kernel, &directory, writer(9));
    knobs.set(THP, "never").unwrap();
    assert_eq!(replay(&kernel, &directory).unwrap(), []);
    assert_eq!(kernel.read(THP).unwrap(), "never");
    knobs.write_anew().unwrap();
    assert_eq!(replay(&kernel, &directory).unwrap(), [], "its new journal is held as well");
    let mut ours = HostSettings::of_writer(&kernel, &directory, writer(7));
    ours.set(THP, "always").unwrap();
    ours.restore().unwrap();
    assert_eq!(kernel.read(THP).unwrap(), "always", "left to the other");
    abandon(knobs);
    assert_eq!(replay(&kernel, &directory).unwrap().len(), 1);
    assert_eq!(kernel.read(THP).unwrap(), "madvise");
}

/// DAMON answers EINVAL to "off" where it was never turned on.
#[test]
fn a_knob_that_refuses_the_value_that_it_has_is_put_back() {
    let (_run, directory) = run();
    let kernel = kernel().file("sys/state", "off\n").refusing_value("sys/state", "off", Errno::INVAL);
    let mut knobs = HostSettings::of_writer(&kernel, &directory, writer(7));
    knobs.record_undo("sys/state", "off").unwrap();
    abandon(knobs);
    dies(&kernel, writer(7));
    let restored = replay(&kernel, &directory).unwrap();
    assert!(restored.iter().all(|one| one.failure.is_none()) && restored.len() == 1, "{restored:?}");
    assert!(!private(&directory).join("7-1007.journal").exists());
}

#[test]
fn of_two_processes_the_last_one_puts_the_first_value_back() {
    let (_run, directory) = run();
    let kernel = kernel();
    let mut first = HostSettings::of_writer(&kernel, &directory, writer(7));
    let mut second = HostSettings::of_writer(&kernel, &directory, writer(8));
    first.set(THP, "always").unwrap();
    second.set(THP, "never").unwrap();
    first.restore().unwrap();
    assert_eq!(kernel.read(THP).unwrap(), "never");
    second.restore().unwrap();
    assert_eq!(kernel.read(THP).unwrap(), "madvise");
}

#[test]
fn a_line_torn_by_the_crash_is_left_out() {
    let whole = "{\"turned\":{\"path\":\"sys/a\",\"old\":\"1\"}}\n";
    let torn = "{\"turned\":{\"path\":\"sys/b\",\"old\":\"2\"}}";
    for length in 0..=torn.len() {
        let journal = Journal::parse(writer(7), &format!("{whole}{}", &torn[..length]));
        assert_eq!(journal.held, [held("sys/a", "1")]);
    }
}

#[test]
fn a_journal_never_names_anything_but_a_file_of_the_kernel() {
    for path in ["etc/passwd", "/sys/a", "sys/../etc/passwd", "proc//x", "", "sys/./a"] {
        assert!(!is_knob(path), "{path}");
        let line = serde_json::to_string(&Line::Turned(held(path, ""))).unwrap();
        assert_eq!(Journal::parse(writer(7), &format!("{line}\n")).held, []);
    }
}

#[test]
fn a_directory_that_others_could_write_is_repaired_and_its_journals_are_replayed() {
    use std::os::unix::fs::PermissionsExt;
    for mode in [0o700, 0o755, 0o775, 0o777] {
        let (_run, directory) = run();
        fs::create_dir(&directory).unwrap();
        let kernel = kernel();
        let mut knobs = HostSettings::of_writer(&kernel, &directory, writer(7));
        knobs.set(THP, "never").unwrap();
        abandon(knobs);
        dies(&kernel, writer(7));
        fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(replay(&kernel, &directory).unwrap().len(), 1, "{mode:o}");
        assert_eq!(kernel.read(THP).unwrap(), "madvise");
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o7777, 0o755);
    }
}

/// Earlier versions kept journals in `/run/masu` itself.
#[test]
fn journals_of_an_earlier_version_are_replayed_and_those_of_its_living_processes_inherited() {
    let (_run, directory) = run();
    let kernel = kernel();
    let mut knobs = HostSettings::of_writer(&kernel, &directory, writer(7));
    knobs.set(THP, "never").unwrap();
    fs::rename(private(&directory).join("7-1007.journal"), directory.join("7-1007.journal")).unwrap();
    fs::remove_dir_all(private(&directory)).unwrap();
    abandon(knobs);
    let mut next = HostSettings::of_writer(&kernel, &directory, writer(8));
    next.set(THP, "always").unwrap();
    dies(&kernel, writer(7));
    assert_eq!(replay(&kernel, &directory).unwrap(), [], "a living process has turned it as well");
    assert!(!directory.join("7-1007.journal").exists());
    next.restore().unwrap();
    assert_eq!(kernel.read(THP).unwrap(), "madvise");
}

#[test]
fn one_who_holds_the_lock_and_does_not_go_on_is_not_waited_for_without_end() {
    let (_run, directory) = run();
    let held = lock(&directory).unwrap();
    let start = std::time::Instant::now();
    let error = replay(&kernel(), &directory).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(60));
    assert_eq!(error.errno(), Some(Errno::AGAIN));
    let said = error.to_string();
    assert!(said.contains(&private(&directory).join("lock").display().to_string()), "{said}");
    assert!(!matches!(error, Error::Denied(_)), "the command says it");
    drop(held);
    assert_eq!(replay(&kernel(), &directory), Ok(Vec::new()));
}

#[test]
fn a_symbolic_link_in_place_of_the_lock_is_not_followed() {
    let (run, directory) = run();
    runtime_directory::private(&directory).unwrap();
    let elsewhere = run.path().join("elsewhere");
    std::os::unix::fs::symlink(&elsewhere, private(&directory).join("lock")).unwrap();
    assert_eq!(replay(&kernel(), &directory).unwrap_err().errno(), Some(Errno::LOOP));
    assert!(!elsewhere.exists());
}

#[test]
fn a_journal_that_is_not_ours_turns_nothing_and_stays() {
    let (_run, directory) = run();
    runtime_directory::private(&directory).unwrap();
    let (link, target) = (directory.join("9-1.journal"), directory.join("text"));
    fs::write(&target, format!("{{\"turned\":{{\"path\":\"{THP}\",\"old\":\"always\"}}}}\n")).unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let foreign = directory.join("9-2.journal");
    if rustix::process::geteuid().is_root() {
        fs::copy(&target, &foreign).unwrap();
        std::os::unix::fs::chown(&foreign, Some(4001), None).unwrap();
    }
    let kernel = kernel();
    assert_eq!(replay(&kernel, &directory).unwrap(), []);
    assert_eq!(knob_writes(&kernel), [""; 0]);
    assert!(link.exists());
}

#[test]
fn a_journal_of_an_earlier_boot_is_removed_and_nothing_turned() {
    let (_run, directory) = run();
    let kernel = kernel();
    let mut knobs = HostSettings::of_writer(&kernel, &directory, writer(7));
    knobs.set(THP, "never").unwrap();
    abandon(knobs);
    kernel.write("proc/sys/kernel/random/boot_id", "next-boot\n").unwrap();
    assert_eq!(replay(&kernel, &directory).unwrap(), []);
    assert_eq!(kernel.read(THP).unwrap(), "never");
    assert!(!private(&directory).join("7-1007.journal").exists());
}

#[test]
fn a_knob_that_cannot_be_put_back_stays_in_the_journal() {
    let (_run, directory) = run();
    let crashed = kernel();
    let mut knobs = HostSettings::of_writer(&crashed, &directory, writer(7));
    knobs.set(THP, "never").unwrap();
    knobs.set(SCAN, "1").unwrap();
    abandon(knobs);
    dies(&crashed, writer(7));
    let crashed = crashed.refusing(THP, Errno::BUSY);
    let restored = replay(&crashed, &directory).unwrap();
    let outcomes: Vec<_> = restored.iter().map(|one| (one.path.as_str(), one.failure.is_none())).collect();
    assert_eq!(outcomes, [(SCAN, true), (THP, false)]);
    assert!(private(&directory).join("7-1007.journal").exists());
}

#[test]
fn a_promise_is_kept_in_the_end_unless_it_was_released() {
    let (_run, directory) = run();
    let kernel = kernel().file("sys/a", "1\n").file("sys/b", "1\n");
    let mut knobs = HostSettings::of_writer(&kernel, &directory, writer(7));
    for path in ["sys/a", "sys/b", "sys/not/there"] {
        knobs.record_undo(path, "0").unwrap();
    }
    knobs.release("sys/b").unwrap();
    assert_eq!(knob_writes(&kernel), [""; 0]);
    knobs.restore().unwrap();
    assert_eq!(knob_writes(&kernel), ["sys/a <- 0"]);
}

#[test]
fn a_promise_with_a_mark_is_kept_only_where_the_mark_is() {
    let (_run, directory) = run();
    let kernel = kernel().file("sys/a", "1\n").file("sys/b", "1\n").file("sys/mark", "ours\n");
    let mark = |path: &str, value: &str| Mark { path: path.to_owned(), value: value.to_owned() };
    let mut knobs = HostSettings::of_writer(&kernel, &directory, writer(7));
    knobs.record_undo_if_marked("sys/a", "0", mark("sys/mark", "ours")).unwrap();
    knobs.record_undo_if_marked("sys/b", "0", mark("sys/mark", "theirs")).unwrap();
    knobs.record_undo_if_marked("sys/c", "0", mark("sys/no/mark", "ours")).unwrap();
    abandon(knobs);
    dies(&kernel, writer(7));
    replay(&kernel, &directory).unwrap();
    assert_eq!(knob_writes(&kernel), ["sys/a <- 0"]);
}

#[test]
fn a_knob_that_this_kernel_does_not_have_is_unsupported_and_not_held() {
    let (_run, directory) = run();
    let kernel = kernel();
    let mut knobs = HostSettings::of_writer(&kernel, &directory, writer(7));
    assert!(matches!(knobs.set("sys/not/there", "1"), Err(Error::Unsupported(_))));
    knobs.restore().unwrap();
    assert_eq!(knob_writes(&kernel), [""; 0]);
}

/// Second half of the test below: changes a setting and dies without a restore.
#[test]
#[ignore = "run by the next test, as a process of its own"]
fn turn_and_die() {
    let (Ok(directory), Ok(knob)) = (std::env::var("KNOBS_DIRECTORY"), std::env::var("KNOBS_PATH")) else { return };
    let host = Rooted::host();
    let mut knobs = HostSettings::open(&host, Path::new(&directory)).unwrap();
    knobs.set(&knob, "900").unwrap();
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
}

#[test]
fn a_killed_process_leaves_a_real_knob_that_is_put_back() {
    let (_run, directory) = run();
    let quiet = QuietProcess::start();
    let knob = quiet.pid().file("oom_score_adj");
    let host = Rooted::host();
    let before = read_knob(&host, &knob).unwrap();
    let killed = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "journal::tests::turn_and_die", "--ignored"])
        .envs([("KNOBS_DIRECTORY", directory.as_os_str()), ("KNOBS_PATH", knob.as_ref())])
        .output()
        .unwrap();
    assert!(!killed.status.success());
    assert_eq!(read_knob(&host, &knob).unwrap(), "900");
    let restored = replay(&host, &directory).unwrap();
    assert_eq!(restored.iter().map(|one| &one.failure).collect::<Vec<_>>(), [&None]);
    assert_eq!(read_knob(&host, &knob).unwrap(), before);
}

/// Events for the processes and settings of a host.
#[derive(Clone, Debug)]
enum Event {
    Turn { process: usize, knob: usize, value: u8 },
    PutBack { process: usize },
    End { process: usize },
    Crash { process: usize, how: Crash },
    Replay,
}

/// Point at which a process died.
#[derive(Clone, Copy, Debug)]
enum Crash {
    Idle,
    /// After the journal's line, before the setting was changed.
    BeforeTheKnob(usize),
    /// After this number of bytes of the journal's line.
    InTheLine(usize, usize),
    /// After restoring this number of settings.
    WhilePuttingBack(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let crash = prop_oneof![
        Just(Crash::Idle),
        (0..3usize).prop_map(Crash::BeforeTheKnob),
        (0..3usize, 0..60usize).prop_map(|(knob, bytes)| Crash::InTheLine(knob, bytes)),
        (0..3usize).prop_map(Crash::WhilePuttingBack),
    ];
    prop_oneof![
        6 => (0..3usize, 0..3usize, any::<u8>()).prop_map(|(process, knob, value)| Event::Turn { process, knob, value }),
        1 => (0..3usize).prop_map(|process| Event::PutBack { process }),
        1 => (0..3usize).prop_map(|process| Event::End { process }),
        2 => (0..3usize, crash).prop_map(|(process, how)| Event::Crash { process, how }),
        1 => Just(Event::Replay),
    ]
}

const KNOBS: [(&str, &str); 3] = [("sys/a", "1"), ("sys/b", "on"), ("sys/c", "2 3")];

/// Lets a process die: the journal and the settings stay as at that point.
fn crash(kernel: &FakeKernel, mut knobs: HostSettings<'_, FakeKernel>, how: Crash) {
    match how {
        Crash::Idle => {}
        Crash::BeforeTheKnob(knob) | Crash::InTheLine(knob, _) if knobs.holds(KNOBS[knob].0) => {}
        Crash::BeforeTheKnob(knob) => {
            let _lock = knobs.lock().unwrap();
            let inherited = knobs.others().into_iter().find_map(|other| other.value_of(KNOBS[knob].0));
            let old = inherited.unwrap_or_else(|| read_knob(kernel, KNOBS[knob].0).unwrap());
            knobs.hold(held(KNOBS[knob].0, &old)).unwrap();
        }
        Crash::InTheLine(_, bytes) if knobs.journal.is_some() => {
            let line = "{\"turned\":{\"path\":\"sys/a\",\"old\":\"never to be written\"}}";
            let journal = knobs.journal.as_mut().unwrap();
            journal.write_all(&line.as_bytes()[..bytes.min(line.len())]).unwrap();
        }
        Crash::InTheLine(..) => {}
        Crash::WhilePuttingBack(count) => {
            let others = knobs.others();
            for held in knobs.held.iter().rev().take(count) {
                if !others.iter().any(|other| other.is_alive(kernel) && other.value_of(&held.path).is_some()) {
                    restore(kernel, &Locks::take(kernel, &[], []), When::AtTheEnd, held).unwrap();
                }
            }
        }
    }
    let writer = knobs.writer;
    abandon(knobs);
    dies(kernel, writer);
}

/// Expected state of the settings: the writers of each, and their values.
#[derive(Default)]
struct Model {
    turned: BTreeMap<&'static str, (BTreeSet<usize>, String)>,
}

impl Model {
    fn turn(&mut self, process: usize, path: &'static str, value: &str) {
        let entry = self.turned.entry(path).or_default();
        entry.0.insert(process);
        value.clone_into(&mut entry.1);
    }

    fn end(&mut self, process: usize) {
        for (processes, _) in self.turned.values_mut() {
            processes.remove(&process);
        }
        self.turned.retain(|_, (processes, _)| !processes.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn after_any_turns_and_crashes_the_next_start_finds_the_knobs_as_they_were(events in prop::collection::vec(event(), 0..30)) {
        let (_run, directory) = run();
        let mut kernel = KNOBS.iter().fold(FakeKernel::new(), |kernel, (path, value)| kernel.file(path, value));
        for pid in 1..=40 {
            kernel = born(kernel, writer(pid));
        }
        let mut next_pid = 4;
        let mut processes: Vec<Option<HostSettings<'_, FakeKernel>>> =
            (1..=3).map(|pid| Some(HostSettings::of_writer(&kernel, &directory, writer(pid)))).collect();
        let mut model = Model::default();
        for event in events {
            let process = match event {
                Event::Turn { process, .. } | Event::PutBack { process } | Event::End { process } | Event::Crash { process, .. } => process,
                Event::Replay => 0,
            };
            let knobs = processes[process].as_mut().unwrap();
            match event {
                Event::Turn { knob, value, .. } => {
                    let path = KNOBS[knob].0;
                    knobs.set(path, &format!("turned {value}")).unwrap();
                    model.turn(process, path, &format!("turned {value}"));
                }
                Event::PutBack { .. } => knobs.restore().unwrap(),
                Event::End { .. } => drop(processes[process].take()),
                Event::Crash { how, .. } => crash(&kernel, processes[process].take().unwrap(), how),
                Event::Replay => {
                    let restored = replay(&kernel, &directory).unwrap();
                    prop_assert!(restored.iter().all(|one| one.failure.is_none()));
                }
            }
            if matches!(event, Event::PutBack { .. } | Event::End { .. } | Event::Crash { .. }) {
                model.end(process);
            }
            for (path, (_, value)) in &model.turned {
                prop_assert_eq!(&kernel.read(path).unwrap(), value);
            }
            processes[process].get_or_insert_with(|| {
                next_pid += 1;
                HostSettings::of_writer(&kernel, &directory, writer(next_pid))
            });
        }
        drop(processes);
        replay(&kernel, &directory).unwrap();
        for (path, value) in KNOBS {
            prop_assert_eq!(kernel.read(path).unwrap(), value);
        }
        let left: Vec<_> = journals_in(&directory, &[]).unwrap_or_default();
        prop_assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn any_text_in_a_journal_is_read_without_a_panic(text in "(?s).{0,100}") {
        let _ = Journal::parse(writer(7), &text);
    }
}
