//! `masu-bench demo`: masu's effect on a real Redis, in two minutes and one table: three equal servers, on 4 KiB pages,
//! with THP=always, and with masu attached; then `masu serve` with two programs under two rules. The figures with intervals come from `masu-bench redis`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hugepages::report::Report as AttachReport;
use units::Bytes;

use crate::demo_service;
use crate::harness::Runs;
use crate::place::Place;
use crate::process::{Resident, resident};
use crate::random::Keys;
use crate::redis::client::Client;
use crate::redis::server::Server;
use crate::report::Unit;
use crate::session::Session;
use crate::table::Table;
use crate::thp::{Guard, Mode};
use units::spread::Random;

/// Arguments of `masu-bench demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Keys in each server; a million and a half take about 1 GiB
    #[arg(long, default_value_t = 1_500_000)]
    pub keys: u32,
    /// Rounds of measuring the servers in turns
    #[arg(long, default_value_t = 6)]
    pub rounds: usize,
    /// Length of each measurement, in milliseconds
    #[arg(long, default_value_t = 2000)]
    pub segment_ms: u64,
}

const VALUE_BYTES: usize = 512;
const SETTLE_LIMIT: Duration = Duration::from_secs(30);

/// A server under one condition.
struct Condition {
    name: &'static str,
    server: Server,
    client: Client,
}

/// Runs the benchmark.
///
/// # Errors
/// When Redis or masu is missing, a wrong value comes back, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.keys > 0 && options.rounds > 0, "--keys and --rounds: expected at least 1");
    let masu = session.masu()?;
    println!("host: {}", session.host);
    println!(
        "Three redis-servers are loaded with {} values of {VALUE_BYTES} bytes and asked for random ones.",
        options.keys
    );
    session.warm_up_to(Bytes::gib(6))?;
    session.processors.bind_this_thread(Place::Only(1))?;
    let always = {
        let _guard = Guard::turn(Mode::Always)?;
        loaded("THP=always", session, options)?
    };
    let _guard = Guard::turn(Mode::Madvise)?;
    let plain = loaded("4 KiB pages", session, options)?;
    let mut servers = [plain, loaded("4 KiB pages, then masu attach", session, options)?, always];
    let pool = Keys::over(options.keys, None).draw(1 << 18, &mut Random::seeded(42));

    session.progress("attaching masu");
    let mut attached = masu.attach(servers[1].server.pid(), &["--until-settled"], &session.processors)?;
    let go_on = |since| attached.is_running() && since < SETTLE_LIMIT;
    servers[1].client.get_while(&pool, VALUE_BYTES, &session.stop, go_on)?;
    let report = attached.finish(Duration::ZERO, &session.stop)?;
    servers[1].client.check(options.keys, VALUE_BYTES).context("after masu")?;

    let time = Duration::from_millis(options.segment_ms);
    let names = servers.each_ref().map(|condition| condition.name);
    let mut gets_per_s = Runs::default();
    gets_per_s.measure(session, options.rounds, "", &names, |turn| {
        Ok(servers[turn.nth].client.get_while(&pool, VALUE_BYTES, &session.stop, |since| since < time)?.0)
    })?;
    println!("\n{}\n{}", table(&servers, &gets_per_s)?, explained(&report));
    drop(servers);
    demo_service::run(session, &masu, options.keys / 4, VALUE_BYTES)
}

fn loaded(name: &'static str, session: &Session, options: &Options) -> Result<Condition> {
    session.progress(&format!("loading a redis-server: {name}"));
    let server = Server::start(&session.processors, Place::Only(0), &session.stop)?;
    let mut client = server.client()?;
    client.load(0, options.keys, VALUE_BYTES, &session.stop)?;
    client.check(options.keys, VALUE_BYTES)?;
    Ok(Condition { name, server, client })
}

fn table(servers: &[Condition], gets_per_s: &Runs<&'static str, f64>) -> Result<Table> {
    let mut table = Table::new(["redis-server", "GET", "", "resident memory", "", "on huge pages"]);
    let mut first: Option<(f64, Resident)> = None;
    for Condition { name, server, .. } in servers {
        let (speed, memory) = (gets_per_s.median("", *name, |rate| *rate).unwrap_or(f64::NAN), resident(server.pid())?);
        let signed = |growth: f64| format!("{:+.1} %", growth * 100.0);
        table.row([
            (*name).to_owned(),
            Unit::PerSecond.print(speed),
            first.map_or_else(String::new, |(base, _)| signed(speed / base - 1.0)),
            Unit::Bytes.print(memory.rss_bytes.0 as f64),
            first.map_or_else(String::new, |(_, base)| signed(memory.rss_bytes.growth_over(base.rss_bytes))),
            Unit::Fraction.print(memory.anon_huge_bytes.0 as f64 / memory.rss_bytes.0.max(1) as f64),
        ]);
        first.get_or_insert((speed, memory));
    }
    Ok(table)
}

fn explained(report: &AttachReport) -> String {
    let settled = match report.settled_s.filter(|_| report.settled) {
        Some(time) => format!("settled after {}", Unit::Seconds.print(time)),
        None => format!("did not settle within {} s", SETTLE_LIMIT.as_secs()),
    };
    format!(
        "masu {settled}, put {} of {} windows of 2 MiB on huge pages and used {} of processor time.\n\
         Every value was read back and compared afterwards. Medians; for intervals, see `masu-bench redis`.",
        report.windows_promoted,
        report.windows_seen,
        Unit::Seconds.print(report.cpu_s)
    )
}
