//! `masu run --local`: a program with less memory than it uses finds its data unchanged, and no program sees the
//! difference.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::Outcome;
use super::command::masu;
use super::programs::{self, Said};
use super::run::{Folder, Report, Result, run, said};
use super::run_hard::compile;
use crate::host::{Host, LiveTest, tests};
use crate::requirement::Requirement;
use crate::user_faults::paging_backends;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_local requires [MasuCommand, UserFaults];
    a_program_that_checks_each_byte_finds_none_wrong [PagerLibrary, CPrograms];
    a_program_that_checks_each_byte_finds_a_wrong_one [PagerLibrary, CCompiler];
    local_memory_is_never_more_than_was_given [PagerLibrary, CPrograms];
    a_paged_program_ends_and_talks_as_without_masu [PagerLibrary, Shell];
    a_fork_works_while_all_fits_and_is_refused_and_reported_when_not [PagerLibrary, CCompiler];
    a_fork_brings_back_what_fits [PagerLibrary, CCompiler];
    copies_of_a_program_find_none_wrong [PagerLibrary, CPrograms];
    what_cannot_work_on_paged_memory_is_not_there_for_the_program [PagerLibrary, CCompiler];
    a_programs_own_bus_errors_reach_its_own_handler [PagerLibrary, CCompiler];
    facts_tells_that_programs_can_be_paged;
};

/// `masu run --local …`, not started yet; isolated, without the profiles of earlier runs.
pub(super) fn paged(options: &[&str], command: &[&str]) -> Result<Command> {
    paged_with_profile(&[&["--no-profile"], options].concat(), command)
}

/// The same, with it.
pub(super) fn paged_with_profile(options: &[&str], command: &[&str]) -> Result<Command> {
    // For all tests on another backend than the best: `LIVE_BACKEND=copy`.
    let backend = std::env::var("LIVE_BACKEND").ok().filter(|_| !options.contains(&"--backend"));
    let forced = backend.iter().flat_map(|backend| ["--backend", backend]);
    let mut run = run(&options.iter().copied().chain(forced).collect::<Vec<_>>(), command)?;
    run.env_remove("MASU_PAGER")
        .env_remove("MASU_PAGER_PATH")
        .env_remove("MASU_PAGER_SECRET")
        .env_remove("MASU_STORE_PASSWORD");
    Ok(run)
}

/// The backends to try: all that the kernel has. Where the processor is emulated, and slow, the best one.
pub(super) fn backends(host: &Host) -> Vec<&'static str> {
    let all = if host.has(Requirement::RealProcessor) { usize::MAX } else { 1 };
    paging_backends().into_iter().take(all).collect()
}

/// One of the programs that virtual machines have, too; elsewhere it is built.
pub(super) fn built(folder: &Folder, name: &str, source: &str) -> Result<String> {
    match programs::c_program(name) {
        Some(there) => Ok(there.to_str().ok_or("a path that is no text")?.to_owned()),
        None => compile(folder, "cc", name, source, &["-pthread"]),
    }
}

/// Runs a part of a program without masu, and with each local size on each backend: it prints that all is right.
pub(super) fn right(host: &Host, program: &str, part: &str, sizes: &[&str]) -> Outcome {
    let plain = said(Command::new(program).arg(part))?;
    assert_eq!((plain.code(), plain.out.as_str()), (0, "right\n"), "without masu: {plain:?}");
    for (backend, local) in backends(host).iter().flat_map(|backend| sizes.iter().map(move |local| (*backend, *local)))
    {
        let said = said(&mut paged(&["--backend", backend, "--local", local], &[program, part])?)?;
        assert_eq!((said.code(), said.out.as_str()), (0, "right\n"), "{part} at {local}, backend {backend}: {said:?}");
    }
    Ok(())
}

/// A program that fills memory, waits for a line, checks that all is as it left it, and changes it meanwhile.
pub(super) fn memory_checker(folder: &Folder) -> Result<String> {
    built(folder, "memory_checker", include_str!("../../programs/memory_checker.c"))
}

