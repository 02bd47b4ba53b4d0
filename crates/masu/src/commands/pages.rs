//! `masu pages`.

mod strip;

use std::io::Write;
use std::time::{Duration, Instant};

use access::{AccessMap, Backend, Class, Observer, WindowHeat, estimate};
use hugepages::observe::{self, Pieces};
use linux::halted::{self, Halted};
use linux::maps::{self, Mapping};
use linux::status::HugePages;
use linux::{Pid, Untrusted};
use serde::{Deserialize, Serialize};
use units::cast::index;
use units::{Address, Bytes, Pages, Rate};

use crate::args::PagesTask;
use crate::failure::Failure;
use crate::open::{Observers, Purpose, admit, halted_failure, hold, say_halted};
use crate::terminal::clock::Stop;
use crate::terminal::print;
use crate::terminal::table::Table;
use crate::{Done, HOST, prohibition};

/// The JSON output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub pid: Pid,
    pub name: Untrusted,
    #[serde(flatten, with = "units::renamed::backend")]
    pub backend: Backend,
    pub observed_s: f64,
    /// Cause for which the process could not run in part of that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halted: Option<Halted>,
    #[serde(flatten)]
    pub pieces: Pieces,
    /// Resident memory that the program freed lazily (MADV_FREE); `None` where the kernel does not tell.
    #[serde(default)]
    pub lazily_freed_bytes: Option<Bytes>,
    pub mappings: Vec<MappingHeat>,
}

/// A mapping with resident pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MappingHeat {
    pub start: Address,
    pub end: Address,
    pub perms: String,
    pub path: Untrusted,
    pub runs: Vec<Run>,
}

/// Neighbouring resident pages with the same count and rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub start: Address,
    pub pages: u64,
    pub huge: bool,
    pub accessed_reads: u32,
    pub rate_per_s: Rate,
}

pub fn run(task: &PagesTask) -> Result<Done, Failure> {
    let stop = Stop::on_signals()?;
    let status = admit(task.pid, Purpose::Look)?;
    if status.huge_pages == HugePages::Forbidden {
        let (why, _) = prohibition::reason_and_remedy(&*HOST, task.pid, &status.name);
        print::note(format_args!("process {}: {why}", task.pid));
    }
    let observers = Observers::find(task.backend)?;
    // Clearing accessed bits under an attached masu would make its windows look idle.
    let _held = if observers.backend == Backend::Residency { None } else { Some(hold(task.pid, Purpose::Look)?) };
    let mut observer = observers.open(task.pid)?;
    let failed = |error: linux::Error| Failure::at_process(&error);
    let mut halts = Halts { pid: task.pid, name: &status.name, found: None, now: None };
    halts.note(say_halted(task.pid, &status.name), false);
    watch(observer.as_mut(), task.time, &stop, &mut halts).map_err(failed)?;
    let halted = halts.found.take();
    if observer.address_space_changed() {
        let line = format!("cannot observe process {}: it started another program meanwhile (exec)", task.pid);
        return Err(Failure::new(line).remedy("Run `masu pages` again."));
    }
    let mappings = maps::maps(&*HOST, task.pid).map_err(failed)?;
    let map = observer.map();
    let heats: Vec<MappingHeat> = mappings.iter().filter_map(|mapping| heat_of(mapping, map)).collect();
    let report = Report {
        pid: task.pid,
        name: status.name,
        backend: observer.backend(),
        observed_s: map.observed.as_secs_f64(),
        halted,
        pieces: observe::pieces(map, &mappings),
        lazily_freed_bytes: linux::smaps::rollup(&*HOST, task.pid).ok().and_then(|rollup| rollup.lazy_free),
        mappings: heats,
    };
    let mut out = print::out();
    if task.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        print(&mut out, &report, task)?;
    }
    Ok(if report.halted.is_some() { Done::InPart } else { Done::Whole })
}

/// Looks whether the process can run, while it is observed.
struct Halts<'a> {
    pid: Pid,
    name: &'a Untrusted,
    /// First cause found.
    found: Option<Halted>,
    now: Option<Halted>,
}

impl Halts<'_> {
    const EVERY: Duration = Duration::from_secs(1);

    /// Notes the cause at a look, and says a new one.
    fn note(&mut self, now: Option<Halted>, say: bool) {
        if let Some(halted) = now.as_ref().filter(|_| say && now != self.now) {
            print::failure(&halted_failure(self.pid, self.name, halted));
        }
        self.found = self.found.take().or_else(|| now.clone());
        self.now = now;
    }
}

