//! Arguments of the program, and the described machine.

use std::path::PathBuf;

use clap::{CommandFactory, Parser};
use units::{Bytes, WayMask, Ways};

use crate::cpus::Cpus;
use crate::hardware::{Bandwidth, Hardware, MONITORING, Monitoring, models};

const EXAMPLES: &str = "\
Examples:
  mkdir /mnt/resctrl
  resctrl-emulator /mnt/resctrl &                          # 20 ways, 16 classes, one cache
  mkdir /mnt/resctrl/web                                   # a class of its own
  echo 'L3:0=ff' > /mnt/resctrl/web/schemata               # the lower 8 ways
  echo 'L3:0=f0f' > /mnt/resctrl/web/schemata              # EINVAL; the reason:
  cat /mnt/resctrl/info/last_cmd_status                    # The mask f0f has non-consecutive 1-bits
  echo $$ > /mnt/resctrl/web/tasks                         # this shell and its children
  umount /mnt/resctrl                                      # the emulator ends

  resctrl-emulator --machine two-sockets --classes 4 --control /run/emulated /mnt/resctrl &
  resctrl-emulator --tell /run/emulated 'want web 4194304' # limit of web's llc_occupancy
  resctrl-emulator --tell /run/emulated 'occupancy web 1 Unavailable'

Commands to SOCKET, one a line:
  want GROUP BYTES              llc_occupancy of each cache: BYTES, or the size of the group's ways if that is less
  occupancy GROUP CACHE VALUE   llc_occupancy: exactly VALUE; total and local set mbm_..._bytes
  settle                        end the limbo of all RMIDs
GROUP is `.` or a path such as web/mon_groups/vm; CACHE is an identity, with / and a number for one of its nodes; \
VALUE is a number of bytes, Error, Unavailable or Unassigned.

Differences from the kernel, in short; the README beside the source has more:
  The type in /proc/mounts is fuse.resctrl: programs that search for resctrl there (pqos) do not find it.
  No program loses ways, no memory is locked, nothing is counted.
  A child of a thread that is in another group than its process's first thread gets the wrong group.
  By `want`, groups may show more together than their ways hold.
  No L2, no SMBA, no AMD bandwidth, no mbm_assign_mode, no /proc/PID/cpu_resctrl_groups.
  The rules follow the kernel's document and source; none was tried beside a real machine.

Effects on the machine: it mounts a file system at DIR, and reads /proc. No cache is partitioned and no thread is \
slowed down. It ends on Ctrl-C, SIGTERM, SIGHUP, or when DIR is unmounted, and removes the mount. If the emulator \
alone is killed, its child removes the mount; if both are killed, use `umount -l DIR`.";

/// A day.
const MOST_LIMBO_MS: u64 = 24 * 60 * 60 * 1000;