/// A paged program that one talks to, in a process group with its masu.
pub(super) struct Talking {
    pub(super) masu: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Process id of the program, once it has printed it.
    pub(super) program: i32,
}

impl Talking {
    pub(super) fn start(mut command: Command) -> Result<Talking> {
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut masu = command.spawn()?;
        let input = masu.stdin.take();
        let output = BufReader::new(masu.stdout.take().ok_or("no pipe")?);
        Ok(Talking { masu, input, output, program: 0 })
    }

    /// Waits until it prints this word.
    pub(super) fn hears(&mut self, word: &str) -> Outcome {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let number = line.trim().strip_prefix(word).ok_or_else(|| format!("not {word}: {line:?}"))?;
        self.program = number.trim().parse()?;
        Ok(())
    }

    /// Next line of its output.
    pub(super) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }

    /// Lets it go on.
    pub(super) fn says(&mut self) -> Outcome {
        Ok(self.input.as_mut().ok_or("no pipe")?.write_all(b"\n")?)
    }

    /// Waits for the end of its output, which is later than masu's own end if masu was killed.
    pub(super) fn ends(mut self) -> Result<Said> {
        drop(self.input.take());
        let (mut out, mut err) = (String::new(), String::new());
        self.output.read_to_string(&mut out)?;
        self.masu.stderr.take().ok_or("no pipe")?.read_to_string(&mut err)?;
        let status = self.masu.wait()?;
        Ok(Said { status, out, err })
    }

    pub(super) fn masu(&self) -> i32 {
        self.masu.id().cast_signed()
    }
}

impl Drop for Talking {
    fn drop(&mut self) {
        drop(self.input.take());
        // All fail only when there is nothing left to end.
        let _ = signal(-self.masu(), libc::SIGKILL);
        let _ = self.masu.wait();
    }
}

