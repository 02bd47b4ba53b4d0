//! `masu run` with obstacles: other libraries, other programs, other settings, limits.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use serde_json::Value;

use super::programs;
use super::run::{Folder, Report, Result, lines, run, run_program, said, windows};
use super::{Outcome, no_automatic_huge_pages};
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};
use crate::setting::Setting;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_hard requires [Root, MasuCommand, PreloadLibrary, HugePageModes];
    a_preloaded_library_that_is_not_there_is_remarked;
    another_library_that_interposes_mmap_does_no_harm [CCompiler];
    a_static_program_is_served_from_outside [CCompiler, PageTableWalk, RemoteCollapse];
    a_sanitized_program_is_served_from_outside [CCompiler, PageTableWalk, RemoteCollapse];
    a_program_with_another_c_library_is_served_from_outside [Musl, PageTableWalk, RemoteCollapse];
    a_set_uid_program_is_refused;
    where_huge_pages_are_off_it_is_served_from_outside [PageTableWalk, RemoteCollapse];
    tight_limits_make_no_difference;
    a_group_with_a_limit_is_kept [MemoryGroups];
    a_sparse_program_fits_in_a_group_as_alone_and_a_kill_is_named [MemoryGroups, CCompiler];
    garbage_in_the_environment_does_no_harm;
    children_that_the_c_library_does_not_hear_of_do_no_harm [CCompiler];
    data_that_is_run_can_still_be_run [CCompiler];
    without_privileges_it_is_served_and_the_report_says_what_is_missing;
};

/// Compiles a piece of C; returns the path of the program.
pub(super) fn compile(folder: &Folder, compiler: &str, name: &str, source: &str, arguments: &[&str]) -> Result<String> {
    let (file, made) = (folder.0.join(format!("{name}.c")), folder.0.join(name));
    std::fs::write(&file, source)?;
    let said = said(Command::new(compiler).arg("-O1").arg("-o").arg(&made).arg(&file).args(arguments))?;
    assert_eq!(said.code(), 0, "{said:?}");
    Ok(made.to_str().ok_or("a path that is no text")?.to_owned())
}

/// Reported once by masu, and once more by the loader, which goes on; the program runs and is served.
fn a_preloaded_library_that_is_not_there_is_remarked(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut command = run_program(&[], &["allocation", "16"])?;
    let said = said(command.env("LD_PRELOAD", "/no/such/library.so"))?;
    assert!(windows(&lines(&said)?, "malloc")?.0 >= 7, "{said:?}");
    let ours: Vec<&str> = said.err.lines().filter(|line| line.starts_with("masu: ")).collect();
    assert_eq!(
        ours,
        ["masu: LD_PRELOAD names /no/such/library.so, which is not there; the loader will say so and go on"]
    );
    Ok(())
}

const INTERPOSER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static long calls;
void *mmap(void *a, size_t n, int p, int f, int fd, off_t o) { calls += n == 67112960; return (void *)syscall(SYS_mmap, a, n, p, f, fd, o); }
__attribute__((destructor)) static void end(void) { fprintf(stderr, "saw %ld\n", calls); }
"#;

/// Two libraries that interpose the same call: the other one sees the program's unchanged request, and its result is
/// advised.
fn another_library_that_interposes_mmap_does_no_harm(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make("interposer")?;
    let other = compile(&folder, "cc", "other.so", INTERPOSER, &["-shared", "-fPIC"])?;
    let said = said(run_program(&["-q"], &["kinds"])?.env("LD_PRELOAD", &other))?;
    let (huge, possible) = windows(&lines(&said)?, "mmap-65540")?;
    assert!(huge + 1 >= possible, "{huge} of {possible}");
    assert_eq!(said.err, "saw 1\nsaw 0\n", "in the program, and in masu itself");
    Ok(())
}

const HUNGRY: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
int main(void) {
    size_t n = 64 << 20;
    char *memory = malloc(n);
    time_t begun = time(0);
    unsigned long sum = 0;
    memset(memory, 1, n);
    while (time(0) - begun < 4) for (size_t i = 0; i < n; i += 64) sum += memory[i];
    printf("%d\n", sum > 0);
    return 7;
}
"#;

