//! Report of `masu run --local` for people.

use std::io::{Result, Write};

use farmem::report::{Program, Report};
use farmem_engine::backend::Backend;
use linux::untrusted::visible;
use units::Bytes;

use crate::terminal::table::Table;

/// Code sites and programs in the printed report; the JSON has more.
const SHOWN: usize = 8;

/// Programs with a line about memory that is not paged.
const UNPAGED_SHOWN: usize = 3;

pub fn print(report: &Report, to: &mut impl Write) -> Result<()> {
    if report.processes == 0 {
        writeln!(to, "masu: {:.3} s; nothing was paged", report.elapsed_s)?;
        return notes(report, to);
    }
    let (elapsed, stall, memory) = (report.elapsed_s, report.stall_s, memory(report));
    writeln!(to, "masu: {elapsed:.3} s, of which {stall:.3} s waiting for pages; {memory}")?;
    traffic(report, to)?;
    if let Some(cipher) = &report.sealed {
        writeln!(to, "  sealed ({cipher})")?;
    }
    if report.backend.as_deref() == Some(Backend::Copy.name()) {
        writeln!(to, "  pages were copied, not moved (backend copy); `masu facts` says why")?;
    }
    // The estimate for half the memory can miss thrashing, and so is no figure to act on.
    if let [_, double] = report.what_if[..]
        && from_store(report) > 0
    {
        writeln!(to, "  with {} local: about {} faults from the store", double.local_bytes, double.faults)?;
    }
    advice(report, to)?;
    programs(report, to)?;
    places(report, to)?;
    if let Some(profile) = &report.profile {
        let (loaded, saved, path) = (profile.sites_loaded, profile.sites_saved, profile.path.display());
        writeln!(to, "  profile: {loaded} sites known from earlier runs, {saved} kept in {path}")?;
    }
    notes(report, to)
}

fn notes(report: &Report, to: &mut impl Write) -> Result<()> {
    report.notes.iter().try_for_each(|note| writeln!(to, "  {}", visible(note)))
}

/// Memory of the program, or of all programs.
fn memory(report: &Report) -> String {
    let (local, paged, peak) = (report.local_bytes, report.paged_bytes, report.peak_resident_bytes);
    match report.processes {
        1 if paged <= local => format!("all of {paged} local (--local {local}), at most {peak} in memory"),
        1 => format!("{local} of {paged} local, at most {peak} in memory"),
        count => format!("{count} programs touched {paged}, each with at most {local} local, and {peak} in memory"),
    }
}

fn from_store(report: &Report) -> u64 {
    report.faults - report.faults_in_victim_queue - report.faults_in_flight - report.faults_first
}

fn traffic(report: &Report, to: &mut impl Write) -> Result<()> {
    // A zero is not printed: it never changes with this store.
    let some = |count: u64, said: String| if count > 0 { said } else { String::new() };
    let in_flight = some(report.faults_in_flight, format!(" {} already in flight,", report.faults_in_flight));
    writeln!(
        to,
        "  faults {}: {} from the store, {} from the victim queue,{in_flight} {} first touches",
        report.faults,
        from_store(report),
        report.faults_in_victim_queue,
        report.faults_first,
    )?;
    let used = report.prefetch_hit_rate.map(|rate| format!(", {:.0} % used", rate * 100.0)).unwrap_or_default();
    let ahead = some(report.bytes_in_ahead.0, format!(" ({} of it ahead{used})", report.bytes_in_ahead));
    let behind = some(report.bytes_out_behind.0, format!(" ({} of it in the background)", report.bytes_out_behind));
    writeln!(to, "  {} in{ahead}, {} out{behind}", report.bytes_in, report.bytes_out)
}

/// The local memory that would be enough, the sum over programs, and memory that is not paged.
fn advice(report: &Report, to: &mut impl Write) -> Result<()> {
    working_sets(report, to)?;
    let at_once = report.at_once;
    if at_once.programs > 1 {
        writeln!(
            to,
            "  {} programs at once had {} in memory, and might have had {}: --local holds for each of them",
            at_once.programs, at_once.resident_bytes, at_once.local_bytes
        )?;
    }
    let unpaged = |program: &Program| {
        let not_paged = program.not_paged.as_ref()?;
        Some((not_paged.total(), program.program.clone(), program.process, not_paged.text()?))
    };
    let mut unpaged: Vec<_> = report.programs.iter().filter_map(unpaged).collect();
    unpaged.sort_by_key(|(total, ..)| std::cmp::Reverse(total.0));
    for (_, program, process, text) in unpaged.iter().take(UNPAGED_SHOWN) {
        writeln!(to, "  not paged, on top of --local: {program} ({process}) had {text}")?;
    }
    Ok(())
}

