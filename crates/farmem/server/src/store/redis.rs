//! `redis://…`: pages in Redis or Valkey, one server or a Cluster.
//!
//! Calls are carried out by the calling thread, on blocking connections of a pool per server: no runtime, no handover
//! to another thread. A batch is cut into blocks of 16 pages (`blocks.rs`), the blocks are sorted by node
//! (`topology.rs`), each node gets its requests in one go, and then the replies are read, node after node
//! (`exchange.rs`).
//!
//! **Stored** means: the server has the page, and a replica too, where the server has any (`WAIT`, on the connection
//! that wrote). A server without replicas is reported once. `?replicas=N` requires N, always.
//!
//! **Lease.** Every block expires (`?ttl`, 24 h), and a thread renews all of them four times in that, at least hourly:
//! a killed masu leaves nothing for ever. `close` deletes them. It also means that a server which may evict keys with a
//! lease (`volatile-…`) or any (`allkeys-…`) would lose pages: such a server is refused at the start.
//!
//! **Permissions of the server's user:** `~masu:*` and the commands HSET HMGET HDEL EXPIRE UNLINK WAIT INFO
//! CLIENT|SETNAME CLIENT|INFO CLIENT|KILL, in a Cluster CLUSTER|SLOTS CLUSTER|INFO and ASKING.
//!
//! **Memory there:** a page takes 5 KiB with Redis' own jemalloc (its next size above 4096 bytes and a header), sealed
//! or not.

pub mod answers;
mod blocks;
mod connection;
mod exchange;
mod hints;
mod live;
pub mod node;
pub mod resp;
mod tls;
pub mod topology;
mod work;

use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use units::Bytes;

use super::url::{Host, RedisUrl};
use super::{
    Error, GetRun, Location, Opening, PASSWORD_VARIABLE, PutRun, Span, Store, Trouble, assert_in_bounds, assert_whole,
    operation,
};
use answers::Verdict;
use connection::{Access, Connection, Failure};
use exchange::{Exchange, Failed};
use live::Live;
use resp::Field;
use work::{Forgets, Gets, Leases, Puts};

/// One server or a Cluster.
pub struct RedisStore {
    shared: Arc<Shared>,
    lease_thread: Mutex<Option<JoinHandle<()>>>,
}

/// State shared by the lease thread and the callers.
struct Shared {
    name: String,
    exchange: Exchange,
    live: Live,
    ttl: Duration,
    page_bytes: usize,
    closed: Mutex<bool>,
    closing: Condvar,
}

/// Memory per byte in the server: see the head of this file.
const ROOM: f64 = 1.25;

/// Time limit of the cleanup at the end with servers that do not answer.
const CLOSE_MAX: Duration = Duration::from_secs(10);

/// Layer without a program: for testing the store.
const TRIAL: Location = Location { layer: u32::MAX, page: 0 };

