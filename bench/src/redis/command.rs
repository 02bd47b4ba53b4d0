//! `masu-bench redis`: GET throughput and memory of one server on 4 KiB pages, one with THP=always, and one with masu
//! attached; and the cost of the attaching.
//!
//! All three servers live at the same time and are measured in turns. Each reload starts them anew, because a server's
//! speed depends on its physical addresses: the row "before masu" gives the size of this effect, for two equal servers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hugepages::report::Report as AttachReport;
use serde::Serialize;
use units::Bytes;

use crate::choices;
use crate::harness::{Column, Metric, Runs, median_of, or_dash};
use crate::masu::Masu;
use crate::place::Place;
use crate::process::{processor_time, resident};
use crate::random::Keys;
use crate::redis::client::Client;
use crate::redis::keys::Distribution;
use crate::redis::latency::{Answered, Asker};
use crate::redis::server::Server;
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::stop::Stop;
use crate::table::Table;
use crate::thp::{Guard, Mode};
use crate::warm_up::Reservoir;
use units::spread::Random;

/// Arguments of `masu-bench redis`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Data in each server, in GiB
    #[arg(long, default_value_t = 2.0)]
    pub gib: f64,
    /// Keys in each server, instead of --gib
    #[arg(long)]
    pub keys: Option<u32>,
    /// Bytes of each value
    #[arg(long, default_value_t = 512)]
    pub value_bytes: usize,
    /// Distribution of the requested keys
    #[arg(long, value_enum, default_value_t = Distribution::Zipfian)]
    pub dist: Distribution,
    /// Measurements of each server, per reload
    #[arg(long, default_value_t = 5)]
    pub pairs: usize,
    /// Number of restarts of the servers
    #[arg(long, default_value_t = 4)]
    pub reloads: usize,
    /// Length of one measurement, in milliseconds
    #[arg(long, default_value_t = 2000)]
    pub segment_ms: u64,
    /// Load of the server while masu is attached, as a part of its highest throughput
    #[arg(long, default_value_t = 0.25)]
    pub load: f64,
    /// Leave memory in the state given by the host of a virtual machine, instead of keeping it warm for masu
    #[arg(long)]
    pub cold: bool,
    /// Time after which an unsettled masu is asked to end, in seconds
    #[arg(long, default_value_t = 60)]
    pub settle_limit: u64,
}

choices! {
    /// Server, and whether masu has been attached to the last of the three.
    enum Way {
        PlainBefore = "4k-before-masu", "4 KiB pages, before masu";
        MasuBefore = "another-before-masu", "another, before masu";
        Plain = "4k", "4 KiB pages";
        Always = "always", "THP=always";
        Masu = "masu", "masu";
    }
}

/// Processor of the servers, and of the client.
const SERVER: Place = Place::Only(0);
const CLIENT: Place = Place::Only(1);

/// Time of the latency measurement before masu starts, and after it has ended.
const QUIET: Duration = Duration::from_secs(10);

/// Idle time before that: the host of a virtual machine is busy for a while with freed memory.
const CALM: Duration = Duration::from_secs(5);

/// About as long as masu takes to promote a GiB.
const PROMOTING_A_GIB: Duration = Duration::from_millis(1200);

/// A loaded server and its connection.
struct Loaded {
    server: Server,
    client: Client,
}

/// One measurement of one server.
#[derive(Clone, Copy, Debug, Serialize)]
struct Segment {
    gets_per_s: f64,
    rss_bytes: f64,
    huge_bytes: f64,
    server_busy_fraction: f64,
}

/// One attach in one reload, and the latency of requests before, during and after.
#[derive(Debug, Serialize)]
struct Attach {
    server_busy_fraction: f64,
    quiet: Answered,
    /// While another process frees as much memory as masu's promotions free.
    freeing: Answered,
    during: Answered,
    after: Answered,
    rss_before_bytes: f64,
    rss_after_bytes: f64,
    report: AttachReport,
}

impl Attach {
    fn growth(&self) -> f64 {
        self.rss_after_bytes / self.rss_before_bytes - 1.0
    }

