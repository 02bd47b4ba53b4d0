//! Report of paged programs, from their counters.

use farmem_engine::PAGE_BYTES;
use farmem_engine::backend::Backend;
use farmem_engine::calls::Refusal;
use farmem_engine::counters::{Counter, Counters};
use farmem_engine::units::Learned;
use linux::Untrusted;
use serde::{Deserialize, Serialize};
use units::Bytes;

use crate::at_once::Peak;
use crate::observation::Observed;
use crate::profile::Profiled;
use crate::sites::{self, Section, Site};
use crate::unpaged::Unpaged;

mod programs;

pub use programs::{Program, WorkingSet};

/// Counters of one program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// PID in the program's own PID namespace.
    pub process: u32,
    /// Command name.
    pub name: Untrusted,
    /// Peak of its memory that is not paged; `None` if it was not seen.
    pub unpaged: Option<Unpaged>,
    /// Local memory that would be enough; `None` for a program that does not go round in more than it has.
    pub working_set: Option<WorkingSet>,
    /// Backend in use; `None` if not reported.
    pub backend: Option<Backend>,
    /// Time that threads waited for pages.
    pub stall_s: f64,
    /// Granted local memory.
    pub local: Bytes,
    /// Peak of its paged memory.
    pub paged: Bytes,
    /// Peak of its paged memory in RAM, victim queue included.
    pub peak_resident: Bytes,
    /// Touches of untouched memory.
    pub faults_first: u64,
    /// Touches of pages in the victim queue.
    pub faults_in_victim_queue: u64,
    /// Touches of pages in the store only.
    pub faults_stored: u64,
    /// Touches of pages in flight.
    pub faults_in_flight: u64,
    /// Touches of prefetched pages that were left unmapped, to see how much of the prefetch is used.
    pub marker_hits: u64,
    /// Such pages that were evicted untouched.
    pub marker_misses: u64,
    /// Bytes read from the store.
    pub bytes_in: Bytes,
    /// Bytes of these read in the background.
    pub bytes_ahead: Bytes,
    /// Bytes written to the store.
    pub bytes_out: Bytes,
    /// Bytes of these written in the background.
    pub bytes_behind: Bytes,
    /// forks that did not fit into memory.
    pub forks_refused: u64,
    /// Calls that cannot be made in a paged program, by the numbers of [`Refusal::ALL`].
    pub calls_refused: [u64; Refusal::ALL.len()],
    /// Mappings that the kernel refused to register.
    pub not_paged: u64,
    /// Frames beyond the budget, since all others were pinned or held by the kernel.
    pub frames_beyond: u64,
    /// Transfer size where no part of the program has one of its own.
    pub unit: Option<Bytes>,
    /// Instructions with the most faults.
    pub sites: Vec<Site>,
    /// Marked sections.
    pub sections: Vec<Section>,
    /// Predicted touches of pages in the store only, with half of the memory and with double.
    pub faults_at_half: u64,
    /// See `faults_at_half`.
    pub faults_at_double: u64,
    /// Loaded and saved profiles.
    pub profile: Option<Profiled>,
}

impl Counted {
    /// Time that threads have waited for pages, in seconds.
    pub fn waited_s(counters: &Counters<'_>) -> f64 {
        counters.get(Counter::StallTicks) as f64 * seconds_of_a_tick(counters)
    }