impl RedisStore {
    /// Connects, checks the server's properties, and tests it with one page.
    ///
    /// # Errors
    /// All but `Lost`.
    pub fn open(url: &RedisUrl, opening: &Opening) -> Result<RedisStore, Error> {
        let name = url.to_string();
        let unfit = |cause: String, remedy: &str| {
            Err(Error::Unfit(Trouble {
                operation: "open".to_owned(),
                store: name.clone(),
                cause,
                remedy: remedy.into(),
            }))
        };
        if url.password.is_some() && opening.password.is_none() {
            (opening.say)(&format!(
                "the password of {name} stands in the list of processes; the variable {PASSWORD_VARIABLE} hides it"
            ));
        }
        let tls = match url.tls.as_ref().map(tls::settings).transpose() {
            Ok(tls) => tls,
            Err(cause) => return unfit(cause.to_string(), hints::of_files(&cause)),
        };
        let run = std::hash::RandomState::new().build_hasher().finish();
        let access = Access {
            tls,
            user: url.user.clone(),
            password: opening.password.clone().or_else(|| url.password.clone()),
            database: url.database,
            timeout: url.timeout,
            client_name: format!("masu-{run:016x}"),
        };
        let (host, mut connection) = first_that_answers(url, &access, &name)?;
        let info = connection.info(None).map_err(|failure| sorted(&name, "open".to_owned(), &failure, true))?;
        if url.hosts.len() > 1 && !info.in_cluster {
            return unfit(format!("{host} is no part of a Cluster"), "Name one server, or switch Cluster mode on.");
        }
        if let (Some(master), false) = (&info.replica_of, info.in_cluster) {
            return unfit(format!("{host} is a replica of {master}"), "Name its master.");
        }
        let exchange = Exchange::new(name.clone(), run, access, url, Arc::clone(&opening.say), info.in_cluster, &host);
        exchange.give_back(&host, connection);
        let closed = Mutex::new(false);
        let shared = Shared {
            name,
            exchange,
            live: Live::default(),
            ttl: url.ttl,
            page_bytes: opening.page_bytes,
            closed,
            closing: Condvar::new(),
        };
        shared.look_at_servers(url, opening)?;
        let store = RedisStore { shared: Arc::new(shared), lease_thread: Mutex::new(None) };
        store.try_out()?;
        store.start_lease_thread()?;
        Ok(store)
    }

    fn try_out(&self) -> Result<(), Error> {
        let page = vec![0x5a; self.shared.page_bytes];
        self.put(&[PutRun { location: TRIAL, bytes: &page }])?;
        let mut back = vec![0; self.shared.page_bytes];
        self.get(&mut [GetRun { location: TRIAL, bytes: &mut back }])?;
        self.forget_layer(TRIAL.layer)
    }

    fn start_lease_thread(&self) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let started = std::thread::Builder::new().name("masu-lease".to_owned()).spawn(move || shared.keep_leases());
        let thread = started.map_err(|error| self.shared.sort("open".to_owned(), &Failure::Io(error)))?;
        *self.lease_thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// Stops the lease thread. True for the first call.
    fn stop_lease_thread(&self) -> bool {
        let first = !std::mem::replace(&mut *self.shared.closed.lock().unwrap_or_else(PoisonError::into_inner), true);
        self.shared.closing.notify_all();
        if let Some(thread) = self.lease_thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
        first
    }
}

impl Drop for RedisStore {
    /// The pages stay until they expire: `close` deletes them, and can report a failure.
    fn drop(&mut self) {
        self.stop_lease_thread();
    }
}

