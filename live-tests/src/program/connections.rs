//! A client that connects to a foreign socket as fast as possible.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::Wrong;

/// Connects to this name in the abstract namespace for `time`, holds as many connections as it may, sends nothing, and
/// counts.
pub(super) fn connects(name: &str, time: Duration) -> Result<(), Wrong> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let (begun, mut held, mut made) = (Instant::now(), VecDeque::new(), 0_u64);
    while begun.elapsed() < time {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let done = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .and_then(|socket| connect(&socket, &address).map(|()| socket));
        match done {
            Ok(socket) => {
                held.push_back(socket);
                made += 1;
            }
            Err(Errno::MFILE | Errno::NFILE) => drop(held.pop_front()),
            // The server does not accept them fast enough.
            Err(Errno::AGAIN) => std::thread::yield_now(),
            Err(errno) => return Err(errno.into()),
        }
    }
    println!("made={made}");
    Ok(())
}
