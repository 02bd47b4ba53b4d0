//! `masu run --local` for programs that start others: each is paged, and its memory is freed when it ends.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use farmem_engine::handshake::{self, Secret, Sections, SessionParameters};
use linux::message_socket::Listener;

use super::Outcome;
use super::programs::{self, Running};
use super::run::{Folder, Report, said};
use super::run_hard::compile;
use super::run_local::paged;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_local_children requires [MasuCommand, PagerLibrary, Shell];
    hundreds_of_children_are_paged_with_few_open_files [UserFaults];
    masu_alone_may_have_more_open_files [UserFaults];
    without_session_parameters_a_program_ends_unless_masu_is_gone;
    a_child_within_a_limit_of_its_own_runs_and_is_counted [UserFaults];
    too_few_open_files_are_named_with_a_number_that_suffices [Shell];
    a_first_program_within_a_limit_of_its_own_runs_unserved [UserFaults];
    programs_that_cannot_be_paged_run_as_children_and_are_counted [UserFaults, CCompiler, Make];
    a_program_that_puts_a_filter_on_itself_is_served_no_more [UserFaults, CCompiler];
    the_memory_of_a_paged_peer_is_read_or_refused_and_never_wrong [UserFaults, CCompiler];
    copies_that_go_on_after_the_program_are_named [UserFaults, CCompiler];
    open_mpi_sends_between_paged_programs_and_prints_no_refusal [UserFaults];
    limits_of_the_program_are_its_own [UserFaults, Python];
};

/// The same under a shell that lowers a limit for it and all that it starts.
fn limited(limit: &str, run: &Command) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("ulimit {limit}; exec \"$0\" \"$@\"")]).arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

/// More of them than masu may have files open, and all within their limit.
fn hundreds_of_children_are_paged_with_few_open_files(_: &Host) -> Outcome {
    const CHILDREN: &str = "n=0; while [ $n -lt 300 ]; do /bin/true || exit 1; n=$((n+1)); done; echo $n";
    let report = Report::new("local-children");
    let run = paged(&["--local", "4MiB", "--report", report.path(), "--json"], &["/bin/sh", "-c", CHILDREN])?;
    let said = said(&mut limited("-n 64", &run))?;
    assert_eq!((said.code(), said.out.as_str()), (0, "300\n"), "{said:?}");
    assert_eq!(said.own_errors(), "", "{said:?}");
    let report = report.read()?;
    // The shell is one, and those between fork and exec are none.
    assert_eq!((report["processes"].as_u64(), &report["notes"]), (Some(301), &serde_json::json!([])), "{report}");
    Ok(())
}

pub(super) const PARAMETERS: SessionParameters = SessionParameters {
    budget_frames: 256,
    budget_share: 0,
    most_pages: 1 << 12,
    unit_pages: 0,
    base_pages: 1,
    least_bytes: 1 << 16,
    sections: Sections::Auto,
    background: true,
    has_file: false,
    segment: None,
    backend: None,
};

/// masu raises its own limit as far as allowed, so that concurrent programs do not wait for each other, and no other
/// process's limit.
fn masu_alone_may_have_more_open_files(_: &Host) -> Outcome {
    const LIMITS: &str = "ulimit -S -n; while read -r max open files soft hard unit; do \
                          [ \"$max $open\" = \"Max open\" ] && [ \"$soft\" = \"$hard\" ] && echo raised; \
                          done < /proc/$PPID/limits; exit 0";
    let run = paged(&["--local", "4MiB"], &["/bin/sh", "-c", LIMITS])?;
    let said = said(&mut limited("-S -n 64", &run))?;
    assert_eq!((said.code(), said.out.as_str()), (0, "64\nraised\n"), "{said:?}");
    Ok(())
}

