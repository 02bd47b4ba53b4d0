//! `masu run --local`: runs a program with more memory than its machine has, or than its budget allows.

mod still_running;
mod text;

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use farmem::profile::Folder;
use farmem::report::{LeftOutPrograms, Report};
use farmem::serve::{self, First, Seen, Server};
use farmem::store::retry::{Patience, Patient};
use farmem::store::sealed::{Cipher, PAGE_BYTES_SEALED, Sealed};
use farmem::store::url::StoreUrl;
use farmem::store::{self, Opening, Say, Store};
use farmem_engine::PAGE_BYTES;
use farmem_engine::budget::Budget;
use farmem_engine::handshake::{self, SessionParameters};
use farmem_engine::left_out::LeftOut;
use farmem_engine::program_file::{self, Judged, SCRIPTS_MAX, Source};
use linux::meminfo::meminfo;
use linux::{describe, file_size, named_file, open_files, stat};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use units::Bytes;
use units::cast::{fits, saturated};

use crate::args::run::{Base, Exchange, Local, Unit};
use crate::args::{RunTask, Sections};
use crate::commands::run::{Destination, destination, put};
use crate::failure::Failure;
use crate::launch::child::{Child, Relay, end_as};
use crate::launch::command::{NotStarted, find, refuse_privileged};
use crate::launch::environment;
use crate::terminal::print;
use crate::{HOST, privileges};

/// Default backing store: on disk, and not in memory as /tmp may be.
const DEFAULT_STORE: &str = "file:/var/tmp";

/// Files that masu opens at most to start a program, and to serve it from a file store, by trial.
pub const FILES_OF_START: usize = 14;

/// Smaller mappings are not paged.
const LEAST_MAPPING: Bytes = Bytes::kib(64);

/// Shortest time for a server to answer, even under a shorter limit.
const LEAST_TIMEOUT: Duration = Duration::from_millis(50);

/// Note in the report when a server could read the program's memory.
const NOT_SEALED: &str =
    "pages were not sealed (--no-seal): who keeps the server, or its network, reads and replays them";

pub fn started(task: &RunTask, local: Local, relay: Relay) -> Result<ExitCode, NotStarted> {
    let name = task.command.first().map(std::ffi::OsString::as_os_str).unwrap_or_default();
    let file = find(name, std::env::var_os("PATH"))?;
    can_be_paged(&file, name)?;
    let url = store_url(task)?;
    refuse_conflicts(task, &url)?;
    let terms = terms(task, local)?;
    keep_to_itself()?;
    let destination = destination(task)?;
    let cipher = cipher(task, &url);
    let not_sealed = cipher.is_none() && !matches!(url, StoreUrl::File(_));
    if matches!(url, StoreUrl::Redis(_)) {
        // Before the server's first answer is read. The folder of a file may belong to another user.
        privileges::keep_for_run(task, task.huge, false)?;
    }
    let store = open_store(task, url, cipher)?;
    let served: Arc<dyn Store> = match cipher {
        Some(cipher) => Arc::new(
            Sealed::around(Arc::<Patient>::clone(&store), cipher)
                .map_err(|error| Failure::new(&error).remedy(error.remedy()))?,
        ),
        None => Arc::<Patient>::clone(&store),
    };
    destination.empty();
    privileges::keep_for_run(task, task.huge, false)?;
    let profiles = if task.no_profile { None } else { Folder::of_user(|name| std::env::var_os(name)) };
    let complain = |said: &str, remedy: &str| print::failure(&Failure::new(said).remedy(remedy));
    let tells = !matches!(destination, Destination::Nowhere);
    let server = Server::begin(terms, served, profiles, complain, notices(task), tells).map_err(|error| {
        Failure::new(format!("cannot wait for the program's library: {}", linux::describe_io(&error)))
            .remedy("Allow masu 256 open files and 16 threads (`ulimit -n`, `ulimit -u`).")
    })?;
    let library = environment::library(environment::PAGER)?;
    let changes = environment::paged(&library, server.variables(), |name| std::env::var_os(name));
    let (secret, segment) = (server.secret(), Server::segment_path());
    let run = still_running::Run { secret: &secret, segment: &segment, begun: stat::now_ticks(&*HOST).unwrap_or(0) };
    let mut child = Child::start(&file, &task.command, &changes, relay)?;
    let ended = child.wait_and_look(name, task.quiet);
    store.give_up();
    let seen = server.end();
    let rest = run.rest(&*HOST, &seen.counted.iter().map(|program| program.process).collect());
    if let Err(error) = store.close() {
        print::failure(&Failure::new(&error).remedy(error.remedy()));
    }
    let ended = ended?;
    match &seen.first {
        None => {}
        Some(First::Refused(reason)) => return Err(refused(name, reason.reason(), reason.remedy()).into()),
        Some(First::NotBegun(not_begun)) => {
            let (why, remedy) = not_begun.reason_and_remedy();
            return Err(refused(name, &why, remedy).into());
        }
        Some(First::LeftOut(reason)) if !task.quiet => {
            let (name, why) = (name.display(), reason.reason());
            print::failure(&Failure::new(format!("{name} ran as without masu: {why}")).remedy(reason.remedy()));
        }
        Some(First::LeftOut(_)) => {}
    }
    if matches!(destination, Destination::Nowhere) {
        // Without a report, the parent of such a program has seen only a status: the reason is printed.
        serve::not_begun_lines(&seen.not_begun).iter().for_each(print::note);
        still_running::line(&rest).filter(|_| !task.quiet).iter().for_each(print::note);
    } else {
        let mut report = report(&seen, &terms, ended.run);
        report.sealed = cipher.map(|cipher| cipher.name().to_owned());
        report.notes.extend(not_sealed.then(|| NOT_SEALED.to_owned()));
        report.notes.extend(still_running::line(&rest));
        report.still_running = rest;
        if let Err(error) = write(&report, destination, task.json) {
            print::note(error.of_report());
        }
    }
    Ok(end_as(ended.status))
}

