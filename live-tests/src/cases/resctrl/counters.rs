//! Classes, counters and their values; code and data apart; bandwidth; devices; locked regions.

use std::fs;

use libtest_mimic::Failed;
use rustix::io::Errno;

use super::mount::{Mount, OwnGroup, Shown, Trial, errno_of, mask_of, not};

fn refused(mount: &Mount, name: &str, errno: Errno, words: &str) -> Result<(), Failed> {
    let outcome = fs::create_dir(mount.root.join(name)).map_err(|error| errno_of(&error));
    mount.said(&format!("mkdir {name}"), outcome, errno, words)
}

/// mkdir: as many groups as there are classes, the default group being one.
pub(crate) fn classes_are_used_up_and_come_back(mount: &Mount) -> Trial {
    if mount.is_the_kernels() {
        return not("others would get none in the meantime");
    }
    let classes: usize = mount.read(&format!("info/{}/num_closids", mount.lines[0]))?.trim().parse()?;
    let mut groups = (1..classes).map(|n| mount.group(&format!("g{n}"))).collect::<Result<Vec<_>, _>>()?;
    refused(mount, "more", Errno::NOSPC, "Out of CLOSIDs\n")?;
    groups.pop();
    drop(mount.group("more")?);
    Ok(Shown::Kept)
}

/// alloc_rmid: ENOSPC when all are taken, EBUSY when some are in limbo. The emulator has three.
pub(crate) fn counters_are_used_up_and_come_back_out_of_limbo(mount: &Mount) -> Trial {
    if mount.is_the_kernels() {
        return not("others would get none in the meantime");
    }
    let web = mount.group("web")?;
    let vm = web.monitor("vm")?;
    refused(mount, "more", Errno::NOSPC, "Out of RMIDs\n")?;
    refused(mount, "web/mon_groups/more", Errno::NOSPC, "Out of RMIDs\n")?;
    // A lot of it is still in the cache.
    mount.emulator()?.tell("occupancy web/mon_groups/vm 0 16777216")?;
    drop(vm);
    refused(mount, "more", Errno::BUSY, "Out of RMIDs\n")?;
    mount.emulator()?.tell("settle")?;
    drop(mount.group("more")?);
    Ok(Shown::Kept)
}

/// `mon_data`: a decimal number, or one of three words.
pub(crate) fn a_counter_shows_a_number_or_says_why_not(mount: &Mount) -> Trial {
    if !mount.monitors {
        return not("nothing is monitored here");
    }
    let group = mount.group("web")?;
    let features = mount.read("info/L3_MON/mon_features")?;
    // The other files say that the counted events can be chosen.
    let events: Vec<&str> = features.lines().filter(|feature| !feature.ends_with("_config")).collect();
    assert!(!events.is_empty(), "{features:?}");
    for cache in &mount.caches {
        for event in &events {
            let text = group.read(&format!("mon_data/mon_L3_{cache:02}/{event}"))?;
            let value = text.strip_suffix('\n').ok_or("no newline")?;
            let is_word = ["Error", "Unavailable", "Unassigned"].contains(&value);
            assert!(is_word || value.parse::<u64>().is_ok(), "{text:?}");
        }
    }
    Ok(Shown::Kept)
}

/// mon_event_count: a control group's count is its own and those of its monitoring groups.
pub(crate) fn a_control_group_counts_all_that_is_in_it(mount: &Mount) -> Trial {
    let Ok(emulator) = mount.emulator() else { return not("nobody can say here what is counted") };
    let web = mount.group("web")?;
    let vm = web.monitor("vm")?;
    let cache = mount.caches[0];
    let shown = |group: &OwnGroup, event: &str| group.read(&format!("mon_data/mon_L3_{cache:02}/{event}"));
    emulator.tell(&format!("occupancy web {cache} 1000"))?;
    emulator.tell(&format!("occupancy web/mon_groups/vm {cache} 24"))?;
    assert_eq!((shown(&web, "llc_occupancy")?, shown(&vm, "llc_occupancy")?), ("1024\n".into(), "24\n".into()));
    for word in ["Error", "Unavailable", "Unassigned"] {
        emulator.tell(&format!("total web {cache} {word}"))?;
        emulator.tell(&format!("total web/mon_groups/vm {cache} {word}"))?;
        assert_eq!(shown(&web, "mbm_total_bytes")?, format!("{word}\n"));
    }
    emulator.tell("want web 1000000000000")?;
    emulator.tell(&format!("want web/mon_groups/vm {}", 4096))?;
    assert_eq!(shown(&web, "llc_occupancy")?, "1024\n", "what was said stays");
    Ok(Shown::Kept)
}

