//! Hard cases: windows that cannot or must not be huge. The policy refuses them. When the kernel is asked all the same,
//! the kernel refuses, and in every case the program's memory stays as it was.

use std::collections::BTreeMap;
use std::fs;

use access::Observer;
use access::walk::WalkObserver;
use hugepages::Refusal;
use hugepages::act::{self, Demoted, Promoted};
use hugepages::observe::{Observed, observe};
use hugepages::policy::PAPER;
use hugepages::program::{Program, RunningProgram};
use linux::status::{self, HugePages};
use units::{Bytes, Pages};

use super::act::{ANY_PRICE, dense, promote};
use super::{Outcome, huge_bytes, no_automatic_huge_pages, present_pages, walker};
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};
use crate::setting::Setting;
use crate::target_process::MADV_GUARD_INSTALL;
use crate::target_process::{Backing, Mapping, Part, Protection, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    act_hard requires [Root, RemoteCollapse, HugePageModes];
    a_partly_unmapped_window_is_refused_and_unharmed [PageTableWalk];
    a_window_with_mixed_protections_is_refused_and_unharmed [PageTableWalk];
    a_locked_window_is_promoted_and_its_demotion_refused_without_harm [RemoteAdvice];
    reserved_huge_pages_are_left_alone [ReservedHuge, PageTableWalk];
    guard_pages_go_on_guarding [GuardPages];
    a_window_for_which_the_program_wants_no_huge_page_is_forbidden;
    a_program_that_forbids_huge_pages_gets_none;
    a_group_without_room_gets_no_huge_page [MemoryGroups];
};

/// Input of the policy for a program that touched all of these pages just now.
fn observed(host: &Host, process: &mut TargetProcess, touch: &[Part]) -> Result<Observed, libtest_mimic::Failed> {
    let mut observer = WalkObserver::new(walker()?, host.files(), process.pid())?;
    observer.begin()?;
    process.forget_translations()?;
    for part in touch {
        process.read(*part)?;
    }
    observer.scan()?;
    let mappings = RunningProgram::open(host.files(), process.pid())?.mappings()?;
    Ok(observe(observer.map(), &mappings, &BTreeMap::new(), PAPER))
}

/// The policy sees no candidate in the window, and gives the reason.
fn ineligible(host: &Host, process: &mut TargetProcess, heap: Mapping, touch: &[Part], why: Refusal) -> Outcome {
    let observed = observed(host, process, touch)?;
    let window = heap.windows()[0];
    assert_eq!(observed.ineligible.get(&window).map(|one| one.0), Some(why));
    assert!(observed.windows.iter().all(|view| view.window != window), "a candidate all the same");
    Ok(())
}

/// A hole of a few pages.
fn a_partly_unmapped_window_is_refused_and_unharmed(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, program) = dense(host, 1)?;
    let hole = heap.pages(200, 204);
    process.unmap(hole)?;
    let rest = [heap.pages(0, 200), heap.pages(204, 512)];
    ineligible(host, &mut process, heap, &rest, Refusal::CrossesMappings)?;

    let outcome = promote(&program, heap.windows()[0], ANY_PRICE)?;
    assert!(matches!(outcome, Promoted::No(_)), "{outcome:?}");
    assert_eq!(huge_bytes(host, &process, heap)?, 0);
    assert_eq!(present_pages(&process, heap)?.len(), 508);
    for part in rest {
        process.check(part, 7)?;
    }
    assert!(process.faults(hole.first(1))?, "the hole was filled");
    Ok(())
}

/// Read-only in the middle, as a program does that seals a table.
fn a_window_with_mixed_protections_is_refused_and_unharmed(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, program) = dense(host, 1)?;
    process.protect(heap.pages(100, 110), Protection::Read)?;
    ineligible(host, &mut process, heap, &[heap.all()], Refusal::CrossesMappings)?;

    let outcome = promote(&program, heap.windows()[0], ANY_PRICE)?;
    assert!(matches!(outcome, Promoted::No(_)), "{outcome:?}");
    assert_eq!(huge_bytes(host, &process, heap)?, 0);
    process.check(heap.all(), 7)?;
    let permissions: Vec<String> = program
        .mappings()?
        .iter()
        .filter(|mapping| heap.range().covers(mapping.range))
        .map(|mapping| mapping.permissions.to_string())
        .collect();
    assert_eq!(permissions, ["rw-p", "r--p", "rw-p"]);
    Ok(())
}

/// Locking promises that a page stays in memory, not how large it is.
fn a_locked_window_is_promoted_and_its_demotion_refused_without_harm(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, program) = dense(host, 1)?;
    let window = heap.windows()[0];
    process.lock(heap.all())?;
    assert_eq!(promote(&program, window, Bytes(0))?, Promoted::Yes { resident_before: Pages(512) });
    process.check(heap.all(), 7)?;
    assert_eq!(act::demote(&program, window)?, Demoted::No);
    assert!(!act::probe(&program, window)?);
    let state = program.state(window)?.unwrap_or_default();
    assert!(state.huge && state.resident == Pages(512), "{state:?}");
    assert_eq!(status::status(host.files(), process.pid())?.locked, Bytes::mib(2));
    process.check(heap.all(), 7)?;
    process.unlock(heap.all())?;
    assert_eq!(act::demote(&program, window)?, Demoted::Yes { returned: Bytes(0), resident: Pages(512) });
    process.check(heap.all(), 7)?;
    Ok(())
}

