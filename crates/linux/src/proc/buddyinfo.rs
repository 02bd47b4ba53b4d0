//! `/proc/buddyinfo`: free memory of each zone, by block size.
//!
//! The free total is in `meminfo.rs`. The cost of finding a huge page without a large enough block (compaction) is
//! counted in `vmstat.rs`.
//!
//! Cost: some 20 µs, briefly under each zone's lock. Side effects: none.
//!
//! Since: Linux 2.6. Pages on the per-processor lists, and pages of memory hot-plugged but not yet online, are not
//! included. Blocks of 4 MiB are the largest on x86-64; other kernels print more or fewer columns.
//!
//! Truth: proc_buddyinfo(5); `frag_show_print` in mm/vmstat.c.

use serde::Serialize;
use units::{Bytes, PageSize, Pages, cast};

use crate::{Error, KernelFiles};

/// Order of a block that makes one huge page: 2⁹ small pages.
pub const HUGE_ORDER: usize = 9;

/// One zone of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Zone {
    /// NUMA node of the zone.
    pub node: u32,
    /// Name: `DMA`, `DMA32`, `Normal`, `Movable`.
    pub zone: String,
    /// Free blocks of 2ⁿ small pages, by n.
    pub free_blocks: Vec<u64>,
}

impl Zone {
    /// Huge pages available without moving memory: a block of order n holds 2ⁿ⁻⁹ of them.
    pub fn free_windows(&self) -> u64 {
        free_windows(&self.free_blocks)
    }

    /// Free memory of the zone.
    pub fn free(&self) -> Bytes {
        Bytes(
            (0..)
                .zip(&self.free_blocks)
                .fold(0, |sum, (order, blocks)| sum.saturating_add(blocks.saturating_mul(block_bytes(order).0))),
        )
    }
}

/// Huge pages in free blocks, from the number of blocks by order.
pub fn free_windows(free_blocks: &[u64]) -> u64 {
    let of_order = |(order, blocks): (usize, &u64)| {
        let windows = block_bytes(order).0 / PageSize::Huge.bytes().0;
        blocks.saturating_mul(windows)
    };
    free_blocks.iter().enumerate().skip(HUGE_ORDER).map(of_order).fold(0, u64::saturating_add)
}

/// Size of a block of this order; saturates far beyond any memory.
pub fn block_bytes(order: usize) -> Bytes {
    let pages = 1u64.checked_shl(cast::saturated(order)).unwrap_or(u64::MAX);
    Bytes(pages.saturating_mul(Pages(1).bytes().0))
}

/// Reads all zones, in the kernel's order.
///
/// # Errors
/// `Unsupported` if there is no such file, `Malformed` for a line that is not a zone.
pub fn buddyinfo(files: &impl KernelFiles) -> Result<Vec<Zone>, Error> {
    let text = files.read("proc/buddyinfo").map_err(|errno| Error::of_host("read", "/proc/buddyinfo", errno))?;
    let zones = text.lines().enumerate().map(|(index, line)| {
        parse_line(line).ok_or_else(|| {
            Error::malformed(
                format_args!("/proc/buddyinfo line {}", index + 1),
                format_args!("{line:?}, expected Node, a number, zone, a name and the free blocks by order"),
            )
        })
    });
    zones.collect()
}

/// Parses `Node 0, zone   Normal    746   1529 …`. `None` for any other text.
fn parse_line(line: &str) -> Option<Zone> {
    let (node, rest) = line.strip_prefix("Node ")?.split_once(',')?;
    let mut words = rest.split_ascii_whitespace();
    if words.next()? != "zone" {
        return None;
    }
    let zone = words.next()?.to_owned();
    let free_blocks: Vec<u64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let node = node.trim().parse().ok()?;
    (!free_blocks.is_empty()).then_some(Zone { node, zone, free_blocks })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Rooted;
    use crate::fake::FakeKernel;

    const FOUND: &str = "\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3 
Node 0, zone   Normal    746   1529      5    128   1132   4511   2618   1414    741    506   3696 
Node 1, zone  Movable      1      0      0      0      0      0      0      0      0      0      0 
";

    fn read(text: &str) -> Result<Vec<Zone>, Error> {
        buddyinfo(&FakeKernel::new().file("proc/buddyinfo", text))
    }

    #[test]
    fn zones_are_read_with_their_blocks() {
        let zones = read(FOUND).unwrap();
        let names: Vec<_> = zones.iter().map(|zone| (zone.node, zone.zone.as_str())).collect();
        assert_eq!(names, [(0, "DMA"), (0, "Normal"), (1, "Movable")]);
        assert_eq!(zones[1].free_blocks[5], 4511);
        assert_eq!(zones[0].free(), Bytes::mib(1) + Bytes::mib(2) + Bytes::mib(12));
    }

    #[test]
    fn a_block_of_4_mib_holds_two_huge_pages_and_one_of_1_mib_none() {
        let windows: Vec<u64> = read(FOUND).unwrap().iter().map(Zone::free_windows).collect();
        assert_eq!(windows, [1 + 2 * 3, 506 + 2 * 3696, 0]);
    }

    #[test]
    fn larger_blocks_of_another_kernel_count_for_as_many_as_they_hold() {
        let mut blocks = vec![0; 12];
        blocks[11] = 3;
        assert_eq!(free_windows(&blocks), 12);
        assert_eq!(free_windows(&[7; 9]), 0);
        assert_eq!(read("Node 0, zone Normal 1 2\n").unwrap()[0].free_windows(), 0);
    }

    #[test]
    fn a_missing_file_is_unsupported() {
        assert!(matches!(buddyinfo(&FakeKernel::new()), Err(Error::Unsupported(_))));
    }

    #[test]
    fn a_malformed_line_is_named() {
        let error = read("Node 0, zone DMA 1\nNode 0, zone DMA x\n").unwrap_err();
        let expected = "cannot understand /proc/buddyinfo line 2: \"Node 0, zone DMA x\", \
            expected Node, a number, zone, a name and the free blocks by order";
        assert_eq!(error.to_string(), expected);
        assert!(read("Node 0, zone DMA\n").is_err() && read("Node x, zone DMA 1\n").is_err());
    }

    #[test]
    fn this_host_is_understood() {
        let zones = buddyinfo(&Rooted::host()).unwrap();
        assert!(zones.iter().map(|zone| zone.free().0).sum::<u64>() > 0);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "(?s).{0,100}") {
            let _ = read(&text);
        }

        #[test]
        fn huge_pages_never_take_more_than_what_is_free(blocks in prop::collection::vec(any::<u64>(), 1..80)) {
            let zone = Zone { node: 0, zone: String::new(), free_blocks: blocks };
            let windows = zone.free_windows();
            prop_assert!(windows == u64::MAX || windows.saturating_mul(2 << 20) <= zone.free().0);
        }
    }
}
