//! Processors of the programs. A server and its client share no processor, so that one is not measured as the other.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Processors that a program may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// All processors that were ours when the benchmark began.
    Anywhere,
    /// The n-th processor only (the last one, when there are fewer).
    Only(usize),
}

/// The processors that were ours when the benchmark began.
#[derive(Clone, Debug)]
pub struct Processors {
    all: CpuSet,
}

impl Processors {
    /// Asks the kernel, before anything is bound to one of them.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn ours() -> io::Result<Processors> {
        Ok(Processors { all: sched_getaffinity(None)? })
    }

    /// The set that `place` means.
    pub fn set(&self, place: Place) -> CpuSet {
        let Place::Only(nth) = place else { return self.all };
        let ours: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| self.all.is_set(*cpu)).collect();
        let mut set = CpuSet::new();
        if let Some(cpu) = ours.get(nth).or(ours.last()) {
            set.set(*cpu);
        }
        set
    }

    /// Binds the calling thread.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn bind_this_thread(&self, place: Place) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.set(place))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_beyond_the_last_processor_is_the_last_one() {
        let ours = Processors::ours().unwrap();
        assert_eq!(ours.set(Place::Anywhere).count(), ours.all.count());
        assert_eq!(ours.set(Place::Only(0)).count(), 1);
        let past = usize::try_from(ours.all.count()).unwrap();
        assert_eq!(ours.set(Place::Only(past)), ours.set(Place::Only(past - 1)));
    }
}