/// Printed before the start; and served as by masu attach.
fn served_from_outside(program: &str, why: &str) -> Outcome {
    let report = Report::new("outside");
    let said = said(&mut run(&["--report", report.path(), "--json"], &[program])?)?;
    assert_eq!((said.code(), said.out.as_str()), (7, "1\n"), "{said:?}");
    assert_eq!(said.err, format!("masu: served from outside: {why}\n"));
    let report = report.read()?;
    assert_eq!((&report["huge"], &report["served"]), (&"touch".into(), &"hot".into()));
    assert!(report["promoted_windows"].as_u64().is_some_and(|windows| windows >= 16), "{report}");
    assert_eq!(report["notes"][0], format!("served from outside: {why}"));
    Ok(())
}

/// Programs without a loader load no library.
fn a_static_program_is_served_from_outside(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make("static")?;
    served_from_outside(&compile(&folder, "cc", "static", HUNGRY, &["-static"])?, "it is linked statically")
}

/// A sanitizer's runtime ends a program when another library is loaded before it, linked statically or not; that of the
/// undefined-behaviour sanitizer does not. The judgement is the same for the first program and for a child.
fn a_sanitized_program_is_served_from_outside(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make("sanitized")?;
    let source = "int main(void) { return 5; }\n";
    let why = "it is built with a sanitizer, whose runtime ends it when another library comes first";
    for (name, flags, is_left_out) in [
        ("address", &["-fsanitize=address"][..], true),
        ("fixed", &["-fsanitize=address", "-static-libasan"], true),
        ("thread", &["-fsanitize=thread"], true),
        ("leak", &["-fsanitize=leak"], true),
        ("undefined", &["-fsanitize=undefined"], false),
        ("fixed-undefined", &["-fsanitize=undefined", "-static-libubsan"], false),
    ] {
        let program = compile(&folder, "cc", name, source, flags)?;
        let alone = said(Command::new(&program).env("ASAN_OPTIONS", "detect_leaks=0"))?;
        if alone.code() != 5 {
            continue; // the runtime does not work on this kernel (ASLR)
        }
        let first = said(run(&[], &[&program])?.env("ASAN_OPTIONS", "detect_leaks=0"))?;
        let line = if is_left_out { format!("masu: served from outside: {why}\n") } else { String::new() };
        assert_eq!((first.code(), first.out.as_str(), first.err.as_str()), (5, "", line.as_str()), "{name}");
        let report = Report::new(name);
        let starter = format!("{program}; exit $?");
        let mut child = run(&["--report", report.path(), "--json"], &["sh", "-c", &starter])?;
        let child = said(child.env("ASAN_OPTIONS", "detect_leaks=0"))?;
        assert_eq!((child.code(), child.err.as_str()), (5, ""), "{name}");
        let counted = report.read()?["left_out"]["with a sanitizer's runtime"].as_u64().unwrap_or(0);
        assert_eq!(counted, u64::from(is_left_out), "{name}");
    }
    Ok(())
}

/// Nor does another C library's loader load one that is made for glibc.
fn a_program_with_another_c_library_is_served_from_outside(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make("musl")?;
    served_from_outside(
        &compile(&folder, "musl-gcc", "musl", HUNGRY, &[])?,
        "it has another C library than the system's",
    )
}

/// The loader would take no library from the environment.
fn a_set_uid_program_is_refused(_: &Host) -> Outcome {
    let folder = Folder::make("setuid")?;
    let file = folder.0.join("true");
    std::fs::copy("/bin/true", &file)?;
    // Owned by another user: a set-user-id bit for the current user grants no privilege.
    std::os::unix::fs::chown(&file, Some(65534), Some(65534))?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o4755))?;
    let file = file.to_str().ok_or("a path that is no text")?;
    let refused = said(&mut run(&[], &[file])?)?;
    assert_eq!(refused.code(), 125, "{refused:?}");
    assert!(
        refused
            .first_line()
            .ends_with("it is set-uid or set-gid, so that the loader takes no library from the environment")
    );
    assert_eq!(said(&mut run(&["--huge", "off"], &[file])?)?.code(), 0);
    Ok(())
}

/// Huge pages are off for the whole host: then a first touch gets none.
fn where_huge_pages_are_off_it_is_served_from_outside(_: &Host) -> Outcome {
    let _never = Setting::set("/sys/kernel/mm/transparent_hugepage/enabled", "never")?;
    let said = said(&mut run(&[], &["/bin/sh", "-c", "exit 3"])?)?;
    assert_eq!(said.code(), 3);
    let why = "/sys/kernel/mm/transparent_hugepage/enabled is never, so that no first touch gets a huge page";
    assert_eq!(said.err, format!("masu: served from outside: {why}\n"));
    Ok(())
}

