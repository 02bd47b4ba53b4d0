//! Cooperating programs: the C library in a program of its own, and the tracker that serves it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use linux::message_socket::Connection;
use rustix::process::Signal;
use serde_json::Value;

use super::programs::{Running, Said, TIME_LIMIT, c_program, libmasu};
use super::run::{Folder, Result, said};
use super::run_hard::compile;
use super::{Outcome, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    track requires [MasuCommand];
    what_is_null_or_out_of_bounds_is_refused;
    without_a_tracker_nothing_is_done;
    an_arena_hands_out_what_it_was_made_for [HugePageModes, Root];
    an_arena_takes_pages_from_the_pool_first [Root, HugePageModes, ReservedHuge];
    enabling_twice_and_disabling_without_enabling_is_told [Root, HugePageModes, PageTableWalk, RemoteCollapse, RemoteAdvice];
    the_list_names_the_pages_that_are_touched_and_no_others [Root, HugePageModes, PageTableWalk, RemoteCollapse, RemoteAdvice];
    the_program_decides_window_by_window [Root, HugePageModes, PageTableWalk, RemoteCollapse, RemoteAdvice];
    a_callback_that_calls_back_and_takes_a_second_does_no_harm [Root, RealProcessor, HugePageModes, PageTableWalk, RemoteCollapse, RemoteAdvice];
    a_forked_child_has_nothing_of_its_parents_context [Root, RealProcessor, HugePageModes, PageTableWalk, RemoteCollapse, RemoteAdvice];
    a_handler_takes_no_lock_that_a_thread_may_hold [Root, RealProcessor, HugePageModes, PageTableWalk, RemoteCollapse, RemoteAdvice];
    the_four_functions_of_the_paper_do_what_it_says [Root, HugePageModes, PageTableWalk, RemoteCollapse, RemoteAdvice];
    a_thread_that_does_not_block_the_signal_wakes_the_one_that_waits [Root, HugePageModes, PageTableWalk, RemoteCollapse, RemoteAdvice];
    a_program_that_becomes_another_one_is_forgotten_and_lives [Root, HugePageModes, PageTableWalk, RemoteCollapse, RemoteAdvice];
    another_process_is_roots_to_register [Root, HugePageModes, PageTableWalk, RemoteCollapse, RemoteAdvice];
    a_limit_holds_for_arenas_and_for_promotion [Root, RealProcessor, HugePageModes, PageTableWalk, RemoteCollapse, RemoteAdvice];
    at_a_limit_the_program_that_saves_more_has_the_huge_pages [Root, HugePageModes, PageTableWalk, RemoteCollapse, RemoteAdvice];
    a_program_outlives_its_tracker [Root, HugePageModes, PageTableWalk, RemoteCollapse, RemoteAdvice];
};

/// A tracker of its own, with its socket in a folder of its own.
pub(super) struct Tracker {
    folder: Folder,
    running: Option<Running>,
    options: Vec<&'static str>,
}