/// `mon_sub_L3_YY`: nodes apart, and together above them.
pub(crate) fn nodes_of_a_cache_count_apart_and_together(mount: &Mount) -> Trial {
    let folder = format!("mon_data/mon_L3_{:02}", mount.caches[0]);
    let nodes = fs::read_dir(mount.root.join(&folder))?.filter_map(Result::ok);
    let mut nodes: Vec<String> = nodes.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    nodes.retain(|name| name.starts_with("mon_sub_L3_"));
    nodes.sort();
    if nodes.is_empty() {
        return not("caches have no nodes here");
    }
    if let Ok(emulator) = mount.emulator() {
        for (node, bytes) in [(0, 5), (1, 7)] {
            emulator.tell(&format!("total . {}/{node} {bytes}", mount.caches[0]))?;
        }
        let counts = nodes.iter().map(|node| mount.read(&format!("{folder}/{node}/mbm_total_bytes")));
        assert_eq!(counts.collect::<Result<Vec<_>, _>>()?, ["5\n", "7\n"]);
        assert_eq!(mount.read(&format!("{folder}/mbm_total_bytes"))?, "12\n");
    }
    Ok(Shown::Kept)
}

/// `-o cdp`: two lines, half as many classes.
pub(crate) fn code_and_data_have_masks_of_their_own(mount: &Mount) -> Trial {
    if mount.lines != ["L3DATA", "L3CODE"] {
        return not("mounted without cdp");
    }
    let group = mount.group("web")?;
    let cache = mount.caches[0];
    group.write("schemata", &format!("L3CODE:{cache}=f\nL3DATA:{cache}=f0\n"))?;
    let masks = ["L3CODE", "L3DATA"].map(|line| mask_of(&group.path, line, cache).ok());
    assert_eq!(masks, [Some(0xf), Some(0xf0)]);
    let words = "Unknown or unsupported resource name 'L3'\n";
    mount.refuses(&group.file("schemata"), &format!("L3:{cache}=f\n"), Errno::INVAL, words)?;
    let words = "CDP enabled\n";
    mount.refuses(&group.file("mode"), "pseudo-locksetup\n", Errno::INVAL, words)?;
    Ok(Shown::Kept)
}

/// `MB`: percent, up to the next step.
pub(crate) fn bandwidth_is_rounded_up_to_a_step(mount: &Mount) -> Trial {
    let (Ok(min), Ok(step)) = (mount.read("info/MB/min_bandwidth"), mount.read("info/MB/bandwidth_gran")) else {
        return not("bandwidth is not limited here");
    };
    let (min, step): (u32, u32) = (min.trim().parse()?, step.trim().parse()?);
    let group = mount.group("web")?;
    let cache = mount.caches[0];
    if group.read("schemata")?.contains("4294967295") || min < 2 || step < 2 || min + step >= 100 {
        return not("bandwidth is not in percent here");
    }
    group.write("schemata", &format!("MB:{cache}={}\n", min + 1))?;
    let rounded = (min + 1).next_multiple_of(step);
    let schemata = group.read("schemata")?;
    let line = schemata.lines().map(str::trim).find(|line| line.starts_with("MB:")).ok_or("no MB")?;
    assert_eq!(line.split(['=', ';']).nth(1).map(str::trim), Some(rounded.to_string().as_str()), "{line}");
    let words = format!("MB value {} out of range [{min},100]\n", min - 1);
    mount.refuses(&group.file("schemata"), &format!("MB:{cache}={}\n", min - 1), Errno::INVAL, &words)?;
    mount.refuses(&group.file("schemata"), &format!("MB:{cache}=x\n"), Errno::INVAL, "Invalid MB value x\n")?;
    Ok(Shown::Kept)
}

/// intel-cmt-cat's issue 135; the emulator shows in `schemata` the processor's resulting masks.
pub(crate) fn ways_that_come_together_are_read_back_together(mount: &Mount) -> Trial {
    if mount.is_the_kernels() {
        return not("the kernel shows what was written, whatever the processor makes of it");
    }
    let group = mount.group("web")?;
    for (written, read) in [(0x400_u64, 0x600), (0x200, 0x600), (0x1ff, 0x1ff)] {
        group.write("schemata", &format!("{}{written:x}\n", mount.first()))?;
        assert_eq!(mask_of(&group.path, &mount.lines[0], mount.caches[0])?, read, "{written:x}");
    }
    Ok(Shown::Kept)
}

/// AMD's SDCIAE: `io_alloc` and `io_alloc_cbm`.
pub(crate) fn devices_have_the_highest_class_while_they_have_a_mask(mount: &Mount) -> Trial {
    if mount.is_the_kernels() {
        return not("devices would get other ways");
    }
    let (switch, masks) = ("info/L3/io_alloc", "info/L3/io_alloc_cbm");
    let (at_switch, at_masks) = (mount.root.join(switch), mount.root.join(masks));
    assert_eq!(mount.read(switch)?, "disabled\n");
    mount.refuses(&at_masks, "0=f\n", Errno::INVAL, "io_alloc is not enabled on L3\n")?;
    assert_eq!(fs::read(&at_masks).map_err(|error| errno_of(&error)), Err(Errno::INVAL));
    let classes: usize = mount.read("info/L3/num_closids")?.trim().parse()?;
    let groups = (1..classes).map(|n| mount.group(&format!("g{n}"))).collect::<Result<Vec<_>, _>>()?;
    let highest = classes - 1;
    let words = format!("CLOSID (ctrl_hw_id) {highest} for io_alloc is used by g{highest} group\n");
    mount.refuses(&at_switch, "1\n", Errno::NOSPC, &words)?;
    drop(groups);
    mount.write(switch, "1\n")?;
    assert_eq!((mount.read(switch)?, mount.read(masks)?), ("enabled\n".into(), "0=ffff\n".into()));
    mount.write(masks, "0=f000\n")?;
    assert_eq!(mount.read(masks)?, "0=f000\n");
    mount.write("schemata", "L3:0=f\n")?;
    assert_eq!(mount.read("info/L3/bit_usage")?, "0=HHHH00000000SSSS\n");
    let groups = (1..highest).map(|n| mount.group(&format!("g{n}"))).collect::<Result<Vec<_>, _>>()?;
    refused(mount, "more", Errno::NOSPC, "Out of CLOSIDs\n")?;
    mount.write(switch, "0\n")?;
    drop(mount.group("more")?);
    drop(groups);
    Ok(Shown::Kept)
}