/// A line for each program that goes round in more than it has, and one for the rest.
fn working_sets(report: &Report, to: &mut impl Write) -> Result<()> {
    let sets: Vec<_> = report.programs.iter().filter_map(|program| program.working_set.as_ref()).collect();
    for set in sets.iter().take(SHOWN) {
        let who = if report.processes > 1 { format!("{} ({})", set.program, set.process) } else { "it".to_owned() };
        writeln!(to, "  {who} {}", set.text())?;
    }
    match sets.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        1 => writeln!(to, "  1 other program goes round in more than it has, too (--json)"),
        more => writeln!(to, "  {more} other programs go round in more than they have, too (--json)"),
    }
}

/// A row for each program, and one for the rest, so that the column of faults adds up.
fn programs(report: &Report, to: &mut impl Write) -> Result<()> {
    if report.processes < 2 {
        return Ok(());
    }
    let mut table = Table::new(["from the store", "waiting", "local", "touched", "in memory", "program"]);
    let shown = report.programs.get(..SHOWN).unwrap_or(&report.programs);
    for program in shown {
        let Program { local_bytes, paged_bytes, peak_resident_bytes, faults_stored, stall_s, .. } = program;
        let name = format!("{} ({})", program.program, program.process);
        let bytes = [local_bytes, paged_bytes, peak_resident_bytes].map(Bytes::to_string);
        let [local, paged, peak] = bytes;
        table.row([faults_stored.to_string(), format!("{stall_s:.3} s"), local, paged, peak, name]);
    }
    let others = report.processes.saturating_sub(shown.len() as u64);
    if others > 0 {
        let sum = |of: fn(&Program) -> u64| shown.iter().map(of).fold(0, u64::saturating_add);
        let known = report.faults_in_victim_queue + report.faults_in_flight + report.faults_first;
        let stored = report.faults.saturating_sub(known).saturating_sub(sum(|program| program.faults_stored));
        let paged = report.paged_bytes.saturating_sub(Bytes(sum(|program| program.paged_bytes.0)));
        let stall = (report.stall_s - shown.iter().map(|program| program.stall_s).sum::<f64>()).max(0.0);
        let row = [stored.to_string(), format!("{stall:.3} s"), String::new(), paged.to_string(), String::new()];
        table.row(row.into_iter().chain([if others == 1 { "1 other".to_owned() } else { format!("{others} others") }]));
    }
    table.write(to, "  ")
}

/// A row for each code site or section, and one for the rest, so that the faults add up.
fn places(report: &Report, to: &mut impl Write) -> Result<()> {
    let several = report.processes > 1;
    let mut table = Table::new(["faults", "unit", "where"]);
    let mut shown = 0_u64;
    for site in report.sites.iter().take(SHOWN) {
        let line = match (&site.file, site.line) {
            (Some(file), Some(line)) => format!("{} ({file}:{line})", site.function),
            _ => site.function.to_string(),
        };
        let line = if several { format!("{} ({}): {line}", site.program, site.process) } else { line };
        table.row([site.faults.to_string(), site.unit_bytes.to_string(), line]);
        shown = shown.saturating_add(site.faults);
    }
    for section in report.sections.iter().take(SHOWN) {
        let line = format!("section {}", section.section);
        table.row([section.faults.to_string(), section.unit_bytes.to_string(), line]);
        shown = shown.saturating_add(section.faults);
    }
    if table.is_empty() {
        return Ok(());
    }
    let rest = report.faults.saturating_sub(shown);
    if rest > 0 {
        table.row([rest.to_string(), String::new(), "other places".to_owned()]);
    }
    table.write(to, "  ")
}

#[cfg(test)]
mod tests {
    use farmem::report::{Counted, WorkingSet};