impl Tracker {
    pub(super) fn start(options: &[&'static str]) -> Result<Tracker> {
        let mut tracker = Tracker { folder: Folder::make("track")?, running: None, options: options.to_vec() };
        tracker.begin()?;
        Ok(tracker)
    }

    /// Starts it, again if it was ended, and waits until it listens.
    pub(super) fn begin(&mut self) -> Outcome {
        let socket = self.socket();
        let mut command = super::command::masu()?;
        command.args(["track", "--json", "--socket"]).arg(&socket).args(&self.options);
        // The events go to a file and not to an unread pipe: there are many.
        let events = std::fs::File::options().create(true).append(true).open(self.folder.0.join("events"))?;
        command.stdin(Stdio::null()).stdout(events).stderr(Stdio::piped());
        self.running = Some(Running(command.spawn()?));
        let end = Instant::now() + TIME_LIMIT;
        while Connection::at(&socket).is_err() {
            assert!(Instant::now() < end, "the tracker does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.0.join("track.sock")
    }

    pub(super) fn running(&self) -> Result<&Running> {
        self.running.as_ref().ok_or_else(|| "it was ended".into())
    }

    /// Ends it, and returns its output.
    pub(super) fn end(&mut self, signal: Signal) -> Result<Said> {
        let running = self.running.take().ok_or("it was ended already")?;
        running.signal(signal)?;
        Ok(running.said()?)
    }

    /// Ends it as an operator does; returns its events.
    pub(super) fn events(&mut self) -> Result<Vec<Value>> {
        let said = self.end(Signal::INT)?;
        assert_eq!((said.code(), said.err.as_str()), (0, ""), "{said:?}");
        assert!(!self.socket().exists(), "the socket was left behind");
        let events = std::fs::read_to_string(self.folder.0.join("events"))?;
        events.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }
}

/// The cooperating program; a virtual machine has it built.
pub(super) fn track_client(folder: &Folder) -> Result<String> {
    if let Some(there) = c_program("track_client") {
        return Ok(there.to_str().ok_or("a path that is no text")?.to_owned());
    }
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/hugepages/libmasu/include");
    let include = format!("-I{}", include.display());
    let library = libmasu().ok_or("libmasu.a is not beside the command")?.display().to_string();
    compile(
        folder,
        "cc",
        "track_client",
        include_str!("../../programs/track_client.c"),
        &[&include, &library, "-pthread"],
    )
}

/// Runs one part, with a tracker or without; returns its output.
fn part(tracker: Option<&Tracker>, name: &str) -> Result<String> {
    let folder = Folder::make("track_client")?;
    let socket = tracker.map_or_else(|| folder.0.join("nobody.sock"), Tracker::socket);
    let said = said(Command::new(track_client(&folder)?).arg(name).env("MASU_TRACK", socket))?;
    assert!(said.code() == 0 && said.out.ends_with("right\n") && said.err.is_empty(), "{name}: {said:?}");
    Ok(said.out)
}

/// The same, with a tracker that does nothing else.
fn tracked(name: &str, options: &[&'static str]) -> Result<Vec<Value>> {
    let _quiet = no_automatic_huge_pages()?;
    let mut tracker = Tracker::start(options)?;
    part(Some(&tracker), name)?;
    tracker.events()
}

fn events_named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["event"] == name).collect()
}

/// Each function returns an error, and does nothing.
fn what_is_null_or_out_of_bounds_is_refused(_: &Host) -> Outcome {
    part(None, "invalid")?;
    Ok(())
}

/// No descriptor, no handler, no blocked signal.
fn without_a_tracker_nothing_is_done(_: &Host) -> Outcome {
    part(None, "alone")?;
    Ok(())
}

/// Objects that do not overlap, full of zeros, on huge pages.
fn an_arena_hands_out_what_it_was_made_for(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let said = part(None, "arena")?;
    assert!(said.contains("small 0"), "the kernel gave no huge page: {said}");
    Ok(())
}

/// From the pool, if there is one: half of an arena fits in it, the rest are transparent huge pages.
fn an_arena_takes_pages_from_the_pool_first(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let _pool = crate::setting::Setting::set("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "2")?;
    let said = part(None, "arena")?;
    assert!(said.starts_with("hugetlb 2 thp 2 small 0"), "{said}");
    Ok(())
}

/// The state after each call is as before it.
fn enabling_twice_and_disabling_without_enabling_is_told(_: &Host) -> Outcome {
    let events = tracked("twice", &[])?;
    assert_eq!(events_named(&events, "registered").len(), 7, "{events:?}");
    assert_eq!(events_named(&events, "refused").len(), 5);
    assert!(events_named(&events, "forgotten").iter().all(|event| event["reason"] == "asked"), "{events:?}");
    Ok(())
}

/// 6,400 pages in 64 windows, in order, each once.
fn the_list_names_the_pages_that_are_touched_and_no_others(_: &Host) -> Outcome {
    let events = tracked("list", &[])?;
    let fetched = events_named(&events, "fetched");
    assert!(fetched.iter().any(|event| event["active_pages"].as_u64() >= Some(6400)), "{events:?}");
    Ok(())
}

/// A window is promoted on its word alone, and none against it.
fn the_program_decides_window_by_window(_: &Host) -> Outcome {
    let events = tracked("decides", &[])?;
    assert!(events_named(&events, "decided").iter().any(|event| event["windows"].as_u64() >= Some(8)), "{events:?}");
    assert_eq!(events_named(&events, "changed").len(), 1);
    Ok(())
}

/// It is told MASU_BUSY, and signals that arrive meanwhile are merged into one.
fn a_callback_that_calls_back_and_takes_a_second_does_no_harm(_: &Host) -> Outcome {
    tracked("back", &[])?;
    Ok(())
}

/// The parent goes on.
fn a_forked_child_has_nothing_of_its_parents_context(_: &Host) -> Outcome {
    let events = tracked("forked", &[])?;
    assert_eq!(events_named(&events, "registered").len(), 2, "{events:?}");
    Ok(())
}

/// Handlers come at any moment, also to threads in the midst of a call.
fn a_handler_takes_no_lock_that_a_thread_may_hold(_: &Host) -> Outcome {
    tracked("handler", &[])?;
    Ok(())
}

/// Both ways of delivery.
fn the_four_functions_of_the_paper_do_what_it_says(_: &Host) -> Outcome {
    tracked("paper", &[])?;
    Ok(())
}

/// The one that waits is woken; disabling ends its wait.
fn a_thread_that_does_not_block_the_signal_wakes_the_one_that_waits(_: &Host) -> Outcome {
    tracked("stray", &[])?;
    Ok(())
}

/// A signal without a handler would end it.
fn a_program_that_becomes_another_one_is_forgotten_and_lives(_: &Host) -> Outcome {
    let events = tracked("replaced", &[])?;
    let last = events_named(&events, "forgotten");
    assert!(last.len() == 1 && last[0]["reason"] == "left", "{events:?}");
    Ok(())
}

/// A user's own processes need no registration by root.
fn another_process_is_roots_to_register(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut tracker = Tracker::start(&[])?;
    part(Some(&tracker), "others")?;
    let refused = tracker.events()?;
    assert!(events_named(&refused, "refused").iter().any(|event| event["user"] == 65534), "{refused:?}");
    Ok(())
}

/// Two windows for eight that deserve it: an arena that has had them gives them back.
fn a_limit_holds_for_arenas_and_for_promotion(_: &Host) -> Outcome {
    let events = tracked("limited", &["--max-huge-per-program", "4MiB"])?;
    let last = events_named(&events, "forgotten");
    // One program may have replaced another: only the final state counts.
    let count = |event: &Value, name: &str| event[name].as_u64().unwrap_or(0);
    let held = |event: &Value| count(event, "windows_promoted").saturating_sub(count(event, "windows_demoted"));
    assert!(!last.is_empty() && last.iter().all(|event| held(event) <= 2), "{events:?}");
    tracked("limited", &["--max-huge", "4MiB"])?;
    tracked("limited", &["--max-huge-per-user", "5MiB"])?;
    Ok(())
}

/// The later program saves more.
fn at_a_limit_the_program_that_saves_more_has_the_huge_pages(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut tracker = Tracker::start(&["--max-huge", "4MiB"])?;
    let folder = Folder::make("track_client-weak")?;
    let mut command = Command::new(track_client(&folder)?);
    command.arg("weak").env("MASU_TRACK", tracker.socket());
    let mut weak = Running(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
    let mut lines = BufReader::new(weak.0.stdout.take().ok_or("no pipe")?).lines();
    assert_eq!(lines.next().ok_or("it ended")??, "held");
    part(Some(&tracker), "strong")?;
    assert_eq!(lines.next().ok_or("it ended")??, "right");
    assert!(weak.0.wait()?.success());
    tracker.end(Signal::INT)?;
    Ok(())
}

/// It notices, goes on, and is served by the next tracker; one that was killed leaves a socket that does no harm.
fn a_program_outlives_its_tracker(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    for signal in [Signal::TERM, Signal::KILL] {
        let mut tracker = Tracker::start(&[])?;
        let folder = Folder::make("track_client")?;
        let mut command = Command::new(track_client(&folder)?);
        command.arg("outlives").env("MASU_TRACK", tracker.socket());
        let mut program = Running(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
        let mut lines = BufReader::new(program.0.stdout.take().ok_or("no pipe")?).lines();
        assert_eq!(lines.next().ok_or("it ended")??, "watched");
        tracker.end(signal)?;
        let mut last = lines.by_ref().map_while(std::result::Result::ok).skip_while(|line| line == "watched");
        assert_eq!(last.next().as_deref(), Some("alone"));
        tracker.begin()?;
        assert_eq!(last.next().as_deref(), Some("right"));
        assert!(program.0.wait()?.success());
    }
    Ok(())
}
