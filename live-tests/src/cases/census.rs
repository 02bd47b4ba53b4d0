//! `masu census` as users run it, checked against other interfaces of the kernel.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use units::{Bytes, Pages};

use super::command::{json, masu, said, start};
use super::disk_file::{DiskFile, MappedFile};
use super::programs::{Running, Said};
use super::run::Folder;
use super::{Outcome, no_automatic_huge_pages};
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};
use crate::secret_memory::SecretMemory;
use crate::setting::Setting;
use crate::target_process::{Backing, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    census requires [Root, PageFrames, MasuCommand];
    the_exact_census_agrees_with_the_kernels_own_sums;
    a_sample_is_as_near_as_it_says;
    the_memory_of_processes_is_told_apart_and_what_they_share_counts_once;
    a_group_is_charged_with_the_files_that_it_reads [MemoryGroups, Shell];
    a_small_group_is_known_well_from_a_sample [MemoryGroups, Shell];
    lazily_freed_pages_have_a_column;
    data_in_use_is_not_idle;
    the_files_that_hold_the_cache_are_named [CacheStat];
    what_comes_back_can_be_counted_where_the_walk_can_look [PageTableWalk];
    what_comes_back_is_counted_by_class [PageTableWalk, MemoryGroups, DiskFiles, Shell];
    watching_a_census_ends_with_the_process;
    a_process_is_watched_through_each_program_that_it_becomes_until_it_is_a_zombie [Shell];
    what_is_mapped_of_the_huge_page_pool_is_of_no_class [ReservedHuge];
    one_look_leaves_ctrl_c_as_it_is;
    what_a_census_cannot_look_at_is_named;
    memory_that_the_kernel_cannot_read_is_shared_memory [SecretMemory];
};

/// User id of nobody, which owns nothing.
const NOBODY_UID: u32 = 65534;
const CLASSES: [&str; 5] = ["code", "read_only", "data", "shared", "cache"];

/// A report's entry for a class.
fn of_class<'a>(report: &'a Value, class: &str) -> &'a Value {
    let all = report["classes"].as_array().into_iter().flatten();
    all.into_iter().find(|of| of["class"] == class).unwrap_or(&Value::Null)
}

/// A report's value for memory without a class.
fn of_rest(report: &Value, name: &str) -> f64 {
    let all = report["rest"].as_array().into_iter().flatten();
    all.into_iter().find(|of| of["rest"] == name).map_or(f64::NAN, |of| amount(of, "bytes"))
}

fn amount(of: &Value, field: &str) -> f64 {
    of[field].as_f64().unwrap_or(f64::NAN)
}

/// An amount of `/proc/meminfo`.
fn meminfo(name: &str) -> Result<f64, libtest_mimic::Failed> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).ok_or(format!("no {name}"))?;
    Ok(kib.trim().parse::<f64>()? * 1024.0)
}

/// Free memory of the zones. `MemFree` may be more: a host that takes memory from its guest (a balloon) can have it
/// counted there.
fn free() -> Result<f64, libtest_mimic::Failed> {
    let pages = linux::vmstat::vmstat(&linux::Rooted::host())?.get("nr_free_pages").ok_or("no nr_free_pages")?;
    Ok(units::Pages(pages).bytes().0 as f64)
}

