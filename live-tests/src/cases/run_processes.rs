//! `masu run` and every kind of process: one that may have no huge pages, one in a sandbox, one that loads no library,
//! one with many mappings.

use std::os::unix::process::CommandExt;
use std::process::Command;

use serde_json::Value;

use super::command::{json, masu};
use super::programs::Running;
use super::run::{Folder, Report, Result, run, said};
use super::run_hard::compile;
use super::{Outcome, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_processes requires [Root, MasuCommand, PreloadLibrary, HugePageModes, CCompiler];
    an_inherited_prohibition_is_lifted_and_a_later_one_is_named;
    a_child_whose_filter_kills_for_madvise_runs_as_alone;
    children_that_cannot_be_served_are_left_out_and_counted;
    a_child_that_cannot_open_the_status_page_runs_as_alone_and_is_counted;
    a_start_that_fails_is_not_counted_as_left_out [Shell];
    sigterm_ends_a_start_behind_a_supervisor_that_never_answers;
    a_program_with_many_mappings_gets_as_many_as_alone;
    torn_huge_pages_that_are_locked_have_a_line [TornPages];
    torn_huge_pages_that_a_fork_shares_are_counted_once [TornPages];
    a_copy_in_the_background_is_named_and_counted;
    children_made_without_the_c_librarys_fork_are_counted_and_split;
    a_child_in_its_parents_memory_is_not_counted_twice;
    a_copy_is_named_if_the_program_ends_at_once;
    a_program_whose_first_thread_has_ended_is_named;
};

/// Prints the huge KiB of 64 MiB; with an argument it forbids huge pages first.
pub(super) const HUGE: &str = r#"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
int main(int c, char **v) {
    char line[256]; FILE *f; size_t n = 64 << 20;
    if (c > 1) prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    memset(mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, n);
    f = fopen("/proc/self/smaps_rollup", "r");
    while (fgets(line, sizeof line, f)) if (!strncmp(line, "AnonHugePages:", 14)) fputs(line + 14, stdout);
    return 0;
}
"#;

/// A filter that kills for madvise; then it allocates, and executes its arguments.
pub(super) const SANDBOX: &str = r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int c, char **v) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    struct sock_fprog program = { 4, code };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 77;
    if (*v[1] == 's' ? syscall(SYS_seccomp, 1, 0, &program) : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 78;
    for (int i = 0; i < 100; i++) memset(malloc(100000), 1, 100000);
    memset(malloc(8 << 20), 1, 8 << 20);
    execvp(v[2], v + 2);
    return 79;
}
"#;

/// Executes its arguments behind a filter that asks a supervisor about the first of them, a call's number. Nobody
/// answers. Ends it by SIGTERM after a second, and prints its end as wait(2) has it.
const SILENT: &str = r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int c, char **v) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, atoi(v[1]), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    struct sock_fprog program = { 4, code };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 77;
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program) < 0) return 78;
    pid_t child = fork();
    if (!child) return execvp(v[2], v + 2), 79;
    int end = -1;
    for (int i = 0; i < 150 && waitpid(child, &end, WNOHANG) == 0; i++) {
        if (i >= 10 && i % 10 == 0) kill(child, i < 140 ? SIGTERM : SIGKILL);
        usleep(100000);
    }
    printf("%d\n", end);
    return 0;
}
"#;

/// 16 huge windows, locked; gives back three quarters of each, and stays for some seconds.
///
/// With an argument, two processes after a fork do so, one after the other, without a lock.
const TORN: &str = r#"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    size_t w = 2 << 20, n = 16 * w;
    (void)argv;
    char *p = mmap(0, n + w, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p = (char *)(((size_t)p + w - 1) & ~(w - 1));
    madvise(p, n, MADV_HUGEPAGE);
    memset(p, 1, n);
    if (argc > 1) fork();
    else if (mlock(p, n)) return 77;
    for (size_t i = 0; i < n; i += w) if (madvise(p + i + w / 4, w / 4 * 3, argc > 1 ? 4 : 24)) return 78;
    sleep(6);
    return 0;
}
"#;

