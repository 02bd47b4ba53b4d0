//! One run under one condition: a server is started, filled, asked until it has settled, then measured, and ended.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hugepages::report::Report as AttachReport;
use serde::Serialize;
use tempfile::TempDir;
use units::Bytes;

use crate::latency::Latency;
use crate::masu::{Attached, Masu};
use crate::memcached::client::{Client, Got};
use crate::memcached::command::Options;
use crate::memcached::condition::Condition;
use crate::memcached::keys::Wanted;
use crate::memcached::sampler::{Sampler, Series};
use crate::memcached::server::{Server, Stats, chunk_bytes};
use crate::memcached::settling::{Look, has_settled};
use crate::place::Place;
use crate::process::{hugetlb, processor_time, resident, rss_counted};
use crate::session::Session;
use crate::thp::{Guard, Hurry};
use crate::tracker::{Tracker, socket_in};
use units::spread::Random;

/// Processor of the server with all its threads, and of the client.
const SERVER: Place = Place::Only(0);
const CLIENT: Place = Place::Only(1);

const SECOND: Duration = Duration::from_secs(1);

/// Time limit for khugepaged; after it, the run goes on with the pages collapsed by then.
const COLLAPSE_LIMIT: Duration = Duration::from_secs(600);

/// Numbers drawn for one run: more requests than a machine's caches remember.
const DRAWN: usize = 1 << 22;

/// Inputs common to all runs.
pub struct Bench<'a> {
    pub session: &'a Session,
    pub options: &'a Options,
    pub masu: Masu,
    /// memcached as the distribution has it.
    pub plain: PathBuf,
    /// memcached that cooperates, where it is needed.
    pub patched: Option<PathBuf>,
    pub client: PathBuf,
}

/// Requests with a fixed number of keys each.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub keys_per_get: usize,
    pub gets_per_s: f64,
    pub latency: Latency,
    pub server_busy_fraction: f64,
    pub client_busy_fraction: f64,
}

/// Cost of watching.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Watched {
    /// Part of one processor from the first get until it had settled.
    pub settling_fraction: f64,
    /// The same while it was measured.
    pub settled_fraction: f64,
    pub rss_bytes: f64,
}

/// All that one run shows.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Time from the first set until all are answered, in seconds.
    pub load_s: f64,
    /// Time from the first get until masu and memcached had settled, in seconds; `None` without masu, or when they had
    /// not.
    pub settled_s: Option<f64>,
    /// Keys a second from the first get on, all of the settling included.
    pub whole_gets_per_s: f64,
    /// Latency of requests until the run had settled.
    pub settling: Latency,
    /// Settled, for each number of keys a request.
    pub measured: Vec<Measured>,
    /// Resident memory from the begin of the load on, pages of the hugetlb pool included.
    pub rss_over_time: Series,
    /// Keys a second over the same time, while it settles.
    pub gets_over_time: Series,
    /// Resident memory at the end.
    pub rss_bytes: f64,
    /// Part of it on huge pages.
    pub huge_bytes: f64,
    /// Bytes of an item, and number of requested items.
    pub chunk_bytes: usize,
    /// Items that are asked for at all.
    pub asked_for: usize,
    /// The tracker.
    pub watched: Option<Watched>,
    /// masu attach, where promotion was alone.
    pub attach: Option<AttachReport>,
    /// Answer to `stats hps`.
    pub hps: Stats,
}

/// A run under way.
struct Live<'a> {
    bench: &'a Bench<'a>,
    condition: Condition,
    server: Server,
    client: Client,
    tracker: Option<Tracker>,
    attached: Option<Attached>,
    /// Begin of the load.
    begun: Instant,
    gets_over_time: Series,
    looks: Vec<Look>,
}

/// Results of the time until the run had settled.
struct Settled {
    got: Got,
    at_s: Option<f64>,
    latency: Latency,
    attach: Option<AttachReport>,
}

