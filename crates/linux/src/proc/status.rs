//! `/proc/PID/status`: identity, memory and capabilities of a process.
//!
//! CPU time and start time are in `stat.rs`; exact resident memory is in `smaps.rs`.
//!
//! Cost: some 15 µs. Side effects: none. The memory figures are kept per CPU and may lag behind by some dozens of
//! pages per CPU (before 6.2: per thread).
//!
//! Since: always; the parts of the resident memory Linux 4.5, `HugetlbPages` 4.4, `THP_enabled` Linux 5.0, `Seccomp` 3.8, `Kthread` is
//! missing in Linux 6.1 and present in 6.12. Every user may read it, unless /proc is mounted with hidepid.
//!
//! Truth: proc_pid_status(5); `proc_pid_status` in fs/proc/array.c, `task_mem` in fs/proc/task_mmu.c.

use units::Bytes;

use crate::key_lines::{amount, lines, number, required, split};
use crate::{Error, KernelFiles, Pid, Untrusted};

/// Fields in use of `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Command name, at most 15 bytes for a user process, which chooses it.
    pub name: Untrusted,
    /// Process of this thread; its own id for the first thread.
    pub thread_group: Pid,
    /// Effective user.
    pub uid: u32,
    /// Real, effective, saved and file-system user, as mapped in our user namespace.
    pub uids: [u32; 4],
    /// Number of threads.
    pub threads: u32,
    /// Kernel thread: no memory of its own, nothing to do here. On a kernel without this line (6.1), any living
    /// process without memory counts as one, so a process that is exiting may briefly count too.
    pub kernel_thread: bool,
    /// Zombie: ended, and not yet waited for by its parent.
    pub zombie: bool,
    /// Permission for huge pages.
    pub huge_pages: HugePages,
    /// Process that traces it (a debugger, strace), if any.
    pub tracer: Option<Pid>,
    /// Filter of its system calls.
    pub seccomp: Seccomp,
    /// Resident memory. Zero for a process without memory.
    pub rss: Bytes,
    /// Peak resident memory.
    pub rss_peak: Bytes,
    /// Resident memory without a file behind it.
    pub rss_anon: Bytes,
    /// Resident pages of files.
    pub rss_file: Bytes,
    /// Resident memory shared between processes, and files in tmpfs.
    pub rss_shmem: Bytes,
    /// Pages of hugetlbfs, which are not part of `rss`.
    pub hugetlb: Bytes,
    /// Memory locked by mlock.
    pub locked: Bytes,
    /// Effective capabilities, one bit each; named in `capabilities.rs`.
    pub effective_capabilities: u64,
}

impl Status {
    /// Zombie with threads that go on: `/proc` shows nothing of their memory.
    pub const fn first_thread_ended(&self) -> bool {
        self.zombie && self.threads > 1
    }
}

/// Permission of a process for huge pages (`prctl(PR_SET_THP_DISABLE)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// Not forbidden.
    Allowed,
    /// Forbidden by itself; `MADV_COLLAPSE` will be refused.
    Forbidden,
    /// Not reported: before 5.0, or a process without memory.
    NotReported,
}

/// Mode of seccomp, the filter of a process's system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seccomp {
    /// No filter.
    Off,
    /// Only read, write and exit are allowed; any other call kills it.
    Strict,
    /// A filter decides, and may kill it for a call that it does not expect.
    Filtered,
    /// A mode unknown to masu.
    Unknown,
    /// Not reported: a kernel without seccomp.
    NotReported,
}

/// Reads the status of `pid`.
///
/// # Errors
/// `Gone` if the process ended.
pub fn status(files: &impl KernelFiles, pid: Pid) -> Result<Status, Error> {
    let path = pid.file("status");
    let object = format!("/{path}");
    let text = files.bytes(&path).map_err(|errno| Error::of_process("read", &object, errno))?;
    parse(&text, &object)
}

/// Number of times that a thread has waited so far (`voluntary_ctxt_switches`).
///
/// # Errors
/// `Gone` if the thread ended.
pub fn waits(files: &impl KernelFiles, thread: Pid) -> Result<u64, Error> {
    let path = thread.file("status");
    let object = format!("/{path}");
    let text = files.read(&path).map_err(|errno| Error::of_process("read", &object, errno))?;
    let mut values = text.lines().filter_map(split).filter(|(key, _)| *key == "voluntary_ctxt_switches");
    let value = values.next().and_then(|(_, value)| value.trim().parse().ok());
    value.ok_or_else(|| Error::malformed(&object, "no voluntary_ctxt_switches"))
}

