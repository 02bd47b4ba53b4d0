use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::fs::MetadataExt;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::Rooted;
use crate::fake::FakeKernel;
use crate::quiet_process::QuietProcess;

mod left_alone;

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
pub(crate) fn abandon<F: KernelFiles>(mut settings: HostSettings<'_, F>) {
    settings.journal = None;
    std::mem::forget(settings);
}

/// [`super::replay`] without clients, of journals without records of clients.
fn replay(files: &impl KernelFiles, directory: &Path) -> Result<Vec<Restored>, Error> {
    let replay = super::replay(files, directory, &[])?;
    assert_eq!(replay.newer, []);
    Ok(replay.restored)
}

fn kernel() -> FakeKernel {
    let kernel = FakeKernel::new()
        .file(THP, "always [madvise] never\n")
        .file(SCAN, "100\n")
        .file("proc/sys/kernel/random/boot_id", "this-boot\n");
    born(born(kernel, writer(7)), writer(8))
}

fn record(path: &str, old: &str) -> UndoRecord {
    UndoRecord::of_setting(path, old, None)
}

fn setting_writes(kernel: &FakeKernel) -> Vec<String> {
    kernel.writes().into_iter().filter(|write| write.starts_with("sys/")).collect()
}

#[test]
fn settings_are_restored_in_reverse_order_with_the_word_in_brackets() {
    let (_run, directory) = run();
    let kernel = kernel();
    let mut settings = HostSettings::of_writer(&kernel, &directory, writer(7));
    settings.set(THP, "always").unwrap();
    settings.set(SCAN, "5000").unwrap();
    settings.set(SCAN, "6000").unwrap();
    settings.restore().unwrap();
    drop(settings);
    let expected = [
        format!("{THP} <- always"),
        format!("{SCAN} <- 5000"),
        format!("{SCAN} <- 6000"),
        format!("{SCAN} <- 100"),
        format!("{THP} <- madvise"),
    ];
    assert_eq!(setting_writes(&kernel), expected);
    let left: Vec<_> = fs::read_dir(private(&directory)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"]);
}

#[test]
fn dropping_restores_and_without_a_change_nothing_is_written() {
    let (_run, directory) = run();
    let kernel = kernel();
    drop(HostSettings::of_writer(&kernel, &directory, writer(7)));
    assert!(!directory.exists());
    HostSettings::of_writer(&kernel, &directory, writer(7)).set(SCAN, "1").unwrap();
    assert_eq!(kernel.read(SCAN).unwrap(), "100");
}

#[test]
fn the_journal_is_written_before_the_setting() {
    let (_run, directory) = run();
    let kernel = kernel().refusing(SCAN, Errno::ACCESS);
    let mut settings = HostSettings::of_writer(&kernel, &directory, writer(7));
    settings.set(THP, "always").unwrap();
    assert!(matches!(settings.set(SCAN, "1"), Err(Error::Denied(_))));
    let journal = fs::read_to_string(private(&directory).join("7-1007.journal")).unwrap();
    let before = format!("{{\"turned\":{{\"path\":\"{THP}\",\"old\":\"madvise\"}}}}");
    let after = format!("{{\"written\":[\"{THP}\",\"always\"]}}");
    assert_eq!(journal.lines().collect::<Vec<_>>(), ["{\"boot\":\"this-boot\"}", &before, &after]);
}

#[test]
fn the_next_start_restores_after_a_crash() {
    let (_run, directory) = run();
    let kernel = kernel();
    let mut settings = HostSettings::of_writer(&kernel, &directory, writer(7));
    settings.set(THP, "never").unwrap();
    abandon(settings);
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
fn settings_of_a_living_process_stay() {
    let (_run, directory) = run();
    let kernel = kernel();
    let mut settings = HostSettings::of_writer(&kernel, &directory, writer(7));
    settings.set(THP, "never").unwrap();
    assert_eq!(replay(&kernel, &directory).unwrap(), []);
    assert_eq!(kernel.read(THP).unwrap(), "never");
    settings.restore().unwrap();
    assert_eq!(kernel.read(THP).unwrap(), "madvise");
}

/// The PID namespace gives it the number of another process of ours, or of none.
#[test]
fn settings_of_a_living_process_of_another_pid_namespace_stay() {
    let (_run, directory) = run();
    let kernel = kernel();
    let mut settings = HostSettings::of_writer(&kernel, &directory, writer(9));
    settings.set(THP, "never").unwrap();
    assert_eq!(replay(&kernel, &directory).unwrap(), []);
    assert_eq!(kernel.read(THP).unwrap(), "never");
    settings.rewrite().unwrap();
    assert_eq!(replay(&kernel, &directory).unwrap(), [], "its new journal is locked as well");
    let mut ours = HostSettings::of_writer(&kernel, &directory, writer(7));
    ours.set(THP, "always").unwrap();
    ours.restore().unwrap();
    assert_eq!(kernel.read(THP).unwrap(), "always", "left to the other");
    abandon(settings);
    assert_eq!(replay(&kernel, &directory).unwrap().len(), 1);
    assert_eq!(kernel.read(THP).unwrap(), "madvise");
}

/// DAMON answers EINVAL to "off" where it was never on.
#[test]
fn a_setting_that_refuses_its_present_value_counts_as_restored() {
    let (_run, directory) = run();
    let kernel = kernel().file("sys/state", "off\n").refusing_value("sys/state", "off", Errno::INVAL);
    let mut settings = HostSettings::of_writer(&kernel, &directory, writer(7));
    settings.record_undo("sys/state", "off").unwrap();
    abandon(settings);
    dies(&kernel, writer(7));
    let restored = replay(&kernel, &directory).unwrap();
    assert!(restored.iter().all(|one| one.failure.is_none()) && restored.len() == 1, "{restored:?}");
    assert!(!private(&directory).join("7-1007.journal").exists());
}

#[test]
fn of_two_processes_the_last_one_restores_the_first_value() {
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
fn a_line_torn_by_the_crash_is_ignored() {
    let whole = "{\"turned\":{\"path\":\"sys/a\",\"old\":\"1\"}}\n";
    let torn = "{\"turned\":{\"path\":\"sys/b\",\"old\":\"2\"}}";
    for length in 0..=torn.len() {
        let journal = Journal::parse(writer(7), &format!("{whole}{}", &torn[..length]));
        assert_eq!(journal.records, [record("sys/a", "1")]);
    }
}

#[test]
fn a_journal_never_names_anything_but_a_file_of_the_kernel() {
    for path in ["etc/passwd", "/sys/a", "sys/../etc/passwd", "proc//x", "", "sys/./a"] {
        assert!(!is_setting(path), "{path}");
        let line = serde_json::to_string(&Line::Changed(record(path, ""))).unwrap();
        assert_eq!(Journal::parse(writer(7), &format!("{line}\n")).records, []);
    }
}

#[test]
fn a_directory_that_others_could_write_is_repaired_and_its_journals_are_replayed() {
    use std::os::unix::fs::PermissionsExt;
    for mode in [0o700, 0o755, 0o775, 0o777] {
        let (_run, directory) = run();
        fs::create_dir(&directory).unwrap();
        let kernel = kernel();
        let mut settings = HostSettings::of_writer(&kernel, &directory, writer(7));
        settings.set(THP, "never").unwrap();
        abandon(settings);
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
    let mut settings = HostSettings::of_writer(&kernel, &directory, writer(7));
    settings.set(THP, "never").unwrap();
    fs::rename(private(&directory).join("7-1007.journal"), directory.join("7-1007.journal")).unwrap();
    fs::remove_dir_all(private(&directory)).unwrap();
    abandon(settings);
    let mut next = HostSettings::of_writer(&kernel, &directory, writer(8));
    next.set(THP, "always").unwrap();
    dies(&kernel, writer(7));
    assert_eq!(replay(&kernel, &directory).unwrap(), [], "a living process has changed it as well");
    assert!(!directory.join("7-1007.journal").exists());
    next.restore().unwrap();
    assert_eq!(kernel.read(THP).unwrap(), "madvise");
}

#[test]
fn a_stopped_holder_of_the_lock_is_waited_for_with_a_deadline() {
    let (_run, directory) = run();
    let locked = lock(&directory).unwrap();
    let start = std::time::Instant::now();
    let error = replay(&kernel(), &directory).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(60));
    assert_eq!(error.errno(), Some(Errno::AGAIN));
    let said = error.to_string();
    assert!(said.contains(&private(&directory).join("lock").display().to_string()), "{said}");
    assert!(!matches!(error, Error::Denied(_)), "the command says it");
    drop(locked);
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
fn a_journal_that_is_not_ours_changes_nothing_and_stays() {
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
    assert_eq!(setting_writes(&kernel), [""; 0]);
    assert!(link.exists());
}

#[test]
fn a_journal_of_an_earlier_boot_is_removed_and_nothing_restored() {
    let (_run, directory) = run();
    let kernel = kernel();
    let mut settings = HostSettings::of_writer(&kernel, &directory, writer(7));
    settings.set(THP, "never").unwrap();
    abandon(settings);
    kernel.write("proc/sys/kernel/random/boot_id", "next-boot\n").unwrap();
    assert_eq!(replay(&kernel, &directory).unwrap(), []);
    assert_eq!(kernel.read(THP).unwrap(), "never");
    assert!(!private(&directory).join("7-1007.journal").exists());
}

/// A line of a newer masu, with a client that this one does not know.
const NEWER: &str = "{\"turned\":{\"path\":\"sys/newer\",\"old\":\"1\",\"next\":{\"how\":\"well\"}}}\n";

/// Journal of the dead process 7 with a change of THP, a record of a newer masu, and a torn line.
fn journal_of_a_newer_masu(kernel: &FakeKernel, directory: &Path) -> PathBuf {
    let mut settings = HostSettings::of_writer(kernel, directory, writer(7));
    settings.set(THP, "never").unwrap();
    let torn = format!("{{\"turned\":{{\"path\":\"{SCAN}\",\"old\":\"1\"}}}}");
    settings.journal.as_mut().unwrap().write_all(format!("{NEWER}{torn}").as_bytes()).unwrap();
    abandon(settings);
    dies(kernel, writer(7));
    private(directory).join("7-1007.journal")
}

#[test]
fn a_record_of_an_unknown_client_stays_and_the_others_are_restored_once() {
    let (_run, directory) = run();
    let kernel = kernel();
    let path = journal_of_a_newer_masu(&kernel, &directory);
    let newer = vec![NewerJournal { path: path.clone(), writer: Pid(7) }];
    let first = super::replay(&kernel, &directory, &[]).unwrap();
    assert_eq!(first.restored.iter().map(|one| one.path.as_str()).collect::<Vec<_>>(), [THP]);
    assert_eq!(first.newer, newer);
    assert!(fs::read_to_string(&path).unwrap().contains(NEWER));
    // Changed by another program since: not masu's to restore any more.
    kernel.write(THP, "always").unwrap();
    assert_eq!(super::replay(&kernel, &directory, &[]), Ok(Replay { newer, ..Replay::default() }));
    assert_eq!((kernel.read(THP).unwrap().as_str(), kernel.read(SCAN).unwrap().as_str()), ("always", "100\n"));
}

#[test]
fn a_record_of_an_unknown_client_does_not_outlive_its_boot() {
    let (_run, directory) = run();
    let kernel = kernel();
    let path = journal_of_a_newer_masu(&kernel, &directory);
    kernel.write("proc/sys/kernel/random/boot_id", "next-boot\n").unwrap();
    assert_eq!(super::replay(&kernel, &directory, &[]), Ok(Replay::default()));
    assert!(!path.exists());
}

#[test]
fn a_setting_that_cannot_be_restored_stays_in_the_journal() {
    let (_run, directory) = run();
    let crashed = kernel();
    let mut settings = HostSettings::of_writer(&crashed, &directory, writer(7));
    settings.set(THP, "never").unwrap();
    settings.set(SCAN, "1").unwrap();
    abandon(settings);
    dies(&crashed, writer(7));
    let crashed = crashed.refusing(THP, Errno::BUSY);
    let restored = replay(&crashed, &directory).unwrap();
    let outcomes: Vec<_> = restored.iter().map(|one| (one.path.as_str(), one.failure.is_none())).collect();
    assert_eq!(outcomes, [(SCAN, true), (THP, false)]);
    assert!(private(&directory).join("7-1007.journal").exists());
}

#[test]
fn a_recorded_undo_is_done_at_the_end_unless_it_was_released() {
    let (_run, directory) = run();
    let kernel = kernel().file("sys/a", "1\n").file("sys/b", "1\n");
    let mut settings = HostSettings::of_writer(&kernel, &directory, writer(7));
    for path in ["sys/a", "sys/b", "sys/not/there"] {
        settings.record_undo(path, "0").unwrap();
    }
    settings.release("sys/b").unwrap();
    assert_eq!(setting_writes(&kernel), [""; 0]);
    settings.restore().unwrap();
    assert_eq!(setting_writes(&kernel), ["sys/a <- 0"]);
}

#[test]
fn an_undo_with_a_mark_is_done_only_on_marked_objects() {
    let (_run, directory) = run();
    let kernel = kernel().file("sys/a", "1\n").file("sys/b", "1\n").file("sys/mark", "ours\n");
    let mark = |path: &str, value: &str| Mark { path: path.to_owned(), value: value.to_owned() };
    let mut settings = HostSettings::of_writer(&kernel, &directory, writer(7));
    settings.record_undo_if_marked("sys/a", "0", mark("sys/mark", "ours")).unwrap();
    settings.record_undo_if_marked("sys/b", "0", mark("sys/mark", "theirs")).unwrap();
    settings.record_undo_if_marked("sys/c", "0", mark("sys/no/mark", "ours")).unwrap();
    abandon(settings);
    dies(&kernel, writer(7));
    replay(&kernel, &directory).unwrap();
    assert_eq!(setting_writes(&kernel), ["sys/a <- 0"]);
}

#[test]
fn a_setting_that_this_kernel_does_not_have_is_unsupported_and_not_recorded() {
    let (_run, directory) = run();
    let kernel = kernel();
    let mut settings = HostSettings::of_writer(&kernel, &directory, writer(7));
    assert!(matches!(settings.set("sys/not/there", "1"), Err(Error::Unsupported(_))));
    settings.restore().unwrap();
    assert_eq!(setting_writes(&kernel), [""; 0]);
}

/// Second half of the test below: changes a setting and dies without a restore.
#[test]
#[ignore = "run by the next test, as a process of its own"]
fn set_and_die() {
    let (Ok(directory), Ok(setting)) = (std::env::var("JOURNAL_DIRECTORY"), std::env::var("SETTING_PATH")) else {
        return;
    };
    let host = Rooted::host();
    let mut settings = HostSettings::open(&host, Path::new(&directory)).unwrap();
    settings.set(&setting, "900").unwrap();
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
}

#[test]
fn a_real_setting_of_a_killed_process_is_restored() {
    let (_run, directory) = run();
    let quiet = QuietProcess::start();
    let setting = quiet.pid().file("oom_score_adj");
    let host = Rooted::host();
    let before = read_setting(&host, &setting).unwrap();
    let killed = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "journal::tests::set_and_die", "--ignored"])
        .envs([("JOURNAL_DIRECTORY", directory.as_os_str()), ("SETTING_PATH", setting.as_ref())])
        .output()
        .unwrap();
    assert!(!killed.status.success());
    assert_eq!(read_setting(&host, &setting).unwrap(), "900");
    let restored = replay(&host, &directory).unwrap();
    assert_eq!(restored.iter().map(|one| &one.failure).collect::<Vec<_>>(), [&None]);
    assert_eq!(read_setting(&host, &setting).unwrap(), before);
}

/// Events for the processes and settings of a host.
#[derive(Clone, Debug)]
enum Event {
    Set { process: usize, setting: usize, value: u8 },
    Restore { process: usize },
    End { process: usize },
    Crash { process: usize, how: Crash },
    Replay,
}

/// Point at which a process died.
#[derive(Clone, Copy, Debug)]
enum Crash {
    Idle,
    /// After the journal's line, before the setting was changed.
    BeforeTheWrite(usize),
    /// After this number of bytes of the journal's line.
    InTheLine(usize, usize),
    /// After restoring this number of settings.
    WhileRestoring(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let crash = prop_oneof![
        Just(Crash::Idle),
        (0..3usize).prop_map(Crash::BeforeTheWrite),
        (0..3usize, 0..60usize).prop_map(|(setting, bytes)| Crash::InTheLine(setting, bytes)),
        (0..3usize).prop_map(Crash::WhileRestoring),
    ];
    prop_oneof![
        6 => (0..3usize, 0..3usize, any::<u8>()).prop_map(|(process, setting, value)| Event::Set { process, setting, value }),
        1 => (0..3usize).prop_map(|process| Event::Restore { process }),
        1 => (0..3usize).prop_map(|process| Event::End { process }),
        2 => (0..3usize, crash).prop_map(|(process, how)| Event::Crash { process, how }),
        1 => Just(Event::Replay),
    ]
}

const SETTINGS: [(&str, &str); 3] = [("sys/a", "1"), ("sys/b", "on"), ("sys/c", "2 3")];

/// Lets a process die: the journal and the settings stay as at that point.
fn crash(kernel: &FakeKernel, mut settings: HostSettings<'_, FakeKernel>, how: Crash) {
    match how {
        Crash::Idle => {}
        Crash::BeforeTheWrite(setting) | Crash::InTheLine(setting, _) if settings.has(SETTINGS[setting].0) => {}
        Crash::BeforeTheWrite(setting) => {
            let _lock = settings.lock().unwrap();
            let inherited = settings.others().into_iter().find_map(|other| other.value_of(SETTINGS[setting].0));
            let old = inherited.unwrap_or_else(|| read_setting(kernel, SETTINGS[setting].0).unwrap());
            settings.add(record(SETTINGS[setting].0, &old)).unwrap();
        }
        Crash::InTheLine(_, bytes) if settings.journal.is_some() => {
            let line = "{\"turned\":{\"path\":\"sys/a\",\"old\":\"never to be written\"}}";
            let journal = settings.journal.as_mut().unwrap();
            journal.write_all(&line.as_bytes()[..bytes.min(line.len())]).unwrap();
        }
        Crash::InTheLine(..) => {}
        Crash::WhileRestoring(count) => {
            let others = settings.others();
            for record in settings.records.iter().rev().take(count) {
                if !others.iter().any(|other| other.is_alive(kernel) && other.value_of(&record.path).is_some()) {
                    restore(kernel, &Locks::take(kernel, &[], []), When::AtTheEnd, record).unwrap();
                }
            }
        }
    }
    let writer = settings.writer;
    abandon(settings);
    dies(kernel, writer);
}

/// Expected state of the settings: the writers of each, and their values.
#[derive(Default)]
struct Model {
    changed: BTreeMap<&'static str, (BTreeSet<usize>, String)>,
}

impl Model {
    fn set(&mut self, process: usize, path: &'static str, value: &str) {
        let entry = self.changed.entry(path).or_default();
        entry.0.insert(process);
        value.clone_into(&mut entry.1);
    }

    fn end(&mut self, process: usize) {
        for (processes, _) in self.changed.values_mut() {
            processes.remove(&process);
        }
        self.changed.retain(|_, (processes, _)| !processes.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn after_any_changes_and_crashes_the_next_start_restores_all_settings(events in prop::collection::vec(event(), 0..30)) {
        let (_run, directory) = run();
        let mut kernel = SETTINGS.iter().fold(FakeKernel::new(), |kernel, (path, value)| kernel.file(path, value));
        for pid in 1..=40 {
            kernel = born(kernel, writer(pid));
        }
        let mut next_pid = 4;
        let mut processes: Vec<Option<HostSettings<'_, FakeKernel>>> =
            (1..=3).map(|pid| Some(HostSettings::of_writer(&kernel, &directory, writer(pid)))).collect();
        let mut model = Model::default();
        for event in events {
            let process = match event {
                Event::Set { process, .. } | Event::Restore { process } | Event::End { process } | Event::Crash { process, .. } => process,
                Event::Replay => 0,
            };
            let settings = processes[process].as_mut().unwrap();
            match event {
                Event::Set { setting, value, .. } => {
                    let path = SETTINGS[setting].0;
                    settings.set(path, &format!("value {value}")).unwrap();
                    model.set(process, path, &format!("value {value}"));
                }
                Event::Restore { .. } => settings.restore().unwrap(),
                Event::End { .. } => drop(processes[process].take()),
                Event::Crash { how, .. } => crash(&kernel, processes[process].take().unwrap(), how),
                Event::Replay => {
                    let restored = replay(&kernel, &directory).unwrap();
                    prop_assert!(restored.iter().all(|one| one.failure.is_none()));
                }
            }
            if matches!(event, Event::Restore { .. } | Event::End { .. } | Event::Crash { .. }) {
                model.end(process);
            }
            for (path, (_, value)) in &model.changed {
                prop_assert_eq!(&kernel.read(path).unwrap(), value);
            }
            processes[process].get_or_insert_with(|| {
                next_pid += 1;
                HostSettings::of_writer(&kernel, &directory, writer(next_pid))
            });
        }
        drop(processes);
        replay(&kernel, &directory).unwrap();
        for (path, value) in SETTINGS {
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