impl Bench<'_> {
    /// Does one run. `round` seeds the draws: all conditions of a round request the same items.
    ///
    /// # Errors
    /// When a program is missing or fails, an item is lost or wrong, or we are interrupted.
    pub fn run(&self, condition: Condition, round: usize) -> Result<Run> {
        let (session, options) = (self.session, self.options);
        let items = options.items();
        session.keep_warm(Bytes::mib(options.memory_mib()))?;
        let _guard = Guard::turn(condition.mode())?;
        let watches = (condition == Condition::Hps).then(Tracker::folder).transpose()?;
        let socket = watches.as_ref().map(|folder| socket_in(folder.path()));
        let tracker = watches.map(|folder| Tracker::start_in(folder, &self.masu, &[], session)).transpose()?;
        let server = self.start(condition, socket.as_deref())?;
        let folder = TempDir::with_prefix("masu-bench-drawn-").context("cannot create a folder")?;
        let drawn = folder.path().join("drawn");
        let mut random = Random::seeded(round as u64);
        Wanted::Some(vec![0]).draw_to(&drawn, 1024, &mut random)?;
        let mut client = self.connect(&server, &drawn)?;

        let (sampler, begun) = (Sampler::start(server.pid()), Instant::now());
        client.set(items, session)?;
        let load_s = begun.elapsed().as_secs_f64();
        let missing = client.check(items, session)?;
        ensure!(missing == 0, "{missing} of {items} items were lost while they were set: -m is too small");
        wait_for_hash_table(&server, session)?;
        let chunk_bytes =
            chunk_bytes(&server.stats("slabs")?).context("memcached does not say how large its chunks are")?;
        let wanted = options.wanted(chunk_bytes);
        wanted.draw_to(&drawn, DRAWN, &mut random)?;
        let client = self.connect(&server, &drawn)?;

        let (gets_over_time, looks) = (Series::new(), Vec::new());
        let live =
            Live { bench: self, condition, server, client, tracker, attached: None, begun, gets_over_time, looks };
        let run = live.finish(sampler)?;
        Ok(Run { load_s, chunk_bytes, asked_for: wanted.distinct(), ..run })
    }

    /// Starts the server with a tracker that listens at `socket`, or will.
    fn start(&self, condition: Condition, socket: Option<&Path>) -> Result<Server> {
        let program = match condition {
            Condition::Hps => self.patched.as_ref().context("no patched memcached")?,
            _ => &self.plain,
        };
        let mut arguments = Vec::new();
        if condition == Condition::LargePages {
            arguments.push("-L".to_owned());
        }
        if let Some(socket) = socket {
            let socket = format!("hps_socket={}", socket.display());
            let options = ["hps".to_owned(), socket].into_iter().chain(self.options.hps.iter().cloned());
            arguments.extend(["-o".to_owned(), options.collect::<Vec<_>>().join(",")]);
        }
        Server::start(program, self.options.memory_mib(), &arguments, SERVER, self.session)
    }

    fn connect(&self, server: &Server, drawn: &Path) -> Result<Client> {
        let (connections, bytes) = (self.options.connections, self.options.size);
        Client::start(&self.client, (&server.socket(), drawn), (connections, bytes), CLIENT, self.session)
    }
}