/// Goes into the background, with 16 MiB.
const BACKGROUND: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
    int ready[2]; char byte;
    if (pipe(ready)) return 77;
    if (fork()) return read(ready[0], &byte, 1) != 1;
    setsid();
    memset(mmap(0, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 16 << 20);
    if (write(ready[1], "x", 1) != 1) return 78;
    close(0), close(1), close(2);
    sleep(3);
    return 0;
}
"#;

/// Makes a child by each of four calls. Each touches a byte in each of 32 windows, and waits until the kernel has most of
/// them back, at most a minute.
const OTHER_FORKS: &str = r#"
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
extern pid_t _Fork(void);
static long huge_kib(void) {
    char line[256]; long kib = -1;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    while (fgets(line, sizeof line, f)) sscanf(line, "AnonHugePages: %ld", &kib);
    fclose(f);
    return kib;
}
static pid_t child(int how) {
    unsigned long arguments[8] = { 0, 0, 0, 0, SIGCHLD };
    switch (how) {
    case 0: return _Fork();
    case 1: return syscall(SYS_fork);
    case 2: return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    default: return syscall(SYS_clone3, arguments, sizeof arguments);
    }
}
int main(void) {
    size_t w = 2 << 20, n = 33 * w;
    int status, failed = 0;
    for (int how = 0; how < 4; how++) {
        if (child(how)) continue;
        volatile char *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t i = 0; i < n; i += w) p[i] = 1;
        if (huge_kib() < 32 << 11) _exit(77);
        for (int i = 0; i < 600 && huge_kib() > 16 << 11; i++) usleep(100000);
        _exit(huge_kib() > 16 << 11);
    }
    while (wait(&status) > 0) failed |= status;
    return failed != 0;
}
"#;

/// Has a child in its memory of 32 MiB for three seconds.
const VFORK: &str = r#"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
    memset(mmap(0, 32 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 32 << 20);
    if (!vfork()) sleep(3), _exit(0);
    return 0;
}
"#;

/// Fills 16 MiB, goes into the background, and waits for nothing: by the C library's fork, and with an argument without it.
const LEAVES_AT_ONCE: &str = r#"
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int c, char **v) {
    (void)v;
    memset(mmap(0, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 16 << 20);
    if (c > 1 ? syscall(SYS_fork) : fork()) _exit(0);
    setsid(), close(0), close(1), close(2);
    sleep(3);
    return 0;
}
"#;

/// Leaves 16 MiB to its second thread, which ends the program after two seconds.
const SECOND_THREAD: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static void fill(void) { memset(mmap(0, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 16 << 20); }
static void *second(void *none) { fill(), sleep(2), exit(5); return none; }
int main(void) {
    pthread_t thread;
    fill();
    pthread_create(&thread, NULL, second, NULL);
    pthread_exit(NULL);
}
"#;

/// Maps until it fails; prints the number.
const MAPPINGS: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
int main(void) {
    int n = 0;
    while (n < 70000 && mmap(0, (2 << 20) + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED) n++;
    printf("%d\n", n);
    return 0;
}
"#;

fn reported(options: &[&str], command: &[&str], name: &str) -> Result<(Command, Report)> {
    let report = Report::new(name);
    let mut run = run(options, command)?;
    // Behind `run`, where all options of masu stand.
    let arguments: Vec<std::ffi::OsString> = run.get_args().skip(1).map(ToOwned::to_owned).collect();
    let mut again = Command::new(run.get_program());
    again.args(["run", "--report", report.path(), "--json"]).args(arguments);
    std::mem::swap(&mut run, &mut again);
    for name in ["LD_PRELOAD", "GLIBC_TUNABLES", "MASU_TOUCH", "MASU_DISABLE"] {
        run.env_remove(name);
    }
    Ok((run, report))
}

/// Report of a C program that ends well.
fn report_of(name: &str, source: &str, arguments: &[&str]) -> Result<Value> {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make(&format!("processes-{name}"))?;
    let program = compile(&folder, "cc", name, source, &[])?;
    let command: Vec<&str> = std::iter::once(program.as_str()).chain(arguments.iter().copied()).collect();
    let (mut command, report) = reported(&[], &command, name)?;
    let ended = said(&mut command)?;
    assert_eq!(ended.code(), 0, "{ended:?}");
    report.read()
}

fn an_inherited_prohibition_is_lifted_and_a_later_one_is_named(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make("processes-huge")?;
    let program = compile(&folder, "cc", "huge", HUGE, &[])?;
    let (mut command, report) = reported(&[], &[&program], "inherited")?;
    // SAFETY: between fork and exec: a system call with numbers only.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
            Ok(())
        });
    }
    let lifted = said(&mut command)?;
    let kib: u64 = lifted.out.split_whitespace().next().ok_or("no figure")?.parse()?;
    assert!(kib >= 60 << 10, "{lifted:?}");
    assert!(report.read()?["notes"].to_string().contains("masu lifted that"), "{lifted:?}");

    let (mut command, report) = reported(&[], &[&program, "forbid"], "later")?;
    let forbidden = said(&mut command)?;
    assert_eq!(forbidden.out.split_whitespace().next(), Some("0"), "{forbidden:?}");
    let report = report.read()?;
    assert_eq!(report["program_forbids"], Value::Bool(true), "{report}");
    assert_eq!(report["forbidding_processes"], Value::from(1), "{report}");
    Ok(())
}

