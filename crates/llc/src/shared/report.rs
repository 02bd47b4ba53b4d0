//! What a look found, for people and programs: frames and their sharers, what they save, and between whom they should not be shared.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use linux::ksm;
use linux::{Error, Pid, Untrusted};
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use units::{Address, Bytes, Pages};

use super::domain::{By, Domain, Member, crosses, domains_of};
use super::index::{Frame, Index, sets};
use super::observe::{Look, Observer};

/// All of it, in the words of `--json`.
#[derive(Debug, Serialize)]
pub struct Report<'o> {
    /// Each merged frame with its sharers.
    pub frames: Frames<'o>,
    /// What there would be more without these frames.
    pub bytes_saved: Bytes,
    /// Frames that are shared by those who do not all trust each other.
    pub cross_domain_frames: u64,
    /// How many frames.
    pub merged_frames: u64,
    /// How many pages that are, each counted where it is mapped.
    pub merged_pages: u64,
    /// The frames, put together by who shares them; what saves most comes first.
    pub sets: Vec<Set<'o>>,
    /// By what domains are made.
    pub domain_by: By,
    /// Who has merged pages, of those that were asked for.
    pub processes: Vec<OfProcess<'o>>,
    /// Those that could not be looked at.
    pub not_read: Vec<NotRead>,
    /// What the kernel counts as saved, on the whole host. It corrects that when KSM next comes by.
    pub kernel_bytes_saved: Bytes,
    /// The knobs and counters of the kernel.
    pub ksm: ksm::Host,
    /// What the look was like.
    pub look: Cost,
}

/// Frames that the same processes share.
#[derive(Debug, Serialize)]
pub struct Set<'o> {
    /// Who.
    pub processes: Vec<Pid>,
    /// Their domains, each once.
    pub domains: Vec<&'o Domain>,
    /// They do not all trust each other.
    pub crosses_domains: bool,
    /// How many.
    pub frames: u64,
    /// How many pages that are, of all of them together.
    pub pages: u64,
    /// What there would be more without.
    pub bytes_saved: Bytes,
}

/// One who shares.
#[derive(Debug, Serialize)]
pub struct OfProcess<'o> {
    /// Who.
    pub pid: Pid,
    /// More about it.
    #[serde(flatten)]
    pub member: &'o Member,
    /// How many merged pages it has.
    pub merged_pages: u64,
}

/// One who could not be looked at.
#[derive(Debug, Serialize)]
pub struct NotRead {
    /// Who.
    pub pid: Pid,
    /// The reason.
    pub why: String,
}

/// What the look was like.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Processes that were looked at.
    pub processes: usize,
    /// Words of page tables that were read.
    pub pages_read: Pages,
    /// Frames whose flags were asked.
    pub frames_asked: u64,
    /// Pages that are merged now and were not at the last look.
    pub pages_come: u64,
    /// Pages that are not any more.
    pub pages_gone: u64,
    /// How long it took.
    pub took_us: u128,
    /// The processor time of that.
    pub cpu_us: u128,
}

/// Frames, written down one after the other: there may be millions.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'o> {
    index: &'o Index,
    members: &'o BTreeMap<Pid, Member>,
    of: Option<&'o BTreeSet<Pid>>,
}

impl<'o> Frames<'o> {
    /// Who a sharer is.
    pub fn member(self, pid: Pid) -> Option<&'o Member> {
        self.members.get(&pid)
    }

    /// Those that one of the chosen has, whoever else has them.
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

impl<'o> Report<'o> {
    /// What `observer` found by `look`, of the frames that one of `of` has; of all frames for `None`.
    pub fn of(
        observer: &'o Observer,
        look: &Look,
        of: Option<&'o BTreeSet<Pid>>,
        domain_by: By,
        ksm: ksm::Host,
    ) -> Report<'o> {
        let (index, members) = (observer.index(), observer.members());
        let frames = Frames { index, members, of };
        let sets: Vec<Set<'o>> = sets(frames.chosen())
            .into_iter()
            .map(|set| Set {
                domains: domains_of(set.processes.iter().copied(), members),
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
            processes: processes(index, members, of),
            frames,
            sets,
            domain_by,
            not_read: look.not_read.iter().map(not_read).collect(),
            kernel_bytes_saved: ksm.saved(),
            ksm,
            look: Cost {
                processes: look.processes,
                pages_read: look.pages,
                frames_asked: look.frames_asked,
                pages_come: look.changed.come,
                pages_gone: look.changed.gone,
                took_us: look.took.as_micros(),
                cpu_us: look.cpu.as_micros(),
            },
        }
    }
}

fn processes<'o>(
    index: &'o Index,
    members: &'o BTreeMap<Pid, Member>,
    of: Option<&BTreeSet<Pid>>,
) -> Vec<OfProcess<'o>> {
    let chosen = members.iter().filter(|(pid, _)| of.is_none_or(|of| of.contains(pid)));
    chosen
        .map(|(pid, member)| OfProcess { pid: *pid, member, merged_pages: index.of(*pid).len() as u64 })
        .filter(|of| of.merged_pages > 0)
        .collect()
}