/// Raises masu's own limits: each program needs descriptors while it runs, and masu's files are not the program's. Called
/// before masu gives up the right to do so, and before it opens anything.
pub fn raise_limits() {
    open_files::raise();
    file_size::raise();
}

/// Closes masu's memory and environment, which hold keys and passwords, to all but root: the program runs as the same
/// user, and could read them in /proc. Forked processes inherit the flag, and lose it by execve(2).
fn keep_to_itself() -> Result<(), Failure> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|errno| {
        Failure::new(format!("cannot keep other processes out of masu's memory: prctl: {}", describe(errno)))
            .remedy("No kernel without a seccomp filter says so; allow prctl(PR_SET_DUMPABLE).")
    })
}

fn refused(name: &OsStr, why: &str, remedy: &str) -> Failure {
    Failure::new(format!("cannot run {} with --local: {why}", name.display())).remedy(remedy)
}

/// A program's file.
struct Readable(File);

impl Source for Readable {
    fn read(&self, offset: u64, to: &mut [u8]) -> bool {
        self.0.read_exact_at(to, offset).is_ok()
    }
}

/// Refuses a program that the library cannot serve, by the judgement that its children get, too.
fn can_be_paged(file: &Path, name: &OsStr) -> Result<(), NotStarted> {
    refuse_privileged(file, name, "--local", LeftOut::Privileged.remedy())?;
    let mut path = file.to_owned();
    for _ in 0..SCRIPTS_MAX {
        // A program that is executable and not readable is started by the loader all the same.
        let Ok(file) = named_file::open(&path) else { return Ok(()) };
        match program_file::judge(&Readable(file)) {
            Judged::Paged | Judged::Unknown => return Ok(()),
            Judged::Script(interpreter) => path = PathBuf::from(OsStr::from_bytes(interpreter.path())),
            Judged::LeftOut { reason, .. } => {
                let why = format!("{}, so that no library can page it", reason.reason());
                return Err(refused(name, &why, reason.remedy()).into());
            }
        }
    }
    Ok(())
}