fn a_child_whose_filter_kills_for_madvise_runs_as_alone(_: &Host) -> Outcome {
    let folder = Folder::make("processes-sandbox")?;
    let program = compile(&folder, "cc", "sandbox", SANDBOX, &[])?;
    for how in ["seccomp", "prctl"] {
        for options in [&["-q"][..], &["-q", "--stack", "--code"]] {
            let confined = said(&mut run(options, &[&program, how, "echo", "well"])?)?;
            assert_eq!((confined.code(), confined.out.as_str()), (0, "well\n"), "{how} {options:?} {confined:?}");
        }
        let (mut command, report) = reported(&[], &[&program, how, "echo", "well"], "sandbox")?;
        assert_eq!(said(&mut command)?.code(), 0);
        let left_out = &report.read()?["left_out"];
        assert_eq!(left_out["from their own prctl(PR_SET_NO_NEW_PRIVS) or seccomp on"], Value::from(1), "{left_out}");
    }
    Ok(())
}

/// A change of the user, of the user namespace, or of `/proc` hides masu's files: masu could not trim what is huge there.
fn a_child_that_cannot_open_the_status_page_runs_as_alone_and_is_counted(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make("processes-apart")?;
    let program = compile(&folder, "cc", "huge", HUGE, &[])?;
    let starts: [&[&str]; 3] = [
        &["setpriv", "--reuid", "4001", "--regid", "4001", "--clear-groups"],
        &["unshare", "--user", "--map-root-user"],
        &["unshare", "--pid", "--fork", "--mount-proc"],
    ];
    for start in starts {
        let command: Vec<&str> = start.iter().copied().chain([program.as_str()]).collect();
        let (mut command, report) = reported(&[], &command, "apart")?;
        let ran = said(&mut command)?;
        assert_eq!((ran.code(), ran.out.split_whitespace().next()), (0, Some("0")), "{start:?} {ran:?}");
        let report = report.read()?;
        let counts = [&report["left_out"]["of another user or in other namespaces"], &report["programs"]];
        assert_eq!(counts, [&Value::from(1), &Value::from(2)], "{start:?} {report}");
    }
    Ok(())
}