/// Limits that allow no reservation beyond the request: calls that succeed without masu succeed with it.
fn tight_limits_make_no_difference(_: &Host) -> Outcome {
    let plain = said(Command::new(super::run::own()?).args([crate::program::FLAG, "limited"]))?;
    assert_eq!(plain.code(), 0, "{plain:?}");
    let said = said(&mut run_program(&["-q"], &["limited"])?)?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""), "{said:?}");
    assert_eq!(said.out.lines().count(), 2, "{said:?}");
    Ok(())
}

/// A cgroup with a limit of 96 MiB: memory that does not fit as huge pages comes as small ones, or not at all, as
/// without masu.
fn a_group_with_a_limit_is_kept(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let group = Group::make("run")?;
    group.limit(96 << 20)?;
    let mut command = run_program(&["-q"], &["allocation", "64"])?;
    let procs = group.procs();
    // SAFETY: between fork and exec: opens, writes and closes a file; the path was made before.
    unsafe {
        command.pre_exec(move || std::fs::write(&procs, "0"));
    }
    let fits = lines(&said(&mut command)?)?;
    assert!(windows(&fits, "malloc")?.0 > 0, "{fits:?}");
    Ok(())
}

/// Touches a page in each of 100 windows, and then 12 MiB: 14 MiB on small pages, and 200 MiB on huge ones. With an
/// argument it touches all of them.
const SPARSE: &str = r#"
#include <string.h>
#include <sys/mman.h>
int main(int c, char **v) {
    size_t w = 2 << 20, n = 100;
    char *m = mmap(0, (n + 1) * w, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < n; i++) m[i * w + w / 2] = 1;
    if (c > 1) memset(m, 1, n * w);
    for (int i = 0; i < 192; i++) memset(mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 65536);
    return 0;
}
"#;

/// A limit of 100 MiB. What the program alone does within it, it does under masu; a kill by the limit is named.
fn a_sparse_program_fits_in_a_group_as_alone_and_a_kill_is_named(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make("hard-sparse")?;
    let program = compile(&folder, "cc", "sparse", SPARSE, &[])?;
    let group = Group::make("sparse")?;
    group.limit(100 << 20)?;
    let ended = |arguments: &[&str]| {
        let report = Report::new("sparse");
        let command: Vec<&str> = std::iter::once(program.as_str()).chain(arguments.iter().copied()).collect();
        let procs = group.procs();
        let mut command = run(&["--report", report.path(), "--json"], &command)?;
        // SAFETY: between fork and exec: opens, writes and closes a file; the path was made before.
        unsafe {
            command.pre_exec(move || std::fs::write(&procs, "0"));
        }
        Result::Ok((said(&mut command)?, report.read().unwrap_or_default()))
    };
    let (fits, report) = ended(&[])?;
    assert_eq!(fits.code(), 0, "{fits:?} {report}");
    let notes = report["notes"].to_string();
    assert!(notes.contains(" windows stayed on small pages: not in half of the control group's headroom"), "{report}");
    let before = group.killed()?;
    let (_, report) = ended(&["all"])?;
    assert_eq!(group.killed()?, before + 1);
    assert_eq!(report["signal"], "SIGKILL", "{report}");
    assert!(report["notes"].to_string().contains("the kernel killed 1 process of control group"), "{report}");
    Ok(())
}

/// A variable that is not masu's own words, and a board that is none: the program runs as it is.
fn garbage_in_the_environment_does_no_harm(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let library = programs::preload_library().ok_or("no library")?;
    let folder = Folder::make("garbage")?;
    let file = folder.0.join("short");
    std::fs::write(&file, "short")?;
    let file = file.display();
    let long = "x".repeat(100_000);
    let cases = [
        (String::new(), 0),
        ("garbage".to_owned(), 0),
        (format!("align,sizes=2048,board={long}"), 0),
        ("sizes=99999999999999999999".to_owned(), 0),
        ("sizes=2048+2048+,align".to_owned(), 0),
        ("align,sizes=2048".to_owned(), 1),
        ("align,sizes=2048,board=".to_owned(), 0),
        ("align,sizes=2048,board=/dev/zero".to_owned(), 0),
        ("align,sizes=2048,board=/no/such".to_owned(), 0),
        ("align,sizes=2048,last-look,board=/proc/self/exe".to_owned(), 0),
        (format!("align,sizes=2048,last-look,board={file}"), 0),
        ("align,\u{fc},sizes=2048".to_owned(), 0),
    ];
    for (value, huge) in cases {
        let mut command = Command::new(super::run::own()?);
        command.args([crate::program::FLAG, "kinds"]).env("LD_PRELOAD", &library).env("MASU_TOUCH", &value);
        let said = said(command.env_remove("MASU_DISABLE"))?;
        let shown: String = value.chars().take(80).collect();
        assert_eq!(windows(&lines(&said)?, "mmap-3072")?, (huge, 1), "{shown}");
        assert_eq!(said.err, "", "{shown}");
    }
    Ok(())
}