/// Refuses pairs of options that would silently undo each other.
fn refuse_conflicts(task: &RunTask, url: &StoreUrl) -> Result<(), Failure> {
    let named = match task.sections {
        Some(Sections::Auto) => Some("auto"),
        Some(Sections::Marked) => Some("marked"),
        Some(Sections::Off) | None => None,
    };
    let least = task.base.unwrap_or(Base(1));
    let (line, remedy) = match (task.unit, named) {
        (unit @ Unit::Pages(_), Some(sections)) => (
            format!(
                "cannot use --unit {unit} with --sections {sections}: a unit that is fixed is the same for all parts"
            ),
            "Leave one of them out.",
        ),
        (unit @ Unit::Pages(pages), None) if pages < least.0 => (
            format!("cannot use --unit {unit} with --base {least}: no fault fetches less than that"),
            "Say a larger --unit, or a smaller --base.",
        ),
        _ if task.store_timeout.is_some() && matches!(url, StoreUrl::File(_)) => (
            format!("cannot use --store-timeout with {url}: only a server may be silent"),
            "Leave it out, or name a server: --store redis://HOST:PORT.",
        ),
        _ => return Ok(()),
    };
    Err(Failure::new(line).remedy(remedy))
}

fn terms(task: &RunTask, local: Local) -> Result<SessionParameters, Failure> {
    let memory =
        meminfo(&*HOST).map_err(|error| Failure::new(format!("cannot see how much memory there is: {error}")))?;
    // 64 times the machine's memory, and at least 64 GiB. Cost: a number for each page that is touched.
    let most_pages = (memory.total.0 / PAGE_BYTES * 64).clamp(1 << 24, 1 << 30);
    let frames = |bytes: Bytes| saturated::<_, u32>(bytes.0 / PAGE_BYTES);
    let (budget_frames, budget_share) = match local {
        Local::Size(bytes) if bytes > memory.total => {
            let line = format!("cannot give the program {bytes} of local memory: this machine has {}", memory.total);
            return Err(Failure::new(line).remedy("Say less, and leave some of it to the rest of the system."));
        }
        Local::Size(bytes) => (frames(bytes), 0),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "above 0 and at most 65536")]
        Local::Share(share) => (frames(memory.total), ((share * 65536.0).round() as u32).max(1)),
    };
    let Base(base_pages) = task.base.unwrap_or(Base::usual(task.sections));
    let (unit_pages, sections) = match (task.unit, task.sections) {
        (Unit::Pages(pages), _) => (pages, handshake::Sections::Off),
        (Unit::Auto, None | Some(Sections::Auto)) => (0, handshake::Sections::Auto),
        (Unit::Auto, Some(Sections::Marked)) => (0, handshake::Sections::Marked),
        (Unit::Auto, Some(Sections::Off)) => (16, handshake::Sections::Off),
    };
    Ok(SessionParameters {
        budget_frames,
        budget_share,
        most_pages: fits(most_pages),
        unit_pages,
        base_pages,
        least_bytes: LEAST_MAPPING.0,
        sections,
        background: !task.no_background,
        has_file: false,
        segment: None,
        backend: task.backend.map(|Exchange(backend)| backend),
    })
}

fn store_url(task: &RunTask) -> Result<StoreUrl, Failure> {
    let text = task.store.as_deref().unwrap_or(DEFAULT_STORE);
    text.parse().map_err(|error| {
        let remedy = format!(
            "Say --store file:DIR, redis://HOST:PORT or rediss://HOST:PORT; without it, it is {DEFAULT_STORE}."
        );
        Failure::new(format!("cannot use the store: {error}")).remedy(remedy)
    })
}

/// Cipher of the store's pages. A program reads and writes a file store itself; pages go through masu there only with
/// `--seal`.
fn cipher(task: &RunTask, url: &StoreUrl) -> Option<Cipher> {
    let sealed = task.seal || !task.no_seal && !matches!(url, StoreUrl::File(_));
    sealed.then(Cipher::of_processor)
}

/// Notices go to standard error at once, unless --quiet.
fn notices(task: &RunTask) -> Say {
    let quiet = task.quiet;
    Arc::new(move |line| {
        if !quiet {
            print::note(format_args!("{line}"));
        }
    })
}

