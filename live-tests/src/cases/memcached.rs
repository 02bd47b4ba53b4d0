//! The distribution's memcached with our patch: its hot items move, and no client sees it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::programs::{Running, TIME_LIMIT, libmasu};
use super::run::{Folder, Result, said};
use super::track::Tracker;
use super::{Outcome, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    memcached requires [MasuCommand, CCompiler, Make, HugePageModes, MemcachedSource];
    items_move_while_clients_check_them [Python];
    hot_items_move_together_onto_huge_pages [Root, PageTableWalk, RemoteCollapse, RemoteAdvice];
    windows_whose_items_are_all_asked_for_become_huge [Root, PageTableWalk, RemoteCollapse, RemoteAdvice];
    what_finds_no_room_in_the_arena_becomes_huge_where_it_lies [Root, PageTableWalk, RemoteCollapse, RemoteAdvice];
};

/// `integrations/memcached/build` with the place where these tests have theirs; `None` where there are no sources.
pub(crate) fn build(options: &[&str]) -> Option<Command> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let script = root.join("integrations/memcached/build");
    let mut command = Command::new(script.canonicalize().ok()?);
    command.arg("--to").arg(root.join("target/memcached-live")).args(options).stdin(Stdio::null());
    Some(command)
}

/// Builds it with the library beside the command that is tested. The program with assertions is beside the one named.
fn built(folder: &Folder) -> Result<PathBuf> {
    let library = libmasu().ok_or("libmasu.a is not beside the command")?;
    let prefix = folder.0.join("prefix");
    std::fs::create_dir_all(prefix.join("lib"))?;
    std::os::unix::fs::symlink(library, prefix.join("lib/libmasu.a"))?;
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/hugepages/libmasu/include").canonicalize()?;
    std::os::unix::fs::symlink(include, prefix.join("include"))?;
    let prefix = prefix.to_str().ok_or("a path that is no text")?;
    let said = said(&mut build(&["--masu-prefix", prefix]).ok_or("no sources")?)?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""), "{said:?}");
    Ok(PathBuf::from(said.out.trim_end()))
}

/// Random items move all the time, in and out, with evictions and without, while clients know the expected value of
/// each of theirs.
fn items_move_while_clients_check_them(_: &Host) -> Outcome {
    let folder = Folder::make("memcached")?;
    let memcached = built(&folder)?.with_file_name("memcached-debug");
    let torture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../integrations/memcached/tests/torture");
    let said = said(Command::new(torture).arg("--memcached").arg(memcached).args(["--for", "15"]))?;
    assert_eq!(said.code(), 0, "{said:?}");
    let moved = said.out.lines().filter(|line| line.contains("   moved ") && !line.contains("   moved 0 "));
    assert_eq!(moved.count(), 3, "three rounds in which items moved: {said:?}");
    Ok(())
}

/// A memcached that listens in a folder, until dropped.
struct Memcached {
    running: Option<Running>,
    stream: BufReader<UnixStream>,
}

const ITEMS: usize = 350_000;
/// One of each hundred adjacent items is requested: some 35 in each 2 MiB.
const EACH: usize = 100;

fn value(item: usize) -> String {
    format!("{item:0>512}")
}