    /// Reads a program's counters.
    pub fn of(process: u32, counters: &Counters<'_>, learned: &Learned, observed: Observed) -> Counted {
        let get = |counter| counters.get(counter);
        // The program can write any value there.
        let pages = |counter| Bytes(get(counter).saturating_mul(PAGE_BYTES));
        let touched = pages(Counter::TouchedPagesPeak);
        let local = Counted::local(counters);
        let working_set = WorkingSet::of(process, &observed.name, &learned.what_if, local, touched);
        Counted {
            process,
            faults_at_double: programs::at_most(
                learned.what_if.at_double(),
                Bytes(local.0.saturating_mul(2)),
                working_set.as_ref(),
            ),
            working_set,
            backend: None,
            stall_s: Counted::waited_s(counters),
            local,
            paged: touched,
            peak_resident: pages(Counter::PeakFrames),
            faults_first: get(Counter::FaultsFirst),
            faults_in_victim_queue: get(Counter::FaultsVictim),
            faults_stored: get(Counter::FaultsStored),
            faults_in_flight: get(Counter::FaultsInFlight),
            marker_hits: get(Counter::FaultsOnMarkers),
            marker_misses: get(Counter::MarkerMisses),
            bytes_in: pages(Counter::PagesIn),
            bytes_ahead: pages(Counter::PagesAhead),
            bytes_out: pages(Counter::PagesOut),
            bytes_behind: pages(Counter::PagesBehind),
            forks_refused: get(Counter::ForksRefused),
            calls_refused: Refusal::ALL.map(|refusal| counters.refusals(refusal)),
            not_paged: get(Counter::NotRegistered),
            frames_beyond: get(Counter::FramesBeyond),
            unit: None,
            sites: sites::of(learned, process, &observed),
            sections: sites::sections(learned, &observed.history),
            faults_at_half: learned.what_if.at_half(),
            profile: None,
            name: observed.name,
            unpaged: observed.unpaged,
        }
    }

    /// Local memory of a program now.
    pub fn local(counters: &Counters<'_>) -> Bytes {
        let frames = match counters.get(Counter::BudgetShare) {
            0 => counters.get(Counter::BudgetFrames),
            // Computed as in the pager.
            share => {
                let frames = counters.get(Counter::TouchedPagesPeak).saturating_mul(share).div_ceil(1 << 16);
                frames.max(farmem_engine::budget::Budget::LEAST_FRAMES.into())
            }
        };
        Bytes(frames.saturating_mul(PAGE_BYTES))
    }
}

/// Length of a tick, from two moments at which both clocks were read.
fn seconds_of_a_tick(counters: &Counters<'_>) -> f64 {
    let between = |early, late| counters.get(late).saturating_sub(counters.get(early)) as f64;
    let ticks = between(Counter::EarlyTicks, Counter::LateTicks);
    let ns = between(Counter::EarlyNs, Counter::LateNs);
    if ticks > 0.0 { ns / ticks / 1e9 } else { 0.0 }
}