    fn settled_s(&self) -> Option<f64> {
        self.report.settled_s.filter(|_| self.report.settled)
    }
}

/// Inputs common to all reloads.
struct Bench<'a> {
    session: &'a Session,
    options: &'a Options,
    masu: Masu,
    /// No keys until the first server has been loaded with --gib.
    keys: Keys,
    random: Random,
}

/// Runs the benchmark.
///
/// # Errors
/// When Redis or masu is missing, a wrong value comes back, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.gib > 0.0 && options.gib < 1024.0, "--gib {}: expected more than 0 and below 1024", options.gib);
    ensure!((8..1 << 20).contains(&options.value_bytes), "--value-bytes: expected 8 to 1048575");
    ensure!(options.pairs > 0 && options.reloads > 0, "--pairs and --reloads: expected at least 1");
    ensure!(options.load > 0.0 && options.load <= 1.0, "--load {}: expected above 0 and at most 1", options.load);
    let masu = session.masu()?;
    session.warm_up()?;
    session.processors.bind_this_thread(CLIENT)?;
    let keys = options.dist.over(options.keys.unwrap_or(0));
    let mut bench = Bench { session, options, masu, keys, random: Random::seeded(42) };
    let (mut runs, mut attached) = (Runs::default(), Vec::new());
    for reload in 0..options.reloads {
        attached.push(bench.one_reload(reload, &mut runs).with_context(|| format!("reload {reload}"))?);
    }
    runs.finish(report(session, options, bench.keys.count, &runs, &attached), session)
}

impl Bench<'_> {
    fn one_reload(&mut self, reload: usize, runs: &mut Runs<Way, Segment>) -> Result<Attach> {
        let (session, pairs) = (self.session, self.options.pairs);
        session.progress(&format!("reload {} of {}: loading three servers", reload + 1, self.options.reloads));
        // Under THP=always first, and alone: the others must never see that setting.
        let always = {
            let _guard = Guard::turn(Mode::Always)?;
            self.load()?
        };
        let _guard = Guard::turn(Mode::Madvise)?;
        let mut servers = [self.load()?, always, self.load()?];
        runs.measure(session, pairs, "", &[Way::PlainBefore, Way::MasuBefore], |turn| {
            self.segment(&mut servers[2 * turn.nth])
        })?;
        session.progress("attaching masu");
        let attached = self.attach(&mut servers[2])?;
        servers[2].client.check(self.keys.count, self.options.value_bytes).context("after masu")?;
        runs.measure(session, pairs, "", &[Way::Plain, Way::Always, Way::Masu], |turn| {
            self.segment(&mut servers[turn.nth])
        })?;
        Ok(attached)
    }

    /// Starts a server and loads it; the first one decides how many keys that takes.
    fn load(&mut self) -> Result<Loaded> {
        let Bench { session, options, .. } = *self;
        let server = Server::start(&session.processors, SERVER, &session.stop)?;
        let mut client = server.client()?;
        if self.keys.count > 0 {
            client.load(0, self.keys.count, options.value_bytes, &session.stop)?;
        } else {
            self.keys = options.dist.over(fill(&mut client, options, &session.stop)?);
        }
        // Ends the growing of Redis's table as well, which every request moves on by a step.
        client.check(self.keys.count, options.value_bytes)?;
        Ok(Loaded { server, client })
    }

    fn segment(&mut self, loaded: &mut Loaded) -> Result<Segment> {
        let time = Duration::from_millis(self.options.segment_ms);
        let pid = loaded.server.pid();
        let busy = processor_time(pid)?;
        // Drawn beforehand: choosing keys must not be measured.
        let pool = self.keys.draw(1 << 18, &mut self.random);
        let (bytes, stop) = (self.options.value_bytes, &self.session.stop);
        let (gets_per_s, taken) = loaded.client.get_while(&pool, bytes, stop, |since| since < time)?;
        let busy = processor_time(pid)?.saturating_sub(busy).as_secs_f64();
        let memory = resident(pid)?;
        Ok(Segment {
            gets_per_s,
            rss_bytes: memory.rss_bytes.0 as f64,
            huge_bytes: memory.anon_huge_bytes.0 as f64,
            server_busy_fraction: busy / taken.as_secs_f64(),
        })
    }

    fn attach(&self, loaded: &mut Loaded) -> Result<Attach> {
        let pid = loaded.server.pid();
        let rss_before = resident(pid)?.rss_bytes;
        let (keys, value_bytes, stop) = (&self.keys, self.options.value_bytes, &self.session.stop);
        let warm = if self.options.cold { Bytes(0) } else { rss_before.scaled(1.1) };
        stop.sleep(CALM)?;
        let mut asker = Asker { client: &mut loaded.client, keys, value_bytes, stop };
        let interval = asker.interval(self.options.load, QUIET / 8)?;
        let busy = processor_time(pid)?;
        let quiet = asker.measure(interval, until(QUIET))?;
        let server_busy_fraction = processor_time(pid)?.saturating_sub(busy).as_secs_f64() / QUIET.as_secs_f64();
        let small = Reservoir::fill_small(rss_before, stop)?;
        stop.sleep(CALM)?;
        let freeing = {
            let time = PROMOTING_A_GIB.mul_f64(rss_before.as_gib());
            let _flow = small.free_over(time);
            asker.measure(interval, until(time))?
        };
        let reservoir = Reservoir::fill(warm, stop)?;
        stop.sleep(CALM)?;
        let flow = reservoir.flow()?;
        let mut attached = self.masu.attach(pid, &["--until-settled"], &self.session.processors)?;
        let limit = Duration::from_secs(self.options.settle_limit);
        let during = asker.measure(interval, || attached.is_running() && attached.age() < limit)?;
        let report = attached.finish(Duration::ZERO, stop)?;
        let after = asker.measure(interval, until(QUIET))?;
        let rss_after = resident(pid)?.rss_bytes;
        drop(flow);
        let (rss_before_bytes, rss_after_bytes) = (rss_before.0 as f64, rss_after.0 as f64);
        Ok(Attach { server_busy_fraction, quiet, freeing, during, after, rss_before_bytes, rss_after_bytes, report })
    }
}

