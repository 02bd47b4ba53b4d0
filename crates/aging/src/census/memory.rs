//! Page frames of the machine's memory.

use std::ops::Range;

use linux::zoneinfo::{Zone, zoneinfo};
use linux::{Error, KernelFiles, iomem};

/// Frames of the kernel's memory, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Sorted by number; ranges neither overlap nor touch.
    ranges: Vec<Range<u64>>,
}

impl Memory {
    /// Memory by its physical addresses, cut to the zones. If the kernel hides the addresses: all that the zones span,
    /// with holes.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN.
    pub fn of(files: &impl KernelFiles) -> Result<Memory, Error> {
        let zones = zoneinfo(files)?;
        match iomem::memory(files) {
            Err(Error::Unsupported(_)) => Ok(Memory::within(&zones, &[])),
            ranges => Ok(Memory::within(&zones, &ranges?)),
        }
    }

    fn within(zones: &[Zone], memory: &[Range<u64>]) -> Memory {
        let spans = zones.iter().map(|zone| zone.first_frame..zone.first_frame.saturating_add(zone.spanned.0));
        // Zones of several nodes may overlap, and after hotplug zones of one node, too.
        let spans = iomem::merged(spans.collect());
        if memory.is_empty() {
            return Memory { ranges: spans };
        }
        let cut = |range: &Range<u64>| {
            let range = range.clone();
            spans.iter().map(move |span| range.start.max(span.start)..range.end.min(span.end))
        };
        Memory { ranges: iomem::merged(memory.iter().flat_map(cut).collect()) }
    }

    /// Ranges, sorted by number.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Number of frames.
    pub fn frames(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// True for a frame of memory; false for a frame of a hole or of a device.
    pub fn contains(&self, frame: u64) -> bool {
        let before = self.ranges.partition_point(|range| range.end <= frame);
        self.ranges.get(before).is_some_and(|range| range.contains(&frame))
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one range is meant")]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    const ZONES: &str = "\
Node 0, zone   DMA32
        spanned  1048575
        present  786334
  start_pfn:           1
Node 0, zone   Normal
        spanned  3145728
        present  2097152
  start_pfn:           1048576
Node 1, zone   Normal
        spanned  1048576
        present  1048576
  start_pfn:           2097152
";
    const IOMEM: &str = "\
00001000-0009fbff : System RAM
00100000-bfffffff : System RAM
c0001000-eebfffff : PCI Bus 0000:00
100000000-3ffffffff : System RAM
400000000-4ffffffff : System RAM
";

    #[test]
    fn memory_is_neither_in_holes_nor_beyond_the_zones_and_zones_that_overlap_have_it_once() {
        let kernel = FakeKernel::new().file("proc/zoneinfo", ZONES).file("proc/iomem", IOMEM);
        let memory = Memory::of(&kernel).unwrap();
        // The last range is not used by the kernel: its memory was limited at boot.
        assert_eq!(memory.ranges(), [0x1..0x9f, 0x100..0xc_0000, 0x10_0000..0x40_0000]);
        assert!(memory.contains(0x1) && memory.contains(0xb_ffff) && memory.contains(0x3f_ffff));
        assert!(!memory.contains(0) && !memory.contains(0x9f) && !memory.contains(0xc_0000));
        assert!(!memory.contains(0x40_0000));
    }

    #[test]
    fn without_addresses_the_zones_are_read() {
        let zones = 0x1..0x40_0000;
        let kernel = FakeKernel::new().file("proc/zoneinfo", ZONES);
        assert_eq!(Memory::of(&kernel).unwrap().ranges(), std::slice::from_ref(&zones));
        let kernel = kernel.file("proc/iomem", "0-fff : Reserved\n");
        assert_eq!(Memory::of(&kernel).unwrap().ranges(), std::slice::from_ref(&zones));
    }

    #[test]
    fn hidden_addresses_are_an_error() {
        let hidden = "00000000-00000000 : System RAM\n";
        let kernel = FakeKernel::new().file("proc/zoneinfo", ZONES).file("proc/iomem", hidden);
        assert!(matches!(Memory::of(&kernel), Err(Error::Denied(_))));
    }
}
