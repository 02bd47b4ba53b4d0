//! A model program as the loop sees it. Every call is checked against the knowledge available to masu.

use std::cell::Cell as StdCell;

use access::residency::WindowState;
use hugepages::program::Program;
use linux::Error;
use linux::halted::Halted;
use linux::maps::Mapping;
use linux::process_madvise::Advice;
use rustix::io::Errno;
use units::{AddressRange, Bytes, PageSize, Window};

use super::cell::{Cell, Mapped, PAGES};
use super::source::gone;
use super::space::cost;
use super::world::{COLLAPSE, Shared, World};

/// One program.
pub struct ModelProgram {
    world: Shared,
    index: usize,
    /// Address space in which it is read.
    generation: StdCell<u64>,
}

impl ModelProgram {
    /// The program with this index.
    pub fn new(world: &Shared, index: usize) -> ModelProgram {
        let generation = StdCell::new(world.borrow().spaces[index].generation);
        ModelProgram { world: world.clone(), index, generation }
    }

    /// Begins a call and runs `answer` on the program, if it still exists.
    fn ask<T>(&self, operation: &str, answer: impl FnOnce(&mut World) -> T) -> Result<T, Error> {
        let mut world = self.world.borrow_mut();
        world.call();
        if world.spaces[self.index].ended { Err(gone(operation)) } else { Ok(answer(&mut world)) }
    }

    /// Collapse by masu.
    fn collapse(&self, world: &mut World, window: Window) -> Result<(), Errno> {
        let Some(index) = world.spaces[self.index].index(window) else {
            world.blame(|| format!("collapse of window {window}, where the program never had anything"));
            return Err(Errno::NOMEM);
        };
        let wrong = self.wrong_with_collapse(world, index);
        wrong.into_iter().for_each(|what| world.blame(|| format!("collapse of window {index}, {what}")));
        let now = world.now;
        let space = &mut world.spaces[self.index];
        space.collapses.push((space.rounds, index));
        space.ages.push(now.saturating_sub(space.began));
        space.has_preallocated = false;
        let small = !space.cells[index].huge;
        if small && space.room.is_some_and(|room| room < PageSize::Huge.bytes()) {
            return Err(Errno::BUSY); // the charge to the cgroup fails
        }
        let cell = &space.cells[index];
        // masu measured another address space: its sum is off by the difference from now on.
        let astray = space.generation != self.generation.get();
        space.raced |= small && cell.version_measured != Some(cell.version) && !astray;
        let answer = space.cells[index].collapse(true);
        if astray && answer.is_ok() {
            let cell = &mut space.cells[index];
            // masu cannot tell which was faster, and any huge page that it may have made there must go.
            (cell.collapsed, cell.astray) = (cell.huge, cell.huge);
        }
        if space.cells[index].collapsed {
            world.turns.push((self.index, index));
        }
        world.pass(COLLAPSE);
        answer
    }

    /// Violations in this collapse, by the knowledge available to masu.
    fn wrong_with_collapse(&self, world: &World, index: usize) -> Vec<String> {
        let space = &world.spaces[self.index];
        let cell = &space.cells[index];
        let mut wrong = Vec::new();
        if cell.version_looked == Some(cell.version) && !matches!(cell.mapped, Mapped::Anonymous | Mapped::ReadOnly) {
            wrong.push(format!("where the last look found {:?}", cell.mapped));
        }
        if cell.version_measured != Some(cell.version) {
            return wrong; // it changed between the measurement and the call
        }
        let state = cell.state();
        let not_its_own = cell.shared + cell.swapped + cell.guards > 0 || cell.is_file();
        let unfit = not_its_own || cell.resident() == 0 || cell.huge;
        if unfit {
            wrong.push(format!("which was measured and is unfit: {state:?}"));
        }
        if space.version_counted == Some(space.version) && !space.raced {
            let (added, allowed) = (space.added() + cost(cell.resident()), world.allowance(self.index));
            if cost(cell.resident()) > Bytes(0) && added > allowed {
                wrong.push(format!("which brings what masu adds to {added}, beyond {allowed}"));
            }
            if space.room.is_some_and(|room| room < PageSize::Huge.bytes()) {
                wrong.push("for which the cgroup has no room".to_owned());
            }
        }
        wrong
    }

    /// MADV_COLD by masu: a whole window to probe it, one page to split it.
    fn cold(&self, world: &mut World, range: AddressRange) -> Result<(), Errno> {
        let window = range.start().window();
        let Some(index) = world.spaces[self.index].index(window) else {
            world.blame(|| format!("advice on {range}, where the program never had anything"));
            return Err(Errno::NOMEM);
        };
        if std::mem::take(&mut world.looks_for_torn) {
            let cell = &world.spaces[self.index].cells[index];
            if cell.huge && cell.version_measured == Some(cell.version) {
                world.blame(|| format!("window {index} advised as torn, which was measured and is huge"));
            }
            let cell = &mut world.spaces[self.index].cells[index];
            // Beside a torn page the advice has an effect on the page's age alone.
            let is_torn = std::mem::take(&mut cell.torn);
            world.spaces[self.index].torn_split += u64::from(is_torn);
            world.looked_for_torn = true;
            return Ok(());
        }
        let whole = range == window.range();
        let undoing = world.undoing;
        let began = world.spaces[self.index].began;
        let cell = &world.spaces[self.index].cells[index];
        let wrong = if whole { wrong_with_probe(cell) } else { wrong_with_split(cell, began, undoing) };
        wrong.into_iter().for_each(|what| world.blame(|| format!("window {index} named cold, {what}")));
        let returns = world.returns_zero_pages;
        let cell = &mut world.spaces[self.index].cells[index];
        match cell.mapped {
            Mapped::Nothing => return Err(Errno::NOMEM),
            Mapped::SharedMemory | Mapped::File if whole => {}
            Mapped::SharedMemory | Mapped::File => cell.split = Some(0),
            _ if whole => cell.probed |= cell.huge,
            _ => cell.cold_page(returns),
        }
        if world.spaces[self.index].generation != self.generation.get() {
            world.spaces[self.index].cells[index].split = None; // its huge page went with its memory
        }
        Ok(())
    }
}

