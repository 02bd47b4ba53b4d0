//! The result of a scan, for people and programs: frames and their sharers, the memory saved, and frames shared
//! across trust domains.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use linux::ksm;
use linux::{Error, Pid, Untrusted};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Serialize, Serializer};
use units::cast::saturated;
use units::{Address, Bytes, Pages};

use super::domain::{By, Domain, Member, crosses, domains_of};
use super::index::{Frame, Index, sets};
use super::observe::{Observer, Scan};
use super::offer::{Offers, Reason};

/// The whole report, in the words of `--json`.
#[derive(Debug, Serialize)]
pub struct WithFrames<'o> {
    /// Each merged frame with its sharers.
    pub frames: Frames<'o>,
    /// Report without the frames.
    #[serde(flatten)]
    pub report: &'o Report,
}

/// Report without the frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Memory saved by the merges, in bytes.
    pub bytes_saved: Bytes,
    /// Frames shared across trust domains.
    pub cross_domain_frames: u64,
    /// Number of merged frames.
    pub merged_frames: u64,
    /// Number of merged pages, each counted where it is mapped.
    pub merged_pages: u64,
    /// Pages that are merged or shared by fork, which this kernel does not tell apart (`fork_shared`). Not counted above.
    pub undecided_pages: u64,
    /// Frames grouped by their sharers, the largest saving first.
    pub sets: Vec<Set>,
    /// Criterion for trust domains.
    pub domain_by: By,
    /// Selected processes that have merged pages.
    pub processes: Vec<OfProcess>,
    /// Processes that could not be scanned.
    pub not_read: Vec<NotRead>,
    /// Memory saved on the whole host, by the kernel's count. The kernel corrects it on the next pass of KSM.
    pub kernel_bytes_saved: Bytes,
    /// The kernel's settings and counters of KSM.
    pub ksm: ksm::Host,
    /// KSM skips most visits to unmerged pages (`smart_scan`), and much offered memory is unmerged.
    pub smart_scan_skips: bool,
    /// Why the selected processes have no merged page; `None` if they have some.
    pub nothing_merged: Option<NothingMerged>,
    /// Cost of the scan.
    #[serde(rename = "look")]
    pub scan: Cost,
}

/// Frames shared by the same processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Set {
    /// Sharers.
    pub processes: Vec<Pid>,
    /// Their domains, each once.
    pub domains: Vec<Domain>,
    /// The sharers do not all trust each other.
    pub crosses_domains: bool,
    /// Number of frames.
    pub frames: u64,
    /// Number of mapped pages, over all sharers.
    pub pages: u64,
    /// Memory saved by the merges, in bytes.
    pub bytes_saved: Bytes,
}

/// A process with merged pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfProcess {
    /// Process id.
    pub pid: Pid,
    /// Name, user, group and domain.
    #[serde(flatten)]
    pub member: Member,
    /// Number of its merged pages.
    pub merged_pages: u64,
}

/// A process that could not be scanned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRead {
    /// Process id.
    pub pid: Pid,
    /// The reason.
    pub why: String,
}

/// The selected processes have no merged page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NothingMerged {
    /// Reasons, the most important one first.
    pub reasons: Vec<Reason>,
    /// Their offered memory.
    pub offers: Offers,
    /// Least duration of a pass of KSM over all offered memory of the host, in milliseconds.
    pub pass_ms: Option<u64>,
}

impl NothingMerged {
    /// The reasons for these offers under these settings.
    pub fn of(offers: Offers, ksm: &ksm::Host) -> NothingMerged {
        let pass_ms = offers.pass(ksm).map(|pass| saturated(pass.as_millis()));
        NothingMerged { reasons: offers.reasons(ksm), offers, pass_ms }
    }
}

/// Cost of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Scanned processes.
    pub processes: usize,
    /// Page-table entries read.
    pub pages_read: Pages,
    /// Frames whose flags were read.
    pub frames_asked: u64,
    /// Pages merged since the last scan.
    pub pages_come: u64,
    /// Pages no longer merged since the last scan.
    pub pages_gone: u64,
    /// Duration in microseconds.
    pub took_us: u64,
    /// CPU time in microseconds.
    pub cpu_us: u64,
}

