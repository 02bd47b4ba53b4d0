//! `masu run --local` with programs as they are installed: their results are those of a run without it.

use std::process::Command;

use super::Outcome;
use super::command_redis::{Client, start_redis_by};
use super::programs::{self, Running};
use super::run::{Folder, Report, said};
use super::run_local::paged;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_local_programs requires [MasuCommand, PagerLibrary, UserFaults];
    python_counts_the_same [Python];
    python_counts_the_same_where_mappings_grow_upwards [Python];
    sort_sorts_the_same [Shell];
    sqlite_answers_the_same [Sqlite];
    the_c_compiler_makes_the_same_file [CCompiler];
    what_make_install_lays_down_is_enough [PreloadLibrary, CCompiler, Make, ResctrlEmulator];
    a_redis_larger_than_local_memory_keeps_every_key [RedisServer];
};

/// The output without masu, and with it; the report must show pages going out and coming in.
fn same(options: &[&str], command: &[&str]) -> Outcome {
    let (first, rest) = command.split_first().ok_or("no command")?;
    let plain = said(Command::new(first).args(rest))?;
    assert_eq!(plain.code(), 0, "{plain:?}");
    let report = Report::new("local-programs");
    let options = [options, &["--report", report.path(), "--json"]].concat();
    let with = said(&mut paged(&options, command)?)?;
    assert_eq!((with.code(), with.own_errors()), (0, plain.err.clone()), "{with:?}");
    assert!(with.out == plain.out, "{command:?}: {} and {} bytes differ", plain.out.len(), with.out.len());
    let report = report.read()?;
    for name in ["bytes_in", "bytes_out"] {
        assert!(report[name].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{name}: {report}");
    }
    Ok(())
}

const PYTHON: &str = "
import hashlib, subprocess, threading
words = {number: str(number) * 3 for number in range(200_000)}
parts = [0] * 4
def add(part):
    parts[part] = sum(len(words[number]) for number in range(part, 200_000, 4))
threads = [threading.Thread(target=add, args=(part,)) for part in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
child = subprocess.run(['/bin/echo', 'child'], capture_output=True)
data = bytearray(8 << 20)
data[::4096] = bytes(range(256)) * 8
lists = sorted([[number % 7, number] for number in range(100_000)])
print(parts, child.stdout, hashlib.sha256(data).hexdigest(), lists[1234], all(words[n] == str(n) * 3 for n in words))
";

/// Dictionaries, lists, threads, a child.
fn python_counts_the_same(_: &Host) -> Outcome {
    let python = programs::python().ok_or("no python3")?;
    same(&["--local", "8MiB"], &[python.to_str().ok_or("a path that is no text")?, "-c", PYTHON])
}

/// The kernel puts each mapping into the lowest gap: the library's own memory lies right behind that of others, and an
/// anonymous mapping right behind the C library's data.
fn python_counts_the_same_where_mappings_grow_upwards(_: &Host) -> Outcome {
    let python = programs::python().ok_or("no python3")?;
    let python = python.to_str().ok_or("a path that is no text")?;
    same(&["--local", "8MiB"], &["/usr/bin/setarch", "-L", python, "-c", PYTHON])
}

/// Numbers in no order, in two threads of sort(1).
fn sort_sorts_the_same(_: &Host) -> Outcome {
    let folder = Folder::make("local-sort")?;
    let file = folder.0.join("lines");
    let lines: String =
        (0..150_000_u64).map(|n| format!("{:016x} {n}\n", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    std::fs::write(&file, lines)?;
    let file = file.to_str().ok_or("a path that is no text")?;
    same(&["--local", "3MiB"], &["/usr/bin/sort", "--parallel=2", "-S", "64M", file])
}

const SQL: &str = "
create table word(number integer primary key, text text, other integer);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 60000)
insert into word select i, hex(i * 7919 % 65537) || '-' || i, i * 31 % 1009 from n;
create index by_other on word(other, text);
select count(*), sum(length(text)), max(text) from word;
select other, count(*), min(text) from word group by other order by 2 desc, 1 limit 20;
select sum(a.number) from word a join word b on a.other = b.other and b.number % 97 = 0;
";

/// A database in memory.
fn sqlite_answers_the_same(_: &Host) -> Outcome {
    let sqlite = programs::installed("sqlite3").ok_or("no sqlite3")?;
    same(&["--local", "3MiB"], &[sqlite.to_str().ok_or("a path that is no text")?, ":memory:", SQL])
}

/// The compiler is a program that starts others. Its output does not depend on the place of its memory.
fn the_c_compiler_makes_the_same_file(_: &Host) -> Outcome {
    let folder = Folder::make("local-cc")?;
    let path = |name: &str| folder.0.join(name).to_str().map(str::to_owned).ok_or("a path that is no text");
    let functions: String = (0..350)
        .map(|n| format!("int f{n}(int a, int b) {{ int c[4] = {{a, b, {n}, a ^ b}}; for (int i = 0; i < b; i++) c[i & 3] += c[(i + 1) & 3] * {n}; return c[0] + c[3]; }}\n"))
        .collect();
    std::fs::write(path("source.c")?, functions)?;
    let (source, plain, with) = (path("source.c")?, path("plain.o")?, path("paged.o")?);
    let compiler = |to: &str| ["/usr/bin/cc", "-O1", "-c", "-o", to, source.as_str()].map(str::to_owned);
    let [first, rest @ ..] = compiler(&plain);
    assert_eq!(said(Command::new(first).args(rest))?.code(), 0);
    let report = Report::new("local-cc");
    let arguments = compiler(&with);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let said = said(&mut paged(&["--local", "4MiB", "--report", report.path(), "--json"], &arguments)?)?;
    assert_eq!((said.code(), said.own_errors().as_str()), (0, ""), "{said:?}");
    assert!(std::fs::read(plain)? == std::fs::read(with)?, "the object files differ");
    let report = report.read()?;
    assert!(report["bytes_in"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{report}");
    assert!(report["processes"].as_u64().is_some_and(|count| count >= 3), "cc, cc1 and as: {report}");
    Ok(())
}

const MARKED: &str = "
#include <masu.h>
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    long count = 2 << 20, sum = 0;
    long *numbers = malloc(count * sizeof(long));
    for (int part = 0; part < 3; part++) {
        swpin_countstart(part);
        for (long at = 0; at < count; at++)
            sum += numbers[at] = at ^ part;
        swpin_refresh(part);
    }
    printf(\"%ld\\n\", sum);
    return 0;
}
";

/// All that `make install` lays down is enough: the command finds its libraries there, and a program its header.
fn what_make_install_lays_down_is_enough(_: &Host) -> Outcome {
    let folder = Folder::make("local-install")?;
    let path = |name: &str| folder.0.join(name).to_str().map(str::to_owned).ok_or("a path that is no text");
    let masu = programs::masu().ok_or("no masu")?;
    // As a build leaves them, wherever they are.
    let release = folder.0.join("target/release");
    std::fs::create_dir_all(&release)?;
    let library = programs::libmasu();
    let shared = library.as_ref().map(|library| library.with_extension("so"));
    let emulator = programs::resctrl_emulator();
    let all = [Some(masu), emulator, programs::preload_library(), programs::pager_library(), library, shared];
    for built in all.into_iter().flatten() {
        let name = built.file_name().ok_or("no name")?;
        std::os::unix::fs::symlink(built.canonicalize()?, release.join(name))?;
    }
    let mut make = Command::new("make");
    make.args(["--no-print-directory", "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/.."), "install", "PREFIX=/usr"]);
    make.arg(format!("CARGO_TARGET_DIR={}", path("target")?)).arg(format!("DESTDIR={}", path("root")?));
    let made = said(&mut make)?;
    assert_eq!(made.code(), 0, "{made:?}");
    let (source, program, include) = (path("marked.c")?, path("marked")?, path("root/usr/include")?);
    std::fs::write(&source, MARKED)?;
    let built = said(Command::new("cc").args(["-O1", "-Wall", "-Werror", "-I", &include, "-o", &program, &source]))?;
    assert_eq!((built.code(), built.err.as_str()), (0, ""), "{built:?}");
    // A program that is linked with the library, which it finds by its soname; there is no tracker.
    let (example, libraries) = (path("wait")?, path("root/usr/lib")?);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/hugepages/libmasu/examples/wait.c");
    let mut compile = Command::new("cc");
    compile.args(["-Wall", "-Werror", "-pthread", "-I", &include, "-o", &example, source, "-L", &libraries, "-lmasu"]);
    let built = said(&mut compile)?;
    assert_eq!((built.code(), built.err.as_str()), (0, ""), "{built:?}");
    let nobody = path("nobody.sock")?;
    let ran = said(Command::new(&example).arg("0").env("LD_LIBRARY_PATH", &libraries).env("MASU_TRACK", nobody))?;
    assert!(ran.code() == 0 && ran.err.contains("not tracked"), "{ran:?}");
    let plain = said(&mut Command::new(&program))?;
    for options in [&["--local", "4MiB", "--sections", "marked"][..], &["--huge", "hot"]] {
        let mut run = Command::new(path("root/usr/bin/masu")?);
        let with = said(run.arg("run").args(options).arg("--").arg(&program))?;
        assert_eq!((with.code(), with.out.as_str()), (0, plain.out.as_str()), "{options:?}: {with:?}");
    }
    Ok(())
}

const KEYS: u32 = 24_000;

/// Five times as much as is local: every key is read back as it was written, also in another order.
fn a_redis_larger_than_local_memory_keeps_every_key(_: &Host) -> Outcome {
    let folder = Folder::make("local-redis-paged")?;
    let masu = paged(&["--local", "6MiB"], &[])?;
    let redis: Running = start_redis_by(Some(masu), &folder.0)?;
    let mut client = Client::connect(&folder.0.join("socket"))?;
    for first in (0..KEYS).step_by(200) {
        client.set(first..first + 200)?;
    }
    for first in (0..KEYS).step_by(200) {
        client.check(first..first + 200)?;
    }
    client.check((0..5000).map(|n: u32| n.wrapping_mul(97_003) % KEYS))?;
    redis.signal(rustix::process::Signal::TERM)?;
    let said = redis.said()?;
    assert_eq!(said.code(), 0, "{said:?}");
    Ok(())
}
