//! DAMON's tree under sysfs: the listed regions are read or refused, and the tree is always taken down.

use std::time::Duration;

use crate::memory_files::MemoryFiles;
use linux::Pid;
use linux::damon::{Draft, Monitor, available_operations};

const ADMIN: &str = "sys/kernel/mm/damon/admin/kdamonds";

/// Every file of a monitor.
const FILES: &str = "nr_kdamonds 0/state 0/contexts/nr_contexts 0/contexts/0/operations \
    0/contexts/0/monitoring_attrs/intervals/sample_us 0/contexts/0/monitoring_attrs/intervals/aggr_us \
    0/contexts/0/monitoring_attrs/intervals/update_us 0/contexts/0/monitoring_attrs/nr_regions/min \
    0/contexts/0/monitoring_attrs/nr_regions/max 0/contexts/0/targets/nr_targets 0/contexts/0/targets/0/pid_target \
    0/contexts/0/schemes/nr_schemes 0/contexts/0/schemes/0/action \
    0/contexts/0/schemes/0/access_pattern/sz/min 0/contexts/0/schemes/0/access_pattern/sz/max \
    0/contexts/0/schemes/0/access_pattern/nr_accesses/min 0/contexts/0/schemes/0/access_pattern/nr_accesses/max \
    0/contexts/0/schemes/0/access_pattern/age/min 0/contexts/0/schemes/0/access_pattern/age/max";

const FIELDS: [&str; 4] = ["start", "end", "nr_accesses", "age"];

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let Some((first, text)) = bytes.split_first() else { return false };
    let text = String::from_utf8_lossy(text);
    let files = MemoryFiles::default();
    FILES.split_whitespace().for_each(|name| files.put(&format!("{ADMIN}/{name}"), "0\n"));
    files.put(&format!("{ADMIN}/0/contexts/0/avail_operations"), "vaddr paddr\n");
    match first % 8 {
        0 => {
            files.put(&format!("{ADMIN}/0/contexts/0/avail_operations"), &text);
            return available_operations(&files).is_ok();
        }
        1 => {
            files.put(&format!("{ADMIN}/nr_kdamonds"), &text);
            return available_operations(&files).is_ok();
        }
        _ => {}
    }
    // One region a line, its four numbers separated; the names of their directories are numbers, or not.
    for (number, line) in text.lines().enumerate().take(20) {
        let name = if number % 7 == 6 { format!("total_{number}") } else { number.to_string() };
        for (field, value) in FIELDS.iter().zip(line.split(' ')) {
            files.put(&format!("{ADMIN}/0/contexts/0/schemes/0/tried_regions/{name}/{field}"), value);
        }
    }
    let monitor = Monitor {
        pid: Pid(42),
        sample_interval: Duration::from_millis(5),
        aggregation_interval: Duration::from_millis(100),
        min_regions: 10,
        max_regions: 100,
    };
    let running = Draft::new(&files, monitor).and_then(Draft::commit).and_then(linux::damon::Committed::start);
    let mut understood = false;
    if let Ok(regions) = running.as_ref().expect("every file is there").regions() {
        understood = !regions.is_empty();
        assert!(regions.is_sorted_by_key(|region| region.range));
        assert!(regions.len() <= text.lines().count());
    }
    drop(running);
    let writes = files.writes.borrow();
    assert_eq!(writes.last(), Some(&(format!("{ADMIN}/nr_kdamonds"), "0".to_owned())));
    understood
}
