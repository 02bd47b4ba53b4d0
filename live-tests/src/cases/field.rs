//! Third-party programs under each feature: the output and the exit status are those of a run without masu.
//! `masu-bench field` does the same with some fifty programs.

use std::path::Path;
use std::process::Command;

use super::Outcome;
use super::command::masu;
use super::programs::{self, Running, Said};
use super::run::{Folder, Result, run, said};
use super::run_local::paged;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    field requires [Root, MasuCommand, PreloadLibrary, PagerLibrary, UserFaults, PageTableWalk, Python];
    text_tools_and_archivers_say_the_same [Shell];
    languages_and_a_database_say_the_same [Sqlite];
    compilers_and_make_with_sanitizers_say_the_same [CCompiler, Make];
    a_program_that_attach_works_on_says_the_same;
};

/// Runs `script` by the shell under each feature, in an empty folder each time, and compares with a run alone.
fn same(folder: &Folder, script: &str) -> Outcome {
    let shell = ["sh", "-c", script];
    let hot = ["-q", "--huge", "hot"];
    let features: [(&str, Command); 5] = [
        ("alone", Command::new("sh")),
        ("run", run(&["-q"], &shell)?),
        ("run --huge hot", run(&hot, &shell)?),
        ("run --local", paged(&["-q", "--local", "8MiB"], &shell)?),
        ("aging --cache 0", masu()?),
    ];
    let mut plain: Option<Said> = None;
    for (feature, mut command) in features {
        match feature {
            "alone" => _ = command.args(["-c", script]),
            "aging --cache 0" => _ = command.args(["aging", "--cache", "0", "--"]).args(shell),
            _ => {}
        }
        let own = folder.0.join("run");
        std::fs::create_dir(&own)?;
        let with = said(command.current_dir(&own).env("IN", &folder.0).env("LC_ALL", "C"))?;
        std::fs::remove_dir_all(&own)?;
        match &plain {
            None => {
                assert!(with.code() == 0 && with.out.len() > 10, "{script}: {with:?}");
                plain = Some(with);
            }
            Some(plain) => {
                assert_eq!((with.code(), &with.out), (plain.code(), &plain.out), "{feature}: {script}: {}", with.err);
            }
        }
    }
    Ok(())
}

/// A file of some 6 MiB with unordered lines.
fn input(folder: &Folder) -> Outcome {
    let mut state: u64 = 1;
    let line = |_| {
        state = state * 48_271 % 2_147_483_647;
        format!("{state} line {}\n", state % 97)
    };
    Ok(std::fs::write(folder.0.join("lines"), (0..300_000).map(line).collect::<String>())?)
}

/// sort, sed, awk, Perl, tar, gzip, bash with children.
fn text_tools_and_archivers_say_the_same(_: &Host) -> Outcome {
    let folder = Folder::make("field-text")?;
    input(&folder)?;
    same(&folder, "sort -S 20M -k3n -k1 $IN/lines | sed -n '1~1000s/line/x/p'")?;
    same(
        &folder,
        "awk '{ n[$3] += $1; l[$1] = $0 } END { for (i = 0; i < 97; i++) print i, n[i]; print length(l) }' $IN/lines",
    )?;
    same(
        &folder,
        "perl -ne 'push @{$h{$1 % 5003}}, $_ if /^(\\d+)/; END { print map { scalar @{$h{$_}} } sort keys %h }' $IN/lines",
    )?;
    same(&folder, "tar cf - -C $IN lines | gzip -n | sha256sum && gzip -nc9 $IN/lines > z && gzip -dc z | sha256sum")?;
    same(&folder, "exec bash -c 'for i in 1 2 3 4; do (x=$(head -c 500000 $IN/lines); echo ${#x} | cat) & wait; done'")
}

const PYTHON: &str = "import hashlib, multiprocessing as m
def work(n):
    return hashlib.sha256(b''.join(b'%d' % (i * n) for i in range(200000))).hexdigest()
with m.get_context('fork').Pool(2) as p: print(p.map(work, range(1, 5)))
";

/// Python with forked children, SQLite.
fn languages_and_a_database_say_the_same(_: &Host) -> Outcome {
    let folder = Folder::make("field-languages")?;
    std::fs::write(folder.0.join("p.py"), PYTHON)?;
    same(&folder, "/usr/bin/python3 $IN/p.py")?;
    let sql = "with recursive c(i) as (select 1 union all select i+1 from c where i<100000) insert into t select (i*7919)%100003, hex(i) from c;";
    let sql = format!(
        "create table t(k, v); {sql} create index x on t(v); select count(*), sum(k), max(v) from t; pragma integrity_check;"
    );
    same(&folder, &format!("sqlite3 d.db '{sql}'"))
}

const C: &str = "#include <stdio.h>\n#include <stdlib.h>\nint main(void) { unsigned s = N; int n = 1 << 19; unsigned *v = malloc(4 * n); \
    for (int i = 0; i < n; i++) v[i] = s = s * 48271u + 1; unsigned t = 0; for (int i = 0; i < n; i += 7) t = t * 31 + v[i]; \
    printf(\"%u of sixteen\\n\", t); free(v); }\n";

/// gcc, and make with several jobs that build and run programs with sanitizers.
fn compilers_and_make_with_sanitizers_say_the_same(_: &Host) -> Outcome {
    let folder = Folder::make("field-compilers")?;
    std::fs::write(folder.0.join("p.c"), C)?;
    let make = "all: a b c\n\t./a; ./b; ./c\na:\n\tgcc -DN=1 -fsanitize=address -o a ../p.c\nb:\n\tgcc -DN=2 -fsanitize=undefined -o b ../p.c\nc:\n\tgcc -DN=3 -O2 -o c ../p.c\n";
    std::fs::write(folder.0.join("Makefile"), make)?;
    same(&folder, "gcc -DN=5 -O2 -S -o - $IN/p.c")?;
    same(&folder, "make -s -j2 -f $IN/Makefile")
}

const WORK: &str = "import hashlib, time
d = {i: b'%d' % i * 5 for i in range(300000)}
b = bytearray(48 << 20)
end = time.monotonic() + 3
while time.monotonic() < end:
    for i in range(0, len(b), 4096): b[i] = i >> 12 & 255
print(hashlib.sha256(b).hexdigest(), hashlib.sha256(b''.join(d.values())).hexdigest())
";

/// Python, whose windows attach promotes while it writes them.
fn a_program_that_attach_works_on_says_the_same(_: &Host) -> Outcome {
    let python = programs::python().ok_or("no python3")?;
    let mut program = Command::new(&python);
    let plain = said(program.args(["-c", WORK]))?;
    let running = Running::start(&mut program)?;
    let pid = running.pid().to_string();
    let attach = attach(&pid)?;
    let with = running.said()?;
    assert_eq!((plain.code(), with.code(), &with.out), (0, 0, &plain.out));
    let report = attach.said()?;
    assert!(matches!(report.code(), 0 | 1), "{report:?}");
    Ok(())
}

/// `masu attach`, until the program ends.
fn attach(pid: &str) -> Result<Running> {
    assert!(Path::new("/proc").join(pid).exists());
    Ok(Running::start(masu()?.args(["attach", pid, "--for", "20s", "--max-extra-rss", "20%"]))?)
}