/// Emulate the kernel's resctrl file system without the hardware
///
/// Use it to try and to test programs that partition the last-level cache (Intel RDT, AMD QoS) on machines without
/// such a processor. It mounts a file system at DIR with the files, rules, errors and words of the kernel's
/// /sys/fs/resctrl. The end of this text lists the differences.
#[derive(Debug, Parser)]
#[command(name = "resctrl-emulator", version, max_term_width = 120)]
#[command(after_long_help = EXAMPLES)]
pub struct Arguments {
    /// Mount point: an empty directory
    #[arg(value_name = "DIR", required_unless_present_any = ["tell", "machines"])]
    pub directory: Option<PathBuf>,
    /// Machine to begin with; --machines lists them
    #[arg(long, value_name = "NAME", default_value = "broadwell-20", value_parser = models().map(|(name, _, _)| name))]
    machine: String,
    /// List the machines, and end
    #[arg(long)]
    pub machines: bool,
    /// Identities of the L3 caches, with commas: 0,1
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    caches: Option<Vec<u32>>,
    /// Size of one L3 cache in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    cache: Option<u64>,
    /// Ways of a cache, the bits of a mask
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32))]
    ways: Option<u32>,
    /// Least number of ways of a mask, in a row; 0 as on AMD
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=32))]
    min_ways: Option<u32>,
    /// Ways that devices use, too, as a mask in hexadecimal
    #[arg(long, value_name = "MASK")]
    shareable: Option<WayMask>,
    /// Ways that a mask has together or not at all
    #[arg(long, value_name = "MASK")]
    paired_ways: Option<WayMask>,
    /// Accept masks with holes: true or false
    #[arg(long, value_name = "BOOL")]
    sparse_masks: Option<bool>,
    /// Classes of service (CLOSIDs), including the default CLOS
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    classes: Option<u32>,
    /// Monitored groups (RMIDs), including the default group; 0 for a machine without monitoring
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=4096))]
    rmids: Option<u32>,
    /// Nodes of each cache (sub-NUMA clusters)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    nodes: Option<u32>,
    /// Time for which the lines of a removed group stay in the cache, and its RMID in limbo; 0 for no limbo
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(0..=MOST_LIMBO_MS))]
    limbo: Option<u64>,
    /// Offer limits on memory bandwidth: true or false
    #[arg(long, value_name = "BOOL")]
    bandwidth: Option<bool>,
    /// Offer a mask of their own to devices (AMD's SDCIAE): true or false
    #[arg(long, value_name = "BOOL")]
    io_alloc: Option<bool>,
    /// Online CPUs, as a list [default: the CPUs of this machine]
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Mount options: cdp, mba_MBps, debug
    #[arg(short = 'o', long = "options", value_name = "OPTIONS", value_delimiter = ',')]
    #[arg(value_parser = ["cdp", "mba_MBps", "debug"])]
    options: Vec<String>,
    /// Allow access by other users, within the files' permissions
    #[arg(long)]
    pub allow_other: bool,
    /// Listen at this path for commands that set the counters
    #[arg(long, value_name = "SOCKET", conflicts_with = "tell")]
    pub control: Option<PathBuf>,
    /// Send LINE to the emulator that listens at SOCKET, and end
    #[arg(long, value_names = ["SOCKET", "LINE"], num_args = 2, conflicts_with = "directory")]
    pub tell: Option<Vec<PathBuf>>,
}

/// Definition of the arguments, for help and the man page.
pub fn command() -> clap::Command {
    Arguments::command()
}

impl Arguments {
    /// The described machine.
    ///
    /// # Errors
    /// The fault of the description.
    pub fn hardware(&self, online: Cpus) -> Result<Hardware, String> {
        let mut hardware = Hardware::named(&self.machine).ok_or("no such machine")?;
        hardware.online = match &self.cpus {
            None => online,
            Some(list) => Cpus::of_list(list).map_err(|_| format!("--cpus {list}: expected a list such as 0-3,8"))?,
        };
        let ways = self.ways.map_or(hardware.ways, Ways);
        if ways != hardware.ways {
            // The upper ways of the model are not those of another size.
            hardware.shareable = WayMask::NONE;
            hardware.paired_ways = WayMask::NONE;
        }
        hardware.ways = ways;
        hardware.cache_ids = self.caches.clone().unwrap_or(hardware.cache_ids);
        hardware.cache = self.cache.map_or(hardware.cache, Bytes::mib);
        hardware.min_ways = self.min_ways.map_or(hardware.min_ways, Ways);
        hardware.shareable = self.shareable.unwrap_or(hardware.shareable);
        hardware.paired_ways = self.paired_ways.unwrap_or(hardware.paired_ways);
        hardware.sparse_masks = self.sparse_masks.unwrap_or(hardware.sparse_masks);
        hardware.classes = self.classes.unwrap_or(hardware.classes);
        hardware.io_alloc_capable = self.io_alloc.unwrap_or(hardware.io_alloc_capable);
        hardware.monitoring = self.monitoring(hardware.monitoring);
        let percent = Bandwidth { min_percent: 10, step_percent: 10, in_mib: false };
        hardware.bandwidth = match self.bandwidth {
            None => hardware.bandwidth,
            Some(is_there) => is_there.then_some(hardware.bandwidth.unwrap_or(percent)),
        };
        self.mounted_with(&mut hardware)?;
        consistent(hardware)
    }

    fn monitoring(&self, of_model: Option<Monitoring>) -> Option<Monitoring> {
        let mut monitoring = of_model.unwrap_or(MONITORING);
        monitoring.rmids = self.rmids.unwrap_or(monitoring.rmids);
        monitoring.nodes_per_cache = self.nodes.unwrap_or(monitoring.nodes_per_cache);
        monitoring.limbo_ms = self.limbo.unwrap_or(monitoring.limbo_ms);
        Some(monitoring).filter(|monitoring| monitoring.rmids > 0)
    }

