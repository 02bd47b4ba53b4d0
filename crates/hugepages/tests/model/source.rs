//! An observer of a model program, with the view of the page-table walk.

use std::collections::BTreeMap;
use std::time::Duration;

use access::{AccessMap, Backend, Class, Cost, Observer, PageSet, WindowHeat, estimate};
use linux::Error;
use rustix::io::Errno;
use units::Window;
use units::cast::fits;

use super::cell::{Mapped, first_pages};
use super::space::window;
use super::world::Shared;

/// Watches one program.
pub struct ModelSource {
    world: Shared,
    program: usize,
    ages: Vec<Duration>,
    generation: u64,
    replaced: bool,
    map: AccessMap,
}

impl ModelSource {
    /// Watches the program with this index.
    pub fn new(world: &Shared, program: usize) -> ModelSource {
        let generation = world.borrow().spaces[program].generation;
        ModelSource {
            world: world.clone(),
            program,
            ages: Vec::new(),
            generation,
            replaced: false,
            map: AccessMap::empty(Backend::BpfWalk),
        }
    }

    fn alive(&self) -> Result<(), Error> {
        let mut world = self.world.borrow_mut();
        world.call();
        if world.spaces[self.program].ended { Err(gone("look at")) } else { Ok(()) }
    }

    /// Windows of this scan, each with the pages touched since the clear.
    fn see(&self) -> Vec<(Window, bool, PageSet, PageSet)> {
        let mut world = self.world.borrow_mut();
        let now = world.now;
        let space = &mut world.spaces[self.program];
        let began = space.began;
        let could_run = !(space.is_halted(began) && space.is_halted(now));
        let mut seen = Vec::new();
        for (index, cell) in space.cells.iter_mut().enumerate() {
            if cell.hidden > 0 {
                cell.hidden -= 1;
                continue;
            }
            cell.show();
            let present = cell.present();
            if cell.mapped == Mapped::Nothing || present == PageSet::EMPTY {
                continue;
            }
            let touched = match could_run && cell.touched(began, now) {
                false => PageSet::EMPTY,
                true if cell.huge => PageSet::FULL,
                true => first_pages(cell.hot),
            };
            seen.push((window(index), cell.huge, present, touched));
        }
        seen
    }

    fn classes(&self) -> Vec<Class> {
        let mut classes = vec![Class::default()];
        let mut before = Duration::ZERO;
        for (number, age) in self.ages.iter().enumerate() {
            let accessed_reads = fits(self.ages.len() - number);
            classes.push(Class { accessed_reads, rate: estimate::rate_between(before, *age) });
            before = *age;
        }
        classes
    }
}

/// The error of a program that ended.
pub fn gone(operation: &str) -> Error {
    Error::of_process(operation, "a model program", Errno::SRCH)
}

impl Observer for ModelSource {
    fn backend(&self) -> Backend {
        Backend::BpfWalk
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.alive()?;
        self.ages.clear();
        self.replaced = false;
        self.map.windows.iter_mut().for_each(WindowHeat::forget);
        self.map.classes = self.classes();
        let mut world = self.world.borrow_mut();
        let now = world.now;
        let space = &mut world.spaces[self.program];
        (space.began, space.rounds) = (now, space.rounds + 1);
        Ok(())
    }

    fn scan(&mut self) -> Result<(), Error> {
        self.alive()?;
        let generation = self.world.borrow().spaces[self.program].generation;
        self.replaced |= generation != self.generation;
        self.generation = generation;
        let class = fits(self.ages.len() + 1);
        let age = self.age();
        let mut before: BTreeMap<Window, WindowHeat> =
            std::mem::take(&mut self.map.windows).into_iter().map(|heat| (heat.window, heat)).collect();
        for (window, huge, present, touched) in self.see() {
            let same = before.remove(&window).filter(|heat| heat.huge == huge);
            let mut heat = same.unwrap_or_else(|| WindowHeat { huge, ..WindowHeat::untouched(window) });
            heat.present = present;
            heat.classify(&touched, class);
            self.map.windows.push(heat);
        }
        self.ages.push(age);
        self.map.classes = self.classes();
        self.map.observed = age;
        Ok(())
    }

    fn age(&self) -> Duration {
        let world = self.world.borrow();
        world.now.saturating_sub(world.spaces[self.program].began)
    }

    fn map(&self) -> &AccessMap {
        &self.map
    }

    fn cost(&self) -> Cost {
        Cost::default()
    }

    fn address_space_changed(&self) -> bool {
        self.replaced
    }
}
