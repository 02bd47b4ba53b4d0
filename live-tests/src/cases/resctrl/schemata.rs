//! `schemata`, `size`, `mode` and `bit_usage`: allocation of ways.

use libtest_mimic::Failed;
use rustix::io::Errno;

use super::mount::{Mount, OwnGroup, Shown, Trial, mask_of, not};

fn mask(mount: &Mount, group: &OwnGroup) -> Result<u64, Failed> {
    mask_of(&group.path, &mount.lines[0], mount.caches[0])
}

/// Values of `schemata` and `size`, by line and cache, as text.
fn value(text: &str, line: &str, cache: u32) -> Option<String> {
    let values = text.lines().find_map(|other| other.trim().strip_prefix(&format!("{line}:")))?;
    values.split(';').find_map(|value| value.strip_prefix(&format!("{cache}="))).map(|value| value.trim().to_owned())
}

/// Documentation/filesystems/resctrl.rst: "you only need to specify those values which you wish to change".
pub(crate) fn any_part_can_be_written_and_the_rest_stays(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    let (line, last) = (mount.lines[0].clone(), *mount.caches.last().ok_or("no cache")?);
    let others = |text: String| {
        text.lines().filter(|other| !other.trim().starts_with(&line)).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = others(group.read("schemata")?);
    for (form, expected) in [("f", 0xf), ("0x1e", 0x1e), ("f;", 0xf), (" 1e ", 0x1e)] {
        group.write("schemata", &format!("{line}:{last}={form}\n"))?;
        assert_eq!(mask_of(&group.path, &line, last)?, expected, "{form}");
        assert_eq!(others(group.read("schemata")?), before);
        assert_eq!(mount.status()?, "ok\n");
    }
    for cache in &mount.caches[..mount.caches.len() - 1] {
        assert_ne!(mask_of(&group.path, &line, *cache)?, 0x1e, "cache {cache}");
    }
    group.write("schemata", &format!(" {line} :{last}=f\n"))?;
    assert_eq!(mask_of(&group.path, &line, last)?, 0xf);
    Ok(Shown::Kept)
}

/// rdtgroup_schemata_write, parse_line: each with its words, and nothing changes.
pub(crate) fn what_is_not_understood_is_named(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    let (line, first) = (&mount.lines[0], mount.first());
    let cache = mount.caches[0];
    let value = format!("Missing '{line}' value\n");
    let duplicate = format!("Duplicate domain {cache}\n");
    let cases = [
        ("\n".to_owned(), "Missing ':'\n"),
        (format!("{line}\n"), "Missing ':'\n"),
        (format!("{first}f\n\n"), "Missing ':'\n"),
        (format!("{line}:\n"), value.as_str()),
        ("L9:0=f\n".to_owned(), "Unknown or unsupported resource name 'L9'\n"),
        (format!("{line}:{cache}\n"), "Missing '=' or non-numeric domain\n"),
        (format!("{line}:x=f\n"), "Missing '=' or non-numeric domain\n"),
        (format!("{line}: {cache}=f\n"), "Missing '=' or non-numeric domain\n"),
        (format!("{first}f;{cache}=f\n"), duplicate.as_str()),
        (format!("{first}f\n{first}f\n"), duplicate.as_str()),
        (format!("{first}xyz\n"), "Non-hex character in the mask xyz\n"),
    ];
    let before = group.read("schemata")?;
    for (text, words) in cases {
        mount.refuses(&group.file("schemata"), &text, Errno::INVAL, words)?;
        assert_eq!(group.read("schemata")?, before, "{text:?}");
    }
    Ok(Shown::Kept)
}

/// Up to Linux 6.19 without a word.
pub(crate) fn an_unknown_cache_is_refused(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    let text = format!("{}:4094=f\n", mount.lines[0]);
    match mount.refuses(&group.file("schemata"), &text, Errno::INVAL, "ok\n") {
        Err(_) if mount.is_the_kernels() => {
            mount.refuses(&group.file("schemata"), &text, Errno::INVAL, "Invalid domain 4094\n")?;
        }
        outcome => outcome?,
    }
    // The valid part of the same line is not applied, either.
    let before = group.read("schemata")?;
    assert_eq!(group.write("schemata", &format!("{}f;4094=f\n", mount.first())), Err(Errno::INVAL));
    assert_eq!(group.read("schemata")?, before);
    Ok(Shown::Kept)
}

/// cbm_validate: within all ways; not empty, unless a class may have none.
pub(crate) fn a_mask_is_within_all_ways(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    let first = mount.first();
    for beyond in [mount.all + 1, mount.all << 1] {
        mount.refuses(&group.file("schemata"), &format!("{first}{beyond:x}\n"), Errno::INVAL, "Mask out of range\n")?;
    }
    let empty = format!("{first}0\n");
    if mount.min_ways > 0 {
        mount.refuses(&group.file("schemata"), &empty, Errno::INVAL, "Mask out of range\n")?;
    } else {
        group.write("schemata", &empty)?;
        assert_eq!(mask(mount, &group)?, 0);
    }
    group.write("schemata", &format!("{first}{:x}\n", mount.all))?;
    assert_eq!(mask(mount, &group)?, mount.all);
    Ok(Shown::Kept)
}

/// cbm_validate: ways in a row, unless `sparse_masks`.
pub(crate) fn a_mask_has_no_holes_unless_the_machine_takes_them(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    let text = format!("{}3c3\n", mount.first());
    if mount.sparse {
        group.write("schemata", &text)?;
        assert_eq!(mask(mount, &group)?, 0x3c3);
    } else {
        mount.refuses(&group.file("schemata"), &text, Errno::INVAL, "The mask 3c3 has non-consecutive 1-bits\n")?;
    }
    Ok(Shown::Kept)
}

/// cbm_validate: `min_cbm_bits` in the first run.
pub(crate) fn a_mask_is_long_enough(mount: &Mount) -> Trial {
    if mount.min_ways < 2 {
        return not("a single way is enough here");
    }
    let group = mount.group("web")?;
    let words = format!("Need at least {} bits in the mask\n", mount.min_ways);
    mount.refuses(&group.file("schemata"), &format!("{}1\n", mount.first()), Errno::INVAL, &words)?;
    group.write("schemata", &format!("{}{:x}\n", mount.first(), (1_u64 << mount.min_ways) - 1))?;
    Ok(Shown::Kept)
}

/// Staged configurations: several lines are applied when all are understood.
pub(crate) fn several_lines_are_taken_together_or_not_at_all(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    let good = format!("{}f\n", mount.first());
    group.write("schemata", &format!("{}1e\n", mount.first()))?;
    let bad = match mount.lines.get(1) {
        Some(line) => format!("{line}:{}=xyz\n", mount.caches[0]),
        None => "L9:0=f\n".to_owned(),
    };
    assert_eq!(group.write("schemata", &format!("{good}{bad}")), Err(Errno::INVAL));
    assert_eq!(mask(mount, &group)?, 0x1e);
    if let Some(line) = mount.lines.get(1) {
        group.write("schemata", &format!("{good}{line}:{}=1e\n", mount.caches[0]))?;
        assert_eq!((mask(mount, &group)?, mask_of(&group.path, line, mount.caches[0])?), (0xf, 0x1e));
    }
    Ok(Shown::Kept)
}

/// Size of the whole cache, which on the emulated machines is 1 MiB for each way.
fn cache_bytes(mount: &Mount) -> Result<u64, Failed> {
    if !mount.is_the_kernels() {
        return Ok(u64::from(mount.all.count_ones()) << 20);
    }
    let wanted = mount.caches[0].to_string();
    let folders = std::fs::read_dir("/sys/devices/system/cpu")?.filter_map(Result::ok);
    for folder in folders.map(|cpu| cpu.path().join("cache/index3")) {
        let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap_or_default().trim().to_owned();
        if let Some(kib) = read("size").strip_suffix('K')
            && read("id") == wanted
        {
            return Ok(kib.parse::<u64>()? << 10);
        }
    }
    Err(format!("no cache {wanted} in /sys/devices/system/cpu").into())
}

/// rdtgroup_cbm_to_size: a cache's size by its ways.
pub(crate) fn size_is_that_of_the_ways(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    let size = |text: &str| -> Result<u64, Failed> {
        group.write("schemata", &format!("{}{text}\n", mount.first()))?;
        Ok(value(&group.read("size")?, &mount.lines[0], mount.caches[0]).ok_or("no size")?.parse()?)
    };
    let ways = u64::from(mount.all.count_ones());
    let way = cache_bytes(mount)? / ways;
    assert_eq!((size(&format!("{:x}", mount.all))?, size("f")?), (way * ways, way * 4));
    Ok(Shown::Kept)
}

/// `mode`: its words, and the ways that an exclusive group may not overlap.
pub(crate) fn exclusive_is_refused_while_others_have_the_ways(mount: &Mount) -> Trial {
    let group = mount.group("web")?;
    assert_eq!(group.read("mode")?, "shareable\n");
    for word in ["pseudo-locked\n", "Exclusive\n", "\n"] {
        mount.refuses(&group.file("mode"), word, Errno::INVAL, "Unknown or unsupported mode\n")?;
    }
    group.write("schemata", &format!("{}{:x}\n", mount.first(), mount.all))?;
    if mount.is_the_kernels() && mask_of(&mount.root, &mount.lines[0], mount.caches[0])? == 0 {
        return not("the default group has no ways");
    }
    mount.refuses(&group.file("mode"), "exclusive\n", Errno::INVAL, "Schemata overlaps\n")?;
    assert_eq!(group.read("mode")?, "shareable\n");
    Ok(Shown::Kept)
}

/// On the kernel's own file system, the default group with all threads would have to give ways away.
fn shrunk<'a>(mount: &'a Mount, mask: &str) -> Result<&'a Mount, Failed> {
    for line in &mount.lines {
        let values: Vec<String> = mount.caches.iter().map(|cache| format!("{cache}={mask}")).collect();
        mount.write("schemata", &format!("{line}:{}\n", values.join(";")))?;
    }
    Ok(mount)
}