/// True for `time` from now on.
fn until(time: Duration) -> impl FnMut() -> bool {
    let begun = Instant::now();
    move || begun.elapsed() < time
}

/// Sets keys until they fill the memory asked for; returns their number.
fn fill(client: &mut Client, options: &Options, stop: &Stop) -> Result<u32> {
    const STEP: u32 = 20_000;
    let mut loaded = 0;
    while used_memory(client)? < options.gib * f64::from(1 << 30) {
        client.load(loaded, loaded + STEP, options.value_bytes, stop)?;
        loaded += STEP;
    }
    Ok(loaded)
}

/// Memory of the server's data, from its own report.
fn used_memory(client: &mut Client) -> Result<f64> {
    let info = client.command(&["INFO", "memory"])?;
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    line.and_then(|number| number.trim().parse().ok()).context("redis does not say how much memory it uses")
}

fn report(session: &Session, options: &Options, keys: u32, runs: &Runs<Way, Segment>, attached: &[Attach]) -> Report {
    let Options { value_bytes, dist, reloads, .. } = options;
    let title =
        format!("redis: GET of {keys} keys, values of {value_bytes} bytes, {dist} keys drawn; {reloads} reloads");
    let mut report = Report::new(name(options), title, &session.host);
    let speed = Metric::more("GET", Unit::PerSecond, |run: &Segment| run.gets_per_s);
    let memory = Metric::less("resident memory", Unit::Bytes, |run: &Segment| run.rss_bytes);
    let metrics = [
        speed.target_against(Way::Always, Way::Masu, Target::AtLeast(0.99)),
        memory.target_against(Way::Plain, Way::Masu, Target::AtMost(1.01)),
    ];
    let pairs = [
        (Way::Always, Way::Masu),
        (Way::Plain, Way::Masu),
        (Way::Plain, Way::Always),
        (Way::PlainBefore, Way::MasuBefore),
    ];
    runs.compare(&mut report, &pairs, &metrics);
    let columns = [
        Column::median("on huge pages", Unit::Fraction, |run: &Segment| run.huge_bytes / run.rss_bytes),
        Column::median("server's processor busy", Unit::Fraction, |run: &Segment| run.server_busy_fraction),
    ];
    runs.table(&mut report, "Servers, medians:", &columns);
    if !options.cold {
        report.note(
            "While masu promotes, memory that was warmed up before is freed as it is taken: a virtual machine whose host backs \
             its memory lazily would otherwise pay for that in each new huge page, some 5 ms here. --cold measures that.",
        );
    }
    report.table("Attaching:", attaching(attached));
    figures(&mut report, attached);
    notes(&mut report, options, attached);
    report.sample("keys", keys);
    report.sample("attached", attached);
    report
}

