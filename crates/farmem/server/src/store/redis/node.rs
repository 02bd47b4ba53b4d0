//! One server: its idle connections, its known replicas, and its fences.
//!
//! A **fence** protects against late writes. A connection that fails in the middle of a write may have left requests
//! behind: in the server's socket, or in a retransmission that arrives a minute later. Carried out after the same page
//! was written again on another connection, they would bring old contents back. So a connection that failed while
//! writing is remembered, and the next writer to this server first has the server end it (`CLIENT KILL ID … ADDR …`);
//! the server never carries out requests that it had not read by then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::answers::ClientId;
use super::connection::{Access, Connection, Failure};
use super::resp::{Reply, Requests};
use crate::store::url::Host;

/// A server.
pub struct Node {
    /// Its address.
    pub host: Host,
    idle: Mutex<Vec<(Connection, Instant)>>,
    fences: Mutex<Vec<ClientId>>,
    has_fences: AtomicBool,
    replicas: Mutex<Replicas>,
}

/// Known replicas of a server.
#[derive(Clone, Copy, Debug)]
pub struct Replicas {
    /// Number of acknowledgements that a write waits for; `None` until it was asked.
    pub wanted: Option<u32>,
    /// Time of the last check.
    pub checked: Instant,
    /// Whether their absence was reported.
    pub said: bool,
}

/// Largest number of idle connections: more than the threads that write and fetch are of no use.
const IDLE_MAX: usize = 16;
/// Largest idle time: a server or a firewall may have closed a connection that was idle for longer.
const IDLE_FOR_MAX: Duration = Duration::from_secs(30);

impl Node {
    /// Server without any connection so far.
    pub fn new(host: Host) -> Node {
        let replicas = Replicas { wanted: None, checked: Instant::now(), said: false };
        Node {
            host,
            idle: Mutex::default(),
            fences: Mutex::default(),
            has_fences: AtomicBool::new(false),
            replicas: Mutex::new(replicas),
        }
    }

    /// Idle connection, or a new one.
    ///
    /// # Errors
    /// Reason for the failure: the server does not answer, or denies access.
    pub fn connection(&self, access: &Access) -> Result<Connection, Failure> {
        let idle = lock(&self.idle).pop();
        match idle {
            Some((connection, since)) if since.elapsed() < IDLE_FOR_MAX => Ok(connection),
            _ => Connection::open(&self.host, access),
        }
    }

    /// Returns a connection that waits for no reply to the pool.
    pub fn give_back(&self, connection: Connection) {
        let mut idle = lock(&self.idle);
        if idle.len() < IDLE_MAX {
            idle.push((connection, Instant::now()));
        }
    }

    /// Discards a failed connection. Idle ones most likely failed with it. Returns false if it wrote, and the server
    /// gave it no identity: then there can be no fence.
    pub fn discard(&self, connection: Connection, wrote: bool) -> bool {
        lock(&self.idle).clear();
        if !wrote {
            return true;
        }
        let Some(id) = connection.id else { return false };
        let mut fences = lock(&self.fences);
        fences.push(id);
        self.has_fences.store(true, Ordering::Release);
        true
    }

    /// Puts the fences up, before anything is written. Returns the server's answer if it denies this.
    ///
    /// # Errors
    /// The connection failed; the fences are still to be put up.
    pub fn put_up_fences(&self, connection: &mut Connection) -> Result<Option<Failure>, Failure> {
        if !self.has_fences.load(Ordering::Acquire) {
            return Ok(None);
        }
        // Other writers wait here until they are up.
        let mut fences = lock(&self.fences);
        let mut out = Requests::default();
        for ClientId { id, address } in fences.iter() {
            let (id, address) = (id.as_bytes(), address.as_bytes());
            out.request(&[b"CLIENT", b"KILL", b"ID", id, b"ADDR", address]);
        }
        connection.send(&out)?;
        let mut refused = None;
        for _ in 0..fences.len() {
            if let Reply::Error(line) = connection.reply()?
                && !line.contains("No such client")
            {
                refused = Some(connection.said(&line));
            }
        }
        fences.clear();
        self.has_fences.store(false, Ordering::Release);
        Ok(refused)
    }

    /// Whether a fence is still to be put up.
    pub fn has_fences(&self) -> bool {
        !lock(&self.fences).is_empty()
    }

    /// Known replicas.
    pub fn replicas(&self) -> MutexGuard<'_, Replicas> {
        lock(&self.replicas)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
