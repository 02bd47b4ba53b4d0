//! Records what the running kernel says about a process with one mapping of each kind: the text that the parsers are
//! tested on. `tests/recorded/README.md` says how it is run.

use std::ffi::CStr;
use std::fs;
use std::io::{Error, Read};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, mmap_anonymous};

const MIB: usize = 1 << 20;
const FROM_SELF: [&str; 5] = ["maps", "smaps", "smaps_rollup", "status", "stat"];
const FROM_HOST: [&str; 2] = ["meminfo", "vmstat"];

fn main() -> Result<(), Error> {
    let directory = std::env::args_os().nth(1).ok_or_else(|| Error::other("usage: record DIRECTORY"))?;
    let directory = Path::new(&directory);
    fs::create_dir_all(directory)?;
    rustix::thread::set_name(c"rec) (ord S 1 2")?;
    map_one_of_each_kind(directory)?;
    let mut room = vec![1; MIB]; // touched now, so that the process does not grow between one file and the next
    let mut used = 0;
    let mut files = Vec::with_capacity(FROM_SELF.len() + FROM_HOST.len());
    for path in FROM_SELF
        .map(|name| format!("/proc/self/{name}"))
        .into_iter()
        .chain(FROM_HOST.map(|name| format!("/proc/{name}")))
    {
        let from = used;
        let mut file = fs::File::open(&path)?;
        loop {
            match file.read(&mut room[used..])? {
                0 => break,
                filled => used += filled,
            }
        }
        files.push((path, from..used));
    }
    for (path, bytes) in files {
        fs::write(directory.join(path.rsplit('/').next().unwrap_or_default()), &room[bytes])?;
    }
    Ok(())
}

/// The mappings stay until the end of the process.
fn map_one_of_each_kind(directory: &Path) -> Result<(), Error> {
    let named = directory.join("a name with spaces\nand a newline");
    fs::write(&named, [1; 8192])?;
    let file = fs::File::open(&named)?;
    fs::remove_file(&named)?;
    // SAFETY: fresh mappings, of which nothing but the lines below knows; every write lies inside the one just made.
    unsafe {
        let read_write = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();

        let huge = mmap_anonymous(null, 8 * MIB, read_write, MapFlags::PRIVATE)?;
        madvise(huge, 8 * MIB, Advice::LinuxHugepage)?;
        huge.cast::<u8>().write_bytes(1, 8 * MIB);

        let locked = mmap_anonymous(null, 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?;
        mlock(locked, 4096)?;
        name(locked, 4096, c"a name");

        let shared = mmap_anonymous(null, 65536, read_write, MapFlags::SHARED)?;
        shared.cast::<u8>().write_bytes(1, 65536);

        let copied = mmap(null, 8192, read_write, MapFlags::PRIVATE, file.as_fd(), 0)?;
        copied.cast::<u8>().write(2);

        let plain = mmap_anonymous(null, MIB, read_write, MapFlags::PRIVATE)?;
        madvise(plain, MIB, Advice::LinuxNoHugepage)?;
        madvise(plain, MIB, Advice::LinuxDontDump)?;
        plain.cast::<u8>().write(1);
    }
    Ok(())
}

/// Names anonymous memory, as `[anon:a name]`. Kernels without CONFIG_ANON_VMA_NAME refuse, which is as good.
unsafe fn name(start: *mut std::ffi::c_void, length: usize, name: &CStr) {
    const PR_SET_VMA: libc::c_int = 0x5356_4d41;
    // SAFETY: the caller's mapping, and a name that outlives the call; the memory itself is not touched.
    unsafe { libc::prctl(PR_SET_VMA, 0, start, length, name.as_ptr()) };
}