fn all_caches(mount: &Mount, group: &OwnGroup, mask: &str) -> Result<(), Errno> {
    let values: Vec<String> = mount.caches.iter().map(|cache| format!("{cache}={mask}")).collect();
    mount.lines.iter().try_for_each(|line| group.write("schemata", &format!("{line}:{}\n", values.join(";"))))
}

/// `mode` and `schemata` of several groups, `bit_usage`, and the initial state of a new group.
pub(crate) fn an_exclusive_group_keeps_its_ways_from_all_others(mount: &Mount) -> Trial {
    if mount.is_the_kernels() {
        return not("the default group would have to give ways away");
    }
    shrunk(mount, "f0")?;
    let web = mount.group("web")?;
    all_caches(mount, &web, "f")?;
    web.write("mode", "exclusive\n")?;
    assert_eq!(web.read("mode")?, "exclusive\n");
    let root = mount.root.join("schemata");
    mount.refuses(&root, &format!("{}f8\n", mount.first()), Errno::INVAL, "Overlaps with exclusive group\n")?;
    let own = web.file("schemata");
    mount.refuses(&own, &format!("{}1f\n", mount.first()), Errno::INVAL, "Overlaps with other group\n")?;
    let shareable = mount.read(&format!("info/{}/shareable_bits", mount.lines[0]))?;
    let shareable = u64::from_str_radix(shareable.trim(), 16)?;
    if shareable != 0 {
        let text = format!("{}{shareable:x}\n", mount.first());
        mount.refuses(&own, &text, Errno::INVAL, "Overlaps with other group\n")?;
    }
    // Shared f0, unused above it: in a row, and without the exclusive f.
    let new = mount.group("new")?;
    assert_eq!(mask(mount, &new)?, mount.all & !0xf);
    let usage = mount.read(&format!("info/{}/bit_usage", mount.lines[0]))?;
    let letters = value(&format!("L:{}", usage.trim()), "L", mount.caches[0]).ok_or("no usage")?;
    assert_eq!(letters.len(), mount.all.count_ones() as usize);
    assert!(letters.ends_with("SSSSEEEE"), "{letters}");
    let upper = if shareable == 0 { 'S' } else { 'X' };
    assert!(letters.starts_with(upper), "{letters}");
    Ok(Shown::Kept)
}

