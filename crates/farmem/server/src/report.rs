//! Report of paged programs, from their counters.

use farmem_engine::PAGE_BYTES;
use farmem_engine::backend::Backend;
use farmem_engine::calls::Refusal;
use farmem_engine::counters::{Counter, Counters};
use farmem_engine::units::Learned;
use linux::maps::Mapping;
use serde::{Deserialize, Serialize};
use units::Bytes;

use crate::history::History;
use crate::profile::Profiled;
use crate::sites::{self, Section, Site};

/// Counters of one program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// PID in the program's own PID namespace.
    pub process: u32,
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
    /// Reads a program's counters.
    pub fn of(
        process: u32,
        counters: &Counters<'_>,
        learned: &Learned,
        mappings: &[Mapping],
        history: &History,
    ) -> Counted {
        let get = |counter| counters.get(counter);
        // The program can write any value there.
        let pages = |counter| Bytes(get(counter).saturating_mul(PAGE_BYTES));
        let touched = pages(Counter::TouchedPagesPeak);
        let share = match get(Counter::BudgetShare) {
            0 => pages(Counter::BudgetFrames),
            // Computed as in the pager.
            share => {
                let frames = get(Counter::TouchedPagesPeak).saturating_mul(share).div_ceil(1 << 16);
                Bytes(frames.max(farmem_engine::budget::Budget::LEAST_FRAMES.into()).saturating_mul(PAGE_BYTES))
            }
        };
        Counted {
            process,
            backend: None,
            stall_s: get(Counter::StallTicks) as f64 * seconds_of_a_tick(counters),
            local: share,
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
            sites: sites::of(learned, mappings, history),
            sections: sites::sections(learned, history),
            faults_at_half: learned.what_if.at_half(),
            faults_at_double: learned.what_if.at_double(),
            profile: None,
        }
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
    /// Predicted faults on stored pages with other local memory. For half of it this is a rough estimate.
    pub what_if: Vec<WhatIf>,
    /// Loaded and saved profiles, of the program with the most faults on stored pages. `None` where nothing is saved:
    /// by choice, without a build-id, without `--sections auto`.
    pub profile: Option<Profiled>,
    /// Number of programs with the library in them.
    pub processes: u64,
    /// Further notes for the user.
    pub notes: Vec<String>,
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
            notes.push(format!("{beyond} times a page came beyond local memory, since system calls held all of it"));
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
            notes.push(format!(
                "{refused} forks were refused (ENOMEM): not all of the program fitted into local memory"
            ));
        }
        for refusal in Refusal::ALL {
            let times = total(programs.iter().map(|program| program.calls_refused[refusal as usize]));
            if times > 0 {
                let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
                notes.push(format!("{} was refused {times}: {}", refusal.name(), refusal.reason()));
            }
        }
        Report {
            elapsed_s,
            stall_s: programs.iter().map(|program| program.stall_s).sum(),
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
            what_if: vec![
                WhatIf { local_bytes: Bytes(local.0 / 2), faults: count(|program| program.faults_at_half) },
                WhatIf {
                    local_bytes: Bytes(local.0.saturating_mul(2)),
                    faults: count(|program| program.faults_at_double),
                },
            ],
            profile: programs
                .iter()
                .filter(|program| program.profile.is_some())
                .max_by_key(|program| program.faults_stored)
                .and_then(|program| program.profile.clone()),
            processes: programs.len() as u64,
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
mod tests {
    use std::array;
    use std::sync::atomic::AtomicU64;

    use farmem_engine::counters::COUNTER_WORDS;

    use super::*;
    use crate::history::Since;

    fn counted(refused: &[Refusal]) -> Counted {
        let words: [AtomicU64; COUNTER_WORDS] = array::from_fn(|_| AtomicU64::new(0));
        let counters = Counters(&words);
        refused.iter().for_each(|refusal| counters.refuse(*refusal));
        Counted::of(1, &counters, &Learned::default(), &[], &History::default())
    }

    #[test]
    fn what_was_refused_is_named_with_the_times_in_all_programs_and_the_reason() {
        use Refusal::{IoUring, LargeMessage, Seccomp};
        assert_eq!(Report::of(1.0, &[counted(&[])]).notes, Vec::<String>::new());
        let report = Report::of(1.0, &[counted(&[IoUring, Seccomp]), counted(&[IoUring, LargeMessage])]);
        assert_eq!(
            report.notes,
            [
                "io_uring was refused 2 times: it uses memory after its call; most programs have another way and take it",
                "a seccomp filter was refused once: it would stop the pager's own calls; switch the program's sandbox off",
                "a message larger than an eighth of local memory was refused once: it must be in memory as a whole; a \
                 larger --local lets it through",
            ]
        );
    }

    /// Found by fuzzing: the counters lie in memory that the program can write to.
    #[test]
    fn counters_that_a_program_has_set_to_anything_are_reported_without_a_panic() {
        let words: [AtomicU64; COUNTER_WORDS] = array::from_fn(|_| AtomicU64::new(u64::MAX));
        let counted = Counted::of(1, &Counters(&words), &Learned::default(), &[], &History::default());
        let report = Report::of(1.0, &[counted.clone(), counted]);
        assert_eq!((report.faults, report.bytes_in), (u64::MAX, Bytes(u64::MAX)));
        assert_eq!(report.victim_queue_hit_rate, Some(1.0));
    }

    #[test]
    fn each_refusal_is_counted_for_itself() {
        for (number, refusal) in Refusal::ALL.into_iter().enumerate() {
            let mut wanted = [0; Refusal::ALL.len()];
            wanted[number] = 2;
            assert_eq!(counted(&[refusal, refusal]).calls_refused, wanted, "{refusal:?}");
        }
    }

    #[test]
    fn renamed_fields_are_written_under_both_names() {
        let report = Report { faults_in_victim_queue: 3, victim_queue_hit_rate: Some(0.5), ..Report::of(1.0, &[]) };
        let report = Report { faults_in_flight: 4, transfer_bytes_median: Some(Bytes::kib(64)), ..report };
        let json = serde_json::to_value(&report).unwrap();
        for (new, old, value) in [
            ("faults_in_victim_queue", "faults_staged", 3.0),
            ("victim_queue_hit_rate", "staging_hit_rate", 0.5),
            ("faults_in_flight", "faults_arriving", 4.0),
            ("transfer_bytes_median", "unit_bytes_median", 65536.0),
        ] {
            assert_eq!((json[new].as_f64(), json[old].as_f64()), (Some(value), Some(value)), "{new}");
        }
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let since = Since { since_s: 0.5, unit_bytes: Bytes::kib(4) };
        let (faults, unit_bytes, units) = (3, Bytes::kib(64), vec![since]);
        let site = Site {
            function: "main".into(),
            file: Some("a.c".into()),
            line: Some(7),
            faults,
            unit_bytes,
            units: units.clone(),
        };
        let report = Report {
            backend: Some(Backend::Copy.name().to_owned()),
            sealed: Some("AES".to_owned()),
            victim_queue_hit_rate: Some(0.5),
            prefetch_hit_rate: Some(0.25),
            transfer_bytes_median: Some(unit_bytes),
            sites: vec![site],
            sections: vec![Section { section: 1, faults, unit_bytes, units }],
            profile: Some(Profiled { path: "/p".into(), sites_loaded: 1, sites_saved: 2 }),
            notes: vec!["n".to_owned()],
            ..Report::of(1.5, &[counted(&[]), counted(&[Refusal::IoUring])])
        };
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        let nothing = Report::of(0.0, &[]);
        let text = serde_json::to_string(&nothing).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), nothing);
    }
}
