//! Start of a program's service: the handshake, and the threads that serve it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farmem_engine::handshake::{Go, Message, Ready, SessionParameters};
use farmem_engine::left_out::LeftOut;
use farmem_engine::segment::Layout;
use linux::message_socket::Connection;
use linux::shared_memory::{self, SharedMemory};
use linux::{Pid, describe};
use rustix::io::Errno;
use units::Bytes;
use units::cast::index;

use super::unproven::Proven;
use super::{Common, Ends, LOOK, NotBegun, Program, QUIET, bytes_of, fitting, hear, locked, message_of};
use crate::background::WORKERS;
use crate::copies::Segment;
use crate::observation::Observation;

/// Serves one program, from its first message to its end.
pub(super) fn serve(program: &Proven, common: &Common, is_first: bool) {
    let connection = &program.connection;
    let layer = common.layers.fetch_add(1, Relaxed);
    match begin(program, common, layer, is_first) {
        Ok(Some(mut program)) => {
            let profiles = program.known_sites(common);
            let has_begun = work_in_threads(&program, connection, common, is_first, profiles);
            if has_begun {
                let counted = program.counted(common);
                common.note(|served| served.counted.push(counted));
            }
            // All processes that could read there have ended, or are other programs now: each of them held the
            // connection.
            if connection.is_over() || !has_begun {
                common.give_back(layer);
            }
        }
        // A program without permission to begin has stored nothing there.
        Ok(None) => common.give_back(layer),
        Err(trouble) => {
            common.say(trouble.to_string());
            common.give_back(layer);
        }
    }
}

/// Lets a program begin, and serves it to its end. False when it was left out instead, since there is no thread for its
/// batches.
fn work_in_threads(program: &Program, connection: &Connection, common: &Common, is_first: bool, profiles: u32) -> bool {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let wanted = if common.parameters.background && !program.has_file { WORKERS } else { 0 };
        let over = &over;
        // In all cases the other threads end.
        let ends = Ends(over);
        let mut workers = Vec::new();
        for which in 0..wanted {
            let worker = std::thread::Builder::new().name("masu-background".to_owned());
            match worker.spawn_scoped(scope, move || program.run_batch(which, connection, common, over)) {
                Ok(worker) => workers.push(worker),
                Err(error) => {
                    let answer = common.leave_out(is_first, LeftOut::NoService, None);
                    let said = format!("cannot serve a program in the background, which runs without a limit: {error}");
                    let remedy = "Allow more threads (`ulimit -u`, pids.max), or say --no-background.";
                    common.say_at_once(said, remedy);
                    let _ = connection.send(&bytes_of(&answer), &[]);
                    break;
                }
            }
        }
        let has_begun = workers.len() as u64 == wanted;
        if has_begun {
            // A program that has died meanwhile is counted like any other.
            let _ = connection.send(&bytes_of(&Go { profiles }.message()), &[]);
            program.work(connection, common);
            // Before the work that is left here: the next program may have begun.
            locked(&common.at_once).ended(program.layer);
        }
        drop(ends);
        while let Some(doorbell) = program.doorbell()
            && workers.iter().any(|worker| !worker.is_finished())
        {
            doorbell.submissions().fetch_add(1, Relaxed);
            shared_memory::wake(doorbell.submissions());
            std::thread::sleep(Duration::from_micros(200));
        }
        has_begun
    })
}

