//! `/proc/iomem`: map of physical addresses; here, the ranges of memory.
//!
//! A zone of `zoneinfo.rs` spans holes, such as that of the PCI bus below 4 GiB. The flags of a frame in a hole look
//! like those of a frame used by the kernel itself. Zones of several nodes may overlap, too. The ranges here have
//! neither holes nor overlaps.
//!
//! Cost: some 50 µs. Side effects: none.
//!
//! Since: always; without CAP_SYS_ADMIN all addresses read as zero since Linux 4.6. Memory added later is named
//! `System RAM (kmem)` or `System RAM (virtio_mem)`, and lies below the device that brought it.
//!
//! Truth: `r_show` in kernel/resource.c; Documentation/filesystems/proc.rst.

use std::ops::Range;

use rustix::io::Errno;
use units::Pages;

use crate::{Error, KernelFiles};

const PATH: &str = "/proc/iomem";

/// Frames of memory: ranges by rising number that neither overlap nor touch. Pages that are only partly memory, which
/// the kernel does not use, are left out. Empty if the kernel lists no memory here.
///
/// # Errors
/// `Unsupported` if there is no such file, `Denied` if addresses are hidden, `Malformed` for a line of memory without
/// any.
pub fn memory(files: &impl KernelFiles) -> Result<Vec<Range<u64>>, Error> {
    let text = files.read("proc/iomem").map_err(|errno| Error::of_host("read", PATH, errno))?;
    let mut ranges = Vec::new();
    for line in text.lines() {
        let Some((addresses, name)) = line.split_once(" : ") else { continue };
        if !name.starts_with("System RAM") {
            continue;
        }
        let range = parse(addresses)
            .ok_or_else(|| Error::malformed(PATH, format_args!("{line:?}, expected two hexadecimal addresses")))?;
        if range == (0, 0) {
            return Err(Error::of_host("read", format_args!("addresses in {PATH}"), Errno::PERM));
        }
        ranges.push(whole_pages(range));
    }
    Ok(merged(ranges))
}

/// Parses `  00100000-bfffffff`: the first and the last address.
fn parse(addresses: &str) -> Option<(u64, u64)> {
    let (first, last) = addresses.trim_start().split_once('-')?;
    let of = |digits| u64::from_str_radix(digits, 16).ok();
    let (first, last) = (of(first)?, of(last)?);
    (first <= last).then_some((first, last))
}

fn whole_pages((first, last): (u64, u64)) -> Range<u64> {
    let page = Pages(1).bytes().0;
    // The highest possible address is the end of a page.
    let end = last.checked_add(1).map_or(u64::MAX / page + 1, |end| end / page);
    first.div_ceil(page)..end
}

/// Merges ranges into the smallest number of ranges over the same numbers, by rising number.
pub fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    let mut all: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Rooted;
    use crate::fake::FakeKernel;

    const FOUND: &str = "\
00000000-00000fff : Reserved
00001000-0009fbff : System RAM
0009fc00-000fffff : Reserved
  000f0000-000fffff : System ROM
00100000-bfffffff : System RAM
  01000000-01ffffff : Kernel code
c0001000-eebfffff : PCI Bus 0000:00
100000000-63fffffff : System RAM
";

    fn read(text: &str) -> Result<Vec<Range<u64>>, Error> {
        memory(&FakeKernel::new().file("proc/iomem", text))
    }

    #[test]
    fn the_hole_of_the_bus_and_pages_in_part_are_no_memory() {
        assert_eq!(read(FOUND).unwrap(), [0x1..0x9f, 0x100..0xc_0000, 0x10_0000..0x64_0000]);
    }

    #[test]
    fn memory_that_was_plugged_in_later_lies_deeper_and_has_a_longer_name() {
        let text = "640000000-73fffffff : Persistent Memory\n  640000000-73fffffff : dax0.0\n\
            \u{20}   648000000-73fffffff : System RAM (kmem)\n740000000-743ffffff : System RAM\n";
        assert_eq!(read(text).unwrap(), vec![0x64_8000..0x74_4000]);
    }

    #[test]
    fn addresses_that_are_not_shown_are_denied_and_not_one_page_of_memory() {
        let error = read("00000000-00000000 : Reserved\n00000000-00000000 : System RAM\n").unwrap_err();
        assert!(matches!(error, Error::Denied(_)));
        assert_eq!(error.to_string(), "cannot read addresses in /proc/iomem: operation not permitted (EPERM)");
    }

    #[test]
    fn a_missing_file_is_unsupported_and_a_bent_line_is_named() {
        assert!(matches!(memory(&FakeKernel::new()), Err(Error::Unsupported(_))));
        let error = read("1000-zz : System RAM\n").unwrap_err().to_string();
        assert_eq!(
            error,
            "cannot understand /proc/iomem: \"1000-zz : System RAM\", expected two hexadecimal addresses"
        );
        assert!(read("2000-1000 : System RAM\n").is_err());
        assert_eq!(read("0-fff : Reserved\n"), Ok(Vec::new()));
    }

    #[test]
    fn this_host_has_at_least_the_memory_that_it_uses() {
        match memory(&Rooted::host()) {
            Ok(ranges) if !ranges.is_empty() => {
                let all: u64 = ranges.iter().map(|range| Pages(range.end - range.start).bytes().0).sum();
                let total = crate::meminfo::meminfo(&Rooted::host()).unwrap().total.0;
                assert!(all >= total, "{all} bytes of frames, {total} of memory");
            }
            Ok(_) | Err(Error::Denied(_) | Error::Unsupported(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "(?s).{0,100}", first: u64, last: u64) {
            let _ = read(&text);
            let _ = read(&format!("{first:x}-{last:x} : System RAM\n{text}"));
        }

        #[test]
        fn merged_ranges_have_the_same_numbers_and_lie_apart(
            ranges in prop::collection::vec((0u64..100, 0u64..20), 0..20),
        ) {
            let ranges: Vec<Range<u64>> = ranges.into_iter().map(|(start, count)| start..start + count).collect();
            let all = merged(ranges.clone());
            prop_assert!(all.windows(2).all(|two| two[0].end < two[1].start));
            for number in 0..130 {
                let is_in = |ranges: &[Range<u64>]| ranges.iter().any(|range| range.contains(&number));
                prop_assert_eq!(is_in(&all), is_in(&ranges));
            }
        }
    }
}
