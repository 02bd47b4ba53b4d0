//! `masu llc shared`.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::Duration;

use linux::cgroup::group;
use linux::mounts::Mounts;
use linux::path_descriptor::PathDescriptor;
use linux::processes::processes;
use linux::{Error, Pid, ksm, status};
use llc::shared::domain::By;
use llc::shared::observe::{NO_CGROUPS, Observer};
use llc::shared::offer::{Offers, Reason};
use llc::shared::report::{Frames, NothingMerged, Report, Set, WithFrames};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use units::Pages;

use crate::args::{DomainBy, SharedTask};
use crate::failure::Failure;
use crate::open::{Purpose, admit, each};
use crate::terminal::repeat;
use crate::terminal::table::Table;
use crate::{Done, HOST};

/// Sets of sharing processes in the table; the JSON has all.
const SHOWN: usize = 10;
/// Processes named on a line of the table.
const NAMED: usize = 4;

pub fn run(task: &SharedTask) -> Result<Done, Failure> {
    ksm::host(&*HOST).map_err(|error| at_ksm(&error))?;
    let (whom, done) = Whom::of(task)?;
    let by = match task.domain {
        DomainBy::Cgroup => By::Cgroup,
        DomainBy::Uid => By::Uid,
    };
    let observer = Observer::new(by, BTreeSet::from([Pid::own()])).map_err(|error| at_frames(&error))?;
    let mut scans = Scans { whom, by, observer, in_part: false };
    repeat::reports(task.watch, task.json, |out| scans.scan(out, task.json))?;
    Ok(if scans.in_part { Done::InPart } else { done })
}

/// Scope of the report.
enum Whom {
    Everybody,
    Group(String),
    /// Each with a descriptor, which a later process of the same number does not have.
    Processes(Vec<(Pid, OwnedFd)>),
}

impl Whom {
    fn of(task: &SharedTask) -> Result<(Whom, Done), Failure> {
        if let Some(name) = &task.cgroup {
            return Ok((Whom::Group(name.clone()), Done::Whole));
        }
        if task.pid.is_empty() {
            return Ok((Whom::Everybody, Done::Whole));
        }
        let (processes, done) = each(&task.pid, |pid| {
            admit(pid, Purpose::Look)?;
            let held = pid.open().map_err(|error| Failure::at_process(&error))?;
            Ok((pid, held))
        })?;
        Ok((Whom::Processes(processes), done))
    }

    /// The chosen processes that still run; `None` for the whole host.
    fn now(&mut self) -> Result<Option<BTreeSet<Pid>>, Failure> {
        match self {
            Whom::Everybody => Ok(None),
            Whom::Group(name) => {
                let group = group::find(&*HOST, name).map_err(|error| {
                    Failure::new(&error).remedy("`cat /proc/PID/cgroup` says in which group a process is.")
                })?;
                Ok(Some(group.processes))
            }
            Whom::Processes(processes) => {
                processes.retain(|(_, held)| runs(held));
                Ok(Some(processes.iter().map(|(pid, _)| *pid).collect()))
            }
        }
    }
}

/// True while the process runs: its descriptor becomes readable when it ends.
fn runs(process: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once)), Ok(1..))
}

/// A single report, or a series.
struct Scans {
    whom: Whom,
    by: By,
    observer: Observer,
    /// True when some process could not be read.
    in_part: bool,
}