impl Memcached {
    fn start(program: &Path, folder: &Folder, tracker: &Tracker) -> Result<Memcached> {
        let socket = folder.0.join("memcached.sock");
        // A sparse hash table: a fetch touches the requested item, and none on the way to it.
        let hps = format!("hps,hps_socket={},hps_period=200,hashpower=20", tracker.socket().display());
        let mut command = Command::new(program);
        command.arg("-s").arg(&socket).args(["-u", "root", "-m", "512", "-t", "2", "-o", &hps]);
        let running = Running::start(&mut command)?;
        let end = Instant::now() + TIME_LIMIT;
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break BufReader::new(stream),
                Err(error) if Instant::now() > end => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        stream.get_ref().set_read_timeout(Some(TIME_LIMIT))?;
        Ok(Memcached { running: Some(running), stream })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn fill(&mut self) -> Outcome {
        for first in (0..ITEMS).step_by(1000) {
            let sets: Vec<String> = (first..first + 1000)
                .map(|item| format!("set k{item} 0 0 512 noreply\r\n{}\r\n", value(item)))
                .collect();
            self.stream.get_mut().write_all(sets.concat().as_bytes())?;
        }
        Ok(())
    }

    /// Asks for items, and compares each.
    fn ask_for(&mut self, items: impl IntoIterator<Item = usize>) -> Outcome {
        let items: Vec<usize> = items.into_iter().collect();
        for some in items.chunks(50) {
            let keys: Vec<String> = some.iter().map(|item| format!(" k{item}")).collect();
            self.stream.get_mut().write_all(format!("get{}\r\n", keys.concat()).as_bytes())?;
            for &item in some {
                assert_eq!(self.line()?, format!("VALUE k{item} 0 512"));
                assert_eq!(self.line()?, value(item));
            }
            assert_eq!(self.line()?, "END");
        }
        Ok(())
    }

    fn ask_for_hot(&mut self) -> Outcome {
        self.ask_for((0..ITEMS).step_by(EACH))
    }

    /// Has its LRU crawler go over all items, as it does by itself a minute after the start. It may be at it still.
    fn crawl(&mut self) -> Outcome {
        self.stream.get_mut().write_all(b"lru_crawler crawl all\r\n")?;
        let said = self.line()?;
        assert!(said == "OK" || said.starts_with("BUSY"), "{said}");
        Ok(())
    }

    fn stat(&mut self, name: &str) -> Result<String> {
        self.stream.get_mut().write_all(b"stats hps\r\n")?;
        let mut found = None;
        loop {
            let line = self.line()?;
            if line == "END" {
                return found.ok_or_else(|| format!("no {name}").into());
            }
            if let Some(value) = line.strip_prefix(&format!("STAT {name} ")) {
                found = Some(value.to_owned());
            }
        }
    }

    /// Does `work` until a figure is as wanted.
    fn work_until(
        &mut self,
        name: &str,
        is_right: impl Fn(&str) -> bool,
        work: impl Fn(&mut Memcached) -> Outcome,
    ) -> Outcome {
        let end = Instant::now() + TIME_LIMIT;
        loop {
            work(self)?;
            let now = self.stat(name)?;
            if is_right(&now) {
                return Ok(());
            }
            assert!(Instant::now() < end, "{name} is {now}");
        }
    }
}

fn number(text: &str) -> usize {
    text.parse().unwrap_or(0)
}

/// By the real tracker, which ends meanwhile, and comes back. Filling memcached, reading all of it once, and crawling
/// over it touch all cold items; the hot ones are found all the same.
fn hot_items_move_together_onto_huge_pages(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make("memcached")?;
    let program = built(&folder)?;
    let mut tracker = Tracker::start(&[])?;
    let mut memcached = Memcached::start(&program, &folder, &tracker)?;
    memcached.fill()?;
    // The fetched mark of an item stays until the next scan.
    memcached.ask_for(0..ITEMS)?;
    let crawled = |memcached: &mut Memcached| {
        memcached.crawl()?;
        memcached.ask_for_hot()
    };
    memcached.work_until("windows_doubted", |windows| number(windows) >= ITEMS * 512 / (2 << 20), crawled)?;
    memcached.work_until("items_moved", |moved| number(moved) >= ITEMS / EACH / 2, Memcached::ask_for_hot)?;
    // The arena's statistics are printed after the processed list.
    memcached.work_until("arena_windows_thp", |windows| number(windows) >= 1, Memcached::ask_for_hot)?;
    // Some memory without items, such as the hash table, is hot all over; and on busy processors, recent fills and
    // crawls are visible for longer. All but a few of the windows with items stay as they are.
    let promoted = number(&memcached.stat("tracker_promoted")?);
    assert!(
        promoted <= ITEMS * 512 / (2 << 20) / 3,
        "{promoted} windows are huge, and nobody fetches what lies in them"
    );

    let said = tracker.end(Signal::INT)?;
    assert_eq!(said.code(), 0, "{said:?}");
    memcached.work_until("tracker", |tracker| tracker != "watched", Memcached::ask_for_hot)?;
    tracker.begin()?;
    memcached.work_until("tracker", |tracker| tracker == "watched", Memcached::ask_for_hot)?;
    memcached.ask_for_hot()?;
    let running = memcached.running.take().ok_or("it was ended")?;
    running.signal(Signal::TERM)?;
    let said = running.said()?;
    assert!(said.err.is_empty(), "{said:?}");
    let events = tracker.events()?;
    assert!(events.iter().any(|event| event["event"] == "forgotten"), "{events:?}");
    Ok(())
}

/// Items beside each other that are all asked for make their windows huge where they lie.
fn windows_whose_items_are_all_asked_for_become_huge(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make("memcached")?;
    let program = built(&folder)?;
    let tracker = Tracker::start(&[])?;
    let mut memcached = Memcached::start(&program, &folder, &tracker)?;
    memcached.fill()?;
    let before = number(&memcached.stat("tracker_promoted")?);
    let some = |memcached: &mut Memcached| memcached.ask_for(0..ITEMS / 10);
    // Without windows that hold other items as well, or that overlap `before`.
    let windows = ITEMS / 10 * 512 / (2 << 20) - 2;
    memcached.work_until("tracker_promoted", |promoted| number(promoted) >= before + windows, some)
}

/// More is hot than fits in the arena, in windows that are too sparse for a huge page by the rule.
fn what_finds_no_room_in_the_arena_becomes_huge_where_it_lies(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make("memcached")?;
    let program = built(&folder)?;
    let tracker = Tracker::start(&[])?;
    let mut memcached = Memcached::start(&program, &folder, &tracker)?;
    memcached.fill()?;
    let before = number(&memcached.stat("tracker_promoted")?);
    // A hundred pages of each window's 512, and two and a half times the capacity of the arena's one window.
    let some = |memcached: &mut Memcached| memcached.ask_for((0..ITEMS).step_by(40));
    memcached.work_until("items_no_room", |items| number(items) > 0, some)?;
    // Some memory without items, such as the hash table, is hot all over.
    let so_far = number(&memcached.stat("tracker_promoted")?);
    let sparse = so_far.saturating_sub(before);
    assert!(
        sparse <= ITEMS * 512 / (2 << 20) / 3,
        "{sparse} windows are huge, which are sparse, before the arena is full"
    );
    let windows = ITEMS * 512 / (2 << 20) / 2;
    memcached.work_until("tracker_promoted", |promoted| number(promoted) >= before + windows, some)?;
    assert!(number(&memcached.stat("items_moved")?) >= 1000, "the arena is filled first");
    Ok(())
}
