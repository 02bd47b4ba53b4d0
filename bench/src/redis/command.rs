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

use crate::masu::Masu;
use crate::pairs::{Better, median, order_of_round};
use crate::place::Place;
use crate::process::{processor_time, resident};
use crate::redis::client::{Client, Look};
use crate::redis::keys::{Distribution, Keys};
use crate::redis::latency::{Asker, Latency};
use crate::redis::server::Server;
use crate::report::{Report, Target, Unit, Versus};
use crate::session::Session;
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

const PLAIN: &str = "4 KiB pages";
const ALWAYS: &str = "THP=always";
const MASU: &str = "masu";

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
    quiet: Latency,
    /// Latency while another process frees as much memory as masu's promotions free.
    freeing: Latency,
    during: Latency,
    after: Latency,
    rss_before_bytes: f64,
    rss_after_bytes: f64,
    report: AttachReport,
}

#[derive(Debug, Default, Serialize)]
struct Samples {
    keys: u32,
    /// The two servers on 4 KiB pages before masu touches one of them.
    before: [Vec<Segment>; 2],
    /// 4 KiB pages, THP=always, masu.
    measured: [Vec<Segment>; 3],
    attached: Vec<Attach>,
}

/// Inputs common to all reloads.
struct Bench<'a> {
    session: &'a Session,
    options: &'a Options,
    masu: Masu,
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
    let mut bench = Bench { session, options, masu, keys: Keys::over(1, options.dist), random: Random::seeded(42) };
    let mut samples = Samples { keys: options.keys.unwrap_or(0), ..Samples::default() };
    for reload in 0..options.reloads {
        bench.one_reload(reload, &mut samples).with_context(|| format!("reload {reload}"))?;
    }
    report(session, options, &samples).finish(session.save)
}

