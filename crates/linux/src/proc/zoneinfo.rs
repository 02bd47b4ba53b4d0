//! `/proc/zoneinfo`: page frames of the host, by zone.
//!
//! Free frames by block size are in `buddyinfo.rs`; the use of each frame is in `kpageflags.rs`.
//!
//! Cost: some 50 µs a node, and more with many processors, whose lists are printed too. Side effects: none.
//!
//! Since: Linux 2.6.13. A zone spans frames that do not exist (holes); `present` counts existing ones,
//! `managed` those of them that the kernel hands out (since 3.9).
//!
//! Truth: `zoneinfo_show_print` in mm/vmstat.c.

use units::Pages;

use crate::{Error, KernelFiles};

/// One zone of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// NUMA node of the zone.
    pub node: u32,
    /// Name: `DMA`, `DMA32`, `Normal`, `Movable`.
    pub zone: String,
    /// Number of the first frame.
    pub first_frame: u64,
    /// Frames from the first to the last, holes included.
    pub spanned: Pages,
    /// Frames that exist.
    pub present: Pages,
    /// Frames that the kernel hands out: without those reserved at boot, and those that a balloon driver gave to the
    /// hypervisor.
    pub managed: Pages,
}

/// Zones that have frames, by rising frame.
///
/// # Errors
/// `Unsupported` if there is no such file, `Malformed` for a zone without its position.
pub fn zoneinfo(files: &impl KernelFiles) -> Result<Vec<Zone>, Error> {
    let text = files.read("proc/zoneinfo").map_err(|errno| Error::of_host("read", "/proc/zoneinfo", errno))?;
    parse(&text)
}

/// A zone while its lines are read.
#[derive(Default)]
struct Partly {
    node: u32,
    zone: String,
    first_frame: Option<u64>,
    spanned: Option<Pages>,
    present: Option<Pages>,
    managed: Option<Pages>,
}

impl Partly {
    /// The zone. `None` for a zone without frames, for which the kernel prints nothing more.
    fn whole(self) -> Result<Option<Zone>, Error> {
        let Partly { node, zone, first_frame, spanned, present, managed } = self;
        match (first_frame, spanned, present) {
            (_, _, Some(Pages(0))) => Ok(None),
            (Some(first_frame), Some(spanned), Some(present)) => {
                Ok(Some(Zone { node, zone, first_frame, spanned, present, managed: managed.unwrap_or(present) }))
            }
            _ => Err(Error::malformed(
                format_args!("/proc/zoneinfo, node {node}, zone {zone}"),
                "expected lines with spanned, present and start_pfn",
            )),
        }
    }
}

fn parse(text: &str) -> Result<Vec<Zone>, Error> {
    let mut zones = Vec::new();
    let mut open: Option<Partly> = None;
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("Node ") {
            zones.extend(open.take().map(Partly::whole).transpose()?.flatten());
            let (node, zone) = parse_head(head).ok_or_else(|| {
                Error::malformed("/proc/zoneinfo", format_args!("{line:?}, expected Node, a number, zone and a name"))
            })?;
            open = Some(Partly { node, zone, ..Partly::default() });
        } else if let (Some(open), Some((key, value))) = (&mut open, split(line)) {
            match key {
                "spanned" => open.spanned = Some(Pages(value)),
                "present" => open.present = Some(Pages(value)),
                "managed" => open.managed = Some(Pages(value)),
                "start_pfn" => open.first_frame = Some(value),
                _ => {}
            }
        }
    }
    zones.extend(open.map(Partly::whole).transpose()?.flatten());
    zones.sort_by_key(|zone| zone.first_frame);
    Ok(zones)
}

/// Parses `0, zone   Normal`.
fn parse_head(head: &str) -> Option<(u32, String)> {
    let (node, zone) = head.split_once(',')?;
    let name = zone.trim_start().strip_prefix("zone")?.trim();
    (!name.is_empty()).then(|| Some((node.trim().parse().ok()?, name.to_owned())))?
}

/// Parses `        spanned  4095`, `  start_pfn:           1`. `None` for a line of another form.
fn split(line: &str) -> Option<(&str, u64)> {
    let mut words = line.split_ascii_whitespace();
    let (key, value) = (words.next()?, words.next()?);
    let value = value.parse().ok()?;
    words.next().is_none().then_some((key.trim_end_matches(':'), value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Rooted;
    use crate::fake::FakeKernel;

    // As Linux 6.18 prints it: the lines of a zone without frames end early.
    const FOUND: &str = "\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 2164321
  pages free     3840
        spanned  4095
        present  3998
        managed  3840
        protection: (0, 3008, 24080)
  pagesets
    cpu: 0
              count:    0
  node_unreclaimable:  0
  start_pfn:           1
Node 0, zone   Normal
  pages free     5100000
        spanned  5505024
        present  5505024
        managed  5400000
  start_pfn:           1048576
Node 0, zone  Movable
  pages free     0
        spanned  0
        present  0
        managed  0
";

    fn read(text: &str) -> Result<Vec<Zone>, Error> {
        zoneinfo(&FakeKernel::new().file("proc/zoneinfo", text))
    }

    #[test]
    fn zones_say_where_they_lie_and_empty_ones_are_left_out() {
        let zone = |zone: &str, first_frame, spanned, present, managed| Zone {
            node: 0,
            zone: zone.to_owned(),
            first_frame,
            spanned: Pages(spanned),
            present: Pages(present),
            managed: Pages(managed),
        };
        let expected = [zone("DMA", 1, 4095, 3998, 3840), zone("Normal", 1_048_576, 5_505_024, 5_505_024, 5_400_000)];
        assert_eq!(read(FOUND).unwrap(), expected);
    }

    #[test]
    fn a_zone_that_does_not_say_where_it_lies_is_named() {
        let error = read("Node 1, zone DMA32\n        spanned 7\n        present 7\n").unwrap_err();
        let expected = "cannot understand /proc/zoneinfo, node 1, zone DMA32: \
            expected lines with spanned, present and start_pfn";
        assert_eq!(error.to_string(), expected);
        assert!(read("Node 1 DMA32\n").is_err() && read("Node 1, zone\n").is_err());
    }

    #[test]
    fn a_missing_file_is_unsupported() {
        assert!(matches!(zoneinfo(&FakeKernel::new()), Err(Error::Unsupported(_))));
    }

    #[test]
    fn this_host_has_as_many_frames_as_memory_and_little_more() {
        let present: u64 = zoneinfo(&Rooted::host()).unwrap().iter().map(|zone| zone.present.bytes().0).sum();
        let total = crate::meminfo::meminfo(&Rooted::host()).unwrap().total.0;
        assert!(present >= total && present < total + total / 4, "{present} bytes of frames, {total} of memory");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "(?s).{0,100}") {
            let _ = read(&text);
            let _ = read(&format!("Node 0, zone DMA\n{text}\n"));
        }
    }
}