impl Scans {
    /// Prints a report. False when no further one can follow.
    fn scan(&mut self, out: &mut Vec<u8>, json: bool) -> Result<bool, Failure> {
        let of = self.whom.now()?;
        if let (Whom::Processes(_), Some(of)) = (&self.whom, &of)
            && of.is_empty()
        {
            return Ok(false); // Watching ends with the last process.
        }
        let left_out = keepers(&HOST)?;
        self.observer.leave_out(left_out.clone());
        let scan = self.observer.scan(&*HOST).map_err(|error| at_frames(&error))?;
        let kernel = ksm::host(&*HOST).map_err(|error| at_ksm(&error))?;
        let frames = Frames::of(&self.observer, of.as_ref());
        let mut report = Report::of(frames, &scan, self.by, kernel);
        if report.sets.is_empty() {
            let offers = Offers::read(&*HOST, of.as_ref(), &left_out).map_err(|error| at_frames(&error))?;
            report.nothing_merged = Some(NothingMerged::of(offers, &report.ksm));
        }
        self.in_part |= !report.not_read.is_empty();
        if json {
            serde_json::to_writer(&mut *out, &WithFrames { frames, report: &report })?;
            writeln!(out)?;
        } else {
            print(out, &report, frames, of.as_ref())?;
        }
        Ok(true)
    }
}

/// Other masu processes of root. They keep the pages that they have merged with programs (`masu llc run`), and learn
/// nothing by it that root cannot see.
fn keepers(files: &linux::Rooted) -> Result<BTreeSet<Pid>, Failure> {
    let mut mounts = Mounts::read(files).map_err(|error| Failure::new(&error))?;
    let mut file = |pid: Pid| {
        let descriptor = PathDescriptor::of_program(pid).ok()?;
        let found = descriptor.locality(files, &mut mounts).ok()?.local()?.stat().ok()?;
        Some((found.st_dev, found.st_ino))
    };
    let ours = file(Pid::own());
    let all = processes(files).map_err(|error| Failure::new(&error))?;
    // The user is compared first: a program of another user is not opened at all.
    let is_keeper =
        |pid: &Pid| ours.is_some() && status::status(files, *pid).is_ok_and(|of| of.uid == 0) && file(*pid) == ours;
    Ok(all.into_iter().filter(is_keeper).collect())
}

fn at_ksm(error: &Error) -> Failure {
    let failure = Failure::new(error);
    match error {
        Error::Unsupported(_) => failure.remedy("This kernel merges no pages: it was built without CONFIG_KSM."),
        _ => failure,
    }
}

fn at_frames(error: &Error) -> Failure {
    let failure = Failure::new(error);
    match error {
        Error::Denied(_) => failure.remedy(
            "Run as root with CAP_SYS_ADMIN, which root in a container has to be given (--cap-add SYS_ADMIN): \
             what each page frame is used for is shown to nobody else.",
        ),
        Error::Unsupported(at) if at.object == NO_CGROUPS => {
            failure.remedy("This host has no control groups; `--domain uid` tells by the user who trusts whom.")
        }
        Error::Unsupported(at) if at.object.ends_with("/ksm_stat") => failure.remedy(
            "This kernel does not say which processes offer pages to KSM: it has no CONFIG_KSM, or is too old.",
        ),
        Error::Unsupported(_) => failure.remedy("It needs a kernel with CONFIG_PROC_PAGE_MONITOR and CONFIG_KSM."),
        Error::Gone(_) | Error::Malformed { .. } | Error::Other(_) => failure,
    }
}

fn print(out: &mut impl Write, report: &Report, frames: Frames<'_>, of: Option<&BTreeSet<Pid>>) -> Result<(), Failure> {
    if report.sets.is_empty() {
        for line in nothing(report, of) {
            writeln!(out, "{line}")?;
        }
    } else {
        print_sets(out, report, frames)?;
    }
    if report.ksm.run != ksm::Run::Merging && !report.sets.is_empty() {
        writeln!(
            out,
            "KSM is off (/sys/kernel/mm/ksm/run is {}): what is merged stays, and nothing more is.",
            report.ksm.run as u8
        )?;
    }
    if let Some(zero) = report.ksm.zero_pages.value().filter(|pages| pages.0 > 0) {
        let saved = zero.bytes();
        writeln!(
            out,
            "empty pages that KSM made the zero page are no frames of its own: {saved}, as the kernel counts them"
        )?;
    }
    if report.undecided_pages > 0 {
        writeln!(
            out,
            "{} more pages are merged or shared by fork, and not counted: this kernel flags every anonymous page as \
             merged (KPF_KSM, Linux from 6.10 until a fix of July 2026)",
            report.undecided_pages
        )?;
    }
    if report.smart_scan_skips {
        write_smart_scan(out, report.ksm.unmerged())?;
    }
    for not_read in &report.not_read {
        writeln!(out, "not read: process {}: {}", not_read.pid, not_read.why)?;
    }
    if report.cross_domain_frames > 0 {
        print_warning(out, report)?;
    }
    Ok(())
}

