//! A program that replaces itself (exec) between the measuring and the call: the call acts on the memory of the next
//! program.

use std::cell::RefCell;

use access::residency::WindowState;
use hugepages::act::{self, Demoted, Promoted};
use hugepages::program::{Program, RunningProgram};
use linux::Error;
use linux::maps::Mapping;
use linux::process_madvise::Advice;
use rustix::io::Errno;
use units::{AddressRange, Bytes, Pages, Window};

use super::act::dense;
use super::{Outcome, huge_bytes, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};
use crate::target_process::TargetProcess;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    act_exec requires [Root, RemoteCollapse, RemoteAdvice, HugePageModes];
    a_collapse_that_hits_the_next_program_leaves_no_huge_page_there;
};

/// Pages that the next program has in the window.
const NEXT: u64 = 100;

/// The target process execs, and maps the same window again, just before advice reaches it.
struct ExecsBeforeCollapse<'a> {
    program: RunningProgram<&'a linux::Rooted>,
    process: RefCell<TargetProcess>,
}

impl Program for ExecsBeforeCollapse<'_> {
    fn advise(&self, range: AddressRange, advice: Advice) -> Result<(), Errno> {
        if advice == Advice::Collapse {
            let mut process = self.process.borrow_mut();
            process.exec().expect("the target process execs");
            let next = process.map_at(range.start().0, 1).expect("the window is free after the exec");
            process.write(next.pages(0, NEXT), 3).expect("the target process writes");
        }
        self.program.advise(range, advice)
    }

    fn renew(&self) -> Result<bool, Error> {
        self.program.renew()
    }

    fn state(&self, window: Window) -> Result<Option<WindowState>, Error> {
        self.program.state(window)
    }

    fn mappings(&self) -> Result<Vec<Mapping>, Error> {
        self.program.mappings()
    }

    fn preallocate(&self) {}

    fn free_preallocated(&self) {
        self.program.free_preallocated();
    }

    fn resident(&self) -> Result<Bytes, Error> {
        self.program.resident()
    }

    fn resident_exact(&self) -> Result<Bytes, Error> {
        self.program.resident_exact()
    }

    fn cgroup_headroom(&self) -> Option<Bytes> {
        None
    }

    fn forbids(&self, window: Window) -> bool {
        self.program.forbids(window)
    }
}

/// A full window costs nothing by the measuring; the next program's would have cost 412 pages.
fn a_collapse_that_hits_the_next_program_leaves_no_huge_page_there(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (process, heap, program) = dense(host, 1)?;
    let window = heap.windows()[0];
    let program = ExecsBeforeCollapse { program, process: RefCell::new(process) };
    let outcome = act::promote(&program, window, Bytes(0), act::NOT_KNOWN)?;
    assert!(matches!(outcome, Promoted::Astray(Demoted::Yes { .. })), "{outcome:?}");
    let mut process = program.process.into_inner();
    assert_eq!(huge_bytes(host, &process, heap)?, 0);
    let Promoted::Astray(Demoted::Yes { returned, resident }) = outcome else { return Ok(()) };
    // Kernels that return no zero pages keep all of it, which is counted.
    assert_eq!(returned, Bytes::mib(2).saturating_sub(resident.bytes()));
    assert!([Pages(NEXT), Pages(512)].contains(&resident), "{resident:?}");
    process.check(heap.pages(0, NEXT), 3)?;
    assert!(!program.program.renew()?, "the exec is found out once");
    Ok(())
}