/// The test plays a masu that sends nothing, and one whose socket name is taken by another process. Nothing is expected
/// from a masu that has ended.
fn without_session_parameters_a_program_ends_unless_masu_is_gone(_: &Host) -> Outcome {
    let library = programs::masu().ok_or("no masu")?.with_file_name("libmasu-pager.so");
    let listener = Listener::open()?;
    let secret = Secret { library: 1, masu: 2 };
    let mut program = Command::new("/bin/echo");
    program.arg("begun").env("LD_PRELOAD", library).env("MASU_PAGER", listener.name());
    program.env("MASU_PAGER_SECRET", secret.to_string()).stdin(Stdio::null());
    let running = Running::start(&mut program)?;
    drop(listener.accept(Duration::from_secs(10))?.ok_or("nobody connected")?);
    let refused = running.said()?;
    assert_eq!((refused.code(), refused.out.as_str()), (125, ""), "{refused:?}");
    assert!(refused.first_line().ends_with("gives it no session parameters"), "{refused:?}");
    assert!(refused.err.contains("\n    masu says why") && refused.err.contains("ulimit -n"), "{refused:?}");
    // The program has checked once more that masu is there.
    drop(listener.accept(Duration::from_secs(10))?.ok_or("nobody asked again")?);
    let mut outlived = Vec::new();
    for answer in [PARAMETERS.message(3), handshake::REJECTED] {
        let running = Running::start(&mut program)?;
        let connection = listener.accept(Duration::from_secs(10))?.ok_or("nobody connected")?;
        let bytes: Vec<u8> = answer.iter().flat_map(|word| word.to_ne_bytes()).collect();
        connection.send(&bytes, &[])?;
        outlived.push(running.said()?);
    }
    drop(listener);
    outlived.push(said(&mut program)?);
    for said in outlived {
        assert_eq!((said.code(), said.out.as_str()), (0, "begun\n"), "{said:?}");
        let words = "is gone, or in another network namespace: it runs without a limit";
        assert!(said.first_line().contains(words), "{said:?}");
    }
    let other = said(program.env_remove("MASU_PAGER_SECRET"))?;
    assert_eq!((other.code(), other.out.as_str()), (125, ""), "{other:?}");
    assert!(other.first_line().contains("is of another version"), "{other:?}");
    Ok(())
}

/// Fills 8 MiB, and reads it.
const FILLS: &str = "#include <stdio.h>\n#include <stdlib.h>\nint main(void) { char *p = malloc(8 << 20); \
    for (int i = 0; i < 8 << 20; i += 4096) p[i] = 1; printf(\"ok %d\\n\", p[4096]); free(p); return 0; }\n";

/// Puts a filter on that kills for userfaultfd, socket and madvise, and becomes echo.
const SANDBOX: &str = r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define KILL(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
int main(void) {
    pid_t child = fork();
    if (!child) {
        struct sock_filter code[] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), KILL(SYS_userfaultfd), KILL(SYS_socket),
            KILL(SYS_madvise), KILL(SYS_prctl), KILL(SYS_sigaltstack), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
        struct sock_fprog program = { sizeof code / sizeof *code, code };
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 77;
        execl("/bin/echo", "echo", "sandbox", (char *)0);
        _exit(127);
    }
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}
"#;

/// Refused as the first program, a program runs as a child as without masu, and is counted with its reason.
fn programs_that_cannot_be_paged_run_as_children_and_are_counted(_: &Host) -> Outcome {
    let folder = Folder::make("local-left-out")?;
    let mut make = String::from("all:\n");
    let mut wanted = Vec::new();
    let sanitizers = [
        ("address", &["-fsanitize=address"][..], "with a sanitizer"),
        ("within", &["-fsanitize=address", "-static-libasan"], "with a sanitizer"),
        ("thread", &["-fsanitize=thread"], "with a sanitizer"),
        ("leak", &["-fsanitize=leak"], "with a sanitizer"),
        ("fixed", &["-static"], "linked statically"),
        ("own", &[], ""),
    ];
    for (name, options, reason) in sanitizers {
        // A compiler may come without a sanitizer, and a kernel's addresses may not suit it.
        let Ok(program) = compile(&folder, "cc", name, FILLS, options) else { continue };
        if !said(&mut Command::new(&program))?.out.starts_with("ok") {
            continue;
        }
        make.push_str(&format!("\t@{program}\n"));
        wanted.push(reason);
    }
    make.push_str(&format!("\t@{}\n", compile(&folder, "cc", "sandbox", SANDBOX, &[])?));
    let file = folder.0.join("Makefile");
    std::fs::write(&file, make)?;
    let report = Report::new("local-left-out");
    let file = file.to_str().ok_or("a path that is no text")?;
    let run = &mut paged(
        &["--local", "64MiB", "--report", report.path(), "--json"],
        &["/usr/bin/make", "--no-print-directory", "-f", file],
    )?;
    let said = said(run)?;
    let lines = format!("{}sandbox\n", "ok 1\n".repeat(wanted.len()));
    assert_eq!((said.code(), said.out.as_str()), (0, lines.as_str()), "{said:?}");
    let left_out = &report.read()?["left_out"];
    let of = |reason: &str| {
        let count = left_out.as_array().and_then(|all| all.iter().find(|one| one["reason"] == reason));
        count.and_then(|one| one["programs"].as_u64()).unwrap_or(0)
    };
    for reason in ["with a sanitizer", "linked statically"] {
        let count = wanted.iter().filter(|wanted| **wanted == reason).count();
        assert_eq!(of(reason), count as u64, "{left_out}");
    }
    assert_eq!(of("behind a seccomp filter"), 1, "{left_out}");
    Ok(())
}