/// Equal pages that KSM may never merge, with the remedy.
fn write_smart_scan(out: &mut impl Write, unmerged: Pages) -> Result<(), Failure> {
    writeln!(
        out,
        "{} of offered memory is not merged, and smart_scan is on: KSM skips a page that did not merge",
        unmerged.bytes()
    )?;
    let lines = [
        "in up to 8 of 9 scans, and two equal pages that it visits in different scans never merge. If equal pages are expected,",
        "`echo 0 > /sys/kernel/mm/ksm/smart_scan` makes KSM visit each page in each scan, for more processor time of ksmd.",
    ];
    for line in lines {
        writeln!(out, "    {line}")?;
    }
    Ok(())
}

/// The reasons for an empty report, a line each.
fn nothing(report: &Report, of: Option<&BTreeSet<Pid>>) -> Vec<String> {
    let whose = if of.is_some() { "of these processes are" } else { "are" };
    let Some(nothing) = &report.nothing_merged else { return Vec::new() };
    let mut lines: Vec<String> = nothing.reasons.iter().map(|reason| words(*reason, report, nothing, of)).collect();
    if let Some(first) = lines.first_mut() {
        *first = format!("no pages {whose} merged: {first}");
    }
    lines
}

fn words(reason: Reason, report: &Report, nothing: &NothingMerged, of: Option<&BTreeSet<Pid>>) -> String {
    let (ksm, offers) = (&report.ksm, &nothing.offers);
    let run = ksm.run as u8;
    match reason {
        Reason::Off => format!("KSM is off (/sys/kernel/mm/ksm/run is {run}): `echo 1` there turns it on."),
        Reason::Unmerged => {
            format!("KSM has parted them all (/sys/kernel/mm/ksm/run is {run}); `echo 1` there turns it on.")
        }
        Reason::NothingOffered => {
            let nobody = if of.is_some() { "none of them" } else { "no process" };
            format!("{nobody} has offered any (madvise MADV_MERGEABLE, prctl PR_SET_MEMORY_MERGE).")
        }
        Reason::NothingPresent => "the offered memory is not present: never touched, or swapped out.".to_owned(),
        Reason::NothingEqual => format!(
            "KSM has visited the {} that they offer, and found no two pages equal and unchanged. A page merges at its \
             second visit at the earliest; {}.",
            offers.private_bytes,
            pace(ksm, nothing)
        ),
        Reason::NotVisited => format!(
            "KSM has visited {} of the {} that they offer; {}, and a page merges at its second visit at the earliest. \
             /sys/kernel/mm/ksm/pages_to_scan sets the pace.",
            offers.visited_pages.bytes(),
            offers.private_bytes,
            pace(ksm, nothing)
        ),
        Reason::HugePages => format!(
            "{} of the offered memory lies on huge pages: KSM splits one only where it finds an equal page.",
            offers.huge_bytes
        ),
        Reason::ZeroPages => format!(
            "KSM replaced {} of empty pages by the zero page (use_zero_pages), which is no merged frame.",
            offers.zero_pages.bytes()
        ),
        Reason::Shared => format!(
            "{} is shared memory (MAP_SHARED, memfd, tmpfs), which KSM does not merge: the kernel ignores an offer of it.",
            offers.shared_bytes
        ),
        Reason::Hugetlb => format!("{} lies in hugetlb pages, which KSM does not merge.", offers.hugetlb_bytes),
    }
}

