//! `masu aging --cache`: what the kernel's workers and servers read for a stream, and files behind any mount.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use linux::cachestat::cachestat;
use linux::page_cache::{cached, resident};
use units::{Bytes, Pages};

use super::Outcome;
use super::command::{masu, said};
use super::disk_file::DiskFile;
use super::programs::{self, Running};
use super::run::Folder;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    aging_layers requires [Root, PageTableWalk, DiskFiles, Shell, MasuCommand];
    a_file_system_in_a_file_leaves_neither_its_files_nor_the_file_behind [LoopDevices];
    what_is_written_through_layers_leaves_nothing_behind [LoopDevices];
    a_page_of_which_one_block_is_written_counts_until_it_is_dropped [LoopDevices, CacheStat, Python];
    a_file_system_with_a_device_number_of_its_own_leaves_nothing_of_the_file_behind [Btrfs];
    a_file_system_with_handles_of_another_form_leaves_nothing_behind [Erofs];
    a_file_system_that_is_unmounted_meanwhile_is_gone [Btrfs];
    a_snapshot_of_a_file_keeps_its_pages [Btrfs];
    a_device_that_is_read_itself_leaves_nothing_behind [LoopDevices];
    a_file_is_found_behind_any_mount_of_its_device [LoopDevices];
    a_server_that_reads_for_the_command_is_named_and_is_included_on_request;
    a_server_that_forks_for_each_request_is_named_with_the_sum [Python];
    a_listener_that_starts_a_program_for_each_request_is_named_with_the_sum [Python];
    a_program_without_a_connection_to_the_command_is_not_named;
};

const LENGTH: Pages = Bytes::mib(64).pages();
const ALL: Range<u64> = 0..LENGTH.0;
/// File system with space for the file.
const IMAGE: &str = "96M";

/// A file system on a loop device, mounted at `a`, with a file of 64 MiB of which nothing is in memory.
#[derive(Debug)]
struct Image {
    device: String,
    folder: Folder,
}

impl Image {
    fn make(name: &str) -> Result<Image, libtest_mimic::Failed> {
        Image::make_by(name, "mkfs.ext4 -q -F")
    }

    fn make_by(name: &str, maker: &str) -> Result<Image, libtest_mimic::Failed> {
        let folder = Folder::make(name)?;
        let at = |what: &str| folder.0.join(what).display().to_string();
        let image = at("image");
        ran(&format!("truncate -s {IMAGE} {image} && {maker} {image} && mkdir {} {}", at("a"), at("b")))?;
        let device = ran(&format!("losetup -f --show {image}"))?.trim().to_owned();
        let image = Image { device, folder };
        let (device, a, backing) = (&image.device, image.at("a"), image.at("image"));
        let file = "head -c 67108864 /dev/urandom >";
        ran(&format!("mount {device} {0} && {file} {0}/file && head -c 4096 /dev/urandom > {0}/small", a.display()))?;
        ran(&format!("umount {0} && mount {device} {0} && touch {1}", a.display(), image.at("alone").display()))?;
        // A mount namespace that was made meanwhile has kept the file system, and the written pages.
        forget(&image.at("a/file"))?;
        forget(&backing)?;
        Ok(image)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let point = |name| self.at(name).display().to_string();
        let all = [point("alone"), point("b"), point("a")]
            .map(|point| format!("umount {point} {point} 2>/dev/null;"))
            .concat();
        if let Err(error) = ran(&format!("{all} losetup -d {}", self.device)) {
            eprintln!("cannot remove {}: {error:?}", self.device);
        }
    }
}

/// Output of a shell command that has to succeed.
fn ran(line: &str) -> Result<String, libtest_mimic::Failed> {
    let done = Running::start(Command::new("/bin/sh").args(["-c", line]))?.said()?;
    if done.code() == 0 { Ok(done.out) } else { Err(format!("{line}: {}", done.err).into()) }
}