/// A shell tries each folder of its path.
fn a_start_that_fails_is_not_counted_as_left_out(_: &Host) -> Outcome {
    let script = "ulimit -v 4000000; PATH=/none:/neither:/usr/bin:/bin; exec true";
    let (mut command, report) = reported(&[], &["sh", "-c", script], "tries")?;
    assert_eq!(said(&mut command)?.code(), 0);
    let report = report.read()?;
    assert_eq!(report["left_out"]["within a ulimit -v or -d"], Value::from(1), "{report}");
    Ok(())
}

/// masu makes calls at its start that the program alone does not make. A signal ends it, as it ends the program.
fn sigterm_ends_a_start_behind_a_supervisor_that_never_answers(_: &Host) -> Outcome {
    const ENDED_BY_SIGTERM: &str = "15\n";
    const ENDED_WELL: &str = "0\n";
    let folder = Folder::make("processes-silent")?;
    let program = compile(&folder, "cc", "silent", SILENT, &[])?;
    let masu = masu()?;
    let forms = [&["run", "-q"][..], &["run", "-q", "--local", "16MiB"], &["aging", "--cache", "0"]];
    let mut silent = 0;
    for call in [libc::SYS_memfd_create, libc::SYS_prctl] {
        for form in forms {
            let mut command = Command::new(&program);
            let ended = said(command.arg(call.to_string()).arg(masu.get_program()).args(form).args(["--", "true"]))?;
            let is_right = [ENDED_BY_SIGTERM, ENDED_WELL].contains(&ended.out.as_str());
            assert!(ended.code() == 0 && is_right, "call {call}, {form:?}: {ended:?}");
            silent += u32::from(ended.out == ENDED_BY_SIGTERM);
        }
    }
    assert!(silent > 0, "no call was asked about");
    Ok(())
}

fn children_that_cannot_be_served_are_left_out_and_counted(_: &Host) -> Outcome {
    let folder = Folder::make("processes-left-out")?;
    let sanitized = compile(&folder, "cc", "sanitized", HUGE, &["-fsanitize=address"])?;
    let fixed = compile(&folder, "cc", "fixed", HUGE, &["-static"])?;
    let script = format!("{sanitized} >&2 && env {sanitized} >&2 && {fixed} >&2 && echo well");
    let (mut command, report) = reported(&[], &["/bin/sh", "-c", &script], "left-out")?;
    let built = said(&mut command)?;
    assert_eq!((built.code(), built.out.as_str()), (0, "well\n"), "{built:?}");
    let report = report.read()?;
    assert_eq!(report["left_out"]["with a sanitizer's runtime"], Value::from(2), "{report}");
    assert_eq!(report["left_out"]["statically linked"], Value::from(1), "{report}");
    Ok(())
}

fn a_program_with_many_mappings_gets_as_many_as_alone(_: &Host) -> Outcome {
    let folder = Folder::make("processes-mappings")?;
    let program = compile(&folder, "cc", "mappings", MAPPINGS, &[])?;
    let alone = said(&mut Command::new(&program))?;
    let served = said(&mut run(&["-q"], &[&program])?)?;
    assert_eq!(served.out, alone.out, "{served:?}");
    Ok(())
}

/// The kernel splits no locked page: it keeps and charges what the program gave back.
fn torn_huge_pages_that_are_locked_have_a_line(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make("processes-torn")?;
    let program = compile(&folder, "cc", "torn", TORN, &[])?;
    let (mut command, report) = reported(&[], &[&program], "torn")?;
    let ended = said(&mut command)?;
    assert_eq!(ended.code(), 0, "{ended:?}");
    let report = report.read()?;
    assert_eq!((&report["torn_windows"], &report["torn_left_windows"]), (&0.into(), &16.into()), "{report}");
    assert_eq!(report["torn_left_bytes"], Value::from(16 * 3 * (512 << 10)), "{report}");
    let running = Running::start(&mut Command::new(&program))?;
    let pid = running.pid().to_string();
    let attach = json(&["attach", &pid, "--for", "4s", "--json"])?;
    // attach has no right to see frames.
    assert!(attach["torn_on_host"].as_u64() >= Some(16) && attach["torn_windows"] == 0, "{attach}");
    assert_eq!(running.said()?.code(), 0);
    Ok(())
}

