//! Advice on the mappings of a process, kept between counts: only `smaps` has it, which is dear.

use std::collections::BTreeMap;
use std::time::Instant;

use linux::maps::Mapping;
use linux::smaps::VmFlags;

/// Advice on each mapping, as last read.
#[derive(Debug)]
pub struct Advice {
    pub read_again: Instant,
    pub not_before: Instant,
    pub by_start: BTreeMap<u64, (Mapping, VmFlags)>,
}

impl Advice {
    /// Flags of a mapping that is unchanged except for its length.
    pub fn on(&self, mapping: &Mapping) -> Option<VmFlags> {
        let same = |known: &Mapping| known.permissions == mapping.permissions && known.path == mapping.path;
        self.by_start.get(&mapping.range.start().0).filter(|(known, _)| same(known)).map(|(_, flags)| *flags)
    }

    /// Whether it answers for these mappings without being read again.
    pub fn is_good_for(&self, mappings: &[Mapping]) -> bool {
        let now = Instant::now();
        let has_room = |mapping: &&Mapping| mapping.is_anonymous() && mapping.range.whole_windows().len() > 0;
        now < self.not_before
            || now < self.read_again && mappings.iter().filter(has_room).all(|mapping| self.on(mapping).is_some())
    }
}
