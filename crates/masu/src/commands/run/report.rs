//! Report of a run: a few lines for people, or one JSON object.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;

use contract::image::LeftOut;
use hugepages::count::{Counted, Kind, Superpages};
use hugepages::observe::Pieces;
use hugepages::torn::STAYS;
use linux::untrusted::visible;
use linux::{Pid, Untrusted};
use serde::{Deserialize, Serialize};
use units::Bytes;

use super::hot::{LookedAt, NOT_SERVED};
use crate::args::Huge;
use crate::launch::child::Ended;
use crate::terminal::table::Table;

/// Report of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The program and its arguments.
    pub command: Vec<Untrusted>,
    /// Requested way of serving.
    pub huge: Huge,
    /// Actual way of serving.
    pub served: Huge,
    /// Exit status; `None` when a signal ended the program.
    pub exit_status: Option<i32>,
    /// The signal that ended the program.
    pub signal: Option<String>,
    /// Seconds from start to end.
    pub run_s: f64,
    /// Processor time of the program and its children, in user and in kernel mode.
    pub user_s: f64,
    pub system_s: f64,
    /// Peak resident memory of its largest process.
    pub rss_peak_bytes: Bytes,
    pub minor_faults: u64,
    pub major_faults: u64,
    /// Processes with the library loaded.
    pub processes: u64,
    /// Windows by kind of memory, each process at its fullest.
    pub superpages: BTreeMap<Kind, Windows>,
    /// The same, each process at its last count: as `masu stat` would have said then.
    #[serde(default)]
    pub superpages_at_end: BTreeMap<Kind, Windows>,
    /// Processes in these sums.
    #[serde(default)]
    pub counted_processes: u64,
    /// Blocks of the sizes below 2 MiB, where the host gives any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub small_sizes: BTreeMap<Bytes, u64>,
    /// Memory in mappings without a window, each process at its fullest.
    #[serde(flatten)]
    pub pieces: Pieces,
    /// Windows ever reserved by the library, counted as in the paper; without malloc's own reservations.
    pub reserved_ever_windows: u64,
    /// Part of these beyond the fullest counts: they came before or after those, or had no access rights then (address
    /// space that a runtime has set aside).
    #[serde(default)]
    pub uncounted_windows: u64,
    /// Mappings placed at a multiple of a superpage.
    pub aligned_mappings: u64,
    /// Windows made huge from outside.
    pub promoted_windows: u64,
    /// Of these, windows that were huge at the last count, and to the end.
    #[serde(default)]
    pub promoted_still_huge_windows: u64,
    /// Of these, windows that no count shows: they were huge to the end, which came before another count.
    #[serde(default)]
    pub promoted_uncounted_windows: u64,
    /// Processes and windows looked at from outside; absent where none were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<LookedAt>,
    /// Windows split because they held too much unused memory, and the bytes that this returned.
    pub demoted_windows: u64,
    pub returned_bytes: Bytes,
    /// Windows that the program gave back in part, whose blocks masu split, and the memory that this freed.
    #[serde(default)]
    pub torn_windows: u64,
    #[serde(default)]
    pub torn_returned_bytes: Bytes,
    /// Torn huge pages that the kernel did not split at the last look: locked, or mapped by another process, too.
    #[serde(default)]
    pub torn_left_windows: u64,
    /// Memory charged for them, and not resident.
    #[serde(default)]
    pub torn_left_bytes: Bytes,
    /// Huge windows that a child shared, so that they were neither read nor split: the most in one process at a time.
    #[serde(default)]
    pub shared_left_windows: u64,
    /// Memory of them that may be unused: as sampled before the fork, or all of it.
    #[serde(default)]
    pub shared_left_bytes: Bytes,
    /// Processes whose memory no count has since their first thread ended.
    #[serde(default)]
    pub hidden_processes: u64,
    /// Processes that had huge pages forbidden (prctl), by themselves or by an ancestor in the run.
    #[serde(default)]
    pub forbidding_processes: u64,
    /// The program itself is one of them.
    #[serde(default)]
    pub program_forbids: bool,
    /// Programs of this account: those served, and those left out.
    #[serde(default)]
    pub programs: u64,
    /// Programs with the library to their end; from outside: processes looked at.
    #[serde(default)]
    pub programs_served: u64,
    /// Programs that were started without the library, by reason: they ran as without masu.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<String, u64>,
    /// Processes that run on after the program, with the library: masu looks after them no longer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub still_running: Vec<StillRunning>,
    /// Further notes.
    pub notes: Vec<String>,
}