/// Report on a run of a paged program, with all programs that it started.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Report {
    /// Time from the start to the end.
    pub elapsed_s: f64,
    /// Time that threads waited for pages, of all threads together.
    pub stall_s: f64,
    /// Backend, a word of `masu facts`. `None` when nothing was paged.
    #[serde(flatten, with = "units::renamed::backend")]
    pub backend: Option<String>,
    /// Local memory of the program that had most.
    pub local_bytes: Bytes,
    /// Peak of paged memory, summed over the programs.
    pub paged_bytes: Bytes,
    /// Peak of paged memory in RAM.
    pub peak_resident_bytes: Bytes,
    /// Touches that brought a page, or many.
    pub faults: u64,
    /// Of these, faults on pages in the victim queue.
    #[serde(flatten, with = "units::renamed::faults_in_victim_queue")]
    pub faults_in_victim_queue: u64,
    /// Of these, faults on untouched memory.
    pub faults_first: u64,
    /// Share of the touches of evicted pages that found the page in the victim queue. `None` when nothing was evicted.
    #[serde(flatten, with = "units::renamed::victim_queue_hit_rate")]
    pub victim_queue_hit_rate: Option<f64>,
    /// Of these, faults on pages in flight, which waited for the rest of the transfer.
    #[serde(flatten, with = "units::renamed::faults_in_flight")]
    pub faults_in_flight: u64,
    /// Share of the prefetched pages that were touched before eviction, by a sample: of each piece one page is left
    /// unmapped. `None` without a sample.
    pub prefetch_hit_rate: Option<f64>,
    /// Bytes read from the store.
    pub bytes_in: Bytes,
    /// Bytes of these read in the background, before their touch.
    pub bytes_in_ahead: Bytes,
    /// Cipher that seals pages before they go to the store; `None` where they are not sealed.
    pub sealed: Option<String>,
    /// Bytes written to the store.
    pub bytes_out: Bytes,
    /// Bytes of these written in the background.
    pub bytes_out_behind: Bytes,
    /// Median transfer size: half of the faults of the known sites or sections fetch no more. With one size for all,
    /// that size. `None` when nothing was paged.
    #[serde(flatten, with = "units::renamed::transfer_bytes_median")]
    pub transfer_bytes_median: Option<Bytes>,
    /// Code sites with the most faults.
    pub sites: Vec<Site>,
    /// Marked sections, the most faults first.
    pub sections: Vec<Section>,
    /// Predicted faults on stored pages with half and with double the local memory. For half of it this is a rough
    /// estimate. Empty when nothing was paged.
    pub what_if: Vec<WhatIf>,
    /// Loaded and saved profiles, of the program with the most faults on stored pages. `None` where nothing is saved:
    /// by choice, without a build-id, without `--sections auto`.
    pub profile: Option<Profiled>,
    /// Number of programs with the library in them.
    pub processes: u64,
    /// Programs, the most faults on stored pages first; at most 64.
    pub programs: Vec<Program>,
    /// Programs at the same time.
    pub at_once: Peak,
    /// Local memory that would be enough, for the program with the most faults on stored pages of all that go round in
    /// more than they have. Each of `programs` has its own.
    pub working_set: Option<WorkingSet>,
    /// Programs that ran unserved, by reason.
    pub left_out: Vec<LeftOutPrograms>,
    /// Processes that outlive the program and are not paged.
    #[serde(default)]
    pub still_running: Vec<StillRunning>,
    /// Further notes for the user.
    pub notes: Vec<String>,
}

/// Process that outlives the program and is not paged.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct StillRunning {
    /// Process number.
    pub process: u32,
    /// Name.
    pub program: Untrusted,
    /// Copy by fork, without an exec since.
    pub forked: bool,
}

/// Programs that ran unserved for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct LeftOutPrograms {
    /// Reason, as a property of a program.
    pub reason: String,
    /// Number of programs.
    pub programs: u64,
}

/// Predicted number of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct WhatIf {
    /// Local memory of the prediction.
    pub local_bytes: Bytes,
    /// Number of faults on stored pages.
    pub faults: u64,
}