    /// Applies the mount options. The kernel refuses a mount with options that the machine does not support.
    fn mounted_with(&self, hardware: &mut Hardware) -> Result<(), String> {
        // A bandwidth limit needs its count, for the same CPUs: of a whole cache, not of its nodes.
        let counts =
            hardware.monitoring.is_some_and(|monitoring| monitoring.bandwidth) && hardware.nodes_per_cache() == 1;
        for option in &self.options {
            match (option.as_str(), hardware.bandwidth.as_mut()) {
                ("cdp", _) if hardware.cdp_capable => hardware.cdp = true,
                ("mba_MBps", Some(bandwidth)) if counts => bandwidth.in_mib = true,
                ("debug", _) => hardware.debug = true,
                _ => return Err(format!("-o {option}: this machine cannot do that")),
            }
        }
        Ok(())
    }
}

fn consistent(hardware: Hardware) -> Result<Hardware, String> {
    let all = hardware.all_ways();
    let caches = &hardware.cache_ids;
    if caches.is_empty() || !caches.is_sorted_by(|one, other| one < other) {
        return Err("--caches: expected identities in rising order".to_owned());
    }
    if hardware.min_ways > hardware.ways {
        return Err(format!("--min-ways {}: more than all {} ways", hardware.min_ways, hardware.ways));
    }
    if !all.covers(hardware.shareable) || !all.covers(hardware.paired_ways) {
        return Err(format!("--shareable and --paired-ways: expected ways of {all}"));
    }
    if hardware.usable_classes() == 0 {
        return Err("-o cdp: expected at least 2 --classes".to_owned());
    }
    if hardware.online.is_empty() {
        return Err("--cpus: expected at least one".to_owned());
    }
    Ok(hardware)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(arguments: &[&str]) -> Result<Hardware, String> {
        let all = ["resctrl-emulator", "/mnt"].iter().chain(arguments);
        Arguments::try_parse_from(all).map_err(|error| error.to_string())?.hardware(Cpus::first(2))
    }

    #[test]
    fn each_figure_of_a_model_can_be_another() {
        let hardware =
            described(&["--machine", "skylake-11", "--ways", "12", "--classes", "4", "--caches", "0,3"]).unwrap();
        assert_eq!((hardware.ways, hardware.classes, hardware.cache_ids), (Ways(12), 4, vec![0, 3]));
        assert_eq!((hardware.shareable, hardware.paired_ways), (WayMask::NONE, WayMask::NONE));
        let hardware = described(&["--shareable", "3", "--cpus", "0-3", "-o", "cdp,debug", "--limbo", "0"]).unwrap();
        assert_eq!((hardware.shareable, hardware.online.to_string()), (WayMask(3), "0-3".to_owned()));
        assert!(
            hardware.cdp && hardware.debug && hardware.monitoring.is_some_and(|monitoring| monitoring.limbo_ms == 0)
        );
        assert_eq!(described(&["--rmids", "0"]).unwrap().monitoring, None);
    }

    #[test]
    fn machines_that_cannot_be_are_refused() {
        let bad: [&[&str]; 11] = [
            &["--caches", "1,0"],
            &["--ways", "4", "--min-ways", "5"],
            &["--shareable", "100000"],
            &["-o", "mba_MBps"],
            &["--machine", "haswell-20", "--bandwidth", "true", "-o", "mba_MBps"],
            &["--machine", "snc-2", "--bandwidth", "true", "-o", "mba_MBps"],
            &["--machine", "skylake-11", "--rmids", "0", "-o", "mba_MBps"],
            &["--classes", "1", "-o", "cdp"],
            &["--limbo", "18446744073709551615"],
            &["--machine", "haswell-20", "-o", "cdp"],
            &["--machine", "none"],
        ];
        for arguments in bad {
            assert!(described(arguments).is_err(), "{arguments:?}");
        }
        for good in [&["--machine", "skylake-11", "-o", "mba_MBps"][..], &["--classes", "2", "-o", "cdp"]] {
            assert!(described(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
    }
}