impl Bench<'_> {
    fn one_reload(&mut self, reload: usize, samples: &mut Samples) -> Result<()> {
        self.session.progress(&format!("reload {} of {}: loading three servers", reload + 1, self.options.reloads));
        // Under THP=always first, and alone: the others must never see that setting.
        let always = {
            let _guard = Guard::turn(Mode::Always)?;
            self.load(samples)?
        };
        let _guard = Guard::turn(Mode::Madvise)?;
        if reload == 0 {
            self.keys = Keys::over(usize::try_from(samples.keys)?, self.options.dist);
        }
        let mut servers = [self.load(samples)?, always, self.load(samples)?];
        self.session.progress("measuring two servers on 4 KiB pages");
        for round in 0..self.options.pairs {
            for nth in order_of_round(round, 2) {
                let segment = self.segment(&mut servers[[0, 2][nth]])?;
                samples.before[nth].push(segment);
            }
        }
        self.session.progress("attaching masu");
        let attached = self.attach(&mut servers[2])?;
        samples.attached.push(attached);
        let all: Vec<u32> = (0..samples.keys).collect();
        servers[2].client.get_pipelined(&all, self.options.value_bytes, Look::Whole).context("after masu")?;
        for round in 0..self.options.pairs {
            self.session.progress(&format!("measuring, round {} of {}", round + 1, self.options.pairs));
            for nth in order_of_round(round, 3) {
                samples.measured[nth].push(self.segment(&mut servers[nth])?);
            }
        }
        Ok(())
    }

    /// Starts a server and loads it; the first one decides how many keys that takes.
    fn load(&self, samples: &mut Samples) -> Result<Loaded> {
        let stop = &self.session.stop;
        let server = Server::start(&self.session.processors, SERVER, stop)?;
        let mut client = server.client()?;
        samples.keys = load_keys(&mut client, samples.keys, self.options, stop)?;
        let all: Vec<u32> = (0..samples.keys).collect();
        // Ends the growing of Redis's table as well, which every request moves on by a step.
        client.get_pipelined(&all, self.options.value_bytes, Look::Whole)?;
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
        let load = asker.load(self.options.load, QUIET / 8)?;
        let busy = processor_time(pid)?;
        let quiet = asker.measure(load, until(QUIET))?;
        let server_busy_fraction = processor_time(pid)?.saturating_sub(busy).as_secs_f64() / QUIET.as_secs_f64();
        let small = Reservoir::fill_small(rss_before, stop)?;
        stop.sleep(CALM)?;
        let freeing = {
            let time = PROMOTING_A_GIB.mul_f64(rss_before.as_gib());
            let _flow = small.free_over(time);
            asker.measure(load, until(time))?
        };
        let reservoir = Reservoir::fill(warm, stop)?;
        stop.sleep(CALM)?;
        let flow = reservoir.flow()?;
        let mut attached = self.masu.attach(pid, &["--until-settled"], &self.session.processors)?;
        let limit = Duration::from_secs(self.options.settle_limit);
        let during = asker.measure(load, || attached.is_running() && attached.age() < limit)?;
        let report = attached.finish(Duration::ZERO, stop)?;
        let after = asker.measure(load, until(QUIET))?;
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

/// Sets `wanted` keys, or as many as fill the memory asked for when it is 0. How many it was.
fn load_keys(client: &mut Client, wanted: u32, options: &Options, stop: &crate::stop::Stop) -> Result<u32> {
    const STEP: u32 = 20_000;
    if wanted > 0 {
        client.load(0, wanted, options.value_bytes, stop)?;
        return Ok(wanted);
    }
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

fn report(session: &Session, options: &Options, samples: &Samples) -> Report {
    let title = format!(
        "redis: GET of {} keys, values of {} bytes, {} keys drawn; {} reloads",
        samples.keys,
        options.value_bytes,
        options.dist.name(),
        options.reloads
    );
    let mut report = Report::new(name(options), title, &session.host);
    let [plain, always, masu] = &samples.measured;
    let speed = |segments: &[Segment]| segments.iter().map(|s| s.gets_per_s).collect::<Vec<_>>();
    let memory = |segments: &[Segment]| segments.iter().map(|s| s.rss_bytes).collect::<Vec<_>>();
    let mut versus =
        |names: (&'static str, &'static str), base: &[Segment], this: &[Segment], targets: [Option<f64>; 2]| {
            let versus = Versus { baseline: names.0, this: names.1 };
            report.compare("GET", Unit::PerSecond, Better::More, versus, (&speed(base), &speed(this)));
            targets[0].into_iter().for_each(|ratio| report.target(Target::AtLeast(ratio)));
            report.compare("resident memory", Unit::Bytes, Better::Less, versus, (&memory(base), &memory(this)));
            targets[1].into_iter().for_each(|ratio| report.target(Target::AtMost(ratio)));
        };
    versus((ALWAYS, MASU), always, masu, [Some(0.99), None]);
    versus((PLAIN, MASU), plain, masu, [None, Some(1.01)]);
    versus((PLAIN, ALWAYS), plain, always, [None, None]);
    versus((PLAIN, "another, before masu"), &samples.before[0], &samples.before[1], [None, None]);
    report.table("Servers, medians:", servers(&samples.measured));
    if !options.cold {
        report.note(
            "While masu promotes, memory that was warmed up before is freed as it is taken: a virtual machine whose host backs \
             its memory lazily would otherwise pay for that in each new huge page, some 5 ms here. --cold measures that.",
        );
    }
    report.table("Attaching:", attaching(&samples.attached));
    figures(&mut report, samples, options);
    report.sample("redis", samples);
    report
}

/// A folder of results for each kind of run.
fn name(options: &Options) -> String {
    let amount = options.keys.map_or_else(|| format!("{}gib", options.gib), |keys| format!("{keys}keys"));
    let cold = if options.cold { "-cold" } else { "" };
    format!("redis-{}-{amount}{cold}", options.dist.name())
}

fn servers(measured: &[Vec<Segment>; 3]) -> Table {
    let mut table = Table::new(["", "on huge pages", "server's processor busy"]);
    for (name, segments) in [PLAIN, ALWAYS, MASU].iter().zip(measured) {
        let middle = |part: fn(&Segment) -> f64| median(&segments.iter().map(part).collect::<Vec<_>>()).unwrap_or(0.0);
        let huge = Unit::Fraction.print(middle(|s| s.huge_bytes / s.rss_bytes));
        table.row([(*name).to_owned(), huge, Unit::Fraction.print(middle(|s| s.server_busy_fraction))]);
    }
    table
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
    for (reload, Attach { quiet, freeing, during, after, report, .. }) in all.iter().enumerate() {
        let growth = all[reload].rss_after_bytes / all[reload].rss_before_bytes - 1.0;
        let settled = report.settled_s.filter(|_| report.settled);
        table.row([
            (reload + 1).to_string(),
            settled.map_or_else(|| "not settled".into(), |time| Unit::Seconds.print(time)),
            report.windows_promoted.to_string(),
            Unit::Fraction.print(growth),
            Unit::Seconds.print(report.cpu_s),
            Unit::Milliseconds.print(quiet.p999_ms),
            Unit::Milliseconds.print(freeing.p999_ms),
            Unit::Milliseconds.print(during.p999_ms),
            Unit::Milliseconds.print(after.p999_ms),
            Unit::Milliseconds.print(quiet.p99_ms),
            Unit::Milliseconds.print(during.p99_ms),
        ]);
    }
    table
}

fn figures(report: &mut Report, samples: &Samples, options: &Options) {
    let all = &samples.attached;
    let longest = all.iter().map(|a| a.report.settled_s.filter(|_| a.report.settled)).collect::<Option<Vec<f64>>>();
    let longest = longest.and_then(|times| times.into_iter().reduce(f64::max));
    report.figure("settled after attach, slowest reload", Unit::Seconds, longest, Some(Target::AtMost(10.0)));
    let added: Vec<f64> = all.iter().map(|a| a.during.p999_ms - a.quiet.p999_ms).collect();
    let what = "p99.9 of a request while masu promotes, above the quiet one";
    report.figure(what, Unit::Milliseconds, median(&added), Some(Target::AtMost(1.0)));
    let added: Vec<f64> = all.iter().map(|a| a.during.p999_ms - a.freeing.p999_ms).collect();
    let what = "the same, above the one while as much memory is freed without masu";
    report.figure(what, Unit::Milliseconds, median(&added), None);
    let added: Vec<f64> = all.iter().map(|a| a.during.p99_ms - a.quiet.p99_ms).collect();
    report.figure(
        "p99 of a request while masu promotes, above the quiet one",
        Unit::Milliseconds,
        median(&added),
        None,
    );
    let extra: Vec<f64> = all.iter().map(|a| a.rss_after_bytes / a.rss_before_bytes - 1.0).collect();
    let what = "extra resident memory, same server before and after";
    report.figure(what, Unit::Fraction, median(&extra), Some(Target::AtMost(0.01)));
    let busy: Vec<f64> = all.iter().map(|a| a.server_busy_fraction).collect();
    report.note(format!(
        "While masu is attached, the client asks for {} of what it could at most, in batches of 64 GETs, which keeps the server \
         {} busy; a single one before each batch is timed, from when it was due.",
        Unit::Fraction.print(options.load),
        Unit::Fraction.print(median(&busy).unwrap_or(0.0))
    ));
    report.note(
        "A promotion frees 512 small pages. Where the host of a virtual machine takes free memory back, the kernel spends \
         processor time on that; the column \"freeing\" shows what it does to requests without masu.",
    );
    report.note("Every value was read back whole after masu had promoted its pages; none differed.");
}