fn open_store(task: &RunTask, mut url: StoreUrl, cipher: Option<Cipher>) -> Result<Arc<Patient>, Failure> {
    if let (StoreUrl::Redis(url), Some(limit)) = (&mut url, task.store_timeout) {
        // The limit is checked between attempts, and one attempt takes up to two of these timeouts.
        url.timeout = url.timeout.min(limit / 4).max(LEAST_TIMEOUT);
    }
    let say = notices(task);
    let page_bytes = if cipher.is_some() { PAGE_BYTES_SEALED } else { store::PAGE_BYTES };
    let password = store::password_from_environment();
    let opening = Opening { page_bytes, expected: None, password, say: Arc::clone(&say) };
    let store = store::open(&url, &opening).map_err(|error| Failure::new(&error).remedy(error.remedy()))?;
    Ok(Arc::new(Patient::new(store, Patience { limit: task.store_timeout, ..Patience::USUAL }, say)))
}

/// Note about the programs that ran unserved.
fn of_left_out(left_out: &[LeftOutPrograms]) -> Option<String> {
    let all = left_out.iter().fold(0_u64, |sum, of| sum.saturating_add(of.programs));
    let reasons: Vec<String> = left_out.iter().map(|of| format!("{} {}", of.programs, of.reason)).collect();
    let programs = if all == 1 { "program" } else { "programs" };
    (all > 0).then(|| {
        format!("left out: {all} {programs} ({}): run as without masu, not limited by --local", reasons.join(", "))
    })
}

/// Note about a transfer size that was cut: a unit passes through the victim queue, and must fit there.
fn cut_unit(terms: &SessionParameters) -> Option<String> {
    let frames = if terms.budget_share > 0 { Budget::LEAST_FRAMES } else { terms.budget_frames };
    let largest = Budget::new(frames, 0).largest_unit_pages();
    let [asked, largest] = [terms.unit_pages, largest].map(|pages| Bytes(u64::from(pages) * PAGE_BYTES));
    let when = if terms.budget_share > 0 { ", while little was touched," } else { "" };
    (largest < asked)
        .then(|| format!("--unit {asked}{when} was {largest}: a unit takes at most a sixteenth of local memory"))
}

fn report(seen: &Seen, terms: &SessionParameters, run: Duration) -> Report {
    let mut report = Report::of(run.as_secs_f64(), &seen.counted);
    report.at_once = seen.at_once;
    report.notes.extend(seen.at_once.text_of_copies());
    report.notes.extend(cut_unit(terms).filter(|_| !seen.counted.is_empty()));
    let programs = |(reason, programs): (&LeftOut, &u64)| LeftOutPrograms {
        reason: reason.name().to_owned(),
        programs: *programs,
    };
    report.left_out = seen.left_out.iter().map(programs).collect();
    report.notes.extend(of_left_out(&report.left_out));
    report.notes.extend(serve::not_begun_lines(&seen.not_begun));
    report.notes.extend(seen.trouble.iter().cloned());
    if seen.counted.is_empty() && seen.first.is_none() {
        report.notes.push(
            "the library was not loaded, for a reason that the program's file does not tell: nothing was paged"
                .to_owned(),
        );
    }
    report
}

