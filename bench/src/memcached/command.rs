//! `masu-bench memcached`: throughput and memory of memcached in several ways, over runs from start to end.
//!
//! The paper's experiment (section 6.4) by default. `--workload scattered` selects the paper's case against promotion
//! by windows (section 2.2.3): few hot items in every 2 MiB, so that no window is worth a huge page, and only moving
//! them helps.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use units::spread::Random;

use crate::choices;
use crate::harness::Runs;
use crate::memcached::client::Client;
use crate::memcached::condition::Condition;
use crate::memcached::findings;
use crate::memcached::keys::{Law, Wanted};
use crate::memcached::one_run::Bench;
use crate::memcached::server::locate;
use crate::session::Session;

/// Arguments of `masu-bench memcached`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Requested items
    #[arg(long, value_enum, default_value_t = Workload::Zipfian)]
    pub workload: Workload,
    /// Number of items [default: 800000, as in the paper; --workload scattered: 4 GiB of them]
    #[arg(long)]
    pub items: Option<u32>,
    /// Memory of the items in GiB, instead of --items
    #[arg(long, value_name = "GIB", conflicts_with = "items")]
    pub memory_gib: Option<f64>,
    /// Bytes of each value
    #[arg(long, default_value_t = 512)]
    pub size: usize,
    /// Distribution of the requested items, with --workload zipfian
    #[arg(long, value_enum, default_value_t = Law::Ycsb)]
    pub law: Law,
    /// Hot items in every 2 MiB, with --workload scattered
    #[arg(long, default_value_t = 8)]
    pub hot_per_window: usize,
    /// Runs under each condition [default: 10; --workload scattered: 6; --quick: 2]
    #[arg(long)]
    pub runs: Option<usize>,
    /// Time of measuring each number of keys per request in a run, in seconds [default: 10; --quick: 2]
    #[arg(long)]
    pub seconds: Option<u64>,
    /// Least time of requests before that, in seconds [default: 30; --quick: 10]
    #[arg(long)]
    pub settle: Option<u64>,
    /// Time after which an unsettled masu is measured nevertheless, in seconds
    #[arg(long, default_value_t = 180)]
    pub settle_limit: u64,
    /// Keys per request; the last number is used while masu settles
    #[arg(long, value_delimiter = ',', default_values_t = [1, 50])]
    pub keys_per_get: Vec<usize>,
    /// Connections of the client, each with one request in flight
    #[arg(long, default_value_t = 4)]
    pub connections: usize,
    /// Ways of running memcached [default: default, always, collapsed, large-pages, hps; scattered: promote instead of large-pages]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub conditions: Vec<Condition>,
    /// Path of the unpatched memcached [default: from integrations/memcached/build --plain]
    #[arg(long, value_name = "PATH")]
    pub plain_server: Option<PathBuf>,
    /// Path of the memcached that cooperates with masu [default: from integrations/memcached/build]
    #[arg(long, value_name = "PATH")]
    pub hps_server: Option<PathBuf>,
    /// Further options for the memcached that cooperates, such as hps_arena=64
    #[arg(long, value_name = "OPTION", value_delimiter = ',')]
    pub hps: Vec<String>,
    /// Run fewer and shorter measurements: a check that it works, not a result
    #[arg(long)]
    pub quick: bool,
}

choices! {
    /// Items that the clients ask for.
    pub enum Workload {
        Zipfian = "zipfian", "All items, few of them often";
        Scattered = "scattered", "A few items of every 2 MiB, and no others";
    }
}

/// Memory of an item beyond its value: memcached's header, the key, and the unused rest of its chunk.
const BEYOND_VALUE_BYTES: usize = 88;