/// Duration of a pass, with its cause.
fn pace(ksm: &ksm::Host, nothing: &NothingMerged) -> String {
    let of = format!(
        "with pages_to_scan {} and sleep_millisecs {}, a pass over the {} offered on this host",
        ksm.pages_to_scan, ksm.sleep_millisecs, nothing.offers.host_bytes
    );
    match nothing.pass_ms.map(Duration::from_millis) {
        None => format!("{of} never ends"),
        Some(pass) => format!("{of} takes at least {}", rounded(pass)),
    }
}

/// The duration in the unit that fits.
fn rounded(duration: Duration) -> String {
    let seconds = duration.as_secs().max(1);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", (seconds + 30) / 60),
        7200..172_800 => format!("{} h", (seconds + 1800) / 3600),
        _ => format!("{} days", (seconds + 43_200) / 86_400),
    }
}

fn print_sets(out: &mut impl Write, report: &Report, frames: Frames<'_>) -> Result<(), Failure> {
    let name = |pid: &Pid| {
        let of = frames.member(*pid);
        of.map_or_else(|| pid.to_string(), |member| format!("{} {pid}", member.name))
    };
    let mut table = Table::new(["shared by", "frames", "pages", "saved", "domains", ""]);
    for set in report.sets.iter().take(SHOWN) {
        let domains: Vec<String> = set.domains.iter().map(ToString::to_string).collect();
        table.row([
            shortened(&set.processes.iter().map(name).collect::<Vec<_>>()),
            set.frames.to_string(),
            set.pages.to_string(),
            set.bytes_saved.to_string(),
            shortened(&domains),
            if set.crosses_domains { "across domains".to_owned() } else { String::new() },
        ]);
    }
    table.write(out, "")?;
    let left_out = &report.sets[report.sets.len().min(SHOWN)..];
    if !left_out.is_empty() {
        let frames: u64 = left_out.iter().map(|set| set.frames).sum();
        writeln!(out, "and {} more sets of processes with {frames} frames; --json has all", left_out.len())?;
    }
    writeln!(out)?;
    let saved = report.bytes_saved;
    let frames = if report.merged_frames == 1 { "frame is" } else { "frames are" };
    writeln!(out, "{} {frames} merged, for {} pages: {saved} saved", report.merged_frames, report.merged_pages)?;
    if report.kernel_bytes_saved != saved {
        writeln!(out, "the kernel counts {} on the whole host, {WHY_THE_KERNEL_DIFFERS}", report.kernel_bytes_saved)?;
    }
    Ok(())
}

const WHY_THE_KERNEL_DIFFERS: &str = "without what forks share of it, with what a running `masu llc run` keeps merged, and what was parted or has ended since KSM last came by";

fn shortened(names: &[String]) -> String {
    let shown = names[..names.len().min(NAMED)].join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn print_warning(out: &mut impl Write, report: &Report) -> Result<(), Failure> {
    let crossing = |set: &&Set| set.crosses_domains;
    let domains: BTreeSet<String> =
        report.sets.iter().filter(crossing).flat_map(|set| set.domains.iter().map(ToString::to_string)).collect();
    let domains = shortened(&domains.into_iter().collect::<Vec<_>>());
    writeln!(out)?;
    writeln!(out, "warning: {} frames are shared across {}: {domains}", report.cross_domain_frames, report.domain_by)?;
    let lines = [
        "Who shares a page can tell when others read or write it. If these do not trust each other, part them:",
        "a program takes its offer back by madvise(MADV_UNMERGEABLE) or prctl(PR_SET_MEMORY_MERGE, 0); QEMU by -machine mem-merge=off;",
        "for the whole host `echo 2 > /sys/kernel/mm/ksm/run`. KSM has no other borders: offer memory of one tenant alone.",
    ];
    for line in lines {
        writeln!(out, "    {line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_names_are_cut() {
        let names: Vec<String> = ["a", "b", "c", "d", "e", "f"].map(str::to_owned).into();
        assert_eq!(shortened(&names), "a, b, c, d and 2 more");
        assert_eq!(shortened(&names[..4]), "a, b, c, d");
        assert_eq!(shortened(&[]), "");
    }
}
