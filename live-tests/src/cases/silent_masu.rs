//! A silent server in the place of masu: a program that is to be paged ends within its deadline, with a message.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use farmem_engine::handshake::Secret;
use linux::message_socket::{Connection, Listener};
use rustix::process::Signal;

use super::Outcome;
use super::programs::{self, Running};
use super::run::Result;
use super::run_local_children::PARAMETERS;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    silent_masu requires [MasuCommand, PagerLibrary, UserFaults, Shell];
    a_program_whose_masu_is_silent_ends_within_its_deadline;
};

const SECRET: Secret = Secret { library: 1, masu: 2 };
const SOON: Duration = Duration::from_secs(10);
/// The library's own is 15 s.
const DEADLINE: Duration = Duration::from_secs(60);
const STOPPED: Duration = Duration::from_millis(17_500);

fn start(listener: &Listener) -> Result<Running> {
    let library = programs::masu().ok_or("no masu")?.with_file_name("libmasu-pager.so");
    let mut program = Command::new("/bin/echo");
    program.arg("begun").env("LD_PRELOAD", library).env("MASU_PAGER", listener.name());
    Ok(Running::start(program.env("MASU_PAGER_SECRET", SECRET.to_string()).stdin(Stdio::null()))?)
}

/// A masu that accepts no connection any more, one that sends nothing, and one that sends nothing after the handshake;
/// all at a time. Time during which a program is stopped (Ctrl-Z) is not counted.
fn a_program_whose_masu_is_silent_ends_within_its_deadline(_: &Host) -> Outcome {
    let [full, silent, half, later] = [Listener::open()?, Listener::open()?, Listener::open()?, Listener::open()?];
    // The queue has 64 places and one.
    let _queue = (0..65).map(|_| Connection::to(full.name())).collect::<std::result::Result<Vec<_>, _>>()?;
    let begun = Instant::now();
    let mut programs = vec![start(&full)?, start(&silent)?, start(&half)?];
    let _silent = silent.accept(SOON)?.ok_or("nobody connected")?;
    let half = half.accept(SOON)?.ok_or("nobody connected")?;
    let parameters: Vec<u8> = PARAMETERS.message(SECRET.masu).iter().flat_map(|word| word.to_ne_bytes()).collect();
    half.send(&parameters, &[])?;
    let mut stopped = start(&later)?;
    let _later = later.accept(SOON)?.ok_or("nobody connected")?;
    std::thread::sleep(Duration::from_millis(200)); // It waits for the session parameters.
    stopped.signal(Signal::STOP)?;
    let since = Instant::now();
    while !programs.iter_mut().map(|one| one.0.try_wait()).all(|ended| matches!(ended, Ok(Some(_)))) {
        assert!(begun.elapsed() < DEADLINE, "it waits for ever");
        std::thread::sleep(Duration::from_millis(20));
    }
    for running in programs {
        let said = running.said()?;
        assert_eq!((said.code(), said.out.as_str()), (125, ""), "{said:?}");
        assert!(said.first_line().ends_with("has not answered for 15 s"), "{said:?}");
        assert!(said.err.contains("\n    See whether it is stopped or frozen"), "{said:?}");
    }
    std::thread::sleep(STOPPED.saturating_sub(since.elapsed()));
    stopped.signal(Signal::CONT)?;
    std::thread::sleep(Duration::from_millis(500));
    assert!(stopped.0.try_wait()?.is_none(), "it goes on waiting");
    Ok(())
}