/// Both processes of a fork gave back the same parts: the kernel keeps and charges each once.
fn torn_huge_pages_that_a_fork_shares_are_counted_once(_: &Host) -> Outcome {
    let report = report_of("torn-fork", TORN, &["fork"])?;
    let (split, left) = (report["torn_windows"].as_u64(), report["torn_left_windows"].as_u64());
    let (split, left) = (split.ok_or("no number")?, left.ok_or("no number")?);
    // The first may be looked at before the second has given back its part.
    assert!(left > 0 && left <= 16 && split + left >= 16, "{report}");
    assert_eq!(report["torn_left_bytes"], Value::from(left * 3 * (512 << 10)), "{report}");
    Ok(())
}

/// The program has ended, and the report is not about all of it.
fn a_copy_in_the_background_is_named_and_counted(_: &Host) -> Outcome {
    let report = report_of("background", BACKGROUND, &[])?;
    let rest = report["still_running"].as_array().ok_or("no array")?;
    assert_eq!(rest.iter().map(|one| one["program"].as_str()).collect::<Vec<_>>(), [Some("background")], "{report}");
    assert!(report["superpages"]["mmap"]["reserved_windows"].as_u64() >= Some(7), "{report}");
    Ok(())
}

/// Nothing of the C library's runs in such a child, so none takes a slot.
fn children_made_without_the_c_librarys_fork_are_counted_and_split(_: &Host) -> Outcome {
    let report = report_of("other-forks", OTHER_FORKS, &[])?;
    assert_eq!(report["processes"], 5, "{report}");
    assert!(report["demoted_windows"].as_u64() >= Some(4 * 16), "{report}");
    Ok(())
}

/// A child of vfork has the status page, too, since it has its parent's memory.
fn a_child_in_its_parents_memory_is_not_counted_twice(_: &Host) -> Outcome {
    let report = report_of("vfork", VFORK, &[])?;
    assert_eq!(report["processes"], 1, "{report}");
    let reserved = report["superpages"]["mmap"]["reserved_windows"].as_u64();
    assert!((Some(15)..=Some(17)).contains(&reserved), "{report}");
    Ok(())
}

/// The copy may have no slot when masu ends.
fn a_copy_is_named_if_the_program_ends_at_once(_: &Host) -> Outcome {
    for arguments in [&["x"][..], &[], &[], &[]] {
        let report = report_of("at-once", LEAVES_AT_ONCE, arguments)?;
        let rest = report["still_running"].as_array().ok_or("no array")?;
        assert_eq!(rest.iter().map(|one| one["program"].as_str()).collect::<Vec<_>>(), [Some("at-once")], "{report}");
        assert!(report["superpages"]["mmap"]["reserved_windows"].as_u64() >= Some(7), "{report}");
    }
    Ok(())
}

/// `/proc` shows the first thread's memory: none.
fn a_program_whose_first_thread_has_ended_is_named(_: &Host) -> Outcome {
    let folder = Folder::make("processes-second")?;
    let program = compile(&folder, "cc", "second", SECOND_THREAD, &["-pthread"])?;
    for how in ["touch", "hot"] {
        let ended = said(&mut run(&["--huge", how, "--report", "-"], &[&program])?)?;
        assert_eq!(ended.code(), 5, "{ended:?}");
        assert!(ended.err.contains("(second): its first thread has ended and left the memory to others"), "{ended:?}");
        let wrong = ["the library was not loaded", "none had 8.0 MiB"];
        assert!(wrong.iter().all(|words| !ended.err.contains(words)), "{ended:?}");
    }
    Ok(())
}