/// A census that agrees with the kernel's own sums. Other programs use memory meanwhile, so it may take several.
fn that_agrees(arguments: &[&str], tries: u32, bound: impl Fn(&Value) -> f64) -> Result<Value, libtest_mimic::Failed> {
    let mut last = String::new();
    for _ in 0..tries {
        let report = json(arguments)?;
        match deviation(&report, bound(&report))? {
            None => return Ok(report),
            Some(deviation) => last = format!("{deviation}: {report}"),
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    Err(last.into())
}

/// First sum of a report that is not the kernel's: of the lists, the classes as far as the kernel counts them, and free
/// memory.
fn deviation(report: &Value, bound: f64) -> Result<Option<String>, libtest_mimic::Failed> {
    let sum =
        |classes: &[&str], field: &str| classes.iter().map(|class| amount(of_class(report, class), field)).sum::<f64>();
    let rest = |name: &str| of_rest(report, name);
    let files = meminfo("Cached")? + meminfo("Buffers")? - meminfo("Shmem")?;
    let beside = [
        ("data", sum(&["data"], "bytes"), meminfo("AnonPages")?),
        ("shared memory", sum(&["shared"], "bytes"), meminfo("Shmem")?),
        ("files", sum(&["code", "read_only", "cache"], "bytes"), files),
        ("active", sum(&CLASSES, "active_bytes"), meminfo("Active")?),
        ("inactive", sum(&CLASSES, "inactive_bytes"), meminfo("Inactive")?),
        ("locked", sum(&CLASSES, "locked_bytes"), meminfo("Unevictable")?),
        ("slab", rest("slab"), meminfo("Slab")?),
        ("free", rest("free"), free()?),
    ];
    let by_generations = linux::lru_gen::is_on(&linux::Rooted::host())?;
    for (what, ours, kernels) in beside {
        if by_generations && ["active", "inactive"].contains(&what) {
            assert!(ours.is_nan(), "{what} is unknown where pages are aged by generations: {report}");
            continue;
        }
        // Other processes use memory meanwhile; and frames in per-processor lists are in no sum yet.
        let slack = 24e6 + 0.01 * kernels + bound;
        let is_near = (ours - kernels).abs() <= slack;
        if !is_near {
            return Ok(Some(format!("{what}: {ours} bytes, the kernel counts {kernels}")));
        }
    }
    Ok(None)
}

/// Every frame of the host, beside the kernel's own sums.
fn the_exact_census_agrees_with_the_kernels_own_sums(_: &Host) -> Outcome {
    let report = that_agrees(&["census", "--exact", "--json"], 8, |_| 0.0)?;
    assert_eq!((amount(&report, "sampled_fraction"), amount(&report, "error_bound_bytes")), (1.0, 0.0));
    let sum = |part: &str| report[part].as_array().into_iter().flatten().map(|of| amount(of, "bytes")).sum::<f64>();
    let all = sum("classes") + sum("rest");
    let frames = linux::iomem::memory(&linux::Rooted::host())?;
    let memory: f64 = frames.iter().map(|range| ((range.end - range.start) * 4096) as f64).sum();
    let total = meminfo("MemTotal")?;
    assert!(memory == 0.0 || all <= memory, "{all} bytes are used for something, of {memory} that there are: {report}");
    // Compared with MemTotal plus the kernel's boot-time reservations, for itself and for the page structs.
    assert!((total..1.05 * total + 128e6).contains(&all), "{all} bytes, MemTotal {total}: {report}");
    Ok(())
}

/// A sample, with its bound; three times that bound is hardly ever exceeded.
fn a_sample_is_as_near_as_it_says(_: &Host) -> Outcome {
    // Sums of up to five classes, each with a bound of its own.
    let bound = |report: &Value| 3.0 * 5.0_f64.sqrt() * amount(report, "error_bound_bytes");
    let report = that_agrees(&["census", "--json"], 2, bound)?;
    let fraction = amount(&report, "sampled_fraction");
    assert!(fraction > 0.0 && fraction <= 1.0, "{report}");
    Ok(())
}

/// A file of `size` in `folder`, all of it on the disk.
fn file(folder: &Folder, name: &str, size: Bytes) -> Result<File, libtest_mimic::Failed> {
    let mut file = File::options().read(true).write(true).create_new(true).open(folder.0.join(name))?;
    file.write_all(&vec![7; usize::try_from(size.0)?])?;
    file.sync_all()?;
    Ok(file)
}

/// A program's mappings are found by class, and memory shared by two counts once.
fn the_memory_of_processes_is_told_apart_and_what_they_share_counts_once(_: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    let before = json(&["census", "--exact", "--json", &process.pid().to_string()])?;
    let heap = process.map(Backing::Anonymous, 8)?;
    process.write(heap.all(), 7)?;
    let shared = process.map(Backing::SharedAnonymous, 4)?;
    process.write(shared.all(), 7)?;
    let report = json(&["census", "--exact", "--json", &process.pid().to_string()])?;
    let grew = |class: &str| amount(of_class(&report, class), "bytes") - amount(of_class(&before, class), "bytes");
    let mib = |n: u64| Bytes::mib(n).0 as f64;
    assert!((grew("data") - mib(16)).abs() < mib(1), "{report}");
    assert!((grew("shared") - mib(8)).abs() < mib(1), "{report}");
    // A virtual machine's programs lie in tmpfs, which is shared memory.
    let (text, field) =
        if is_in_tmpfs("/proc/self/exe")? { ("shared", "shared_bytes") } else { ("code", "code_bytes") };
    assert!(amount(of_class(&before, text), "bytes") > 100e3, "{before}");
    assert_eq!(report["processes"][0]["pid"], process.pid().0);
    let rss = linux::status::status(&linux::Rooted::host(), process.pid())?.rss.0 as f64;
    let all: f64 = CLASSES[..4].iter().map(|class| amount(of_class(&report, class), "bytes")).sum();
    assert!((all - rss).abs() < mib(1), "{all} bytes, resident {rss}: {report}");

    let other = TargetProcess::start()?;
    let pids = [process.pid().to_string(), other.pid().to_string()];
    let both = json(&["census", "--exact", "--json", &pids[0], &pids[1]])?;
    let texts = |of: &Value| amount(of_class(of, text), "bytes");
    let other_has = json(&["census", "--exact", "--json", &pids[1]])?;
    let each = texts(&report) + texts(&other_has);
    assert!(texts(&both) < each - 0.2 * texts(&other_has), "the same program twice has its code once, {field}: {both}");
    let by_process = both["processes"].as_array().into_iter().flatten().map(|of| amount(of, field));
    assert!((by_process.sum::<f64>() - each).abs() < 200e3, "and each has all of it: {both}");
    Ok(())
}

fn is_in_tmpfs(path: &str) -> rustix::io::Result<bool> {
    const TMPFS_MAGIC: u32 = 0x0102_1994;
    Ok(rustix::fs::statfs(path)?.f_type == rustix::fs::FsWord::from(TMPFS_MAGIC))
}

/// A cgroup is charged with its processes' reads, and unmapped page cache is told from mapped pages.
fn a_group_is_charged_with_the_files_that_it_reads(_: &Host) -> Outcome {
    let folder = Folder::make("census")?;
    let size = Bytes::mib(32);
    drop(file(&folder, "cold", size)?);
    let group = Group::make("census")?;
    let path = folder.0.join("cold");
    // Written pages are charged to us: they have to be dropped first.
    forget(&path)?;
    let procs = group.procs();
    let mut command = std::process::Command::new("/bin/sh");
    let script = format!("echo 0 > {} && cat {} > /dev/null && exec sleep 600", procs.display(), path.display());
    let reader = Running::start(command.args(["-c", &script]))?;
    let name = procs.parent().and_then(Path::to_str).ok_or("a path that is no text")?.to_owned();
    let end = std::time::Instant::now() + super::programs::TIME_LIMIT;
    let report = loop {
        let report = json(&["census", "--exact", "--json", "--cgroup", &name])?;
        let cached = amount(of_class(&report, "cache"), "bytes");
        let processes = report["processes"].as_array().map_or(0, Vec::len);
        // The members of the cgroup are looked up first, and then, frame by frame, its charges.
        if (cached - size.0 as f64).abs() < 4e6 && processes == 1 {
            break report;
        }
        assert!(std::time::Instant::now() < end, "{cached} bytes of page cache, {processes} processes: {report}");
    };
    assert!(amount(of_class(&report, "data"), "bytes") < 8e6, "{report}");
    drop(reader);
    Ok(())
}

/// The sample grows until a class is known to an eighth, and the kernel's own count stands beside it. The table of all
/// groups has it, too.
fn a_small_group_is_known_well_from_a_sample(_: &Host) -> Outcome {
    let folder = Folder::make("census-small")?;
    let size = Bytes::mib(24);
    drop(file(&folder, "cold", size)?);
    let group = Group::make("census-small")?;
    let path = folder.0.join("cold");
    forget(&path)?;
    let procs = group.procs();
    let mut command = std::process::Command::new("/bin/sh");
    let script =
        format!("echo 0 > {} && cat {} > /dev/null && echo read && exec sleep 600", procs.display(), path.display());
    let mut reader = Running::start(command.args(["-c", &script]))?;
    let mut line = String::new();
    BufReader::new(reader.0.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    let name = procs.parent().and_then(Path::to_str).ok_or("a path that is no text")?.to_owned();
    let report = json(&["census", "--json", "--cgroup", &name])?;
    let cached = amount(of_class(&report, "cache"), "bytes");
    let bound = amount(of_class(&report, "cache"), "error_bound_bytes");
    assert!((cached - size.0 as f64).abs() < size.0 as f64 / 4.0 && bound <= cached / 8.0, "{report}");
    let kernel = &report["of_kernel"];
    assert!((amount(kernel, "file_bytes") - size.0 as f64).abs() < 4e6, "{kernel}");
    let charged = amount(kernel, "usage_bytes");
    assert!(charged >= size.0 as f64 && kernel["limit_bytes"].is_null(), "{kernel}");
    let working_set = charged - amount(kernel, "inactive_file_bytes");
    assert_eq!(amount(kernel, "working_set_bytes"), working_set, "{kernel}");
    let all = json(&["census", "--json", "--exact", "--cgroups"])?;
    let ours = all["groups"].as_array().into_iter().flatten().find(|of| of["group"] == name.as_str());
    let ours = ours.ok_or_else(|| format!("no {name} in {all}"))?;
    let again = amount(of_class(ours, "cache"), "bytes");
    assert!((again - size.0 as f64).abs() < 4e6, "{ours}");
    let text = said(&["census", "--cgroups"])?;
    assert!(text.code() == 0 && text.out.contains("working set"), "{text:?}");
    drop(reader);
    Ok(())
}

/// MADV_FREE makes data that the kernel drops first.
fn lazily_freed_pages_have_a_column(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 8)?;
    process.write(heap.all(), 7)?;
    let freed = |process: &TargetProcess| -> Result<f64, libtest_mimic::Failed> {
        let report = json(&["census", "--json", "--exact", &process.pid().to_string()])?;
        Ok(amount(of_class(&report, "data"), "lazily_freed_bytes"))
    };
    assert_eq!(freed(&process)?, 0.0);
    process.advise(heap.pages(0, 2048), libc::MADV_FREE)?;
    // Pages wait in the processors' batches for their list.
    let found = freed(&process)?;
    assert!(((2048.0 - 256.0) * 4096.0..=2048.0 * 4096.0).contains(&found), "{found}");
    Ok(())
}

/// The kernel puts new data on the inactive list, also while a program uses it all the time.
fn data_in_use_is_not_idle(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 16)?;
    process.write(heap.all(), 7)?;
    let report = json(&["census", "--json", "--exact", &process.pid().to_string()])?;
    let data = of_class(&report, "data");
    if data["inactive_bytes"].is_object() {
        assert!(data["idle_bytes"].is_object(), "{data}");
        return Ok(());
    }
    let (all, idle) = (amount(data, "bytes"), amount(data, "idle_bytes"));
    assert!(all >= 32e6 && idle <= 4e6, "{data}");
    let shared = process.map(Backing::SharedAnonymous, 16)?;
    process.write(shared.all(), 7)?;
    let report = json(&["census", "--json", "--exact", &process.pid().to_string()])?;
    let shared = of_class(&report, "shared");
    assert!(amount(shared, "bytes") >= 32e6 && amount(shared, "idle_bytes") <= 4e6, "{shared}");
    Ok(())
}

fn the_files_that_hold_the_cache_are_named(_: &Host) -> Outcome {
    let folder = Folder::make("census-files")?;
    drop((file(&folder, "small", Bytes::mib(1))?, file(&folder, "large", Bytes::mib(6))?));
    let path = folder.0.to_str().ok_or("a path that is no text")?.to_owned();
    let report = json(&["census", "--json", "--files", &path])?;
    let names: Vec<_> =
        report["files"].as_array().into_iter().flatten().map(|of| (&of["path"], &of["cached_bytes"])).collect();
    let (large, small) = (Value::from(format!("{path}/large")), Value::from(format!("{path}/small")));
    assert_eq!(names, [(&large, &Bytes::mib(6).0.into()), (&small, &Bytes::mib(1).0.into())], "{report}");
    let refused = said(&["census", "--files", "/no/such/folder"])?;
    assert!(refused.code() == 2 && refused.err.contains("/no/such/folder"), "{refused:?}");
    Ok(())
}

/// Drops a file from the page cache.
fn forget(path: &Path) -> Outcome {
    let mut file = File::open(path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    // Its first byte is there again, and works.
    file.read_exact(&mut [0])?;
    Ok(())
}

/// The table has a line for each class; watching ends with the process.
fn watching_a_census_ends_with_the_process(_: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    let text = said(&["census", &process.pid().to_string()])?;
    assert_eq!((text.code(), text.err.as_str()), (0, ""));
    for class in ["code", "read-only data", "data", "shared memory"] {
        assert!(text.out.lines().any(|line| line.starts_with(class)), "{}", text.out);
    }
    let mut watching = start(&["census", &process.pid().to_string(), "--watch", "50ms", "--json"])?;
    let mut pipe = BufReader::new(watching.0.stdout.take().ok_or("no pipe")?);
    let mut text = String::new();
    pipe.read_line(&mut text)?;
    pipe.read_line(&mut text)?;
    process.kill();
    let watched = watching.said()?;
    assert_eq!((watched.code(), watched.err.as_str()), (0, ""));
    pipe.read_to_string(&mut text)?;
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    assert!(lines.len() >= 2 && lines.iter().all(|line| line["classes"].is_array()), "{text}");
    Ok(())
}

/// Refaults are counted by class, and their sum agrees with the kernel's count.
fn what_comes_back_is_counted_by_class(_: &Host) -> Outcome {
    const EACH: Pages = Bytes::mib(16).pages();
    let group = Group::make("census-back")?;
    group.limit(96 << 20)?;
    let make = |name| DiskFile::make(name, EACH);
    let (code, data, stream) =
        (make("census-code")?, make("census-data")?, DiskFile::make("census-stream", Bytes::mib(192).pages())?);
    for kept in [&code, &data] {
        kept.stream_through(&group, 1)?;
    }
    let _mapped = (MappedFile::map_to_run(&code.file, EACH)?, MappedFile::map(&data.file, EACH)?);
    let mut watching = start(&["census", "--cgroup", &group.name(), "--watch", "100ms", "--json"])?;
    let (sender, lines) = mpsc::channel();
    let stdout = watching.0.stdout.take().ok_or("no output")?;
    let reader =
        thread::spawn(move || BufReader::new(stdout).lines().try_for_each(|line| sender.send(line).map_err(drop)));
    let first = lines.recv_timeout(super::programs::TIME_LIMIT)?;
    for file in [&stream, &code, &data, &stream] {
        // Far less of the stream stays resident than it has.
        file.stream_through(&group, if std::ptr::eq(file, &raw const stream) { 2 } else { 1 })?;
    }
    // One look began before the end of the reads, the next one after it.
    let mut last = first.as_ref().map_err(ToString::to_string)?.clone();
    lines.try_iter().for_each(drop);
    for _ in 0..2 {
        last = lines.recv_timeout(super::programs::TIME_LIMIT)??;
    }
    watching.signal(rustix::process::Signal::INT)?;
    let watched = watching.said()?;
    assert_eq!((watched.code(), watched.err.as_str()), (0, ""));
    reader.join().map_err(|_| "the reader panicked")?.map_err(|()| "nobody listens")?;
    let (first, last): (Value, Value) = (serde_json::from_str(&first?)?, serde_json::from_str(&last)?);
    let (first, last) = (&first, &last);
    let came_back = |line: &Value, class: &str| of_class(line, class)["refaults"].as_f64().unwrap_or(f64::NAN);
    let [code, data, cache] = ["code", "read_only", "cache"].map(|class| came_back(last, class));
    let of_each = EACH.0 as f64;
    // Each part is read twice in a row: all of it refaults once, and pages evicted in between refault twice. The reader's
    // own executables are in the group, too.
    for (class, pages) in [("code", code), ("read-only data", data)] {
        assert!((0.9..=2.25).contains(&(pages / of_each)), "{class}: {pages} of {of_each}: {last}");
    }
    assert!(cache > 4.0 * of_each, "page cache: {cache}: {last}");
    let of_kernel = amount(last, "file_refaults") - amount(first, "file_refaults");
    let ours =
        code + data + cache - ["code", "read_only", "cache"].map(|class| came_back(first, class)).iter().sum::<f64>();
    assert!((ours / of_kernel - 1.0).abs() < 0.02, "{ours} beside the kernel's {of_kernel}");
    Ok(())
}

/// A kernel that allows the walk allows counting refaults, too.
fn what_comes_back_can_be_counted_where_the_walk_can_look(_: &Host) -> Outcome {
    let watching = start(&["census", "--watch", "100ms", "--json"])?;
    std::thread::sleep(std::time::Duration::from_secs(4));
    watching.signal(rustix::process::Signal::INT)?;
    let watched = watching.said()?;
    let last: Value = serde_json::from_str(watched.out.lines().last().ok_or("it said nothing")?)?;
    for class in ["code", "read_only", "cache"] {
        assert!(of_class(&last, class)["refaults"].is_u64(), "{class}: {last}");
    }
    Ok(())
}

/// A process is watched for its whole life, across every exec; a zombie counts as ended.
fn a_process_is_watched_through_each_program_that_it_becomes_until_it_is_a_zombie(_: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    let mut watching = start(&["census", &process.pid().to_string(), "--watch", "1ms", "--json"])?;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(3);
    while std::time::Instant::now() < end {
        process.exec()?;
    }
    assert_eq!(watching.0.try_wait()?, None, "watching ended before the process");
    process.kill();
    assert_eq!(watching.said()?.code(), 0);

    let mut sleep = Running::start(std::process::Command::new("/bin/sh").args(["-c", "exec sleep 600"]))?;
    let watching = start(&["census", &sleep.pid().to_string(), "--watch", "50ms", "--json"])?;
    std::thread::sleep(std::time::Duration::from_secs(1));
    sleep.0.kill()?;
    // The test has not waited for it yet.
    assert_eq!(watching.said()?.code(), 0);
    assert!(sleep.0.try_wait()?.is_some());
    Ok(())
}

/// Huge pages of the pool are on no list: they are not the program's data, for every way of getting them.
fn what_is_mapped_of_the_huge_page_pool_is_of_no_class(_: &Host) -> Outcome {
    const POOL: &str = "/proc/sys/vm/nr_hugepages";
    let before: u64 = fs::read_to_string(POOL)?.trim().parse()?;
    let _pool = Setting::set(POOL, &(before + 2).to_string())?;
    let mut process = TargetProcess::start()?;
    let pid = process.pid().to_string();
    let without = json(&["census", "--exact", "--json", &pid])?;
    let heap = process.map(Backing::ReservedHuge, 2)?;
    process.write(heap.all(), 7)?;
    let report = json(&["census", "--exact", "--json", &pid])?;
    let classes =
        |report: &Value| CLASSES[..4].iter().map(|class| amount(of_class(report, class), "bytes")).sum::<f64>();
    assert!((classes(&report) - classes(&without)).abs() < 1e6, "{report}, before: {without}");
    assert_eq!(of_rest(&report, "huge_pool"), Bytes::mib(4).0 as f64, "{report}");
    Ok(())
}

/// Without --watch, Ctrl-C has its default action.
fn one_look_leaves_ctrl_c_as_it_is(_: &Host) -> Outcome {
    let looking = start(&["census", "--exact", "--json"])?;
    let status = format!("/proc/{}/status", looking.pid());
    let said = looking.said_while(|| {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let caught = text.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
        let interrupt = 1 << (rustix::process::Signal::INT.as_raw() - 1);
        assert_eq!(caught.unwrap_or(0) & interrupt, 0, "{text}");
        std::thread::sleep(std::time::Duration::from_millis(1));
        Ok(())
    })?;
    assert_eq!(said.code(), 0, "{said:?}");
    Ok(())
}

/// Runs the command as user 0 without CAP_SYS_ADMIN, from a thread that gives it up.
fn without_sys_admin(arguments: &[&str]) -> Result<Said, libtest_mimic::Failed> {
    use rustix::thread::{CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities};
    let mut command = masu()?;
    command.args(arguments);
    let thread = std::thread::spawn(move || {
        remove_capability_from_bounding_set(CapabilitySet::SYS_ADMIN)?;
        // Inherited capabilities are not limited by the bounds.
        let mut own = capabilities(None)?;
        own.inheritable -= CapabilitySet::SYS_ADMIN;
        set_capabilities(None, own)?;
        Running::start(&mut command)?.said()
    });
    Ok(thread.join().map_err(|_| "a thread without CAP_SYS_ADMIN panicked")??)
}

/// One line each, with the remedy.
fn what_a_census_cannot_look_at_is_named(_: &Host) -> Outcome {
    let said_of = |arguments: &[&str]| -> Result<Said, libtest_mimic::Failed> {
        let said = said(arguments)?;
        assert_eq!((said.code(), said.out.as_str()), (2, ""), "{arguments:?}: {said:?}");
        assert_eq!(said.err.lines().count(), 2, "{said:?}");
        Ok(said)
    };
    let group = said_of(&["census", "--cgroup", "no-such-group"])?;
    assert!(group.err.starts_with("masu: cannot find control group no-such-group in /sys/fs/cgroup"), "{group:?}");
    let nameless = said_of(&["census", "--cgroup", ""])?;
    assert!(nameless.err.starts_with("masu: cannot find control group \"\" in /sys/fs/cgroup"), "{nameless:?}");
    let gone = said_of(&["census", "2147483647"])?;
    assert!(gone.err.contains("no such process (ESRCH)"), "{gone:?}");
    let mut command = masu()?;
    command.uid(NOBODY_UID).gid(NOBODY_UID);
    let denied = Running::start(command.arg("census"))?.said()?;
    assert_eq!(denied.code(), 2, "{denied:?}");
    assert!(denied.err.contains("/proc/kpageflags: permission denied (EACCES)\n    Run as root"), "{denied:?}");
    // Root in a container may open the file, but sees no frame numbers: a census of zeros must be recognised.
    let denied = without_sys_admin(&["census"])?;
    assert_eq!((denied.code(), denied.out.as_str()), (2, ""), "{denied:?}");
    let expected =
        "masu: cannot read frame numbers without CAP_SYS_ADMIN: operation not permitted (EPERM)\n    Run as root";
    assert!(denied.err.starts_with(expected), "{denied:?}");
    Ok(())
}

/// Frames of secret memory look like locked ones of a file.
fn memory_that_the_kernel_cannot_read_is_shared_memory(_: &Host) -> Outcome {
    let own = std::process::id().to_string();
    let shared = |report: &Value| amount(of_class(report, "shared"), "bytes");
    let of_host = ["census", "--exact", "--json"];
    let (before, before_host) = (json(&["census", &own, "--json"])?, json(&of_host)?);
    let length = Bytes::mib(6);
    let _secret = SecretMemory::make(length)?;
    let (after, after_host) = (json(&["census", &own, "--json"])?, json(&of_host)?);
    let more = shared(&after) - shared(&before);
    assert!(more >= length.0 as f64, "{more} more of the process: {after}");
    let more = shared(&after_host) - shared(&before_host);
    // Others use shared memory meanwhile.
    assert!(more >= length.0 as f64 / 2.0, "{more} more of the host");
    let process = &after["processes"][0];
    assert!(amount(process, "shared_bytes") >= length.0 as f64, "{process}");
    Ok(())
}