pub(super) fn signal(to: i32, signal: i32) -> Outcome {
    // SAFETY: a system call with numbers, of a process or group that this test started.
    match unsafe { libc::kill(to, signal) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

const STRESS: &str = include_str!("../../../bench/workloads/remote/stress.c");

/// The program that uses memory in every way and checks each byte.
pub(super) fn stress(folder: &Folder) -> Result<String> {
    built(folder, "stress", STRESS)
}

/// The same with a name that profiles know it by.
pub(super) fn stress_with_build_id(folder: &Folder) -> Result<String> {
    compile(folder, "cc", "stress", STRESS, &["-pthread", "-Wl,--build-id"])
}

/// Memory that moves, grows and is given up, and little else: such is rare in a mixture of all.
const MOVING: [&str; 2] = ["--only", "mremap,realloc,dontneed,touch"];

/// Other seeds and other transfer sizes. Copies of it (fork) do not fit, and it goes on without them.
fn a_program_that_checks_each_byte_finds_none_wrong(host: &Host) -> Outcome {
    let folder = Folder::make("local-stress")?;
    let stress = stress(&folder)?;
    let at = folder.0.to_str().ok_or("a path that is no text")?;
    let all = [("1", "4KiB"), ("2", "16KiB"), ("3", "64KiB"), ("4", "auto")].map(|(seed, unit)| (seed, unit, &[][..]));
    let moving = [("5", "16KiB"), ("6", "auto")].map(|(seed, unit)| (seed, unit, &MOVING[..]));
    // On an emulated processor a single backend, with nearly all the steps and less memory.
    let (but, mib) = if host.has(Requirement::RealProcessor) { (0, "64") } else { (5, "16") };
    let kinds = || all.into_iter().chain(moving).skip(but);
    let backends = backends(host);
    for (backend, (seed, unit, kinds)) in
        backends.iter().flat_map(|backend| kinds().map(move |kinds| (*backend, kinds)))
    {
        let report = Report::new("local-stress");
        let options = ["--backend", backend, "--local", "5%", "--unit", unit, "--report", report.path(), "--json"];
        let arguments = ["--seconds", "1", "--threads", "4", "--mib", mib, "--seed", seed, "--folder", at, "--fork"];
        let mut command = paged(&options, &[&[stress.as_str()], &arguments[..], kinds].concat())?;
        let said = said(&mut command)?;
        assert_eq!(said.code(), 0, "backend {backend}, seed {seed}, unit {unit}: {said:?}");
        assert!(said.out.ends_with(" wrong=0\n") && !said.out.starts_with("checks=0 "), "{said:?}");
        let report = report.read()?;
        assert_eq!(report["backend"], backend, "{report}");
        let number = |name: &str| report[name].as_u64().ok_or_else(|| format!("no {name}: {report}"));
        assert!(number("bytes_in")? > 0 && number("bytes_out")? > 0, "nothing was paged: {report}");
        let local = number("local_bytes")?.next_multiple_of(4096).max(1 << 20);
        assert!(number("peak_resident_bytes")? <= local, "{report}");
    }
    Ok(())
}

/// Else its silence would prove nothing.
fn a_program_that_checks_each_byte_finds_a_wrong_one(_: &Host) -> Outcome {
    let folder = Folder::make("local-corrupt")?;
    let stress = stress(&folder)?;
    let at = folder.0.to_str().ok_or("a path that is no text")?;
    let arguments = [stress.as_str(), "--seconds", "5", "--mib", "32", "--folder", at, "--corrupt"];
    let said = said(&mut paged(&["--local", "5%"], &arguments)?)?;
    assert_eq!((said.code(), said.err.starts_with("wrong: thread ")), (3, true), "{said:?}");
    Ok(())
}

/// Resident anonymous memory of a process in bytes, paged memory and the victim queue included.
fn anonymous_bytes(process: i32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("no RssAnon")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

/// Tolerance of sampling from outside. The program's other memory is known from before its first touch of paged memory.
/// The kernel counts in parts for each processor, up to 64 pages that are not in the sum, and the stacks' and tables'
/// pages are added meanwhile.
const BESIDES_BYTES: u64 = 512 << 10;

/// 64 MiB in 4 MiB, with threads that change it all the time; where the processor is emulated, 16 MiB, and for longer.
fn local_memory_is_never_more_than_was_given(host: &Host) -> Outcome {
    let folder = Folder::make("local-budget")?;
    let memory_checker = memory_checker(&folder)?;
    let units = if host.has(Requirement::RealProcessor) { &["4KiB", "64KiB", "auto"][..] } else { &["auto"] };
    let (mib, seconds, enough) = if host.has(Requirement::RealProcessor) { (64, 1, 100) } else { (16, 3, 10) };
    let arguments = [mib, seconds].map(|number: u64| number.to_string());
    let backends = backends(host);
    for (backend, unit) in backends.iter().flat_map(|backend| units.iter().map(move |unit| (*backend, *unit))) {
        let report = Report::new("local-budget");
        let options = ["--backend", backend, "--local", "4MiB", "--unit", unit, "--report", report.path(), "--json"];
        let mut talking = Talking::start(paged(&options, &[&memory_checker, &arguments[0], &arguments[1]])?)?;
        talking.hears("rest")?;
        let at_rest = anonymous_bytes(talking.program)?;
        talking.says()?;
        talking.says()?;
        let (mut samples, mut most) = (0, 0);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(seconds * 1200) {
            match anonymous_bytes(talking.program) {
                Ok(bytes) => (samples, most) = (samples + 1, most.max(bytes)),
                // The process has ended.
                Err(_) => break,
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        let said = talking.ends()?;
        assert_eq!((said.code(), said.out.ends_with("right\n")), (0, true), "{backend}, {unit}: {said:?}");
        let more = most.saturating_sub(at_rest);
        assert!(
            samples > enough && more > 2 << 20,
            "{backend}, {unit}: {samples} samples, at most {more} bytes: too few"
        );
        assert!(more <= (4 << 20) + BESIDES_BYTES, "{backend}, {unit}: {more} bytes more than at rest");
        let report = report.read()?;
        assert_eq!(report["local_bytes"], 4 << 20, "{report}");
        assert!(report["peak_resident_bytes"].as_u64().is_some_and(|peak| peak <= 4 << 20), "{report}");
        assert!(report["paged_bytes"].as_u64().is_some_and(|bytes| bytes >= mib << 20), "{report}");
    }
    Ok(())
}

/// Status, signals, input and output are the program's own.
fn a_paged_program_ends_and_talks_as_without_masu(_: &Host) -> Outcome {
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)] {
        let said = said(&mut paged(&["--local", "2MiB"], &["/bin/sh", "-c", script])?)?;
        assert_eq!((said.code(), said.out.as_str(), said.err.as_str()), (code, "", ""), "{script}");
    }
    let script = "read line; echo \"$line\"; echo other >&2; sh -c 'exit 5'; echo $?; echo piped | cat";
    let mut talking = Talking::start(paged(&["--local", "2MiB"], &["/bin/sh", "-c", script])?)?;
    talking.says()?;
    let said = talking.ends()?;
    assert_eq!((said.code(), said.out.as_str(), said.err.as_str()), (0, "\n5\npiped\n", "other\n"));
    Ok(())
}

/// A plain fork, which makes a copy: it works as long as all is in memory, and is otherwise refused with a message.
fn a_fork_works_while_all_fits_and_is_refused_and_reported_when_not(_: &Host) -> Outcome {
    const FORKS: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **list) {
    size_t bytes = strtoul(list[1], NULL, 10) << 20;
    char *memory = malloc(bytes);
    for (size_t i = 0; i < bytes; i += 4096) memory[i] = (char)(i >> 12);
    pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < bytes; i += 4096) if (memory[i] != (char)(i >> 12)) _exit(3);
        _exit(9);
    }
    int status = 0;
    if (child < 0) printf("%s\n", strerror(errno)); else { waitpid(child, &status, 0); printf("%d\n", WEXITSTATUS(status)); }
    for (size_t i = 0; i < bytes; i += 4096) if (memory[i] != (char)(i >> 12)) return 3;
    return 0;
}
"#;
    let folder = Folder::make("local-fork")?;
    let forks = compile(&folder, "cc", "forks", FORKS, &[])?;
    for (local, answer, notes) in [("64MiB", "9\n", 0), ("4MiB", "Cannot allocate memory\n", 1)] {
        let report = Report::new("local-fork");
        let said = said(&mut paged(&["--local", local, "--report", report.path(), "--json"], &[&forks, "16"])?)?;
        assert_eq!((said.code(), said.out.as_str()), (0, answer), "{local}: {said:?}");
        let report = report.read()?;
        assert_eq!(report["notes"].as_array().map(Vec::len), Some(notes), "{report}");
        assert!(notes == 0 || report["notes"][0].as_str().is_some_and(|note| note.contains("ENOMEM")), "{report}");
    }
    Ok(())
}

