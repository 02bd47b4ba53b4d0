//! The tests, a file per interface or command. Each file lists its tests with their requirements; `table.rs` lists the files.

pub mod act;
pub mod act_exec;
pub mod act_hard;
pub mod act_shared;
pub mod aging;
pub mod aging_layers;
pub mod aging_passes;
pub mod aging_simulate;
pub mod aging_streams;
pub mod alerts;
pub mod attach;
pub mod attach_changes;
pub mod cachestat;
pub mod census;
pub mod collapse;
pub mod command;
pub mod command_redis;
pub mod command_refusals;
pub mod command_stat;
pub mod count;
pub mod damon;
pub(crate) mod disk_file;
pub(crate) mod elf32;
pub mod field;
pub mod forking;
pub mod guide;
pub mod halted;
pub mod hostile_names;
pub mod injection;
pub mod kill;
pub mod llc_refill;
pub mod llc_run;
pub mod llc_run_machines;
pub mod llc_run_refusals;
pub mod llc_shared;
pub mod lost_output;
pub mod memcached;
pub mod other_users;
pub mod packages;
pub mod page_cache;
pub mod pagemap;
pub mod pinned_file;
pub mod pinned_memory;
pub mod pressure;
pub mod privileges;
pub mod process_events;
pub(crate) mod programs;
pub(crate) mod redis;
pub mod resctrl;
pub mod resctrl_backend;
pub mod resctrl_host;
pub mod residency;
pub mod run;
pub mod run_account;
pub mod run_behaviour;
pub mod run_counts;
pub mod run_dangers;
pub mod run_hard;
pub mod run_library;
pub mod run_limits;
pub mod run_local;
pub mod run_local_advice;
pub mod run_local_children;
pub mod run_local_hard;
pub mod run_local_other_users;
pub mod run_local_outages;
pub mod run_local_profile;
pub mod run_local_programs;
pub mod run_local_refusals;
pub mod run_local_report;
pub mod run_local_signals;
pub mod run_local_stores;
pub mod run_local_transfers;
pub mod run_processes;
pub mod run_programs;
pub mod runtime_directory;
pub(crate) mod scripted_driver;
pub mod serve;
pub mod serve_browser;
pub mod serve_page;
pub mod setting;
pub mod shared_segments;
pub mod silent_masu;
pub mod silent_server;
pub mod store_hints;
pub mod target_process;
pub mod track;
pub mod track_clients;
pub mod track_lies;
pub mod track_other_users;
pub mod trim;
pub mod walk;
pub mod walk_changes;

use std::cell::OnceCell;

use access::AccessMap;
use access::walk::Walker;
use linux::pagemap::Pagemap;
use units::PAGES_PER_WINDOW;
use units::cast::index;

use crate::setting::Setting;
use crate::target_process::{Mapping, TargetProcess};

/// Outcome of a test; any error with words turns into a failure.
type Outcome = Result<(), libtest_mimic::Failed>;

/// Disables automatic huge pages until dropped, except by order or by a program's own advice. No program is given any,
/// and khugepaged makes no window huge that has pages missing. By default it fills up windows with advice, some every
/// ten seconds, and so undoes a split.
fn no_automatic_huge_pages() -> std::io::Result<[Setting; 2]> {
    let huge_pages = |file| format!("/sys/kernel/mm/transparent_hugepage/{file}");
    Ok([Setting::set(huge_pages("enabled"), "madvise")?, Setting::set(huge_pages("khugepaged/max_ptes_none"), "0")?])
}

/// Numbers of the mapping's resident pages.
fn present_pages(process: &TargetProcess, mapping: Mapping) -> Result<Vec<u64>, linux::Error> {
    let entries = Pagemap::open(process.pid())?.entries(mapping.range())?;
    Ok((0..).zip(&entries).filter(|(_, entry)| entry.is_present()).map(|(page, _)| page).collect())
}

/// The anonymous memory of the mapping that is on huge pages, in bytes.
fn huge_bytes(host: &crate::host::Host, process: &TargetProcess, mapping: Mapping) -> Result<u64, linux::Error> {
    let details = linux::smaps::details(host.files(), process.pid())?;
    let range = mapping.range();
    Ok(details.iter().filter(|d| range.covers(d.mapping.range)).map(|d| d.anon_huge_pages.0).sum())
}

thread_local! {
    static WALKER: OnceCell<Walker> = const { OnceCell::new() };
}

/// The walk, loaded once for all tests.
fn walker() -> Result<Walker, libtest_mimic::Failed> {
    WALKER.with(|walker| match walker.get() {
        Some(walker) => Ok(walker.clone()),
        None => {
            let loaded = Walker::load().map_err(|why| format!("{} {}", why.reason, why.remedy))?;
            Ok(walker.get_or_init(|| loaded).clone())
        }
    })
}

/// Numbers of the mapping's touched pages, according to the map.
fn touched(map: &AccessMap, mapping: Mapping) -> Vec<u64> {
    pages_in(map, mapping, |heat, page| heat.touched.contains(page))
}

/// Numbers of the mapping's resident pages, according to the map.
fn seen_present(map: &AccessMap, mapping: Mapping) -> Vec<u64> {
    pages_in(map, mapping, |heat, page| heat.present.contains(page))
}

fn pages_in(map: &AccessMap, mapping: Mapping, is: impl Fn(&access::WindowHeat, usize) -> bool) -> Vec<u64> {
    let inside = map.windows.iter().filter(|heat| mapping.range().covers(heat.window.range()));
    let pages = inside.flat_map(|heat| {
        let first = (heat.window.start().0 - mapping.range().start().0) / 4096;
        (0..PAGES_PER_WINDOW).filter(|page| is(heat, *page)).map(move |page| first + page as u64).collect::<Vec<_>>()
    });
    pages.collect()
}

/// The numbers from 0 to `of`, as many as asked for, chosen at random and in order. The same seed chooses the same.
fn at_random(seed: u64, count: u64, of: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (0..of).collect();
    let mut state = seed;
    for last in (1..all.len()).rev() {
        // The generator of Knuth's MMIX; its upper bits are the good ones.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        all.swap(last, index((state >> 33) % (last as u64 + 1)));
    }
    all.truncate(index(count));
    all.sort_unstable();
    all
}