impl Report {
    /// Report of all programs of a run.
    pub fn of(elapsed_s: f64, programs: &[Counted]) -> Report {
        let sum = |of: fn(&Counted) -> Bytes| Bytes(total(programs.iter().map(|program| of(program).0)));
        let most = |of: fn(&Counted) -> Bytes| programs.iter().map(of).max_by_key(|bytes| bytes.0).unwrap_or(Bytes(0));
        let count = |of: fn(&Counted) -> u64| total(programs.iter().map(of));
        let faults_in_victim_queue = count(|program| program.faults_in_victim_queue);
        let faults_first = count(|program| program.faults_first);
        let faults_stored = count(|program| program.faults_stored);
        let faults_in_flight = count(|program| program.faults_in_flight);
        let left = total([faults_in_victim_queue, faults_stored, faults_in_flight]);
        let reached = count(|program| program.marker_hits);
        let sampled = reached.saturating_add(count(|program| program.marker_misses));
        let mut notes = Vec::new();
        let not_paged = count(|program| program.not_paged);
        if not_paged > 0 {
            notes.push(format!(
                "{not_paged} mappings are not paged, since the kernel did not register them or the program began with too \
                 many: they come on top"
            ));
        }
        let beyond = count(|program| program.frames_beyond);
        if beyond > 0 {
            notes.push(format!(
                "{beyond} times a page came beyond local memory, since nothing could be taken out: system calls held it, or \
                 it is write-only or has a protection key"
            ));
        }
        let mut sites: Vec<Site> = programs.iter().flat_map(|program| program.sites.iter().cloned()).collect();
        sites.sort_by_key(|site| std::cmp::Reverse(site.faults));
        sites.truncate(sites::MOST);
        let mut sections: Vec<Section> = programs.iter().flat_map(|program| program.sections.iter().cloned()).collect();
        sections.sort_by_key(|section| std::cmp::Reverse(section.faults));
        let of_sites = sites.iter().map(|site| (site.unit_bytes, site.faults));
        let of_sections = sections.iter().map(|section| (section.unit_bytes, section.faults));
        let transfer_bytes_median = median_transfer(of_sites.chain(of_sections).collect());
        let local = most(|program| program.local);
        let refused = count(|program| program.forks_refused);
        if refused > 0 {
            let forks = if refused == 1 { "fork was" } else { "forks were" };
            notes.push(format!("{refused} {forks} refused (ENOMEM): not all of the program fitted into local memory"));
        }
        for refusal in Refusal::ALL {
            let times = total(programs.iter().map(|program| program.calls_refused[refusal as usize]));
            if times > 0 {
                let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
                notes.push(format!("{} was refused {times}: {}", refusal.name(), refusal.reason()));
            }
        }
        let what_if = [
            WhatIf { local_bytes: Bytes(local.0 / 2), faults: count(|program| program.faults_at_half) },
            WhatIf { local_bytes: Bytes(local.0.saturating_mul(2)), faults: count(|program| program.faults_at_double) },
        ];
        Report {
            elapsed_s,
            // A sum of no numbers would be -0.
            stall_s: programs.iter().fold(0.0, |sum, program| sum + program.stall_s),
            // One kernel, so it is the same for all.
            backend: programs.iter().find_map(|program| program.backend).map(|backend| backend.name().to_owned()),
            sealed: None,
            local_bytes: local,
            paged_bytes: sum(|program| program.paged),
            peak_resident_bytes: most(|program| program.peak_resident),
            faults: left.saturating_add(faults_first),
            faults_in_victim_queue,
            faults_first,
            victim_queue_hit_rate: (left > 0).then(|| faults_in_victim_queue as f64 / left as f64),
            faults_in_flight,
            prefetch_hit_rate: (sampled > 0).then(|| reached as f64 / sampled as f64),
            bytes_in: sum(|program| program.bytes_in),
            bytes_in_ahead: sum(|program| program.bytes_ahead),
            bytes_out: sum(|program| program.bytes_out),
            bytes_out_behind: sum(|program| program.bytes_behind),
            transfer_bytes_median: transfer_bytes_median.or_else(|| programs.iter().find_map(|program| program.unit)),
            sites,
            sections,
            what_if: if programs.is_empty() { Vec::new() } else { what_if.to_vec() },
            profile: programs
                .iter()
                .filter(|program| program.profile.is_some())
                .max_by_key(|program| program.faults_stored)
                .and_then(|program| program.profile.clone()),
            processes: programs.len() as u64,
            left_out: Vec::new(),
            still_running: Vec::new(),
            programs: programs::of(programs),
            at_once: Peak::default(),
            working_set: programs
                .iter()
                .filter(|program| program.working_set.is_some())
                .max_by_key(|program| program.faults_stored)
                .and_then(|program| program.working_set.clone()),
            notes,
        }
    }
}

/// Sum of counters, which programs can set to anything.
fn total(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

/// Transfer size that half of the faults do not exceed.
fn median_transfer(mut by_unit: Vec<(Bytes, u64)>) -> Option<Bytes> {
    by_unit.retain(|(_, faults)| *faults > 0);
    by_unit.sort_unstable_by_key(|(unit, _)| unit.0);
    let half = total(by_unit.iter().map(|(_, faults)| *faults)).div_ceil(2);
    let mut so_far = 0u64;
    by_unit.into_iter().find_map(|(unit, faults)| {
        so_far = so_far.saturating_add(faults);
        (so_far >= half).then_some(unit)
    })
}

#[cfg(test)]
mod tests;