/// `__init_one_rdt_domain`, `cbm_ensure_valid`.
pub(crate) fn a_new_group_gets_the_first_run_of_what_is_open(mount: &Mount) -> Trial {
    if mount.is_the_kernels() {
        return not("the default group would have to give ways away");
    }
    shrunk(mount, "ff")?;
    // The upper ones are unused, or the devices'.
    let first = mount.group("first")?;
    assert_eq!(mask(mount, &first)?, mount.all);
    all_caches(mount, &first, "f00")?;
    shrunk(mount, "f")?;
    let second = mount.group("second")?;
    assert_eq!(mask(mount, &second)?, mount.all, "shared f, unused f0, shared f00");
    shrunk(mount, "30")?;
    all_caches(mount, &second, "30")?;
    first.write("mode", "exclusive\n").or_else(|errno| {
        // Where devices use ways above, those may be 100.
        if errno == Errno::INVAL {
            all_caches(mount, &first, "100").and_then(|()| first.write("mode", "exclusive\n"))
        } else {
            Err(errno)
        }
    })?;
    let third = mount.group("third")?;
    assert_eq!(mask(mount, &third)?, 0xff, "unused f and c0, shared 30, up to the exclusive 100");
    Ok(Shown::Kept)
}

/// ENOSPC of `__init_one_rdt_domain`; where a class may have no way at all, it gets that.
pub(crate) fn when_everything_is_exclusive_there_is_no_space(mount: &Mount) -> Trial {
    if mount.is_the_kernels() {
        return not("the default group would have to be exclusive");
    }
    let shareable = mount.read(&format!("info/{}/shareable_bits", mount.lines[0]))?;
    if shareable.trim() != "0" {
        return not("devices share ways with everybody");
    }
    mount.write("mode", "exclusive\n")?;
    let made = mount.group("web");
    if mount.min_ways == 0 {
        assert_eq!(mask(mount, &made?)?, 0);
        return Ok(Shown::Kept);
    }
    assert!(made.is_err());
    // The line that is filled in first: the last of the file.
    let words = format!("No space on {}:{}\n", mount.lines[0], mount.caches[0]);
    assert_eq!(mount.status()?, words);
    Ok(Shown::Kept)
}