/// Frames, serialized one after the other: there may be millions.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'o> {
    index: &'o Index,
    members: &'o BTreeMap<Pid, Member>,
    of: Option<&'o BTreeSet<Pid>>,
}

impl<'o> Frames<'o> {
    /// Frames of `observer` that are shared by a process of `of`; all frames for `None`.
    pub fn of(observer: &'o Observer, of: Option<&'o BTreeSet<Pid>>) -> Frames<'o> {
        Frames { index: observer.index(), members: observer.members(), of }
    }

    /// Details of a sharer.
    pub fn member(self, pid: Pid) -> Option<&'o Member> {
        self.members.get(&pid)
    }

    /// Frames of which a selected process is a sharer.
    fn chosen(self) -> impl Iterator<Item = Frame<'o>> {
        let is_chosen =
            move |frame: &Frame<'_>| self.of.is_none_or(|of| frame.processes().any(|pid| of.contains(&pid)));
        self.index.frames().filter(is_chosen)
    }
}

/// One frame, in JSON.
#[derive(Serialize)]
struct OfFrame<'o> {
    pfn: u64,
    sharers: Vec<Sharer<'o>>,
}

#[derive(Serialize)]
struct Sharer<'o> {
    pid: Pid,
    address: Address,
    group: Option<&'o Untrusted>,
    domain: Option<&'o Domain>,
}

impl Serialize for Frames<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut sequence = to.serialize_seq(None)?;
        for frame in self.chosen() {
            let sharer = |of: linux::merged_memory::PageOf| {
                let member = self.members.get(&of.pid);
                let (group, domain) = (member.map(|of| &of.group), member.map(|of| &of.domain));
                Sharer { pid: of.pid, address: of.address, group, domain }
            };
            let sharers = frame.sharers().map(sharer).collect();
            sequence.serialize_element(&OfFrame { pfn: frame.number(), sharers })?;
        }
        sequence.end()
    }
}

impl Report {
    /// Report on these frames after `scan`.
    pub fn of(frames: Frames<'_>, scan: &Scan, domain_by: By, ksm: ksm::Host) -> Report {
        let members = frames.members;
        let sets: Vec<Set> = sets(frames.chosen())
            .into_iter()
            .map(|set| Set {
                domains: domains_of(set.processes.iter().copied(), members).into_iter().cloned().collect(),
                crosses_domains: crosses(&set.processes, members),
                frames: set.frames.0,
                pages: set.mapped.0,
                bytes_saved: set.saved(),
                processes: set.processes,
            })
            .collect();
        let not_read = |(pid, why): &(Pid, Error)| NotRead { pid: *pid, why: why.to_string() };
        Report {
            bytes_saved: sets.iter().map(|set| set.bytes_saved).sum(),
            cross_domain_frames: sets.iter().filter(|set| set.crosses_domains).map(|set| set.frames).sum(),
            merged_frames: sets.iter().map(|set| set.frames).sum(),
            merged_pages: sets.iter().map(|set| set.pages).sum(),
            processes: processes(frames),
            sets,
            domain_by,
            not_read: scan.not_read.iter().map(not_read).collect(),
            undecided_pages: scan.undecided.0,
            kernel_bytes_saved: ksm.saved(),
            smart_scan_skips: smart_scan_skips(&ksm),
            nothing_merged: None,
            ksm,
            scan: Cost {
                processes: scan.processes,
                pages_read: scan.pages,
                frames_asked: scan.frames_asked,
                pages_come: scan.changed.added,
                pages_gone: scan.changed.removed,
                took_us: saturated(scan.took.as_micros()),
                cpu_us: saturated(scan.cpu.as_micros()),
            },
        }
    }
}

/// Least unmerged memory worth a remark.
const UNMERGED_MIN: Bytes = Bytes::mib(4);
/// Least unmerged memory worth a remark, as a multiple of the merged memory.
const UNMERGED_TO_MERGED_MIN: u64 = 4;