const VFORK: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static char *map(size_t n) {
    char *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) _exit(9);
    memset(p, 7, n);
    return p;
}
int main(int argc, char **argv) {
    char *mine = map(3 << 20);
    for (int i = 0; i < 50; i++) {
        pid_t pid = vfork();
        if (pid == 0) {
            char *args[] = {"true", 0};
            execve("/bin/true", args, environ);
            _exit(8);
        }
        int status = -1;
        if (waitpid(pid, &status, 0) != pid || status != 0) return 1;
    }
    pid_t raw = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (raw == 0) { map(3 << 20); _exit(0); }
    int status = -1;
    if (waitpid(raw, &status, 0) != raw || status != 0) return 2;
    for (int i = 0; i < 3 << 20; i++) if (mine[i] != 7) return 3;
    puts("good");
    return 0;
}
"#;

/// vfork, and a clone that the C library does not hear of.
fn children_that_the_c_library_does_not_hear_of_do_no_harm(_: &Host) -> Outcome {
    let folder = Folder::make("vfork")?;
    let program = compile(&folder, "cc", "vfork", &format!("#include <signal.h>\n{VFORK}"), &["-pthread"])?;
    let report = Report::new("vfork");
    let said = said(&mut run(&["--report", report.path(), "--json"], &[&program])?)?;
    assert_eq!((said.code(), said.out.as_str(), said.err.as_str()), (0, "good\n", ""));
    assert_eq!(report.read()?["processes"], 51);
    Ok(())
}

/// An executable and writable data segment of some MiB, and calls into it.
const SELF_MODIFYING: &str = r#"
#include <stdio.h>
__attribute__((section(".wx,\"awx\",@progbits#"), aligned(4096))) unsigned char code[8 << 20] = {0xb8, 42, 0, 0, 0, 0xc3};
int main(void) {
    int first = ((int (*)(void))code)();
    for (unsigned long i = 0; i + 4096 <= sizeof code; i += 4096) {
        code[i] = 0xb8; code[i + 1] = i >> 12; code[i + 2] = i >> 20; code[i + 3] = 0; code[i + 4] = 0; code[i + 5] = 0xc3;
        if ((unsigned)((int (*)(void))(code + i))() != ((i >> 12) & 0xffff)) return 1;
    }
    printf("%d\n", first);
    return 0;
}
"#;

/// Access rights stay unchanged when data is put on huge pages.
fn data_that_is_run_can_still_be_run(_: &Host) -> Outcome {
    if !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    let folder = Folder::make("wx")?;
    let program = compile(&folder, "cc", "wx", SELF_MODIFYING, &["-w"])?;
    for options in [&["-q"][..], &["-q", "--code"]] {
        let said = said(&mut run(options, &[&program])?)?;
        assert_eq!((said.code(), said.out.as_str(), said.err.as_str()), (0, "42\n", ""), "{options:?}");
    }
    Ok(())
}

/// Without the privilege for the outside part, the rest is done, and the report names the missing part.
fn without_privileges_it_is_served_and_the_report_says_what_is_missing(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut command = run_program(&["--report", "-", "--json"], &["allocation", "16"])?;
    let said = said(command.uid(65534).gid(65534))?;
    assert_eq!(said.code(), 0, "{said:?}");
    assert!(said.out.starts_with("malloc=7/8") || said.out.starts_with("malloc=8/8"), "{said:?}");
    let report: Value = serde_json::from_str(&said.err)?;
    let note = report["notes"][0].as_str().unwrap_or_default();
    assert!(note.ends_with("needs CAP_SYS_NICE"), "{report}");
    Ok(())
}