/// Another part of the kernel keeps those, and the program asked for them by name.
fn reserved_huge_pages_are_left_alone(host: &Host) -> Outcome {
    const POOL: &str = "/proc/sys/vm/nr_hugepages";
    let _quiet = no_automatic_huge_pages()?;
    let before: u64 = fs::read_to_string(POOL)?.trim().parse()?;
    let _pool = Setting::set(POOL, &(before + 1).to_string())?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::ReservedHuge, 1)?;
    process.write(heap.all(), 7)?;
    ineligible(host, &mut process, heap, &[heap.all()], Refusal::NotAnonymous)?;

    let program = RunningProgram::open(host.files(), process.pid())?;
    let window = heap.windows()[0];
    let outcome = act::promote(&program, window, ANY_PRICE, act::NOT_KNOWN)?;
    assert!(matches!(outcome, Promoted::Already | Promoted::No(_)), "{outcome:?}");
    assert!(!matches!(act::demote(&program, window)?, Demoted::Yes { .. }));
    assert!(!act::probe(&program, window)?);
    assert_eq!(present_pages(&process, heap)?.len(), 512);
    process.check(heap.all(), 7)?;
    Ok(())
}

/// Guard pages must go on faulting: an allocator's last line against a buffer that overflows.
fn guard_pages_go_on_guarding(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, program) = dense(host, 1)?;
    let guard = heap.page(300);
    process.advise(guard, MADV_GUARD_INSTALL)?;
    assert!(process.faults(guard)?);
    let outcome = promote(&program, heap.windows()[0], ANY_PRICE)?;
    let told = program.state(heap.windows()[0])?.unwrap_or_default().guards == Pages(1);
    let refused = if told { outcome == Promoted::No(Refusal::GuardPages) } else { matches!(outcome, Promoted::No(_)) };
    assert!(refused, "{outcome:?}");
    // A direct call of the kernel, without the policy, must fail as well.
    assert!(program.advise(heap.windows()[0].range(), linux::process_madvise::Advice::Collapse).is_err());
    assert_eq!(huge_bytes(host, &process, heap)?, 0);
    assert!(process.faults(guard)?, "the guard page lets accesses pass");
    assert!(!process.faults(heap.page(299))?);
    process.check(heap.pages(0, 300), 7)?;
    process.check(heap.pages(301, 512), 7)?;
    Ok(())
}

/// `MADV_NOHUGEPAGE`: the kernel answers as to any nonsense, so the mapping's marks are asked.
fn a_window_for_which_the_program_wants_no_huge_page_is_forbidden(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, program) = dense(host, 2)?;
    process.advise(heap.window(0), libc::MADV_NOHUGEPAGE)?;
    let windows = heap.windows();
    assert_eq!(promote(&program, windows[0], ANY_PRICE)?, Promoted::No(Refusal::Invalid));
    assert!(program.forbids(windows[0]));
    assert!(!program.forbids(windows[1]));
    assert_eq!(promote(&program, windows[1], ANY_PRICE)?, Promoted::Yes { resident_before: Pages(512) });
    assert_eq!(huge_bytes(host, &process, heap)?, 2 << 20);
    process.check(heap.all(), 7)?;
    Ok(())
}

/// `PR_SET_THP_DISABLE`, as Redis does when huge pages are on for all.
fn a_program_that_forbids_huge_pages_gets_none(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, program) = dense(host, 1)?;
    process.forbid_huge_pages()?;
    assert_eq!(status::status(host.files(), process.pid())?.huge_pages, HugePages::Forbidden);
    assert_eq!(promote(&program, heap.windows()[0], ANY_PRICE)?, Promoted::No(Refusal::Invalid));
    assert!(!program.forbids(heap.windows()[0]), "the mapping itself has no such mark");
    assert_eq!(huge_bytes(host, &process, heap)?, 0);
    process.check(heap.all(), 7)?;
    Ok(())
}

/// For a moment old and new pages are both charged. Without headroom for that, the kernel would have to reclaim other
/// pages of the cgroup, or kill.
fn a_group_without_room_gets_no_huge_page(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let group = Group::make("room")?;
    let mut process = TargetProcess::start()?;
    group.take_in(process.pid())?;
    let heap = process.map(Backing::Anonymous, 7)?;
    process.write(heap.all(), 7)?;
    group.limit(16 << 20)?;
    let program = RunningProgram::open(host.files(), process.pid())?;
    let room = program.cgroup_headroom().ok_or("the limit is not seen")?;
    assert!(room < Bytes::mib(2), "14 MiB and page tables leave {room} of 16 MiB");
    let window = heap.windows()[0];
    assert_eq!(act::promote(&program, window, ANY_PRICE, act::NOT_KNOWN)?, Promoted::No(Refusal::CgroupLimit));
    assert_eq!(huge_bytes(host, &process, heap)?, 0);

    group.limit(64 << 20)?;
    let program = RunningProgram::open(host.files(), process.pid())?; // the other one remembers for a second
    assert_eq!(promote(&program, window, ANY_PRICE)?, Promoted::Yes { resident_before: Pages(512) });
    process.check(heap.all(), 7)?;
    Ok(())
}