/// Process that runs on after the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StillRunning {
    pub process: Pid,
    pub program: Untrusted,
}

/// Processes that run on and have a line.
const STILL_RUNNING_SHOWN: usize = 4;

/// Numbers of 2 MiB windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    pub reserved_windows: u64,
    pub allocated_windows: u64,
    /// `None` where failed windows cannot be told from downgraded ones.
    pub failed_windows: Option<u64>,
    pub downgraded_windows: Option<u64>,
}

impl Windows {
    fn add(&mut self, superpages: &Superpages) {
        let sum = |mine: Option<u64>, theirs: Option<&u64>| Some(mine? + theirs?);
        self.reserved_windows += superpages.reserved_windows;
        self.allocated_windows += superpages.allocated_windows;
        self.failed_windows = sum(self.failed_windows, superpages.failed_windows.value());
        self.downgraded_windows = sum(self.downgraded_windows, superpages.downgraded_windows.value());
    }
}

impl Report {
    /// A report from the program's end; the rest is added later.
    pub fn of(command: &[OsString], huge: Huge, served: Huge, ended: &Ended) -> Report {
        let signal = ended.status.signal();
        Report {
            command: command.iter().map(|word| Untrusted::new(word.as_bytes())).collect(),
            huge,
            served,
            exit_status: ended.status.code(),
            signal: signal.map(|number| {
                signal_hook::low_level::signal_name(number).map_or_else(|| number.to_string(), str::to_owned)
            }),
            run_s: ended.run.as_secs_f64(),
            user_s: ended.usage.user.as_secs_f64(),
            system_s: ended.usage.system.as_secs_f64(),
            rss_peak_bytes: ended.rss_peak.unwrap_or(Bytes(0)),
            minor_faults: ended.usage.minor_faults,
            major_faults: ended.usage.major_faults,
            processes: 0,
            superpages: BTreeMap::new(),
            superpages_at_end: BTreeMap::new(),
            counted_processes: 0,
            small_sizes: BTreeMap::new(),
            pieces: Pieces::default(),
            reserved_ever_windows: 0,
            uncounted_windows: 0,
            aligned_mappings: 0,
            promoted_windows: 0,
            promoted_still_huge_windows: 0,
            promoted_uncounted_windows: 0,
            looked_at: None,
            demoted_windows: 0,
            returned_bytes: Bytes(0),
            torn_windows: 0,
            torn_returned_bytes: Bytes(0),
            torn_left_windows: 0,
            torn_left_bytes: Bytes(0),
            shared_left_windows: 0,
            shared_left_bytes: Bytes(0),
            hidden_processes: 0,
            forbidding_processes: 0,
            program_forbids: false,
            programs: 0,
            programs_served: 0,
            left_out: BTreeMap::new(),
            still_running: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds the counts of a process.
    pub fn add(&mut self, counted: &Counted) {
        self.counted_processes += 1;
        self.pieces.mappings += counted.pieces.mappings;
        self.pieces.resident += counted.pieces.resident;
        add(&mut self.superpages, counted);
        for of in counted.small_sizes.iter().filter_map(|sizes| sizes.value()).flatten() {
            *self.small_sizes.entry(of.page_bytes).or_default() += of.allocated_pages;
        }
    }

    /// Adds the last counts of a process.
    pub fn add_at_end(&mut self, counted: &Counted) {
        add(&mut self.superpages_at_end, counted);
    }

    /// Windows that the library reserved beyond those of the fullest counts.
    pub fn uncounted(&self) -> u64 {
        let counted: u64 = self.superpages.values().map(|windows| windows.reserved_windows).sum();
        self.reserved_ever_windows.saturating_sub(counted)
    }

    /// Line about the counts in the table, and about the last ones where they differ.
    fn at_end(&self) -> Option<String> {
        let sum = |all: &BTreeMap<Kind, Windows>, of: fn(&Windows) -> u64| all.values().map(of).sum::<u64>();
        let (reserved, huge) = (|one: &Windows| one.reserved_windows, |one: &Windows| one.allocated_windows);
        let full = (sum(&self.superpages, reserved), sum(&self.superpages, huge));
        let now = (sum(&self.superpages_at_end, reserved), sum(&self.superpages_at_end, huge));
        let of = match self.counted_processes {
            0 | 1 => String::new(),
            processes => format!(", sum of {processes} processes"),
        };
        if now == full {
            return (full.0 > 0 && !of.is_empty()).then(|| format!("counts{of}"));
        }
        let downgraded: Option<u64> = self.superpages_at_end.values().map(|one| one.downgraded_windows).sum();
        let downgraded = downgraded.map_or("not known".to_owned(), |windows| windows.to_string());
        Some(format!(
            "counts at the fullest{of}; at the last count: {} reserved, {} still huge, downgraded {downgraded}",
            now.0, now.1
        ))
    }

    /// Counts the programs of the run: `begun` ones that loaded the library, or were looked at from outside, and those
    /// left out. A program that entered a sandbox itself was begun before.
    pub fn count_programs(&mut self, begun: u64) {
        let own_sandbox = self.left_out.get(LeftOut::OwnSandbox.words()).copied().unwrap_or(0);
        self.programs_served = begun.saturating_sub(own_sandbox);
        self.programs = self.programs_served + self.left_out.values().sum::<u64>();
    }

    /// Line about the windows that masu made huge.
    fn promoted(&self) -> Option<String> {
        let (all, still) = (self.promoted_windows, self.promoted_still_huge_windows);
        let after = match self.promoted_uncounted_windows {
            0 => String::new(),
            windows => format!(", {windows} made huge after the last count"),
        };
        // More than any count has, where windows come and go, or were split and made huge again.
        (all > 0).then(|| format!("made huge from outside in all: {all}, {still} of them still huge at the end{after}"))
    }

    /// Line about the programs that were left out.
    pub fn left_out_note(&self) -> Option<String> {
        let all: u64 = self.left_out.values().sum();
        let each: Vec<String> = self.left_out.iter().map(|(why, count)| format!("{count} {why}")).collect();
        let programs = if all == 1 { "program" } else { "programs" };
        (all > 0).then(|| format!("left out: {all} {programs} ({}), which ran as without masu", each.join(", ")))
    }

    /// Prints the report for people.
    pub fn print(&self, to: &mut impl Write) -> std::io::Result<()> {
        let name = self.command.first().cloned().unwrap_or_default();
        let how = match (self.exit_status, &self.signal) {
            (Some(0), _) => String::new(),
            (Some(status), _) => format!(", status {status}"),
            (None, Some(signal)) => format!(", ended by {signal}"),
            (None, None) => String::new(),
        };
        let served = match self.served {
            Huge::Touch | Huge::Hot if self.program_forbids => "huge pages forbidden by prctl",
            Huge::Touch | Huge::Hot if self.forbidding_processes > 0 => "huge pages except where forbidden by prctl",
            Huge::Touch => "huge pages from the first touch",
            Huge::Hot => "huge pages where it is hot",
            Huge::Off => "as it is",
        };
        writeln!(to, "masu: {} ran {:.2} s{how}, {served}", name, self.run_s)?;
        let peak = match self.rss_peak_bytes {
            Bytes(0) => "below masu's own".to_owned(),
            peak => peak.to_string(),
        };
        writeln!(
            to,
            "  processor {:.2} s + {:.2} s in the kernel   peak RSS {peak}   page faults {}, {} from disk",
            self.user_s, self.system_s, self.minor_faults, self.major_faults
        )?;
        let mut table = Table::new(["2 MiB windows", "reserved", "allocated", "failed", "downgraded"]);
        let known = |windows: Option<u64>| windows.map_or("not known".to_owned(), |windows| windows.to_string());
        let full = self.superpages.iter().filter(|(_, windows)| windows.reserved_windows > 0);
        for (kind, windows) in full.clone() {
            table.row([
                kind.name().to_owned(),
                windows.reserved_windows.to_string(),
                windows.allocated_windows.to_string(),
                known(windows.failed_windows),
                known(windows.downgraded_windows),
            ]);
        }
        match (full.count(), self.reserved_ever_windows, &self.looked_at) {
            (0, _, Some(looked_at)) => {
                writeln!(to, "  {}", looked_at.why_none(self.left_out.contains_key(NOT_SERVED)))?
            }
            (0, 0, None) => writeln!(to, "  no window of 2 MiB was reserved at a count")?,
            (0, _, None) => writeln!(to, "  no window of 2 MiB was in use at a count")?,
            _ => table.write(to, "  ")?,
        }
        if let Some(line) = self.at_end() {
            writeln!(to, "  {line}")?;
        }
        if self.uncounted_windows > 0 {
            let forbidden = if self.forbidding_processes > 0 { ", forbidden (prctl)" } else { "" };
            let hidden = if self.hidden_processes > 0 { ", of a process whose first thread ended" } else { "" };
            writeln!(
                to,
                "  reserved in all: {} windows, {} beyond the fullest counts: mapped at other times{forbidden}{hidden}, \
                 without access rights, or under MADV_NOHUGEPAGE then",
                self.reserved_ever_windows, self.uncounted_windows
            )?;
        }
        for (size, pages) in &self.small_sizes {
            writeln!(to, "  pages of {size}: {pages}")?;
        }
        if let Some(line) = self.pieces.text() {
            writeln!(to, "  {line}")?;
        }
        let looked_at = self.looked_at.as_ref().and_then(LookedAt::text);
        for line in looked_at.into_iter().chain(self.promoted()) {
            writeln!(to, "  {line}")?;
        }
        if self.demoted_windows > 0 {
            writeln!(
                to,
                "  split for little used memory: {}, which returned {}",
                self.demoted_windows, self.returned_bytes
            )?;
        }
        if self.torn_windows > 0 {
            writeln!(
                to,
                "  given back in part by the program, and split: {}, which freed {}",
                self.torn_windows, self.torn_returned_bytes
            )?;
        }
        if self.torn_left_windows > 0 {
            writeln!(
                to,
                "  given back in part by the program, and still charged with {}: {} ({STAYS})",
                self.torn_left_bytes, self.torn_left_windows
            )?;
        }
        if self.shared_left_windows > 0 {
            writeln!(
                to,
                "  neither read nor split while a child shared them: {} windows, in which at most {} may be unused",
                self.shared_left_windows, self.shared_left_bytes
            )?;
        }
        for StillRunning { process, program } in self.still_running.iter().take(STILL_RUNNING_SHOWN) {
            writeln!(
                to,
                "  still runs, and is no longer looked after (`masu attach {process}` does): {process} ({program})"
            )?;
        }
        if let Some(more) = self.still_running.len().checked_sub(STILL_RUNNING_SHOWN).filter(|more| *more > 0) {
            writeln!(to, "  still running: {more} more")?;
        }
        for note in &self.notes {
            writeln!(to, "  {}", visible(note))?;
        }
        Ok(())
    }
}

fn add(to: &mut BTreeMap<Kind, Windows>, counted: &Counted) {
    for of in &counted.by_kind {
        let zero = Windows { failed_windows: Some(0), downgraded_windows: Some(0), ..Windows::default() };
        to.entry(of.kind).or_insert(zero).add(&of.superpages);
    }
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;
    use std::time::Duration;

    use linux::children_usage::Usage;
    use linux::probe::Known;

    use super::*;

    fn ended(raw: i32) -> Ended {
        let usage = Usage {
            user: Duration::from_millis(1500),
            system: Duration::from_millis(250),
            rss_peak: Bytes::mib(64),
            minor_faults: 1234,
            major_faults: 5,
        };
        let rss_peak = Some(usage.rss_peak);
        Ended { status: ExitStatus::from_raw(raw), run: Duration::from_millis(2000), usage, rss_peak }
    }

    fn superpages(failed: Known<u64>) -> Superpages {
        Superpages {
            reserved_windows: 10,
            allocated_windows: 7,
            failed_windows: failed,
            downgraded_windows: Known::Value(1),
            not_huge_windows: 3,
            swapped_windows: 0,
            untouched_windows: 0,
            torn_bytes: Known::Value(Bytes(0)),
        }
    }

    fn printed(report: &Report) -> String {
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_report_reads_like_this() {
        let mut report = Report::of(&["./solver".into(), "x".into()], Huge::Touch, Huge::Touch, &ended(0));
        let mut windows = Windows { failed_windows: Some(0), downgraded_windows: Some(0), ..Windows::default() };
        windows.add(&superpages(Known::Value(2)));
        report.superpages.insert(Kind::Mmap, windows);
        report.superpages.insert(Kind::Bss, Windows::default());
        report.demoted_windows = 4;
        report.returned_bytes = Bytes::mib(6);
        assert_eq!(
            printed(&report),
            "masu: ./solver ran 2.00 s, huge pages from the first touch\n  \
             processor 1.50 s + 0.25 s in the kernel   peak RSS 64.0 MiB   page faults 1234, 5 from disk\n  \
             2 MiB windows   reserved   allocated   failed   downgraded\n  \
             mmap                  10           7        2            1\n  \
             counts at the fullest; at the last count: 0 reserved, 0 still huge, downgraded 0\n  \
             split for little used memory: 4, which returned 6.0 MiB\n"
        );
    }

    #[test]
    fn windows_that_were_gone_before_the_end_have_a_line() {
        let mut report = Report::of(&["x".into()], Huge::Touch, Huge::Touch, &ended(0));
        report.reserved_ever_windows = 100;
        report.uncounted_windows = report.uncounted();
        let text = printed(&report);
        assert!(!text.contains("no window of 2 MiB was reserved"), "{text}");
        assert!(
            text.contains(
                "  reserved in all: 100 windows, 100 beyond the fullest counts: mapped at other times, without access \
                 rights, or under MADV_NOHUGEPAGE then\n"
            ),
            "{text}"
        );
        report.forbidding_processes = 1;
        assert!(printed(&report).contains("mapped at other times, forbidden (prctl), without access"), "{report:?}");
        report.forbidding_processes = 0;
        let windows =
            |reserved, huge| Windows { reserved_windows: reserved, allocated_windows: huge, ..Windows::default() };
        report.superpages.insert(Kind::Mmap, windows(97, 97));
        report.superpages_at_end.insert(Kind::Mmap, Windows { downgraded_windows: Some(60), ..windows(97, 37) });
        assert_eq!(report.uncounted(), 3);
        let text = printed(&report);
        assert!(
            text.contains("  counts at the fullest; at the last count: 97 reserved, 37 still huge, downgraded 60\n"),
            "{text}"
        );
        report.superpages_at_end = report.superpages.clone();
        assert!(!printed(&report).contains("at the last count"), "as at its fullest");
        report.counted_processes = 3;
        assert!(printed(&report).contains("  counts, sum of 3 processes\n"), "{}", printed(&report));
    }

    #[test]
    fn windows_made_huge_from_outside_are_in_the_last_count_or_made_huge_after_it() {
        let mut report = Report::of(&["x".into()], Huge::Hot, Huge::Hot, &ended(0));
        report.promoted_windows = 64;
        report.promoted_still_huge_windows = 64;
        assert!(printed(&report).contains("  made huge from outside in all: 64, 64 of them still huge at the end\n"));
        report.promoted_still_huge_windows = 28;
        report.promoted_uncounted_windows = 36;
        let expected = "  made huge from outside in all: 64, 28 of them still huge at the end, 36 made huge after the last count\n";
        assert!(printed(&report).contains(expected));
        report.looked_at = Some(LookedAt { processes: 1, windows_seen: 64, windows_cold: 64, ..LookedAt::default() });
        let text = printed(&report);
        assert!(text.contains("  no window of 2 MiB was made huge: no page of theirs was hot at a look\n"), "{text}");
        assert!(!text.contains("was reserved"), "nothing is reserved from outside: {text}");
    }

    #[test]
    fn the_programs_of_a_run_are_those_served_and_those_left_out() {
        let mut report = Report::of(&["x".into()], Huge::Touch, Huge::Touch, &ended(0));
        let own = LeftOut::OwnSandbox.words();
        report.left_out = BTreeMap::from([("built by Go".to_owned(), 3), (own.to_owned(), 2)]);
        report.count_programs(10);
        assert_eq!((report.programs, report.programs_served), (13, 8), "two of the ten entered a sandbox later");
    }

    #[test]
    fn how_it_ended_is_said_if_it_did_not_end_well() {
        let of = |raw| printed(&Report::of(&["x".into()], Huge::Touch, Huge::Off, &ended(raw)));
        assert!(of(3 << 8).starts_with("masu: x ran 2.00 s, status 3, as it is\n"));
        assert!(of(15).starts_with("masu: x ran 2.00 s, ended by SIGTERM, as it is\n"));
        assert!(of(0).contains("no window of 2 MiB was reserved"));
    }

    #[test]
    fn huge_pages_are_not_claimed_where_they_were_forbidden() {
        let mut report = Report::of(&["x".into()], Huge::Touch, Huge::Touch, &ended(0));
        report.forbidding_processes = 1;
        assert!(printed(&report).starts_with("masu: x ran 2.00 s, huge pages except where forbidden by prctl\n"));
        report.program_forbids = true;
        assert!(printed(&report).starts_with("masu: x ran 2.00 s, huge pages forbidden by prctl\n"));
    }

    #[test]
    fn what_a_child_shares_and_stays_huge_has_a_line() {
        let mut report = Report::of(&["x".into()], Huge::Touch, Huge::Touch, &ended(0));
        assert!(!printed(&report).contains("while a child shared them"));
        (report.shared_left_windows, report.shared_left_bytes) = (100, Bytes::mib(199));
        let expected = "  neither read nor split while a child shared them: 100 windows, in which at most 199.0 MiB may be unused\n";
        assert!(printed(&report).contains(expected), "{}", printed(&report));
    }

    #[test]
    fn what_is_not_known_of_one_process_is_not_known_of_all() {
        let mut windows = Windows { failed_windows: Some(0), downgraded_windows: Some(0), ..Windows::default() };
        windows.add(&superpages(Known::Value(2)));
        windows.add(&superpages(Known::Unknown("no privilege".to_owned())));
        assert_eq!(windows.failed_windows, None);
        assert_eq!(windows.downgraded_windows, Some(2));
        assert_eq!(windows.reserved_windows, 20);
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let mut report = Report::of(&["./solver".into(), "x".into()], Huge::Touch, Huge::Hot, &ended(15));
        let windows =
            Windows { reserved_windows: 3, allocated_windows: 2, failed_windows: None, downgraded_windows: Some(1) };
        report.superpages.insert(Kind::Heap, windows);
        report.notes.push("static".to_owned());
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        report.small_sizes.insert(Bytes::kib(64), 7);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
