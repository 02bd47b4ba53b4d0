//! DAMON as an [`Observer`]: the kernel's own monitor, for hosts that do not allow the page-table walk.
//!
//! DAMON samples one page of each region and assumes the others to be used alike, so every present page of a region
//! gets the region's rate. Present and huge pages are added from `residency`. One process at a time: sysfs has space
//! for one monitor that does not disturb other users.
//!
//! A crash leaves the kernel's tree filled in; the caller first calls [`linux::damon::record_undo`].

use std::time::Duration;

use linux::damon::{Draft, Monitor, Region, Running};
use linux::{Error, KernelFiles, Pid};
use units::cast;

use crate::backend::Backend;
use crate::estimate;
use crate::map::{AccessMap, Class, PageSet, WindowHeat};
use crate::observer::{Cost, Observer, Stopwatch};
use crate::residency::ResidencyObserver;

/// Time between two checks of a region; the kernel's default.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);
/// Accesses are counted over this time; the kernel's default.
pub const AGGREGATION_INTERVAL: Duration = Duration::from_millis(100);
/// Least and greatest number of regions: small enough for windows. Bounds the cost: one check per region and sampling
/// interval.
pub const REGIONS: (u32, u32) = (100, 5000);

/// A process watched by DAMON.
#[derive(Debug)]
pub struct DamonObserver<'f, F: KernelFiles> {
    running: Running<'f, F>,
    present: ResidencyObserver<&'f F>,
    map: AccessMap,
    cost: Cost,
}

impl<'f, F: KernelFiles> DamonObserver<'f, F> {
    /// Sets up and starts DAMON on `pid`; dropping takes it down.
    ///
    /// # Errors
    /// `Gone`, `Denied` without root, `Unsupported` where DAMON cannot watch processes, `Other` with EBUSY when
    /// another user has it.
    pub fn start(files: &'f F, pid: Pid) -> Result<DamonObserver<'f, F>, Error> {
        let present = ResidencyObserver::new(files, pid)?;
        let monitor = Monitor {
            pid,
            sample_interval: SAMPLE_INTERVAL,
            aggregation_interval: AGGREGATION_INTERVAL,
            min_regions: REGIONS.0,
            max_regions: REGIONS.1,
        };
        let running = Draft::new(files, monitor)?.commit()?.start()?;
        let mut map = AccessMap::empty(Backend::DamonVaddr);
        map.classes = classes(running.max_nr_accesses());
        Ok(DamonObserver { running, present, map, cost: Cost::default() })
    }
}

/// Class n: accessed in n of the checks of one aggregation interval.
fn classes(samples: u32) -> Vec<Class> {
    let samples = samples.min(255);
    (0..=samples)
        .map(|hits| Class { accessed_reads: hits, rate: estimate::rate_of_hits(hits, samples, SAMPLE_INTERVAL) })
        .collect()
}

/// Gives every present page of a touched region the region's class, up to `highest`, unless an earlier scan gave it one.
fn overlay(windows: &mut [WindowHeat], regions: &[Region], highest: u8) {
    for region in regions.iter().filter(|region| region.nr_accesses > 0) {
        let class = highest.min(cast::saturated(region.nr_accesses));
        let first = windows.partition_point(|heat| heat.window < region.range.start().window());
        let inside = windows[first..].iter_mut().take_while(|heat| heat.window.start() < region.range.end());
        for heat in inside {
            let Some(part) = region.range.intersection(heat.window.range()) else { continue };
            let mut pages = PageSet::EMPTY;
            let from = part.start().page_in_window();
            let count = cast::index(part.pages().0);
            (from..from + count).filter(|page| heat.present.contains(*page)).for_each(|page| pages.insert(page));
            // A huge page has one accessed bit, so an access to a part counts for all of it.
            let pages = if heat.huge && pages != PageSet::EMPTY { PageSet::FULL } else { pages };
            heat.classify(&pages, class);
        }
    }
}

impl<F: KernelFiles> Observer for DamonObserver<'_, F> {
    fn backend(&self) -> Backend {
        Backend::DamonVaddr
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.map.windows.clear();
        self.map.observed = Duration::ZERO;
        self.present.begin()
    }

    fn scan(&mut self) -> Result<(), Error> {
        let stopwatch = Stopwatch::start();
        let regions = self.running.regions()?;
        self.present.scan()?;
        let mut windows = self.present.map().windows.clone();
        for heat in &mut windows {
            heat.forget();
            // Results of earlier scans stay for a window that is still the same.
            let before = self.map.windows.binary_search_by_key(&heat.window, |before| before.window);
            if let Some(before) = before.ok().map(|at| &self.map.windows[at]).filter(|before| before.huge == heat.huge)
            {
                heat.touched = before.touched;
                heat.class_of = before.class_of.clone();
            }
        }
        overlay(&mut windows, &regions, cast::fits(self.map.classes.len() - 1));
        self.map.windows = windows;
        self.map.observed = self.present.age();
        self.cost.scan.add(stopwatch.elapsed(), self.map.present());
        Ok(())
    }

    fn age(&self) -> Duration {
        self.present.age()
    }

    fn map(&self) -> &AccessMap {
        &self.map
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn address_space_changed(&self) -> bool {
        false // DAMON follows the process; regions of the old address space age out within a second
    }
}

#[cfg(test)]
mod tests {
    use units::{AddressRange, Window};

    use super::*;

    #[test]
    fn present_pages_of_a_touched_region_get_its_class() {
        let mut heat = WindowHeat::untouched(Window(1));
        (0..100).for_each(|page| heat.present.insert(page));
        let mut windows = vec![heat];
        let start = Window(1).page(50).0;
        let region = Region { range: AddressRange::new(start, start + 200 * 4096).unwrap(), nr_accesses: 7, age: 0 };
        let cold = Region { range: AddressRange::new(0, start).unwrap(), nr_accesses: 0, age: 3 };
        overlay(&mut windows, &[cold, region], 20);
        assert_eq!(windows[0].touched.count(), 50);
        assert_eq!((windows[0].class_of[49], windows[0].class_of[50], windows[0].class_of[100]), (0, 7, 0));
    }

    #[test]
    fn more_hits_are_a_higher_class_and_rate() {
        let classes = classes(20);
        assert_eq!(classes.len(), 21);
        assert!(classes.windows(2).all(|pair| pair[0].rate < pair[1].rate));
        assert_eq!(classes[20].accessed_reads, 20);
    }
}