impl Options {
    /// Items that are set.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked: fewer than 2^31 items")]
    pub fn items(&self) -> u32 {
        let per_gib = f64::from(1 << 30) / (self.size + BEYOND_VALUE_BYTES) as f64;
        let gib = |gib: f64| (gib * per_gib) as u32;
        match (self.items, self.memory_gib, self.workload) {
            (Some(items), _, _) => items,
            (None, Some(memory), _) => gib(memory),
            (None, None, Workload::Zipfian) => 800_000,
            (None, None, Workload::Scattered) => gib(if self.quick { 0.5 } else { 4.0 }),
        }
    }

    /// memcached's -m: enough for all, with its classes a quarter apart.
    pub fn memory_mib(&self) -> u64 {
        let bytes = (self.size + BEYOND_VALUE_BYTES) as u64 * u64::from(self.items());
        (bytes * 5 / 4 / (1 << 20)) + 64
    }

    /// Runs under each condition.
    pub fn runs(&self) -> usize {
        self.runs.unwrap_or(match (self.quick, self.workload) {
            (true, _) => 2,
            (false, Workload::Zipfian) => 10,
            (false, Workload::Scattered) => 6,
        })
    }

    /// Seconds of one measurement.
    pub fn seconds(&self) -> u64 {
        self.seconds.unwrap_or(if self.quick { 2 } else { 10 })
    }

    /// Seconds before the first measurement, at least.
    pub fn settle(&self) -> u64 {
        self.settle.unwrap_or(if self.quick { 10 } else { 30 })
    }

    /// Keys a request while it settles.
    pub fn keys_while_settling(&self) -> usize {
        self.keys_per_get.last().copied().unwrap_or(1)
    }

    /// The conditions, in order.
    pub fn conditions(&self) -> Vec<Condition> {
        let fourth = match self.workload {
            Workload::Zipfian => Condition::LargePages,
            Workload::Scattered => Condition::Promote,
        };
        let usual = [Condition::Default, Condition::Always, Condition::Collapsed, fourth, Condition::Hps];
        if self.conditions.is_empty() { usual.to_vec() } else { self.conditions.clone() }
    }

    /// Requested items, for items that take `chunk_bytes` each. The hot ones are the same in all runs.
    pub fn wanted(&self, chunk_bytes: usize) -> Wanted {
        match self.workload {
            Workload::Zipfian => Wanted::all(self.items(), self.law),
            Workload::Scattered => {
                Wanted::scattered(self.items(), chunk_bytes, self.hot_per_window, &mut Random::seeded(11))
            }
        }
    }

    fn check(&self) -> Result<()> {
        if let Some(gib) = self.memory_gib {
            ensure!(gib > 0.0 && gib <= 256.0, "--memory-gib {gib}: expected more than 0 and up to 256");
        }
        ensure!((8..=1 << 16).contains(&self.size), "--size {}: expected 8 to 65536 bytes", self.size);
        let items = self.items();
        ensure!((1000..1 << 31).contains(&items), "--items {items}: expected 1000 to 2147483647");
        ensure!(self.runs() > 0 && self.seconds() > 0, "--runs and --seconds: expected at least 1");
        ensure!(self.hot_per_window > 0, "--hot-per-window 0: expected at least 1");
        for keys in &self.keys_per_get {
            ensure!((1..=1000).contains(keys), "--keys-per-get {keys}: expected 1 to 1000");
        }
        ensure!((1..=64).contains(&self.connections), "--connections {}: expected 1 to 64", self.connections);
        Ok(())
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When masu, a memcached or libmemcached is missing, an item is lost or wrong, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    options.check()?;
    let masu = session.masu()?;
    let conditions = options.conditions();
    let plain = locate(options.plain_server.as_deref(), "plain")?;
    let patched =
        conditions.contains(&Condition::Hps).then(|| locate(options.hps_server.as_deref(), "hps")).transpose()?;
    let client = Client::compile()?;
    session.warm_up()?;
    let bench = Bench { session, options, masu, plain, patched, client };
    let mut runs = Runs::default();
    runs.measure(session, options.runs(), "", &conditions, |turn| bench.run(turn.way, turn.round))?;
    runs.finish(findings::report(session, options, &runs), session)
}