/// Documentation/filesystems/resctrl.rst, "Cache Pseudo-Locking".
pub(crate) fn a_region_is_locked_step_by_step_and_each_obstacle_is_named(mount: &Mount) -> Trial {
    if mount.is_the_kernels() {
        return not("a locked region takes its ways from everybody");
    }
    let setup = "pseudo-locksetup\n";
    let refuses =
        |path: &str, text: &str, errno: Errno, words: &str| mount.refuses(&mount.root.join(path), text, errno, words);
    refuses("mode", setup, Errno::INVAL, "Cannot pseudo-lock default group\n")?;
    mount.write("schemata", "L3:0=ff0\n")?;
    let lock = mount.group("lock")?;
    let vm = lock.monitor("vm")?;
    refuses("lock/mode", setup, Errno::INVAL, "Monitoring in progress\n")?;
    drop(vm);
    let shell = super::mount::Shell::start(0)?;
    lock.write("tasks", &shell.pid().to_string())?;
    refuses("lock/mode", setup, Errno::INVAL, "Tasks assigned to resource group\n")?;
    mount.write("tasks", &shell.pid().to_string())?;
    lock.write("cpus", "1\n")?;
    refuses("lock/mode", setup, Errno::INVAL, "CPUs assigned to resource group\n")?;
    lock.write("cpus", "0\n")?;
    lock.write("mode", setup)?;
    assert_eq!((lock.read("schemata")?, lock.read("mode")?), ("L3:uninitialized\n".into(), setup.into()));
    assert_eq!(fs::read(lock.file("tasks")).map_err(|error| errno_of(&error)), Err(Errno::ACCESS), "also for root");
    refuses("lock/schemata", "L3:0=10\n", Errno::INVAL, "Overlaps with other group\n")?;
    lock.write("schemata", "L3:0=f\n")?;
    assert_eq!((lock.read("schemata")?, lock.read("mode")?), ("L3:0=f\n".into(), "pseudo-locked\n".into()));
    refuses("lock/mode", "shareable\n", Errno::INVAL, "Cannot change pseudo-locked group\n")?;
    refuses("lock/schemata", "L3:0=f0\n", Errno::INVAL, "Resource group is pseudo-locked\n")?;
    refuses("schemata", "L3:0=fff\n", Errno::INVAL, "CBM overlaps with pseudo-locked region\n")?;
    assert!(mount.read("info/L3/bit_usage")?.ends_with("PPPP\n"));
    let second = mount.group("second")?;
    second.write("mode", setup)?;
    refuses("second/schemata", "L3:0=3000\n", Errno::INVAL, "Pseudo-locked region in hierarchy\n")?;
    drop(lock);
    second.write("schemata", "L3:0=3000\n")?;
    Ok(Shown::Kept)
}

/// resctrl_arch_get_prefetch_disable_bits: of few processors the kernel knows how.
pub(crate) fn where_prefetchers_cannot_be_stopped_nothing_is_locked(mount: &Mount) -> Trial {
    if mount.is_the_kernels() {
        return not("which processors those are is not to be seen");
    }
    let group = mount.group("web")?;
    let words = "Pseudo-locking not supported\n";
    mount.refuses(&group.file("mode"), "pseudo-locksetup\n", Errno::INVAL, words)?;
    Ok(Shown::Kept)
}

/// `max_threshold_occupancy`: a multiple of the hardware's unit, at most a cache.
pub(crate) fn the_threshold_is_a_number_up_to_the_caches_size(mount: &Mount) -> Trial {
    let path = "info/L3_MON/max_threshold_occupancy";
    let Ok(before) = mount.read(path) else { return not("nothing is monitored here") };
    for bad in ["x\n", "-1\n", "4294967295\n"] {
        assert_eq!(mount.write(path, bad), Err(Errno::INVAL), "{bad:?}");
        assert_eq!(mount.read(path)?, before);
    }
    assert_eq!(mount.write(path, "4294967296\n"), Err(Errno::RANGE));
    if !mount.is_the_kernels() {
        mount.write(path, "0x30001\n")?;
        assert_eq!(mount.read(path)?, "196608\n");
    }
    mount.write(path, &before)?;
    assert_eq!(mount.read(path)?, before);
    Ok(Shown::Kept)
}
