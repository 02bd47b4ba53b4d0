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
use crate::live::Live;
use crate::toy::ToyProcess;

/// Pages that the next program has in the window.
const NEXT: u64 = 100;

/// The target process execs, and maps the same window again, just before advice reaches it.
struct ExecsBeforeCollapse<'a> {
    program: RunningProgram<&'a linux::Rooted>,
    toy: RefCell<ToyProcess>,
}

impl Program for ExecsBeforeCollapse<'_> {
    fn advise(&self, range: AddressRange, advice: Advice) -> Result<(), Errno> {
        if advice == Advice::Collapse {
            let mut toy = self.toy.borrow_mut();
            toy.exec().expect("the toy execs");
            let next = toy.map_at(range.start().0, 1).expect("the window is free after the exec");
            toy.write(next.pages(0, NEXT), 3).expect("the toy writes");
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

    fn make_ready(&self) {}

    fn rest(&self) {
        self.program.rest();
    }

    fn resident(&self) -> Result<Bytes, Error> {
        self.program.resident()
    }

    fn resident_exact(&self) -> Result<Bytes, Error> {
        self.program.resident_exact()
    }

    fn cgroup_room(&self) -> Option<Bytes> {
        None
    }

    fn forbids(&self, window: Window) -> bool {
        self.program.forbids(window)
    }
}

/// A full window costs nothing by the measuring; the next program's would have cost 412 pages.
pub fn a_collapse_that_hits_the_next_program_leaves_no_huge_page_there(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (toy, heap, program) = dense(live, 1)?;
    let window = heap.windows()[0];
    let program = ExecsBeforeCollapse { program, toy: RefCell::new(toy) };
    let outcome = act::promote(&program, window, Bytes(0))?;
    assert!(matches!(outcome, Promoted::Astray(Demoted::Yes { .. })), "{outcome:?}");
    let mut toy = program.toy.into_inner();
    assert_eq!(huge_bytes(live, &toy, heap)?, 0);
    let Promoted::Astray(Demoted::Yes { returned, resident }) = outcome else { return Ok(()) };
    // Kernels that return no zero pages keep all of it, which is counted.
    assert_eq!(returned, Bytes::mib(2).saturating_sub(resident.bytes()));
    assert!([Pages(NEXT), Pages(512)].contains(&resident), "{resident:?}");
    toy.check(heap.pages(0, NEXT), 3)?;
    assert!(!program.program.renew()?, "the exec is found out once");
    Ok(())
}