/// Whether `smart_scan` may be the reason that much offered memory is unmerged: KSM runs and has skipped pages. Without
/// a skip, smart_scan has changed nothing yet.
fn smart_scan_skips(ksm: &ksm::Host) -> bool {
    ksm.run == ksm::Run::Merging
        && ksm.smart_scan.value() == Some(true)
        && ksm.pages_skipped.value().is_some_and(|skipped| skipped > 0)
        && ksm.unmerged().bytes() >= UNMERGED_MIN
        && ksm.unmerged().0 >= ksm.merged().0.saturating_mul(UNMERGED_TO_MERGED_MIN)
}

fn processes(frames: Frames<'_>) -> Vec<OfProcess> {
    let Frames { index, members, of } = frames;
    let chosen = members.iter().filter(|(pid, _)| of.is_none_or(|of| of.contains(pid)));
    chosen
        .map(|(pid, member)| OfProcess { pid: *pid, member: member.clone(), merged_pages: index.of(*pid).len() as u64 })
        .filter(|of| of.merged_pages > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use linux::ksm::{Host, Reported, Run};

    use super::*;

    /// 1,000 merged pages, and so many unmerged ones.
    fn host(unmerged: u64) -> Host {
        Host {
            run: Run::Merging,
            pages_shared: Pages(100),
            pages_sharing: Pages(900),
            pages_unshared: Pages(unmerged / 2),
            pages_volatile: Pages(unmerged - unmerged / 2),
            full_scans: 50,
            pages_to_scan: 100,
            sleep_millisecs: 20,
            max_page_sharing: Reported::Value(256),
            use_zero_pages: Reported::Value(false),
            zero_pages: Reported::Value(Pages(0)),
            general_profit_bytes: Reported::Value(0),
            smart_scan: Reported::Value(true),
            pages_skipped: Reported::Value(7),
        }
    }

    #[test]
    fn smart_scan_is_named_only_beside_much_unmerged_memory_of_a_running_ksm() {
        assert!(smart_scan_skips(&host(4000)));
        assert!(!smart_scan_skips(&host(3999)), "less than four times the merged pages");
        let few = Host { pages_shared: Pages(0), pages_sharing: Pages(0), ..host(1023) };
        assert!(!smart_scan_skips(&few), "less than 4 MiB");
        assert!(smart_scan_skips(&Host { pages_shared: Pages(0), pages_sharing: Pages(0), ..host(1024) }));
        assert!(!smart_scan_skips(&Host { run: Run::Stopped, ..host(4000) }));
        assert!(!smart_scan_skips(&Host { smart_scan: Reported::Value(false), ..host(4000) }));
        assert!(!smart_scan_skips(&Host { smart_scan: Reported::NotReported, ..host(4000) }), "before Linux 6.7");
        assert!(!smart_scan_skips(&Host { pages_skipped: Reported::Value(0), ..host(4000) }));
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let domain = Domain("/vm".into());
        let report = Report {
            bytes_saved: Bytes(4096),
            cross_domain_frames: 1,
            merged_frames: 2,
            merged_pages: 3,
            undecided_pages: 4,
            sets: vec![Set {
                processes: vec![Pid(7), Pid(8)],
                domains: vec![domain.clone()],
                crosses_domains: false,
                frames: 2,
                pages: 3,
                bytes_saved: Bytes(4096),
            }],
            domain_by: By::Cgroup,
            processes: vec![OfProcess {
                pid: Pid(7),
                member: Member { name: "qemu".into(), uid: 1000, group: "/vm".into(), domain },
                merged_pages: 3,
            }],
            not_read: vec![NotRead { pid: Pid(9), why: "denied".to_owned() }],
            kernel_bytes_saved: Bytes(8192),
            ksm: Host { zero_pages: Reported::NotReported, ..host(7) },
            smart_scan_skips: true,
            nothing_merged: Some(NothingMerged::of(Offers::default(), &host(7))),
            scan: Cost {
                processes: 1,
                pages_read: Pages(2),
                frames_asked: 3,
                pages_come: 4,
                pages_gone: 5,
                took_us: 6,
                cpu_us: 7,
            },
        };
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        let (index, members) = (Index::default(), BTreeMap::new());
        let frames = Frames { index: &index, members: &members, of: None };
        let text = serde_json::to_string(&WithFrames { frames, report: &report }).unwrap();
        assert!(text.starts_with(r#"{"frames":[],"bytes_saved":4096,"#), "{text}");
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