/// A folder of results for each kind of run.
fn name(options: &Options) -> String {
    let amount = options.keys.map_or_else(|| format!("{}gib", options.gib), |keys| format!("{keys}keys"));
    let cold = if options.cold { "-cold" } else { "" };
    format!("redis-{}-{amount}{cold}", options.dist)
}

fn attaching(all: &[Attach]) -> Table {
    let head = [
        "reload",
        "settled",
        "promoted",
        "extra memory",
        "masu's cpu",
        "p99.9 quiet",
        "freeing",
        "during",
        "after",
        "p99 quiet",
        "during",
    ];
    let mut table = Table::new(head);
    for (nth, one) in all.iter().enumerate() {
        let [quiet, freeing, during, after] = [one.quiet, one.freeing, one.during, one.after].map(|of| of.latency);
        let latencies = [quiet.p999_ms, freeing.p999_ms, during.p999_ms, after.p999_ms, quiet.p99_ms, during.p99_ms];
        let first = [
            (nth + 1).to_string(),
            one.settled_s().map_or_else(|| "not settled".into(), |time| Unit::Seconds.print(time)),
            one.report.windows_promoted.to_string(),
            Unit::Fraction.print(one.growth()),
            Unit::Seconds.print(one.report.cpu_s),
        ];
        table.row(first.into_iter().chain(latencies.map(|ms| Unit::Milliseconds.print(ms))));
    }
    table
}

fn figures(report: &mut Report, all: &[Attach]) {
    let longest = all.iter().map(Attach::settled_s).collect::<Option<Vec<f64>>>();
    let longest = longest.and_then(|times| times.into_iter().reduce(f64::max));
    report.figure("settled after attach, slowest reload", Unit::Seconds, longest, Some(Target::AtMost(10.0)));
    let p999 = |of: &Answered| of.latency.p999_ms;
    let mut ms = |what, added: &dyn Fn(&Attach) -> f64, target| {
        report.figure(what, Unit::Milliseconds, median_of(all, added), target);
    };
    let what = "p99.9 of a request while masu promotes, above the quiet one";
    ms(what, &|one| p999(&one.during) - p999(&one.quiet), Some(Target::AtMost(1.0)));
    let what = "the same, above the one while as much memory is freed without masu";
    ms(what, &|one| p999(&one.during) - p999(&one.freeing), None);
    let what = "p99 of a request while masu promotes, above the quiet one";
    ms(what, &|one| one.during.latency.p99_ms - one.quiet.latency.p99_ms, None);
    let what = "extra resident memory, same server before and after";
    report.figure(what, Unit::Fraction, median_of(all, Attach::growth), Some(Target::AtMost(0.01)));
}

fn notes(report: &mut Report, options: &Options, all: &[Attach]) {
    let busy = median_of(all, |one| one.server_busy_fraction);
    report.note(format!(
        "While masu is attached, the client asks for {} of what it could at most, in batches of 64 GETs, which keeps the server \
         {} busy; a single one before each batch is timed, from when it was due.",
        Unit::Fraction.print(options.load),
        or_dash(Unit::Fraction, busy)
    ));
    report.note(
        "A promotion frees 512 small pages. Where the host of a virtual machine takes free memory back, the kernel spends \
         processor time on that; the column \"freeing\" shows what it does to requests without masu.",
    );
    report.note("Every value was read back whole after masu had promoted its pages; none differed.");
}