impl Store for RedisStore {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn put(&self, runs: &[PutRun<'_>]) -> Result<(), Error> {
        let page_bytes = self.shared.page_bytes;
        runs.iter().for_each(|run| assert_whole(run.span(page_bytes), run.bytes.len(), page_bytes));
        let mut work = Puts::new(runs, self.shared.ttl_seconds(), page_bytes);
        self.shared.live.mark(work.blocks());
        let failed = |failed: Failed| {
            self.shared.sort_failed(|| operation("put", runs.iter().map(|run| run.span(page_bytes)), "into"), &failed)
        };
        self.shared.exchange.carry_out(&mut work).map_err(failed)
    }

    fn get(&self, runs: &mut [GetRun<'_>]) -> Result<(), Error> {
        let page_bytes = self.shared.page_bytes;
        runs.iter().for_each(|run| assert_whole(run.span(page_bytes), run.bytes.len(), page_bytes));
        let spans: Vec<Span> = runs.iter().map(|run| run.span(page_bytes)).collect();
        let operation = || operation("get", spans.iter().copied(), "from");
        let mut work = Gets::new(runs, page_bytes);
        self.shared.exchange.carry_out(&mut work).map_err(|failed| self.shared.sort_failed(operation, &failed))?;
        match &work.lost {
            None => Ok(()),
            Some((location, field)) => Err(self.shared.lost(operation(), *location, field)),
        }
    }

    fn forget(&self, spans: &[Span]) -> Result<(), Error> {
        spans.iter().for_each(|span| assert_in_bounds(*span));
        let operation = || operation("forget", spans.iter().copied(), "in");
        self.shared.forget(Forgets::new(spans), operation)
    }

    fn forget_layer(&self, layer: u32) -> Result<(), Error> {
        let mut last = layer.checked_sub(1).map(|before| (before, u64::MAX));
        while let Some((chunk, blocks)) = self.shared.live.next(last).filter(|(chunk, _)| chunk.0 == layer) {
            last = Some(chunk);
            self.shared.forget(Forgets::whole(&blocks), || format!("forget layer {layer} in"))?;
        }
        Ok(())
    }

    fn close(&self) -> Result<(), Error> {
        if !self.stop_lease_thread() {
            return Ok(());
        }
        let (begun, mut last, mut failed) = (Instant::now(), None, None);
        while let Some((chunk, blocks)) = self.shared.live.next(last) {
            last = Some(chunk);
            let forgotten = self.shared.forget(Forgets::whole(&blocks), || "delete what is left in".to_owned());
            if let Err(error) = forgotten {
                failed.get_or_insert(error);
                // Other nodes of a Cluster may still answer; but a program that has ended does not wait for them for
                // long.
                if begun.elapsed() > CLOSE_MAX {
                    break;
                }
            }
        }
        if let Some(error) = failed {
            let mut trouble = error.trouble().clone();
            trouble.remedy = format!("It goes away by itself within {}.", humantime::format_duration(self.shared.ttl));
            return Err(Error::Unreachable(trouble));
        }
        Ok(())
    }
}

impl Shared {
    fn ttl_seconds(&self) -> String {
        self.ttl.as_secs().to_string()
    }

    fn forget(&self, mut work: Forgets, operation: impl Fn() -> String) -> Result<(), Error> {
        let failed = |failed: Failed| self.sort_failed(operation, &failed);
        self.exchange.carry_out(&mut work).map_err(failed)?;
        self.live.clear(work.whole_blocks());
        Ok(())
    }

    /// Checks each master: whether it evicts keys, and whether it has the required replicas.
    fn look_at_servers(&self, url: &RedisUrl, opening: &Opening) -> Result<(), Error> {
        let open = || "open".to_owned();
        self.exchange.refresh().map_err(|failure| self.sort(open(), &failure))?;
        let topology = self.exchange.topology();
        if let Some(slot) = topology.uncovered() {
            return Err(self.sort(open(), &Failure::NoMaster(slot)));
        }
        let mut free = Some(Bytes(0));
        for master in topology.masters() {
            let host = &master.host;
            let info = self.exchange.info_of(master).map_err(|failure| self.sort(open(), &failure))?;
            let evicts = info.maxmemory_bytes > 0 && info.eviction != "noeviction" && !info.eviction.is_empty();
            let unfit = |cause: String, remedy: &str| {
                let (operation, store) = (open(), self.name.clone());
                Err(Error::Unfit(Trouble { operation, store, cause, remedy: remedy.to_owned() }))
            };
            if evicts && !url.accepts_eviction {
                let cause = format!("{host} throws keys away when it is full (maxmemory-policy {})", info.eviction);
                return unfit(
                    cause,
                    "Set maxmemory-policy noeviction there, or add ?eviction=accept: a lost page ends the program.",
                );
            }
            if let Some(wanted) = url.replicas.filter(|&wanted| info.replicas < wanted) {
                let cause = format!("{host} has {} replicas, and {wanted} were asked for", info.replicas);
                return unfit(cause, "Give it more, or ask for fewer: ?replicas=N.");
            }
            let left = Bytes(info.maxmemory_bytes).saturating_sub(Bytes(info.used_bytes));
            free = free.filter(|_| info.maxmemory_bytes > 0).map(|free| free + left);
        }
        // No limit is no promise, but there is no figure to compare.
        if let (Some(expected), Some(free)) = (opening.expected, free)
            && expected.scaled(ROOM) > free
        {
            let (name, needed) = (&self.name, expected.scaled(ROOM));
            (opening.say)(&format!("{name} has {free} free (maxmemory), and the program may need {needed} there"));
        }
        Ok(())
    }

    /// Renews all leases repeatedly, until the store is closed.
    fn keep_leases(&self) {
        let rest = (self.ttl / 4).min(Duration::from_secs(3600));
        let mut pause = rest;
        loop {
            let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = self.closing.wait_timeout_while(closed, pause, |closed| !*closed);
            if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                return;
            }
            // A store that does not answer now is asked again soon.
            pause = if self.renew_leases() { rest } else { rest / 8 };
        }
    }

    /// Renews all leases. False if it was interrupted: because the store does not answer, or is closed.
    fn renew_leases(&self) -> bool {
        let mut last = None;
        while let Some((chunk, blocks)) = self.live.next(last) {
            last = Some(chunk);
            let mut work = Leases { blocks: &blocks, ttl_seconds: self.ttl_seconds() };
            let renewed = self.exchange.carry_out(&mut work).is_ok();
            if !renewed || *self.closed.lock().unwrap_or_else(PoisonError::into_inner) {
                return false;
            }
        }
        true
    }

    fn lost(&self, operation: String, location: Location, field: &Field) -> Error {
        let cause = match field {
            Field::Short(bytes) => format!("{location} has {bytes} bytes and not {}", self.page_bytes),
            _ => format!("{location} is not there"),
        };
        let remedy = "A server was started again without its data, threw keys away, or was cleared: \
                      use replicas and maxmemory-policy noeviction.";
        Error::Lost(Trouble { operation, store: self.name.clone(), cause, remedy: remedy.to_owned() })
    }

    fn sort(&self, operation: String, failure: &Failure) -> Error {
        sorted(&self.name, operation, failure, false)
    }

    fn sort_failed(&self, operation: impl FnOnce() -> String, failed: &Failed) -> Error {
        let mut error = self.sort(operation(), &failed.failure);
        if let (Some(host), true) = (&failed.host, self.exchange.is_cluster()) {
            let (Error::Unreachable(trouble)
            | Error::Refused(trouble)
            | Error::Full(trouble)
            | Error::Lost(trouble)
            | Error::Unfit(trouble)) = &mut error;
            trouble.cause = format!("{host}: {}", trouble.cause);
        }
        error
    }
}

/// First of the URL's hosts that accepts a connection.
fn first_that_answers(url: &RedisUrl, access: &Access, name: &str) -> Result<(Host, Connection), Error> {
    let mut last = None;
    for host in &url.hosts {
        match Connection::open(host, access) {
            Ok(connection) => return Ok((host.clone(), connection)),
            Err(failure) => {
                let error = sorted(name, "open".to_owned(), &failure, true);
                if !error.is_passing() {
                    return Err(error);
                }
                last = Some(error);
            }
        }
    }
    Err(last.unwrap_or_else(|| sorted(name, "open".to_owned(), &Failure::NoMaster(0), true)))
}

/// Failure as an error. At the start, an invalid answer means the wrong kind of server; later it is a disturbance.
fn sorted(name: &str, operation: String, failure: &Failure, at_start: bool) -> Error {
    let remedy = hints::remedy(failure, name.starts_with("rediss:"), at_start);
    let trouble = Trouble { operation, store: name.to_owned(), cause: hints::cause(failure), remedy };
    match failure {
        Failure::Said { verdict, .. } => match verdict {
            Verdict::Moved | Verdict::Ask(_) | Verdict::Later => Error::Unreachable(trouble),
            Verdict::Refused => Error::Refused(trouble),
            Verdict::Full => Error::Full(trouble),
            Verdict::Unfit => Error::Unfit(trouble),
        },
        Failure::Io(error) => match connection::tls_failure(failure) {
            Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_)) => Error::Refused(trouble),
            Some(rustls::Error::InvalidMessage(_)) if at_start => Error::Unfit(trouble),
            None if at_start && error.kind() == io::ErrorKind::InvalidData => Error::Unfit(trouble),
            _ => Error::Unreachable(trouble),
        },
        _ => Error::Unreachable(trouble),
    }
}