/// A fork needs the stored pages back: of a program that was larger, and of memory that is unreadable just now.
fn a_fork_brings_back_what_fits(host: &Host) -> Outcome {
    const FORKS: &str = r#"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <stdlib.h>
enum { PAGE = 4096, SMALL = 2 << 20, LARGE = 32 << 20 };
static char *small, *closed;
static size_t shut;
static void fill(char *memory, size_t bytes, int by) { for (size_t i = 0; i < bytes; i += PAGE) memory[i] = (char)(1 + by + (i >> 12) % 100); }
static int wrong(char *memory, size_t bytes, int by) {
    for (size_t i = 0; i < bytes; i += PAGE) if (memory[i] != (char)(1 + by + (i >> 12) % 100)) return 1;
    return 0;
}
static int all_wrong(void) {
    return mprotect(closed, shut, PROT_READ | PROT_WRITE) || wrong(small, SMALL, 0) || wrong(closed, shut, 7);
}
static char *some(size_t bytes) { return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
int main(int count, char **list) {
    shut = strtoul(list[count - 1], NULL, 10) << 10;
    small = some(SMALL), closed = some(shut);
    fill(small, SMALL, 0), fill(closed, shut, 7);
    char *large = some(LARGE);
    fill(large, LARGE, 3), fill(large, LARGE, 5);
    munmap(large, LARGE);
    mprotect(closed, shut, PROT_NONE);
    int status = 0;
    pid_t child = fork();
    if (child == 0) _exit(all_wrong() ? 3 : 9);
    if (child < 0) perror("fork");
    else waitpid(child, &status, 0);
    printf("%d %d\n", WEXITSTATUS(status), all_wrong());
    return 0;
}
"#;
    let folder = Folder::make("local-fork-small")?;
    let forks = compile(&folder, "cc", "forks", FORKS, &[])?;
    let run = |backend, shut| -> Result<_> {
        let report = Report::new("local-fork-small");
        let options = ["--backend", backend, "--local", "8MiB", "--report", report.path(), "--json"];
        Ok((said(&mut paged(&options, &[&forks, shut])?)?, report.read()?))
    };
    for backend in backends(host) {
        let (said, report) = run(backend, "512")?;
        assert_eq!((said.code(), said.out.as_str()), (0, "9 0\n"), "backend {backend}: {said:?}");
        assert_eq!(report["notes"], serde_json::json!([]), "{report}");
        assert!(report["bytes_in"].as_u64().is_some_and(|bytes| bytes >= 2 << 20), "it was all there: {report}");
        assert!(report["peak_resident_bytes"].as_u64().is_some_and(|bytes| bytes <= 8 << 20), "{report}");
        // More unreadable memory would fill local memory, since it could not be evicted.
        let (said, _) = run(backend, "2048")?;
        assert_eq!((said.code(), said.out.as_str()), (0, "0 0\n"), "backend {backend}: {said:?}");
        assert!(said.err.contains("Cannot allocate memory"), "backend {backend}: {said:?}");
    }
    Ok(())
}

/// The program and its forks, which change their own memory, check each byte.
fn copies_of_a_program_find_none_wrong(host: &Host) -> Outcome {
    let folder = Folder::make("local-copies")?;
    let stress = stress(&folder)?;
    let at = folder.0.to_str().ok_or("a path that is no text")?;
    for backend in backends(host) {
        let report = Report::new("local-copies");
        let options = ["--backend", backend, "--local", "64MiB", "--report", report.path(), "--json"];
        let arguments = ["--seconds", "1", "--threads", "2", "--mib", "16", "--seed", "7", "--folder", at, "--fork"];
        let mut command = paged(&options, &[&[stress.as_str()], &arguments[..]].concat())?;
        let said = said(&mut command)?;
        assert!(said.code() == 0 && said.out.ends_with(" wrong=0\n"), "backend {backend}: {said:?}");
        let report = report.read()?;
        let notes = report["notes"].as_array().ok_or("no notes")?.iter().filter_map(serde_json::Value::as_str);
        assert_eq!(notes.filter(|note| note.contains("fork")).collect::<Vec<_>>(), [""; 0], "a fork was refused");
    }
    Ok(())
}

/// The calls fail as on a kernel without them: io_uring, kernel AIO and vmsplice; locking, as at a limit.
fn what_cannot_work_on_paged_memory_is_not_there_for_the_program(_: &Host) -> Outcome {
    const ASKS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
static void ask(long answer) { printf("%d ", answer < 0 ? errno : 0); }
static int child(void *nothing) { return 0; }
int main(void) {
    static char stack[16384];
    size_t bytes = 1 << 20;
    char ring[120] = {0}, data[16] = {0};
    unsigned long events = 0;
    int ends[2];
    struct iovec vector = {data, sizeof data};
    if (pipe(ends)) return 4;
    ask(syscall(SYS_userfaultfd, 1));
    ask(syscall(SYS_io_uring_setup, 4, ring));
    ask(syscall(SYS_io_setup, 1, &events));
    ask(syscall(SYS_vmsplice, ends[1], &vector, 1, 0));
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ask(mlock(memory, bytes));
    ask(mlockall(MCL_CURRENT));
    ask((long)mremap(memory, bytes, bytes, MREMAP_MAYMOVE | 4));
    ask(clone(child, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL));
    puts("");
    return 0;
}
"#;
    let folder = Folder::make("local-asks")?;
    let asks = compile(&folder, "cc", "asks", ASKS, &[])?;
    let said = said(&mut paged(&["--local", "2MiB", "--report", "-"], &[&asks])?)?;
    assert_eq!((said.code(), said.out.as_str()), (0, "38 38 38 22 12 1 22 22 \n"), "{said:?}");
    let refused = [
        "userfaultfd was refused once",
        "io_uring was refused once",
        "asynchronous I/O by the kernel (io_setup) was refused once",
        "vmsplice was refused once",
        "locking of memory (mlock, mlock2, mlockall) was refused 2 times",
        "moving of pages from a mapping that stays (mremap with MREMAP_DONTUNMAP) was refused once",
        "a child process with the same memory (clone with CLONE_VM, without CLONE_VFORK) was refused once",
    ];
    for refused in refused {
        assert!(said.err.contains(refused), "{refused}: {}", said.err);
    }
    Ok(())
}

/// A file that is cut short under a mapping; the pager's faults are of the same signal.
fn a_programs_own_bus_errors_reach_its_own_handler(_: &Host) -> Outcome {
    const BUS: &str = r#"
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static sigjmp_buf back;
static volatile int times;
static void *volatile where;
static void handler(int number, siginfo_t *info, void *context) { times++; where = info->si_addr; siglongjmp(back, 1); }
int main(void) {
    struct sigaction own = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO}, usual = {.sa_handler = SIG_DFL};
    sigaction(SIGBUS, &own, NULL);
    size_t bytes = 16 << 20;
    unsigned char *memory = malloc(bytes);
    for (size_t i = 0; i < bytes; i += 4096) memory[i] = i >> 12;
    int fd = memfd_create("short", 0);
    if (ftruncate(fd, 8192)) return 4;
    volatile char *file = mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 0);
    (void)file[4096];
    if (ftruncate(fd, 4096)) return 4;
    if (!sigsetjmp(back, 1)) { (void)file[4096]; return 5; }
    if (times != 1 || where != (void *)(file + 4096)) return 6;
    for (size_t i = 0; i < bytes; i += 4096) if (memory[i] != (unsigned char)(i >> 12)) return 3;
    puts("handled");
    fflush(stdout);
    sigaction(SIGBUS, &usual, NULL);
    (void)file[4096];
    return 7;
}
"#;
    let folder = Folder::make("local-bus")?;
    let bus = compile(&folder, "cc", "bus", BUS, &[])?;
    let said = said(&mut paged(&["--local", "2MiB"], &[&bus])?)?;
    assert_eq!((said.code(), said.out.as_str()), (128 + libc::SIGBUS, "handled\n"), "{said:?}");
    Ok(())
}

/// The findings of this test program agree with those of `masu facts`.
fn facts_tells_that_programs_can_be_paged(_: &Host) -> Outcome {
    let said = said(masu()?.args(["facts", "--json"]))?;
    let report: serde_json::Value = serde_json::from_str(&said.out)?;
    assert_eq!(report["host"]["user_faults"]["sigbus"], true, "{report}");
    assert_eq!(report["host"]["syscall_dispatch"], true);
    let features = report["features"].as_array().ok_or("no features")?;
    let paging = features.iter().find(|feature| feature["feature"] == "larger than memory").ok_or("no paging")?;
    let backends: Vec<_> = paging["parts"].as_array().ok_or("no parts")?.iter().map(|part| &part["backend"]).collect();
    let best = paging_backends().first().copied();
    assert_eq!(backends, [&serde_json::json!(best), &serde_json::json!("user-dispatch")]);
    let missing = paging["parts"][0]["missing"].as_array().map(Vec::len);
    assert_eq!(missing, Some(usize::from(best != Some("move"))), "why not the better one: {report}");
    Ok(())
}
