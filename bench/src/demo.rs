//! `masu-bench demo`: what masu does for a real Redis, in two minutes and one table. One run, for the eye; the figures with
//! intervals come from `masu-bench redis`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::masu::AttachReport;
use crate::place::Place;
use crate::process::{Resident, resident};
use crate::random::XorShift;
use crate::redis::client::{Client, Look};
use crate::redis::keys::{Distribution, Keys};
use crate::redis::server::Server;
use crate::report::Unit;
use crate::session::Session;
use crate::table::Table;
use crate::thp::{Guard, Mode};

/// Arguments of `masu-bench demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Keys in the server; a million and a half take about 1 GiB
    #[arg(long, default_value_t = 1_500_000)]
    pub keys: u32,
    /// Length of each measurement, in seconds
    #[arg(long, default_value_t = 8)]
    pub seconds: u64,
}

const VALUE_BYTES: usize = 512;

/// One line of the table.
struct Line {
    name: &'static str,
    gets_per_s: f64,
    memory: Resident,
}

/// Runs it.
///
/// # Errors
/// When Redis or masu is missing, a wrong value comes back, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    let masu = session.masu()?;
    println!("host: {}", session.host);
    println!(
        "A real redis-server is loaded with {} keys of {VALUE_BYTES} bytes and asked for random ones.",
        options.keys
    );
    session.warm_up()?;
    session.processors.bind_this_thread(Place::Only(1))?;
    let mut lines = Vec::new();
    let report = {
        let _guard = Guard::turn(Mode::Madvise)?;
        let (server, mut client) = loaded(session, options)?;
        lines.push(measured("4 KiB pages", session, options, &server, &mut client)?);
        session.progress("attaching masu");
        let mut attached = masu.attach(server.pid(), &["--until-settled"], &session.processors)?;
        let limit = Duration::from_secs(30);
        let so_long = |attached: &mut crate::masu::Attached| attached.is_running() && attached.age() < limit;
        gets(&mut client, session, options, || so_long(&mut attached))?;
        let report = attached.finish(Duration::ZERO, &session.stop)?;
        lines.push(measured("4 KiB pages, then masu attach", session, options, &server, &mut client)?);
        let all: Vec<u32> = (0..options.keys).collect();
        client.get_pipelined(&all, VALUE_BYTES, Look::Whole).context("after masu")?;
        report
    };
    {
        let _guard = Guard::turn(Mode::Always)?;
        let (server, mut client) = loaded(session, options)?;
        lines.push(measured("THP=always from the start", session, options, &server, &mut client)?);
    }
    println!("\n{}\n{}", table(&lines), explained(&report));
    Ok(())
}

fn loaded(session: &Session, options: &Options) -> Result<(Server, Client)> {
    session.progress("starting and loading a redis-server");
    let server = Server::start(&session.processors, Place::Only(0), &session.stop)?;
    let mut client = server.client()?;
    client.load(0, options.keys, VALUE_BYTES, &session.stop)?;
    let all: Vec<u32> = (0..options.keys).collect();
    client.get_pipelined(&all, VALUE_BYTES, Look::Whole)?;
    Ok((server, client))
}

fn measured(
    name: &'static str,
    session: &Session,
    options: &Options,
    server: &Server,
    client: &mut Client,
) -> Result<Line> {
    session.progress(&format!("measuring: {name}"));
    let begun = Instant::now();
    let gets_per_s = gets(client, session, options, || begun.elapsed() < Duration::from_secs(options.seconds))?;
    Ok(Line { name, gets_per_s, memory: resident(server.pid())? })
}

/// Asks for random keys at full speed while `go_on` says so; GETs per second.
fn gets(client: &mut Client, session: &Session, options: &Options, mut go_on: impl FnMut() -> bool) -> Result<f64> {
    let keys = Keys::over(usize::try_from(options.keys)?, Distribution::Uniform);
    let pool = keys.draw(1 << 18, &mut XorShift::seeded(42));
    let (mut done, begun) = (0usize, Instant::now());
    for batch in pool.chunks(1 << 13).cycle() {
        session.stop.check()?;
        if !go_on() {
            break;
        }
        client.get_pipelined(batch, VALUE_BYTES, Look::Quick)?;
        done += batch.len();
    }
    Ok(done as f64 / begun.elapsed().as_secs_f64())
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new(["redis-server", "GET", "", "resident memory", "", "on huge pages"]);
    for line in lines {
        let (first, rss) = (&lines[0], line.memory.rss_bytes);
        let signed = |fraction: f64| format!("{:+.1} %", fraction * 100.0);
        let against = |growth: f64| if std::ptr::eq(first, line) { String::new() } else { signed(growth) };
        table.row([
            line.name.to_owned(),
            Unit::PerSecond.print(line.gets_per_s),
            against(line.gets_per_s / first.gets_per_s - 1.0),
            Unit::Bytes.print(rss.0 as f64),
            against(rss.growth_over(first.memory.rss_bytes)),
            Unit::Fraction.print(line.memory.anon_huge_bytes.0 as f64 / rss.0.max(1) as f64),
        ]);
    }
    table
}

fn explained(report: &AttachReport) -> String {
    let settled = match report.settled_s.filter(|_| report.settled) {
        Some(time) => format!("settled after {}", Unit::Seconds.print(time)),
        None => "did not settle within 30 s".to_owned(),
    };
    format!(
        "masu {settled}, put {} of {} windows of 2 MiB on huge pages and used {} of processor time.\n\
         Every value was read back and compared afterwards. One run: for intervals, see `masu-bench redis`.",
        report.windows_promoted,
        report.windows_seen,
        Unit::Seconds.print(report.cpu_s)
    )
}