/// One clear, then scans at doubling ages, the last one at the end.
fn watch(observer: &mut dyn Observer, time: Duration, stop: &Stop, halts: &mut Halts<'_>) -> Result<(), linux::Error> {
    let bar = indicatif::ProgressBar::new_spinner();
    observer.begin()?;
    let mut due = None;
    let mut looked = Instant::now();
    while !stop.is_set() {
        let next = estimate::next_scan(due).max(due.unwrap_or_default()).min(time);
        while observer.age() < next && !stop.is_set() {
            std::thread::sleep(next.saturating_sub(observer.age()).min(Duration::from_millis(100)));
            if looked.elapsed() >= Halts::EVERY {
                bar.suspend(|| halts.note(halted::halted(&*HOST, halts.pid), true));
                looked = Instant::now();
            }
            bar.set_message(format!(
                "observing for {:.0} s of {:.0} s",
                observer.age().as_secs_f64(),
                time.as_secs_f64()
            ));
            bar.tick();
        }
        observer.scan()?;
        if next >= time {
            break;
        }
        due = Some(next);
    }
    bar.finish_and_clear();
    Ok(())
}

/// The part of the map within `mapping`; `None` without resident pages.
fn heat_of(mapping: &Mapping, map: &AccessMap) -> Option<MappingHeat> {
    let first = map.windows.partition_point(|heat| heat.window.range().end() <= mapping.range.start());
    let inside = map.windows[first..].iter().take_while(|heat| heat.window.start() < mapping.range.end());
    let mut runs = Vec::new();
    for heat in inside {
        add_runs(&mut runs, mapping, map, heat);
    }
    (!runs.is_empty()).then(|| MappingHeat {
        start: mapping.range.start(),
        end: mapping.range.end(),
        perms: mapping.permissions.to_string(),
        path: mapping.path.clone(),
        runs,
    })
}

fn add_runs(runs: &mut Vec<Run>, mapping: &Mapping, map: &AccessMap, heat: &WindowHeat) {
    let Some(part) = mapping.range.intersection(heat.window.range()) else { return };
    let from = part.start().page_in_window();
    let count = index(part.pages().0);
    for page in (from..from + count).filter(|page| heat.huge || heat.present.contains(*page)) {
        let start = heat.window.page(page);
        let Class { accessed_reads, rate } = map.class(heat, page);
        let follows = |run: &&mut Run| {
            run.start.0 + Pages(run.pages).bytes().0 == start.0
                && run.accessed_reads == accessed_reads
                && run.rate_per_s == rate
                && run.huge == heat.huge
        };
        match runs.last_mut().filter(follows) {
            Some(run) => run.pages += 1,
            None => runs.push(Run { start, pages: 1, huge: heat.huge, accessed_reads, rate_per_s: rate }),
        }
    }
}

impl MappingHeat {
    fn resident(&self) -> Pages {
        Pages(self.runs.iter().map(|run| run.pages).sum())
    }

    /// True when a page was touched, or the mapping is large enough to matter.
    fn is_of_interest(&self) -> bool {
        self.touched() > Pages(0) || self.resident() >= WORTH_A_STRIP
    }

    fn touched(&self) -> Pages {
        Pages(self.runs.iter().filter(|run| run.accessed_reads > 0).map(|run| run.pages).sum())
    }

    #[expect(clippy::cast_precision_loss, reason = "a sum for people")]
    fn walks(&self) -> Rate {
        // A huge page is one translation for all of its small pages.
        let of = |run: &Run| {
            Rate::per_second(run.rate_per_s.get() * if run.huge { run.pages as f64 / 512.0 } else { run.pages as f64 })
        };
        self.runs.iter().map(of).sum()
    }
}

fn print(out: &mut impl Write, report: &Report, task: &PagesTask) -> Result<(), Failure> {
    let Report { pid, name, backend, observed_s, halted, pieces, lazily_freed_bytes, mappings } = report;
    writeln!(out, "process {pid} ({name})   observed by {backend} for {observed_s:.1} s: {}", backend.exactness())?;
    if let Some(halted) = halted {
        writeln!(out, "in all or part of that time it was {halted}: no access is no sign of idle memory")?;
    }
    writeln!(out)?;
    let (shown, quiet): (Vec<&MappingHeat>, Vec<&MappingHeat>) =
        mappings.iter().partition(|heat| task.all || heat.is_of_interest());
    let lines = table(&shown)?;
    let mut lines = lines.lines();
    writeln!(out, "{}", lines.next().unwrap_or_default())?;
    for (line, heat) in lines.zip(&shown) {
        writeln!(out, "{line}")?;
        if heat.resident() >= WORTH_A_STRIP {
            writeln!(out, "  {}", strip::strip(heat))?;
        }
        if task.runs {
            print_runs(out, heat)?;
        }
    }
    if !quiet.is_empty() {
        let resident: Bytes = quiet.iter().map(|heat| heat.resident().bytes()).sum();
        writeln!(out, "\n{} more mappings, small and untouched, hold {resident}: --all shows them", quiet.len())?;
    }
    if let Some(line) = pieces.text() {
        writeln!(out, "\n{line}")?;
    }
    if let Some(freed) = lazily_freed_bytes.filter(|bytes| *bytes > Bytes(0)) {
        writeln!(out, "\n{freed} of it was freed lazily (MADV_FREE): the kernel takes it when it needs memory")?;
    }
    if print::out().is_terminal() {
        writeln!(out, "\nA strip runs from the mapping's first to its last page in memory, in equal parts:")?;
        writeln!(out, "blank: not in memory   ·: idle   ▁▂▃▄▅▆▇█: the part of its pages that was touched")?;
    }
    Ok(())
}