/// Writes a file to the disk, and drops its pages.
fn forget(path: &Path) -> Outcome {
    let file = File::open(path)?;
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

fn left(path: &Path) -> Result<u64, libtest_mimic::Failed> {
    let runs = resident(&File::open(path)?, 0..u64::MAX)?;
    Ok(runs.iter().map(|run| run.end - run.start).sum())
}

/// Reads with a command beside masu, and returns the lines.
fn read_beside(line: &str) -> Result<String, libtest_mimic::Failed> {
    let done = said(&["aging", "--cache", "0", "--report", "-", "--", "/bin/sh", "-c", line])?;
    assert_eq!(done.code(), 0, "{}", done.err);
    Ok(done.err)
}

/// The worker of the loop device fills the page cache of the backing file: it is dropped, too.
fn a_file_system_in_a_file_leaves_neither_its_files_nor_the_file_behind(_: &Host) -> Outcome {
    let image = Image::make("aging-image")?;
    let file = image.at("a/file");
    let lines = read_beside(&format!("cat {} > /dev/null", file.display()))?;
    let (upper, lower) = (left(&file)?, left(&image.at("image"))?);
    assert!(upper * 100 <= LENGTH.0, "{upper} pages of the file are left: {lines}");
    assert!(lower * 10 <= LENGTH.0, "{lower} pages of the backing file are left: {lines}");
    Ok(())
}

/// The write-back at the end makes the worker of each loop device fill the page cache of its backing file.
fn what_is_written_through_layers_leaves_nothing_behind(_: &Host) -> Outcome {
    let image = Image::make("aging-written")?;
    let folder = Folder::make("aging-written-outer")?;
    let (inner, point) = (image.at("a/inner"), folder.0.join("a"));
    let [inner_path, at] = [&inner, &point].map(|path| path.display().to_string());
    ran(&format!(
        "rm {} && truncate -s 64M {inner_path} && mkfs.ext4 -q -F {inner_path}",
        image.at("a/file").display()
    ))?;
    ran(&format!("mkdir {at} && mount -o loop {inner_path} {at}"))?;
    let written = (|| {
        forget(&inner)?;
        forget(&image.at("image"))?;
        let lines = read_beside(&format!("head -c 41943040 /dev/zero > {at}/file"))?;
        Ok::<_, libtest_mimic::Failed>((lines, left(&point.join("file"))?, left(&inner)?, left(&image.at("image"))?))
    })();
    ran(&format!("umount {at}"))?;
    let (lines, upper, middle, lower) = written?;
    // Metadata stays.
    let most = Bytes::mib(40).pages().0 / 20;
    assert!(upper <= most && middle <= most && lower <= most, "{upper}, {middle}, {lower} pages are left: {lines}");
    Ok(())
}

/// Writes the first block of each page of a file, up to this many pages.
const SPARSE: &str = "
import os, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
for page in range(int(sys.argv[2])): os.pwrite(file, bytes(1024), page * 4096)
";

/// `mincore` calls a page absent that is not valid as a whole: `cachestat` alone sees it.
fn a_page_of_which_one_block_is_written_counts_until_it_is_dropped(_: &Host) -> Outcome {
    const WRITTEN: Pages = Pages(4096);
    let image = Image::make_by("aging-blocks", "mkfs.ext4 -q -F -b 1024")?;
    let path = image.at("a/blocks");
    let write = format!("exec python3 -c '{SPARSE}' {} {}", path.display(), WRITTEN.0);
    let in_cache = |file: &File| cachestat(file.as_fd(), Bytes(0), Bytes(0)).map(|of| of.cached);
    ran(&write)?;
    let file = File::open(&path)?;
    assert_eq!(in_cache(&file)?, WRITTEN);
    assert_eq!((resident(&file, 0..u64::MAX)?, cached(&file, 0..u64::MAX)?), (vec![], vec![0..WRITTEN.0; 1]));
    drop(file);
    fs::remove_file(&path)?;
    let lines = read_beside(&write)?;
    let left = in_cache(&File::open(&path)?)?;
    assert!(left.0 * 100 <= WRITTEN.0, "{} pages are left: {lines}", left.0);
    Ok(())
}

/// A btrfs in a file, with a file of 64 MiB, and nothing of it in memory; not mounted.
fn btrfs_in(folder: &Folder) -> Result<PathBuf, libtest_mimic::Failed> {
    let (image, point) = (folder.0.join("image"), folder.0.join("a"));
    let [to, at] = [&image, &point].map(|path| path.display().to_string());
    ran(&format!("mkdir {at} && truncate -s 256M {to} && mkfs.btrfs -q {to} && mount -o loop {to} {at}"))?;
    ran(&format!("head -c 67108864 /dev/urandom > {at}/file; umount {at}"))?;
    forget(&image)?;
    Ok(image)
}

/// Amount in MiB behind these words.
fn amount_after(words: &str, lines: &str) -> f64 {
    let (_, rest) = lines.split_once(words).unwrap_or_default();
    rest.split_once(" MiB").and_then(|(amount, _)| amount.parse().ok()).unwrap_or(f64::NAN)
}

/// The number of btrfs in the mount table is that of no device: its devices are found by the name that the table has.
fn a_file_system_with_a_device_number_of_its_own_leaves_nothing_of_the_file_behind(_: &Host) -> Outcome {
    let folder = Folder::make("aging-btrfs")?;
    let image = btrfs_in(&folder)?;
    let point = folder.0.join("a").display().to_string();
    ran(&format!("mount -o loop {} {point}", image.display()))?;
    let lines = read_beside(&format!("cat {point}/file > /dev/null"));
    let upper = left(&folder.0.join("a/file"));
    ran(&format!("umount {point}"))?;
    let (lines, upper, lower) = (lines?, upper?, left(&image)?);
    assert!(upper * 100 <= LENGTH.0, "{upper} pages are left, though its reader has ended: {lines}");
    assert!(lower * 10 <= LENGTH.0, "{lower} pages of the file below are left: {lines}");
    assert!(amount_after("behind streams of ", &lines) >= 120.0, "the file and the file below count: {lines}");
    Ok(())
}

/// The handles of EROFS have the high half of the inode number first.
fn a_file_system_with_handles_of_another_form_leaves_nothing_behind(_: &Host) -> Outcome {
    let folder = Folder::make("aging-erofs")?;
    let [from, image, point] = ["from", "image", "a"].map(|name| folder.0.join(name).display().to_string());
    ran(&format!("mkdir {from} {point} && for n in 1 2; do head -c 33554432 /dev/urandom > {from}/$n; done"))?;
    ran(&format!("mkfs.erofs {image} {from} && mount -t erofs -o loop {image} {point}"))?;
    forget(Path::new(&image))?;
    let lines = read_beside(&format!("cat {point}/1 {point}/2 > /dev/null"));
    let there = left(&folder.0.join("a/1")).and_then(|first| Ok(first + left(&folder.0.join("a/2"))?));
    ran(&format!("umount {point}"))?;
    let (lines, there) = (lines?, there?);
    assert!(there * 100 <= LENGTH.0, "{there} pages are left: {lines}");
    assert!(
        amount_after("everything is restored: dropped ", &lines) >= 64.0 && !lines.contains("skipped files"),
        "{lines}"
    );
    Ok(())
}

/// A file and its snapshot have the same inode and generation: the pages of the other one stay.
fn a_snapshot_of_a_file_keeps_its_pages(_: &Host) -> Outcome {
    let folder = Folder::make("aging-snapshot")?;
    let image = btrfs_in(&folder)?;
    let point = folder.0.join("a").display().to_string();
    let snapshot = format!("btrfs -q subvolume snapshot {point} {point}/snapshot && cat {point}/file > /dev/null");
    ran(&format!("mount -o loop {} {point} && {snapshot}", image.display()))?;
    // Each reader has both open. The first keeps the snapshot open after its end, the second closes it.
    let open = format!("exec 3< {point}/file; ");
    let first = read_beside(&format!("{open} timeout 2 tail -c +1 -f {point}/snapshot/file > /dev/null; true"));
    let read = left(&folder.0.join("a/snapshot/file"));
    let second = read_beside(&format!("{open} cat {point}/snapshot/file > /dev/null"));
    let kept = left(&folder.0.join("a/file"));
    ran(&format!("umount {point}"))?;
    let (lines, read, kept) = ([first?, second?], read?, kept?);
    assert!(lines.iter().all(|lines| lines.contains("files of several btrfs subvolumes")), "{lines:?}");
    // The last 8 MiB were due after the reader had ended.
    assert!(read * 4 <= LENGTH.0, "{read} pages are left of the file that was read: {lines:?}");
    assert!(kept * 100 >= LENGTH.0 * 99, "{kept} pages are left of the file that nobody read: {lines:?}");
    Ok(())
}

/// The command itself mounts and unmounts it: what it has read there is neither left nor lost from the sum.
fn a_file_system_that_is_unmounted_meanwhile_is_gone(_: &Host) -> Outcome {
    let folder = Folder::make("aging-unmounted")?;
    let image = btrfs_in(&folder)?;
    let (point, image_path) = (folder.0.join("a").display().to_string(), image.display());
    let script = format!("mount -o loop {image_path} {point} && cat {point}/file > /dev/null; umount {point}");
    let lines = read_beside(&script)?;
    assert!(!lines.contains("cannot open or drop") && !lines.contains("skipped files"), "{lines}");
    assert!(amount_after("everything is restored: dropped ", &lines) >= 120.0, "the file and the file below: {lines}");
    assert!(left(&image)? * 10 <= LENGTH.0, "{lines}");
    Ok(())
}

/// The pages of a device that a file system keeps open stay after a reader of the device has ended.
fn a_device_that_is_read_itself_leaves_nothing_behind(_: &Host) -> Outcome {
    let image = Image::make("aging-device")?;
    let device = Path::new(&image.device);
    let before = left(device)?;
    let lines = read_beside(&format!("dd if={} of=/dev/null bs=1M 2>/dev/null", image.device))?;
    let (after, lower) = (left(device)?, left(&image.at("image"))?);
    assert!(after <= before + LENGTH.0 / 10, "{after} pages of the device are left, {before} before: {lines}");
    assert!(lower * 10 <= LENGTH.0, "{lower} pages of the backing file are left: {lines}");
    Ok(())
}

/// The first mount of the device is covered, or is one of a single file, or there is none in masu's namespace.
fn a_file_is_found_behind_any_mount_of_its_device(_: &Host) -> Outcome {
    let image = Image::make("aging-mounts")?;
    let [a, b, alone] = ["a", "b", "alone"].map(|name| image.at(name).display().to_string());
    let device = &image.device;
    let is_gone = |what: &str| {
        let lines = read_beside(&format!("cat {b}/file > /dev/null"))?;
        let there = left(&image.at("b/file"))?;
        assert!(there * 100 <= LENGTH.0, "{what}: {there} pages are left: {lines}");
        Outcome::Ok(())
    };
    ran(&format!("mount {device} {b} && mount -t tmpfs cover {a}"))?;
    is_gone("the first mount is covered")?;
    ran(&format!("umount {a} && mount --bind {a}/small {alone} && umount {b} && umount {a} && mount {device} {b}"))?;
    is_gone("the first mount is of a single file")?;
    ran(&format!("umount {alone} && umount {b}"))?;
    // The command's shell keeps the namespace.
    let script = format!("mount {device} {b} && cat {b}/file > /dev/null; sleep 1; wc -c {b}/file > /dev/null");
    let lines = read_beside(&format!("unshare -m /bin/sh -c '{script}'"))?;
    assert!(!lines.contains("skipped files"), "{lines}");
    assert!(!lines.contains("cannot open"), "{lines}");
    Ok(())
}

/// A server that runs already reads a file for the command: the lines name it, and `--pid` includes it.
fn a_server_that_reads_for_the_command_is_named_and_is_included_on_request(_: &Host) -> Outcome {
    let of = DiskFile::make("aging-server", LENGTH)?;
    let folder = Folder::make("aging-fifo")?;
    let fifo = folder.0.join("fifo");
    ran(&format!("mkfifo {}", fifo.display()))?;
    let serve = format!("while :; do cat {} > {}; done", of.path().display(), fifo.display());
    let server = Running::start(Command::new("/bin/sh").args(["-c", &serve]))?;
    // The pause is in the middle: the server still runs, and has read much.
    let read = format!("exec 3< {}; head -c 50000000 <&3 > /dev/null; sleep 1; cat <&3 > /dev/null", fifo.display());
    let lines = read_beside(&read)?;
    assert!(lines.contains("(cat) is connected to the streams and brought 64.0 MiB into the page cache"), "{lines}");
    assert!(left_of(&of)? * 10 >= LENGTH.0 * 9, "it is not followed, and its pages stay");
    forget(&of.path())?;
    let mut command = masu()?;
    command.args(["aging", "--cache", "0", "--pid", &server.pid().to_string(), "--", "/bin/sh", "-c", &read]);
    let done = Running::start(&mut command)?.said()?;
    assert_eq!((done.code(), done.err.as_str()), (0, ""));
    assert!(left_of(&of)? * 100 <= LENGTH.0, "{} pages are left", left_of(&of)?);
    drop(server);
    // The reader of the server's last round waits for a reader of the FIFO, which never comes.
    fs::OpenOptions::new().read(true).write(true).open(&fifo)?;
    Ok(())
}

/// Reads a part of a file for each connection, in a process of its own.
const FORKING: &str = "
import os, signal, socket, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
server = socket.create_server(('127.0.0.1', 0))
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    if os.fork():
        connection.close()
        continue
    offset = int(connection.recv(100))
    if sys.argv[2:]:
        os.dup2(connection.fileno(), 1)
        os.execvp('dd', ['dd', 'if=' + sys.argv[1], 'bs=1M', 'count=8', 'skip=%d' % (offset >> 20), 'status=none'])
    file = open(sys.argv[1], 'rb')
    file.seek(offset)
    for _ in range(8):
        connection.sendall(file.read(1 << 20))
    os._exit(0)
";
const ASKING: &str = "
import socket, sys, time
for part in range(8):
    connection = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    connection.sendall(b'%d' % (part << 23))
    while connection.recv(1 << 18): time.sleep(0.01)
";

/// Each of its processes brings 8 MiB, less than is named alone, and ends.
fn a_server_that_forks_for_each_request_is_named_with_the_sum(_: &Host) -> Outcome {
    let of = DiskFile::make("aging-forking", LENGTH)?;
    let python = programs::python().ok_or("no python3")?.display().to_string();
    let mut server = Running::start(Command::new(&python).args(["-c", FORKING]).arg(of.path()))?;
    let mut port = String::new();
    BufReader::new(server.0.stdout.take().ok_or("no pipe")?).read_line(&mut port)?;
    // The processes of the second round have all ended before masu can look at them.
    for asking in [ASKING, &ASKING.replace("time.sleep(0.01)", "pass")] {
        forget(&of.path())?;
        let lines = read_beside(&format!("exec {python} -c '{}' {port}", asking.replace('\'', "'\\''")))?;
        let named = format!("process {} (python3", server.pid());
        let line = lines.lines().find(|line| line.contains(&named)).ok_or_else(|| format!("not named: {lines}"))?;
        // Python's own files are some pages more if they were not in memory.
        assert!(line.contains("is connected to the streams and brought 64."), "{line}");
        assert!(line.contains(&format!("`--pid {}` includes it", server.pid())), "{line}");
    }
    Ok(())
}

/// As inetd: the programs have another name than the listener, and end.
fn a_listener_that_starts_a_program_for_each_request_is_named_with_the_sum(_: &Host) -> Outcome {
    let of = DiskFile::make("aging-listener", LENGTH)?;
    let python = programs::python().ok_or("no python3")?.display().to_string();
    let mut server = Running::start(Command::new(&python).args(["-c", FORKING]).arg(of.path()).arg("exec"))?;
    let mut port = String::new();
    BufReader::new(server.0.stdout.take().ok_or("no pipe")?).read_line(&mut port)?;
    let lines = read_beside(&format!("exec {python} -c '{}' {port}", ASKING.replace('\'', "'\\''")))?;
    let named = format!("process {} (", server.pid());
    let line = lines.lines().find(|line| line.contains(&named)).ok_or_else(|| format!("not named: {lines}"))?;
    // Python's own files are some pages more if they were not in memory.
    assert!(line.contains("is connected to the streams and brought 64."), "{line}");
    assert!(line.contains(&format!("`--pid {}` includes it", server.pid())), "{line}");
    Ok(())
}

/// A reader of the same device at the same time has work of its own.
fn a_program_without_a_connection_to_the_command_is_not_named(_: &Host) -> Outcome {
    let (of, other) = (DiskFile::make("aging-stream", LENGTH)?, DiskFile::make("aging-other", LENGTH)?);
    let folder = Folder::make("aging-unconnected")?;
    let (begin, end) = (folder.0.join("begin"), folder.0.join("end"));
    let (wait, pause) = (|path: &Path| format!("while [ ! -e {} ]; do sleep 0.05; done", path.display()), "sleep 1");
    let reader = format!(
        "{}; exec 4< {}; head -c 50000000 <&4 > /dev/null; {pause}; cat <&4 > /dev/null; > {}",
        wait(&begin),
        other.path().display(),
        end.display()
    );
    let reader = Running::start(Command::new("/bin/sh").args(["-c", &reader]))?;
    let lines =
        read_beside(&format!("cat {} > /dev/null; > {}; {}", of.path().display(), begin.display(), wait(&end)))?;
    assert!(lines.contains("masu sees no connection of theirs to the streams"), "{lines}");
    assert!(!lines.contains("--pid"), "{lines}");
    drop(reader);
    Ok(())
}

fn left_of(of: &DiskFile) -> Result<u64, libtest_mimic::Failed> {
    Ok(resident(&of.file, ALL)?.iter().map(|run| run.end - run.start).sum())
}