/// Fills 48 MiB, puts a filter on that kills for the pager's calls, and finds all as it was.
const FILTERS_ITSELF: &str = r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#define KILL(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
int main(void) {
    long n = 48 << 20, bad = 0;
    unsigned char *p = malloc(n);
    for (long i = 0; i < n; i += 4096) p[i] = i >> 12;
    struct sock_filter code[] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), KILL(SYS_ioctl), KILL(SYS_process_vm_readv),
        KILL(SYS_process_vm_writev), KILL(SYS_pwrite64), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    struct sock_fprog program = { sizeof code / sizeof *code, code };
    /* A question whether there are filters, and no filter. */
    if (!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0)) return 76;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)) return 77;
    for (long i = 0; i < n; i += 4096) bad += p[i] != (unsigned char)(i >> 12), p[i] = 1;
    dprintf(1, "bad %ld\n", bad);
    execl("/bin/echo", "echo", "after", (char *)0);
    return 127;
}
"#;

/// Its pages come back before the filter is on: nothing of the pager is called from then on.
fn a_program_that_puts_a_filter_on_itself_is_served_no_more(_: &Host) -> Outcome {
    let folder = Folder::make("local-filter")?;
    let program = compile(&folder, "cc", "filters", FILTERS_ITSELF, &[])?;
    let report = Report::new("local-filter");
    let said = said(&mut paged(&["--local", "8MiB", "--report", report.path(), "--json"], &[&program])?)?;
    assert_eq!((said.code(), said.out.as_str()), (0, "bad 0\nafter\n"), "{said:?}");
    let report = report.read()?;
    let wanted = [("behind a seccomp filter", 1), ("that put on a seccomp filter", 1)];
    let wanted = wanted.map(|(reason, programs)| serde_json::json!({ "reason": reason, "programs": programs }));
    assert_eq!(report["left_out"], serde_json::json!(wanted), "{report}");
    Ok(())
}

/// Fills 48 MiB; a child that is paged as well reads all of it from outside, then writes to it.
const PEERS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static unsigned char fill(long i) { return i >> 12 ^ i >> 20; }
int main(int count, char **names) {
    long n = 48 << 20, step = 3 << 20;
    if (count == 3) {
        unsigned char *b = malloc(step), *from = (unsigned char *)strtoul(names[2], 0, 16);
        for (long i = 0; i < n; i += step) {
            struct iovec here = { b, step }, there[2] = { { from + i, 5000 }, { from + i + 5000, step - 5000 } };
            long k = process_vm_readv(atoi(names[1]), &here, 1, there, 2, 0);
            if (k < 0 && errno == ENOSYS) { puts("refused"); return 0; }
            if (k != step) { printf("%ld: %s\n", k, strerror(errno)); return 1; }
            for (long j = 0; j < step; j += 4096) if (b[j] != fill(i + j)) { puts("wrong"); return 3; }
        }
        struct iovec one = { b, 1 }, nowhere = { (void *)4096, 1 }, all = { from, n };
        if (process_vm_readv(atoi(names[1]), &one, 1, &nowhere, 1, 0) != -1 || errno != EFAULT) return 4;
        unsigned char *c = malloc(n);
        struct iovec mine = { c, n };
        if (process_vm_writev(atoi(names[1]), &mine, 1, &all, 1, 0) != -1 || errno != ENOSYS) return 5;
        puts("read");
        return 0;
    }
    unsigned char *p;
    if (posix_memalign((void **)&p, 4096, n)) return 2;
    for (long i = 0; i < n; i += 4096) p[i] = fill(i);
    char pid[20], at[20], *arguments[] = { names[0], pid, at, 0 };
    sprintf(pid, "%d", getpid());
    sprintf(at, "%lx", (unsigned long)p);
    pid_t child;
    int status;
    if (posix_spawn(&child, names[0], 0, 0, arguments, environ)) return 2;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}