/// One huge page: a strip of less shows nothing beyond the columns.
const WORTH_A_STRIP: Pages = Pages(512);

fn table(mappings: &[&MappingHeat]) -> Result<String, Failure> {
    let mut table = Table::new(["address", "perms", "resident", "touched", "walks/s", "path"]);
    for heat in mappings {
        table.row([
            format!("{:x}-{:x}", heat.start.0, heat.end.0),
            heat.perms.clone(),
            heat.resident().bytes().to_string(),
            heat.touched().bytes().to_string(),
            format!("{:.0}", heat.walks().get()),
            heat.path.to_string(),
        ]);
    }
    let mut text = Vec::new();
    table.write(&mut text, "")?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Runs as in the paper's `/proc/PID/page_acs`: address and count (the scans that saw it touched); and the rate,
/// missing in the paper.
fn print_runs(out: &mut impl Write, heat: &MappingHeat) -> std::io::Result<()> {
    writeln!(out, "  {:<12} {:>8} {:>5}   walks/s a page", "run", "pages", "scans")?;
    for run in &heat.runs {
        let huge = if run.huge { "   huge" } else { "" };
        let Run { start, pages, accessed_reads, rate_per_s, .. } = run;
        writeln!(out, "  {:<12x} {pages:>8} {accessed_reads:>5}   {:.2}{huge}", start.0, rate_per_s.get())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use access::PageSet;
    use units::Window;

    use super::*;

    fn two_windows() -> AccessMap {
        let mut first = WindowHeat::untouched(Window(1));
        first.present = PageSet::FULL;
        let mut hot = PageSet::EMPTY;
        (500..512).for_each(|page| hot.insert(page));
        first.classify(&hot, 1);
        let mut second = WindowHeat::untouched(Window(2));
        second.present.insert(0);
        second.present.insert(9);
        second.classify(&PageSet(std::array::from_fn(|word| u64::from(word == 0))), 1);
        let hot = Class { accessed_reads: 4, rate: Rate::per_second(2.0) };
        AccessMap {
            classes: vec![Class::default(), hot],
            windows: vec![first, second],
            ..AccessMap::empty(Backend::BpfWalk)
        }
    }

    #[test]
    fn runs_join_across_windows_and_stop_at_holes_and_at_the_mapping() {
        let maps = maps::parse("201000-40a000 rw-p 00000000 00:00 0 [heap]\n", "maps").unwrap();
        let heat = heat_of(&maps[0], &two_windows()).unwrap();
        let found: Vec<_> = heat.runs.iter().map(|run| (run.start.0, run.pages, run.accessed_reads)).collect();
        assert_eq!(found, [(0x20_1000, 499, 0), (0x3f_4000, 13, 4), (0x40_9000, 1, 0)]);
        assert_eq!(heat.touched(), Pages(13));
        assert_eq!(heat.walks(), Rate::per_second(26.0));
    }

    #[test]
    fn a_mapping_with_nothing_in_memory_is_left_out() {
        let maps = maps::parse("800000-a00000 rw-p 00000000 00:00 0\n", "maps").unwrap();
        assert!(heat_of(&maps[0], &two_windows()).is_none());
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let run = Run {
            start: Address(0x7f00_0000_1000),
            pages: 3,
            huge: true,
            accessed_reads: 2,
            rate_per_s: Rate::per_second(0.5),
        };
        let mapping = MappingHeat {
            start: Address(0x7f00_0000_0000),
            end: Address(0x7f00_0000_4000),
            perms: "rw-p".to_owned(),
            path: "/a b".into(),
            runs: vec![run],
        };
        let report = Report {
            pid: Pid(7),
            name: "x".into(),
            backend: Backend::Residency,
            observed_s: 1.5,
            halted: Some(Halted::Stopped),
            pieces: Pieces { mappings: 3, resident: Bytes::kib(768) },
            lazily_freed_bytes: Some(Bytes::kib(4)),
            mappings: vec![mapping],
        };
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