fn wrong_with_probe(cell: &Cell) -> Vec<String> {
    let known_small = !cell.huge && cell.version_looked == Some(cell.version);
    if known_small { vec!["which the last look found small".to_owned()] } else { Vec::new() }
}

/// `began` is the time of the last clear.
fn wrong_with_split(cell: &Cell, began: std::time::Duration, undoing: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    if cell.version_measured != Some(cell.version) {
        if cell.version_measured.is_none() {
            wrong.push("without having been measured".to_owned());
        }
        return wrong;
    }
    if !cell.huge {
        wrong.push("which was measured and is small".to_owned());
        return wrong;
    }
    if cell.astray {
        return wrong;
    }
    if undoing {
        if cell.ours.is_none() {
            wrong.push("to undo what masu did not do".to_owned());
        }
        return wrong;
    }
    if cell.in_use_since(began) {
        wrong.push("which is in use".to_owned());
    }
    if !cell.probed {
        wrong.push("without having been probed".to_owned());
    }
    if cell.ours == Some(PAGES) && cell.promotions == 1 {
        wrong.push("of which every page was resident before".to_owned());
    }
    wrong
}

impl Program for ModelProgram {
    fn mappings(&self) -> Result<Vec<Mapping>, Error> {
        self.ask("read the mappings of", |world| world.spaces[self.index].mappings())
    }

    fn renew(&self) -> Result<bool, Error> {
        self.ask("look at", |world| {
            let now = world.spaces[self.index].generation;
            self.generation.replace(now) != now
        })
    }

    fn state(&self, window: Window) -> Result<Option<WindowState>, Error> {
        self.ask("measure", |world| {
            let space = &mut world.spaces[self.index];
            if space.generation != self.generation.get() {
                return None;
            }
            let Some(index) = space.index(window) else { return Some(WindowState::default()) };
            let cell = &mut space.cells[index];
            if world.moving && cell.huge {
                return Some(WindowState::default());
            }
            space.raced |= cell.collapsed && !cell.huge && cell.added > 0;
            space.promoted += u64::from(cell.measure());
            if let Some(back) = cell.split.take().filter(|_| !cell.huge) {
                space.demoted += 1;
                space.returned += back;
            }
            Some(cell.state())
        })
    }

    /// No program moves its memory here, so a window has the same frames for ever, and none is found elsewhere.
    fn first_frame(&self, window: Window) -> Result<Option<u64>, Error> {
        let world = self.world.borrow();
        let space = &world.spaces[self.index];
        let is_there = !space.ended && space.generation == self.generation.get() && space.index(window).is_some();
        Ok(is_there.then_some(window.0 * PAGES))
    }

    fn halted(&self) -> Option<Halted> {
        let world = self.world.borrow();
        world.spaces[self.index].is_halted(world.now).then_some(Halted::Stopped)
    }

    fn preallocate(&self) {
        let mut world = self.world.borrow_mut();
        world.call();
        if world.dry_run || world.urgent {
            world.blame(|| "memory was preallocated in a dry run, or with a raised priority".to_owned());
        }
        world.spaces[self.index].has_preallocated = true;
        let takes = world.preallocation;
        world.pass(takes);
    }

    fn free_preallocated(&self) {
        let mut world = self.world.borrow_mut();
        world.call();
        world.spaces[self.index].has_preallocated = false;
    }

    fn advise(&self, range: AddressRange, advice: Advice) -> Result<(), Errno> {
        let mut world = self.world.borrow_mut();
        world.call();
        if world.dry_run {
            world.blame(|| "advice in a dry run".to_owned());
        }
        world.count_advice_after_stop();
        if world.spaces[self.index].ended {
            world.looks_for_torn = false;
            return Err(Errno::SRCH);
        }
        match advice {
            Advice::Collapse if range == range.start().window().range() => {
                self.collapse(&mut world, range.start().window())
            }
            Advice::Cold => self.cold(&mut world, range),
            Advice::Collapse | Advice::PageOut => {
                world.blame(|| format!("{advice:?} on {range}"));
                Err(Errno::INVAL)
            }
        }
    }

    fn torn_on_host(&self) -> Option<u64> {
        let world = self.world.borrow();
        Some(world.spaces.iter().flat_map(|space| &space.cells).filter(|cell| cell.torn).count() as u64)
    }

    fn splits_of_host(&self) -> Option<u64> {
        let mut world = self.world.borrow_mut();
        world.looks_for_torn = !std::mem::take(&mut world.looked_for_torn);
        Some(world.spaces.iter().map(|space| space.torn_split).sum())
    }

    fn resident(&self) -> Result<Bytes, Error> {
        self.ask("read the size of", |world| {
            let space = &mut world.spaces[self.index];
            space.version_counted = Some(space.version);
            space.resident()
        })
    }

    fn resident_exact(&self) -> Result<Bytes, Error> {
        self.resident()
    }

    fn cgroup_headroom(&self) -> Option<Bytes> {
        self.ask("read the limit of", |world| world.spaces[self.index].room).ok().flatten()
    }

    fn forbids(&self, window: Window) -> bool {
        let forbids = |world: &mut World| {
            let space = &world.spaces[self.index];
            space.index(window).is_some_and(|index| space.cells[index].forbidden)
        };
        self.ask("ask", forbids).unwrap_or(false)
    }
}