"#;

/// Pages in the victim queue and in the store's file are read, pages behind masu refused as by a kernel without the call.
fn the_memory_of_a_paged_peer_is_read_or_refused_and_never_wrong(_: &Host) -> Outcome {
    let folder = Folder::make("local-peers")?;
    let program = compile(&folder, "cc", "peers", PEERS, &[])?;
    for (options, out) in [(&["--local", "8MiB"][..], "read\n"), (&["--local", "8MiB", "--seal"], "refused\n")] {
        let report = Report::new("local-peers");
        let options = [options, &["--report", report.path(), "--json"]].concat();
        let said = said(&mut paged(&options, &[&program])?)?;
        assert_eq!((said.code(), said.out.as_str()), (0, out), "{options:?}: {said:?}");
        let notes = report.read()?["notes"].to_string();
        assert!(notes.contains("memory (process_vm_readv, process_vm_writev) was refused once"), "{notes}");
    }
    Ok(())
}

/// Two ranks exchange 8 MiB, of which each has 4 MiB local.
const RANKS: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum { WORDS = 1 << 20 };
int main(int count, char **list) {
    int rank, wrong = 0;
    MPI_Init(&count, &list);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    unsigned long *to = malloc(WORDS * 8), *from = malloc(WORDS * 8);
    for (unsigned long word = 0; word < WORDS; word++) to[word] = word * 2 + rank, from[word] = 0;
    MPI_Sendrecv(to, WORDS, MPI_UNSIGNED_LONG, 1 - rank, 0, from, WORDS, MPI_UNSIGNED_LONG, 1 - rank, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (unsigned long word = 0; word < WORDS; word++) wrong |= from[word] != word * 2 + 1 - rank;
    MPI_Win window;
    MPI_Win_create(to, WORDS * 8, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    for (unsigned long word = 0; word < WORDS; word++) from[word] = 0;
    MPI_Win_fence(0, window);
    MPI_Get(from, WORDS, MPI_UNSIGNED_LONG, 1 - rank, 0, WORDS, MPI_UNSIGNED_LONG, window);
    MPI_Win_fence(0, window);
    for (unsigned long word = 0; word < WORDS; word++) wrong |= from[word] != word * 2 + 1 - rank;
    if (strcmp(getenv("OMPI_MCA_btl_vader_single_copy_mechanism"), "cma")) {
        for (unsigned long word = 0; word < WORDS; word++) from[word] = word * 3 + rank;
        MPI_Put(from, WORDS, MPI_UNSIGNED_LONG, 1 - rank, 0, WORDS, MPI_UNSIGNED_LONG, window);
        MPI_Win_fence(0, window);
        for (unsigned long word = 0; word < WORDS; word++) wrong |= to[word] != word * 3 + 1 - rank;
    }
    MPI_Win_free(&window);
    MPI_Finalize();
    if (!wrong) puts("right");
    return wrong;
}
"#;

/// Messages and one-sided communication. Each rank under a masu of its own, and both under one; the peer's pages in a
/// file, read there if the user chooses `cma`, and behind masu.
fn open_mpi_sends_between_paged_programs_and_prints_no_refusal(_: &Host) -> Outcome {
    let folder = Folder::make("local-ranks")?;
    let works = |name: &str, arguments: &[&str]| {
        Command::new(name).args(arguments).output().is_ok_and(|output| output.status.success())
    };
    if !works("mpirun", &["--version"]) || !works("mpicc", &["-include", "mpi.h", "-E", "-x", "c", "/dev/null"]) {
        println!("SKIP: Open MPI is not installed");
        return Ok(());
    }
    let program = compile(&folder, "mpicc", "ranks", RANKS, &[])?;
    let launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"];
    let rows =
        [(&["--local", "4MiB"][..], Some("cma")), (&["--local", "4MiB"], None), (&["--local", "4MiB", "--seal"], None)];
    for (options, copy) in rows {
        let inner = paged(options, &[&program])?;
        let mut each = Command::new(launcher[0]);
        each.args(&launcher[1..]).arg(inner.get_program()).args(inner.get_args());
        each.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let both = paged(options, &[&launcher[..], &[&program]].concat())?;
        for mut run in [each, both] {
            run.envs(copy.map(|copy| ("OMPI_MCA_btl_vader_single_copy_mechanism", copy)));
            let said = said(&mut run)?;
            assert_eq!((said.code(), said.out.as_str()), (0, "right\nright\n"), "{options:?} {copy:?}: {said:?}");
            assert!(!said.err.contains("errno"), "{options:?} {copy:?}: {said:?}");
        }
    }
    Ok(())
}

/// Two copies go into the background; the second has overwritten its environment, as for a title in ps.
fn copies_that_go_on_after_the_program_are_named(_: &Host) -> Outcome {
    const DAEMONS: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
extern char **environ;
int main(void) {
    for (int number = 0; number < 2; number++) {
        int child = fork();
        if (child < 0) return 4;
        if (child > 0) {
            printf("%d\n", child);
            continue;
        }
        for (char **one = environ; number && *one; one++) memset(*one, 0, strlen(*one));
        setsid();
        for (int descriptor = 0; descriptor < 3; descriptor++) dup2(open("/dev/null", O_RDWR), descriptor);
        sleep(3);
        _exit(0);
    }
    return 0;
}
"#;
    let folder = Folder::make("local-daemons")?;
    let program = compile(&folder, "cc", "daemons", DAEMONS, &[])?;
    let report = Report::new("local-daemons");
    let said = said(&mut paged(&["--local", "4MiB", "--report", report.path(), "--json"], &[&program])?)?;
    assert_eq!(said.code(), 0, "{said:?}");
    let wanted: std::collections::BTreeSet<u64> = said.out.lines().filter_map(|pid| pid.parse().ok()).collect();
    let report = report.read()?;
    let named = report["still_running"].as_array().ok_or("no list")?;
    assert_eq!(
        named.iter().filter_map(|one| one["process"].as_u64()).collect::<std::collections::BTreeSet<_>>(),
        wanted
    );
    assert!(named.iter().all(|one| one["program"] == "daemons" && one["forked"] == true), "{report}");
    let note = report["notes"][0].as_str().unwrap_or_default();
    assert!(note.starts_with("2 processes of the run still run, not paged and not limited by --local: "), "{report}");
    Ok(())
}

/// A limit that leaves no room for the tables: the child runs within it, and the report counts it.
fn a_child_within_a_limit_of_its_own_runs_and_is_counted(_: &Host) -> Outcome {
    const CHILD: &str = "(ulimit -v 200000; exec /bin/echo child); echo $?; exit 7";
    let report = Report::new("local-child");
    let options = ["--local", "4MiB", "--report", report.path(), "--json"];
    let said = said(&mut paged(&options, &["/bin/sh", "-c", CHILD])?)?;
    assert_eq!((said.code(), said.out.as_str()), (7, "child\n0\n"), "{said:?}");
    let report = report.read()?;
    assert_eq!(report["left_out"], serde_json::json!([{ "reason": "within a ulimit -v or -d", "programs": 1 }]));
    let note = report["notes"].as_array().and_then(|notes| notes.iter().find_map(|note| note.as_str()));
    assert!(note.is_some_and(|note| note.starts_with("left out: 1 program (1 within a ulimit")), "{report}");
    Ok(())
}

/// The program has as much of each limit as alone, and none of them ends it: its pages do not count as files of its own.
fn limits_of_the_program_are_its_own(_: &Host) -> Outcome {
    const FILL: &str = "b = bytearray(24 << 20)\nfor i in range(0, len(b), 4096): b[i] = i >> 12 & 255\n\
                        assert all(b[i] == i >> 12 & 255 for i in range(0, len(b), 4096))\n\
                        import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])";
    for (limit, files) in [("-f 64", None), ("-n 20", Some("20\n")), ("-S -n 8", Some("8\n")), ("-v 4000000", None)] {
        let run = paged(&["--local", "4MiB"], &["/usr/bin/python3", "-c", FILL])?;
        let said = said(&mut limited(limit, &run))?;
        assert_eq!((said.code(), said.err.as_str()), (0, ""), "{limit}: {said:?}");
        assert!(files.is_none_or(|files| said.out == files), "{limit}: {said:?}");
    }
    // A limit of its own, set while pages are in the file; the signal of a write beyond it is the program's alone.
    const LATER: &str = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n\
                         b = bytearray(24 << 20)\nfor i in range(0, len(b), 4096): b[i] = i >> 12 & 255\n\
                         resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n\
                         for i in range(0, len(b), 4096): b[i] = b[i] + 1 & 255\n\
                         assert all(b[i] == (i >> 12) + 1 & 255 for i in range(0, len(b), 4096)); print('right', flush=True)\n\
                         open(__import__('tempfile').mkstemp()[0], 'w').write('beyond')";
    for options in [&["--local", "4MiB"][..], &["--local", "4MiB", "--backend", "copy"]] {
        let folder = Folder::make("local-limits")?;
        let mut run = paged(options, &["/usr/bin/python3", "-c", LATER])?;
        let said = super::run::said(run.env("TMPDIR", &folder.0))?;
        assert_eq!(
            (said.status.signal(), said.out.as_str()),
            (Some(libc::SIGXFSZ), "right\n"),
            "{options:?}: {said:?}"
        );
    }
    // All descriptors up to the limit, from the lowest on.
    const DESCRIPTORS: &str = "exec 3</dev/null 4</dev/null 5</dev/null 6</dev/null 7</dev/null 8</dev/null 9</dev/null \
                               && echo all";
    let run = paged(&["--local", "4MiB"], &["/bin/sh", "-c", DESCRIPTORS])?;
    let said = said(&mut limited("-S -n 12", &run))?;
    assert_eq!((said.code(), said.out.as_str()), (0, "all\n"), "{said:?}");
    Ok(())
}

/// A start needs some files, and a second program some more. Whatever is missing is named with a limit that suffices.
fn too_few_open_files_are_named_with_a_number_that_suffices(_: &Host) -> Outcome {
    const TWO: [&str; 3] = ["/bin/sh", "-c", "/bin/echo one && /bin/echo two"];
    for files in (4..20).step_by(3).chain([256]) {
        let plain = super::run::run(&["-q"], &TWO)?;
        for (run, enough) in [(plain, 9), (paged(&["--local", "4MiB"], &TWO)?, 256)] {
            let said = said(&mut limited(&format!("-n {files}"), &run))?;
            if files >= enough {
                assert_eq!((said.code(), said.out.as_str()), (0, "one\ntwo\n"), "{files}: {said:?}");
                continue;
            }
            let lines: Vec<_> = said.err.lines().collect();
            let is_named = lines.len() == 2 && lines[0].contains("(EMFILE)") && lines[1].contains("`ulimit -n 256`");
            let is_refused = said.code() == 125 && said.out.is_empty();
            let is_left_out = said.code() == 0 && said.out == "one\ntwo\n";
            assert!(is_named && is_refused || is_left_out, "{files}: {said:?}");
        }
    }
    // Children with a limit of their own, which the library raises with CAP_SYS_RESOURCE only: one line for both.
    const OWN: &str = "(ulimit -n 5; exec /bin/echo one); (ulimit -n 5; exec /bin/echo two)";
    let said = said(&mut paged(&["--local", "4MiB", "-q"], &["/bin/sh", "-c", OWN])?)?;
    let is_named = said.err.lines().count() == 1 && said.err.contains("2 programs") && said.err.contains("`ulimit -n`");
    assert!(said.out == "one\ntwo\n" && (said.err.is_empty() || is_named), "{said:?}");
    Ok(())
}

/// Its own limit bounds its memory: it runs, and masu says that it is not paged.
fn a_first_program_within_a_limit_of_its_own_runs_unserved(_: &Host) -> Outcome {
    let run = paged(&["--local", "4MiB"], &["/usr/bin/env", "echo", "run"])?;
    let said = said(&mut limited("-v 200000", &run))?;
    assert_eq!((said.code(), said.out.as_str()), (0, "run\n"), "{said:?}");
    assert!(said.first_line().contains("/usr/bin/env ran as without masu: its own limit"), "{said:?}");
    assert!(said.err.contains("\n    ") && said.err.contains("ulimit -v"), "{said:?}");
    let report = ["--local", "4MiB", "--report", "-"];
    let said = super::run::said(&mut limited("-v 200000", &paged(&report, &["/usr/bin/env", "echo", "run"])?))?;
    assert!(said.err.contains(" s; nothing was paged\n") && !said.err.contains("faults"), "{said:?}");
    Ok(())
}
