//! Programs that ask the tracker for data of others.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use contract::track::terms::{Terms, USUAL};
use contract::track::wire::{Answer, Request, SHORT_BYTES};
use linux::message_socket::Connection;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::Wrong;

const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Drops a part of this process's privileges.
pub(super) fn become_one(who: &str) -> Result<(), Wrong> {
    match who {
        "root" => Ok(()),
        "root-without-capabilities" => keep(CapabilitySet::empty()),
        "root-with-ptrace" => keep(CapabilitySet::SYS_PTRACE),
        "root-of-a-namespace" => {
            // SAFETY: this process has one thread; nothing here depends on the namespace that it leaves.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWUSER)? };
            Ok(std::fs::write("/proc/self/uid_map", "0 0 1\n")?)
        }
        user => {
            let user: u32 = user.parse()?;
            // SAFETY: a number each; the C library changes all threads, and there is only one.
            let done = unsafe { libc::setgroups(0, std::ptr::null()) | libc::setgid(user) | libc::setuid(user) };
            if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
        }
    }
}

fn keep(capabilities: CapabilitySet) -> Result<(), Wrong> {
    let sets = CapabilitySets { effective: capabilities, permitted: capabilities, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

/// Registers a process, its own for 0, and prints the answer; stays registered until its input ends.
pub(super) fn register(who: &str, socket: &str, pid: &str) -> Result<(), Wrong> {
    become_one(who)?;
    let connection = Connection::at(Path::new(socket))?;
    println!("answer={:?}", ask(&connection, pid.parse()?)?);
    wait()
}

fn ask(connection: &Connection, pid: i32) -> Result<Answer, Wrong> {
    let mut message = [0; SHORT_BYTES];
    let bytes = Request::Register(Terms { pid, ..USUAL }).write(&mut message);
    connection.send(&message[..bytes], &[])?;
    let mut answer = [0; SHORT_BYTES];
    let (bytes, _) = connection.receive(&mut answer, TIME_LIMIT)?.ok_or("it was cut off")?;
    Answer::read(&answer[..bytes]).map_err(|_| "an answer that is none".into())
}

/// Connects as often as it can, up to `count`, registers nothing, and holds all until its input ends.
pub(super) fn clients(who: &str, socket: &str, count: u64) -> Result<(), Wrong> {
    linux::open_files::raise();
    become_one(who)?;
    let held: Vec<Connection> = (0..count).map_while(|_| Connection::at(Path::new(socket)).ok()).collect();
    println!("connected={}", held.len());
    wait()
}

/// A process to be registered by others: of `who`, closed to inspection or not.
pub(super) fn target(who: &str, closed: bool) -> Result<(), Wrong> {
    become_one(who)?;
    let behavior = if closed {
        rustix::process::DumpableBehavior::NotDumpable
    } else {
        rustix::process::DumpableBehavior::Dumpable
    };
    rustix::process::set_dumpable_behavior(behavior)?;
    println!("ready=1");
    wait()
}

/// Connects as `who`, and has the program at `privileged` speak over that connection.
pub(super) fn inherit(who: &str, socket: &str, privileged: &str) -> Result<(), Wrong> {
    use std::os::unix::process::CommandExt;
    become_one(who)?;
    let connection = Connection::at(Path::new(socket))?;
    rustix::io::fcntl_setfd(&connection, rustix::io::FdFlags::empty())?;
    let number = std::os::fd::AsFd::as_fd(&connection).as_raw_fd().to_string();
    Err(std::process::Command::new(privileged).args([super::FLAG, "speak", &number]).exec().into())
}

/// Registers itself over a connection that another program made.
pub(super) fn speak(descriptor: u64) -> Result<(), Wrong> {
    let mut message = [0; SHORT_BYTES];
    let bytes = Request::Register(USUAL).write(&mut message);
    let descriptor = i32::try_from(descriptor)?;
    // SAFETY: `message` has `bytes` bytes and outlives the call.
    let sent = unsafe { libc::send(descriptor, message.as_ptr().cast(), bytes, libc::MSG_NOSIGNAL) };
    // SAFETY: `message` has as many bytes as are passed and outlives the call.
    let got = unsafe { libc::recv(descriptor, message.as_mut_ptr().cast(), message.len(), 0) };
    if sent < 0 || got < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    let answer = Answer::read(&message[..usize::try_from(got)?]).map_err(|_| "an answer that is none")?;
    println!("user={} answer={answer:?}", rustix::process::geteuid().as_raw());
    Ok(())
}

fn wait() -> Result<(), Wrong> {
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