impl Live<'_> {
    fn finish(mut self, sampler: Sampler) -> Result<Run> {
        let (session, options) = (self.bench.session, self.bench.options);
        if self.condition == Condition::Collapsed {
            self.collapse()?;
        }
        if self.condition == Condition::Promote {
            let attached = self.bench.masu.attach(self.server.pid(), &["--until-settled"], &session.processors)?;
            self.attached = Some(attached);
        }
        let (cpu_before, first_get) = (self.tracker_cpu()?, Instant::now());
        let settled = self.settle()?;
        let (cpu_settled, settling_took) = (self.tracker_cpu()?, first_get.elapsed());
        let (mut measured, mut whole) = (Vec::new(), settled.got);
        for &keys in &options.keys_per_get {
            let (got, one) = self.measure(keys)?;
            if keys == options.keys_while_settling() {
                whole = whole.and(got);
            }
            measured.push(one);
        }
        let (cpu_end, measuring_took) = (self.tracker_cpu()?, first_get.elapsed() - settling_took);
        let rss_over_time = sampler.finish();
        let pid = self.server.pid();
        let (memory, pool) = (resident(pid)?, hugetlb(pid)?.0 as f64);
        let share = |from: Duration, to: Duration, over: Duration| (to - from).as_secs_f64() / over.as_secs_f64();
        let watched = match &self.tracker {
            None => None,
            Some(tracker) => Some(Watched {
                settling_fraction: share(cpu_before, cpu_settled, settling_took),
                settled_fraction: share(cpu_settled, cpu_end, measuring_took),
                rss_bytes: rss_counted(tracker.pid())?.0 as f64,
            }),
        };
        let hps = if self.tracker.is_some() { self.server.stats("hps")? } else { BTreeMap::new() };
        let missing = self.client.check(options.items(), session).context("when all items were read again")?;
        ensure!(missing == 0, "{missing} items were lost");
        if let Some(tracker) = self.tracker.take() {
            tracker.finish(&session.stop)?;
        }
        Ok(Run {
            load_s: 0.0,
            settled_s: settled.at_s,
            whole_gets_per_s: whole.per_s(),
            settling: settled.latency,
            measured,
            rss_over_time,
            gets_over_time: self.gets_over_time,
            rss_bytes: memory.rss_bytes.0 as f64 + pool,
            huge_bytes: memory.anon_huge_bytes.0 as f64 + pool,
            chunk_bytes: 0,
            asked_for: 0,
            watched,
            attach: settled.attach,
            hps,
        })
    }

    fn tracker_cpu(&self) -> Result<Duration> {
        self.tracker.as_ref().map_or(Ok(Duration::ZERO), Tracker::processor_time)
    }

    /// Has khugepaged go through all memory: twice, since it may have been in the middle of it, and until that changes nothing.
    fn collapse(&mut self) -> Result<()> {
        self.bench.session.progress("waiting for khugepaged");
        let _hurry = Hurry::begin()?;
        let (begun, keys) = (Instant::now(), self.bench.options.keys_while_settling());
        let mut huge_before = Bytes(u64::MAX);
        while begun.elapsed() < COLLAPSE_LIMIT {
            let scans = Hurry::full_scans()?;
            while Hurry::full_scans()? < scans + 2 && begun.elapsed() < COLLAPSE_LIMIT {
                // The command acts only on recently touched items.
                self.client.get(keys, SECOND, self.bench.session)?;
            }
            let huge = resident(self.server.pid())?.anon_huge_bytes;
            if huge == huge_before {
                break;
            }
            huge_before = huge;
        }
        self.client.latency(self.bench.session).map(|_| ())
    }

    /// Requests keys for the configured time, and with masu until it has settled.
    fn settle(&mut self) -> Result<Settled> {
        let (session, options) = (self.bench.session, self.bench.options);
        let (begun, keys) = (Instant::now(), options.keys_while_settling());
        let (mut got, mut at_s) = (Got::default(), None);
        let (least, most) = (Duration::from_secs(options.settle()), Duration::from_secs(options.settle_limit));
        while begun.elapsed() < least || (self.may_settle() && at_s.is_none() && begun.elapsed() < most) {
            let piece = self.client.get(keys, SECOND, session)?;
            ensure!(piece.misses == 0.0, "{} keys were not there", piece.misses);
            got = got.and(piece);
            self.gets_over_time.push((self.begun.elapsed().as_secs_f64(), piece.per_s()));
            at_s = if self.is_settled()? { at_s.or(Some(begun.elapsed().as_secs_f64())) } else { None };
        }
        let attach = self.attached.take().map(|attached| attached.finish(Duration::ZERO, &session.stop)).transpose()?;
        Ok(Settled { got, at_s, latency: self.client.latency(session)?, attach })
    }

    /// Whether masu or the tracker is active, which settle.
    const fn may_settle(&self) -> bool {
        self.tracker.is_some() || self.attached.is_some()
    }

    fn is_settled(&mut self) -> Result<bool> {
        if let Some(attached) = &mut self.attached {
            return Ok(!attached.is_running());
        }
        if self.tracker.is_none() {
            return Ok(false);
        }
        self.looks.push(Look::of(&self.server.stats("hps")?)?);
        Ok(has_settled(&self.looks))
    }

    /// Of server and client.
    fn processor_times(&self) -> Result<[f64; 2]> {
        let of = |pid| processor_time(pid).map(|time| time.as_secs_f64());
        Ok([of(self.server.pid())?, of(self.client.pid())?])
    }

    fn measure(&mut self, keys: usize) -> Result<(Got, Measured)> {
        let (session, options) = (self.bench.session, self.bench.options);
        let (before, begun) = (self.processor_times()?, Instant::now());
        let mut got = Got::default();
        for _ in 0..options.seconds() {
            got = got.and(self.client.get(keys, SECOND, session)?);
        }
        let (after, took) = (self.processor_times()?, begun.elapsed().as_secs_f64());
        ensure!(got.misses == 0.0, "{} keys were not there", got.misses);
        let [server_busy_fraction, client_busy_fraction] = [0, 1].map(|of| (after[of] - before[of]) / took);
        let latency = self.client.latency(session)?;
        let gets_per_s = got.per_s();
        Ok((got, Measured { keys_per_get: keys, gets_per_s, latency, server_busy_fraction, client_busy_fraction }))
    }
}

/// memcached goes on moving its hash table to a larger one after the last set.
fn wait_for_hash_table(server: &Server, session: &Session) -> Result<()> {
    for _ in 0..600 {
        if server.stats("")?.get("hash_is_expanding").is_none_or(|is| is == "0") {
            return Ok(());
        }
        session.stop.sleep(Duration::from_millis(100))?;
    }
    Ok(())
}