/// Lines in use, unparsed.
#[derive(Default)]
struct Lines<'a> {
    state: Option<&'a str>,
    tgid: Option<&'a str>,
    uid: Option<&'a str>,
    kthread: Option<&'a str>,
    vm_size: Option<&'a str>,
    vm_hwm: Option<&'a str>,
    vm_rss: Option<&'a str>,
    rss_anon: Option<&'a str>,
    rss_file: Option<&'a str>,
    rss_shmem: Option<&'a str>,
    hugetlb: Option<&'a str>,
    vm_lck: Option<&'a str>,
    thp_enabled: Option<&'a str>,
    tracer: Option<&'a str>,
    seccomp: Option<&'a str>,
    threads: Option<&'a str>,
    cap_eff: Option<&'a str>,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Lines<'a> {
        let mut lines = Lines::default();
        for (key, value) in text.lines().filter_map(split) {
            let slot = match key {
                "State" => &mut lines.state,
                "Tgid" => &mut lines.tgid,
                "Uid" => &mut lines.uid,
                "Kthread" => &mut lines.kthread,
                "VmSize" => &mut lines.vm_size,
                "VmHWM" => &mut lines.vm_hwm,
                "VmRSS" => &mut lines.vm_rss,
                "RssAnon" => &mut lines.rss_anon,
                "RssFile" => &mut lines.rss_file,
                "RssShmem" => &mut lines.rss_shmem,
                "HugetlbPages" => &mut lines.hugetlb,
                "VmLck" => &mut lines.vm_lck,
                "THP_enabled" => &mut lines.thp_enabled,
                "TracerPid" => &mut lines.tracer,
                "Seccomp" => &mut lines.seccomp,
                "Threads" => &mut lines.threads,
                "CapEff" => &mut lines.cap_eff,
                _ => continue,
            };
            *slot = Some(value);
        }
        lines
    }
}

/// Parses the text of a `status` file; `object` is the path for messages.
pub(crate) fn parse(text: &(impl AsRef<[u8]> + ?Sized), object: &str) -> Result<Status, Error> {
    let name = lines(text.as_ref()).find_map(|line| line.strip_prefix(b"Name:"));
    let text = String::from_utf8_lossy(text.as_ref());
    let lines = Lines::of(&text);
    let state = required(object, "State", lines.state)?;
    let zombie = state.starts_with(['Z', 'X']);
    let kernel_thread = match lines.kthread {
        Some(value) => number::<u8>(object, "Kthread", value)? == 1,
        None => lines.vm_size.is_none() && !zombie,
    };
    let huge_pages = match lines.thp_enabled {
        Some("1") => HugePages::Allowed,
        Some("0") => HugePages::Forbidden,
        Some(other) => return Err(bad(object, "THP_enabled", other, "0 or 1")),
        None => HugePages::NotReported,
    };
    let seccomp = match lines.seccomp {
        Some("0") => Seccomp::Off,
        Some("1") => Seccomp::Strict,
        Some("2") => Seccomp::Filtered,
        Some(_) => Seccomp::Unknown,
        None => Seccomp::NotReported,
    };
    let tracer = lines.tracer.map(|value| number(object, "TracerPid", value)).transpose()?.unwrap_or(0);
    let uids = required(object, "Uid", lines.uid)?;
    let users = users(uids).ok_or_else(|| bad(object, "Uid", uids, "four user ids"))?;
    let capabilities = required(object, "CapEff", lines.cap_eff)?;
    let memory = |key: &str, value: Option<&str>| value.map_or(Ok(Bytes(0)), |value| amount(object, key, value));
    Ok(Status {
        name: unescape(required(object, "Name", name)?),
        thread_group: Pid(number(object, "Tgid", required(object, "Tgid", lines.tgid)?)?),
        uid: users[1],
        uids: users,
        threads: number(object, "Threads", required(object, "Threads", lines.threads)?)?,
        kernel_thread,
        zombie,
        huge_pages,
        tracer: Some(Pid(tracer)).filter(|tracer| tracer.0 != 0),
        seccomp,
        rss: memory("VmRSS", lines.vm_rss)?,
        rss_peak: memory("VmHWM", lines.vm_hwm)?,
        rss_anon: memory("RssAnon", lines.rss_anon)?,
        rss_file: memory("RssFile", lines.rss_file)?,
        rss_shmem: memory("RssShmem", lines.rss_shmem)?,
        hugetlb: memory("HugetlbPages", lines.hugetlb)?,
        locked: memory("VmLck", lines.vm_lck)?,
        effective_capabilities: u64::from_str_radix(capabilities, 16)
            .map_err(|_| bad(object, "CapEff", capabilities, "a hexadecimal number"))?,
    })
}

fn users(text: &str) -> Option<[u32; 4]> {
    let ids: Option<Vec<u32>> = text.split_whitespace().map(|id| id.parse().ok()).collect();
    ids?.try_into().ok()
}

/// Decodes the name behind `Name:` and a tab. The kernel escapes a newline and a backslash in it.
fn unescape(name: &[u8]) -> Untrusted {
    let mut bytes = Vec::with_capacity(name.len());
    let mut name = name.strip_prefix(b"\t").unwrap_or(name);
    while let Some((first, rest)) = name.split_first() {
        let (byte, rest) = match (first, rest) {
            (b'\\', [b'n', rest @ ..]) => (b'\n', rest),
            (b'\\', [b'\\', rest @ ..]) => (b'\\', rest),
            _ => (*first, rest),
        };
        bytes.push(byte);
        name = rest;
    }
    Untrusted::new(bytes)
}

fn bad(object: &str, key: &str, found: &str, expected: &str) -> Error {
    Error::malformed(format_args!("{object}, {key}"), format_args!("{found:?}, expected {expected}"))
}

#[cfg(test)]
mod tests;