/// Failed handshake.
#[derive(Debug, thiserror::Error)]
enum NotServed {
    /// The store has no layer for the program.
    #[error(transparent)]
    Store(#[from] crate::store::Error),
    /// The socket failed.
    #[error("the handshake with a program failed: {}", describe(*.0))]
    Socket(#[from] Errno),
    /// A message is invalid.
    #[error("process {0} sent an invalid message at its start")]
    Invalid(u32),
}

/// The handshake, up to masu's permission to begin. `None` for a program that is not paged.
fn begin(program: &Proven, common: &Common, layer: u32, is_first: bool) -> Result<Option<Program>, NotServed> {
    let Proven { connection, peer, identity } = program;
    let left_out = |reason, not_begun| {
        let answer = common.leave_out(is_first, reason, not_begun);
        connection.send(&bytes_of(&answer), &[]).map(|()| None).map_err(NotServed::Socket)
    };
    if let Some(reason) = identity.left_out {
        return left_out(reason, None);
    }
    let fitted = match fitting::fitted(&common.parameters, identity.limits) {
        Ok(fitted) => fitted,
        Err(reason) => return left_out(reason, None),
    };
    // A file that the program writes itself would count for its own limit of file sizes.
    let is_unlimited = identity.limits.file_size == u64::MAX;
    let direct = if is_unlimited { own_file(common, layer) } else { Ok(None) };
    let direct = match direct {
        Ok(direct) => direct,
        Err(error) => {
            common.say_of_store(&error);
            return left_out(LeftOut::NoService, None);
        }
    };
    let layout = Layout::new(index(fitted.most_pages.into()), index(fitted.budget_frames.into()));
    let bytes = Bytes(layout.bytes as u64);
    let segment = SharedMemory::create(&segment_name(), bytes).or_else(|errno| match errno {
        // Beyond masu's own limit of file sizes.
        Errno::FBIG => SharedMemory::without_file(bytes),
        errno => Err(errno),
    });
    let segment = match segment {
        Ok(segment) => segment,
        Err(errno) => {
            common.say(format!("cannot serve a program, for want of memory or files: {}", describe(errno)));
            return left_out(LeftOut::NoService, None);
        }
    };
    let parameters = SessionParameters { has_file: direct.is_some(), segment: segment.number(), ..fitted };
    let fds: Vec<_> = [segment.file(), direct.as_ref().map(|fd| fd.as_fd())].into_iter().flatten().collect();
    connection.send(&bytes_of(&parameters.message(common.secret.masu)), &fds)?;
    let mut bytes = [0; size_of::<Message>()];
    if hear(connection, &mut bytes, common)?.is_none() {
        return Ok(None);
    }
    tracing::debug!(process = identity.process, "handshake");
    let ready = Ready::of(&message_of(&bytes)).ok_or(NotServed::Invalid(identity.process))?;
    let backend = match ready.begun {
        Ok(backend) => backend,
        Err((step, errno)) => {
            let errno = Errno::from_raw_os_error(errno.cast_signed());
            return left_out(LeftOut::NotBegun, Some(NotBegun { process: identity.process, step, errno }));
        }
    };
    let mapped = Segment::of(&segment);
    // Copies are counted for known programs.
    mapped.iter().for_each(|mapped| _ = locked(&common.copies).of(*mapped));
    let program = Program {
        process: identity.process,
        peer: *peer,
        backend,
        layer,
        has_file: direct.is_some(),
        segment,
        layout,
        mapped,
        observation: Observation::begin(*peer),
        thrash: Mutex::default(),
        profile: None,
    };
    Ok(Some(program))
}

/// File of a program that reads and writes its pages itself. Other programs may end meanwhile, and free descriptors.
fn own_file(common: &Common, layer: u32) -> Result<Option<Arc<OwnedFd>>, crate::store::Error> {
    let begun = Instant::now();
    loop {
        match common.store.direct(layer) {
            Err(_) if begun.elapsed() < QUIET && !common.is_over() => std::thread::sleep(LOOK),
            done => return done,
        }
    }
}

/// Without a thread to serve it, a program runs unserved.
pub(super) fn no_thread(program: &Proven, common: &Common, is_first: bool, error: &std::io::Error) {
    let answer = common.leave_out(is_first, LeftOut::NoService, None);
    common.say_at_once(
        format!("cannot serve a program, which runs without a limit: {error}"),
        "Allow more threads (`ulimit -u`, pids.max).",
    );
    // A program that has died meanwhile needs no answer.
    let _ = program.connection.send_at_once(&bytes_of(&answer), &[]);
}

/// Name of the shared segments of this process's programs.
pub(super) fn segment_name() -> String {
    format!("masu-segment-{}", Pid::own())
}