fn write(report: &Report, destination: Destination, json: bool) -> Result<(), Failure> {
    let mut text = Vec::new();
    if json {
        serde_json::to_writer(&mut text, report)?;
        writeln!(text)?;
    } else {
        text::print(report, &mut text)?;
    }
    put(&text, destination)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use farmem_engine::backend::Backend;

    use super::*;
    use crate::args::{Args, Task};

    #[test]
    fn options_that_undo_each_other_are_refused_with_both_names() {
        let checked = |options: &[&str]| {
            let words = ["masu", "run", "--local", "4MiB"].iter().chain(options).chain(&["true"]);
            let Task::Run(task) = Args::try_parse_from(words).unwrap().task else { panic!("no run") };
            refuse_conflicts(&task, &store_url(&task).unwrap()).map_err(|failure| failure.to_string())
        };
        for (options, said) in [
            (&["--unit", "64KiB", "--sections", "marked"][..], "--unit 64.0 KiB with --sections marked: "),
            (&["--sections", "auto", "--unit", "64KiB"], "--unit 64.0 KiB with --sections auto: "),
            (&["--unit", "4KiB", "--base", "16KiB"], "--unit 4.0 KiB with --base 16.0 KiB: "),
            (&["--store-timeout", "30s"], "--store-timeout with file:/var/tmp: "),
            (&["--store-timeout", "30s", "--store", "file:/tmp"], "--store-timeout with file:/tmp: "),
        ] {
            let failure = checked(options).unwrap_err();
            assert!(failure.starts_with(&format!("masu: cannot use {said}")), "{failure}");
            assert!(failure.contains("\n    "), "{failure}");
        }
        for options in [
            &["--unit", "64KiB", "--sections", "off"][..],
            &["--unit", "auto", "--sections", "marked", "--base", "16KiB"],
            &["--unit", "16KiB", "--base", "16KiB"],
            &["--store-timeout", "30s", "--store", "redis://node1"],
        ] {
            assert_eq!(checked(options), Ok(()));
        }
    }

    #[test]
    fn pages_are_sealed_for_a_server_unless_one_says_not_and_for_a_file_if_one_says_so() {
        let sealed = |options: &[&str]| {
            let words = ["masu", "run", "--local", "4MiB"].iter().chain(options).chain(&["true"]);
            let Task::Run(task) = Args::try_parse_from(words).unwrap().task else { panic!("no run") };
            cipher(&task, &store_url(&task).unwrap()).is_some()
        };
        assert!(sealed(&["--store", "redis://node1"]) && sealed(&["--store", "rediss://node1"]));
        assert!(!sealed(&["--store", "redis://node1", "--no-seal"]));
        assert!(!sealed(&[]) && !sealed(&["--store", "file:/tmp"]) && sealed(&["--seal"]));
        assert!(Args::try_parse_from(["masu", "run", "--local", "4MiB", "--seal", "--no-seal", "true"]).is_err());
    }

    #[test]
    fn a_unit_that_was_cut_is_said() {
        let said = |local: &str, unit: &str| {
            let words = ["masu", "run", "--local", local, "--unit", unit, "true"];
            let Task::Run(task) = Args::try_parse_from(words).unwrap().task else { panic!("no run") };
            cut_unit(&terms(&task, local.parse().unwrap()).unwrap())
        };
        let cut = said("4MiB", "1MiB").unwrap();
        assert!(cut.starts_with("--unit 1.0 MiB was 256.0 KiB: "), "{cut}");
        let cut = said("50%", "1MiB").unwrap();
        assert!(cut.starts_with("--unit 1.0 MiB, while little was touched, was 128.0 KiB: "), "{cut}");
        for (local, unit) in [("16MiB", "1MiB"), ("4MiB", "256KiB"), ("50%", "64KiB"), ("4MiB", "auto")] {
            assert_eq!(said(local, unit), None, "{local} {unit}");
        }
    }

    #[test]
    fn a_unit_is_a_power_of_two_of_pages() {
        assert_eq!("auto".parse(), Ok(Unit::Auto));
        assert_eq!("64KiB".parse(), Ok(Unit::Pages(16)));
        assert_eq!("1MiB".parse(), Ok(Unit::Pages(256)));
        for bad in ["0", "2KiB", "12KiB", "2MiB", "many"] {
            assert!(bad.parse::<Unit>().unwrap_err().contains("power of two"), "{bad}");
        }
        assert_eq!(("16KiB".parse(), "4KiB".parse()), (Ok(Base(4)), Ok(Base(1))));
        assert!("8KiB".parse::<Base>().is_err());
        assert_eq!(("move".parse(), "copy".parse()), (Ok(Exchange(Backend::Move)), Ok(Exchange(Backend::Copy))));
        assert!("bpf-walk".parse::<Exchange>().unwrap_err().contains("move or copy"));
    }
}