    use super::*;

    fn text(report: &Report) -> String {
        let mut text = Vec::new();
        print(report, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn counted(process: u32, paged: u64, faults_stored: u64) -> Counted {
        let (local, paged) = (Bytes::mib(256), Bytes::mib(paged));
        Counted {
            process,
            name: "sort".into(),
            local,
            paged,
            peak_resident: paged.min(local),
            faults_stored,
            ..Counted::default()
        }
    }

    #[test]
    fn nobody_has_more_local_memory_than_memory() {
        let fits = text(&Report::of(1.0, &[counted(1, 20, 0)]));
        assert!(fits.contains("all of 20.0 MiB local (--local 256.0 MiB), at most 20.0 MiB in memory"), "{fits}");
        assert!(!fits.contains("local: about"), "no other size was tried: {fits}");
        let larger = text(&Report::of(1.0, &[counted(1, 300, 7)]));
        assert!(larger.contains("  with 512.0 MiB local: about 0 faults from the store\n"), "{larger}");
        assert!(!larger.contains("with 128.0 MiB"), "{larger}");
        assert!(larger.contains("256.0 MiB of 300.0 MiB local, at most 256.0 MiB in memory"), "{larger}");
    }

    #[test]
    fn the_rows_of_programs_add_up() {
        let all: Vec<Counted> = (1..=12).map(|number| counted(number, 100, u64::from(number))).collect();
        let report = text(&Report::of(1.0, &all));
        assert!(report.contains("12 programs touched 1.17 GiB, each with at most 256.0 MiB local"), "{report}");
        let rows = report.lines().skip_while(|line| !line.contains("from the store   waiting")).skip(1);
        let faults = rows.map_while(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        assert_eq!(faults.sum::<u64>(), (1..=12).sum::<u64>(), "{report}");
        assert!(report.contains("4 others"), "{report}");
    }

    #[test]
    fn a_program_that_thrashes_is_told_the_memory_that_it_needs() {
        let set = WorkingSet {
            program: "sort".into(),
            process: 7,
            bytes: Bytes::mib(310),
            local_bytes: Bytes::mib(320),
            faults: 13_000,
            faults_now: 2_000_000,
        };
        let counted = Counted { working_set: Some(set), ..counted(7, 400, 2_000_000) };
        let said = "it goes round in 310.0 MiB; with --local 320MiB it would fault about 13000 times from the store \
                    instead of 2000000 times";
        assert!(text(&Report::of(1.0, &[counted])).contains(said));
    }

    #[test]
    fn each_program_that_thrashes_has_its_line_and_their_number_is_bounded() {
        let thrashes = |process: u32| {
            let set = WorkingSet {
                program: "sort".into(),
                process,
                bytes: Bytes::mib(310),
                local_bytes: Bytes::mib(320),
                faults: 13,
                faults_now: 567,
            };
            Counted { working_set: Some(set), ..counted(process, 400, 1000 - u64::from(process)) }
        };
        let lines = |report: &str| report.lines().filter(|line| line.contains(") goes round in 310.0 MiB")).count();
        let two = Report::of(1.0, &[counted(1, 400, 5000), thrashes(2), thrashes(3)]);
        assert_eq!(two.working_set.as_ref().map(|set| set.process), Some(2), "the first has none");
        let two = text(&two);
        assert!(two.contains("sort (2) goes round in") && two.contains("sort (3) goes round in"), "{two}");
        let nine = text(&Report::of(1.0, &(1..=9).map(thrashes).collect::<Vec<_>>()));
        assert!(nine.contains("  1 other program goes round in more than it has, too"), "{nine}");
        let many = text(&Report::of(1.0, &(1..=40).map(thrashes).collect::<Vec<_>>()));
        assert_eq!(lines(&many), 8, "{many}");
        assert!(many.contains("  32 other programs go round in more than they have, too"), "{many}");
    }

    #[test]
    fn nothing_is_said_of_pages_where_nothing_was_paged() {
        let mut report = Report::of(0.25, &[]);
        report.notes.push("left out: 1 program".to_owned());
        assert_eq!(text(&report), "masu: 0.250 s; nothing was paged\n  left out: 1 program\n");
        assert_eq!(report.what_if, []);
    }
}
