//! `/proc/PID/status`: who a process is, how much memory it has, what it may do.
//!
//! CPU time and start time are in `stat.rs`; exact resident memory is in `smaps.rs`.
//!
//! Cost: some 15 µs. Side effects: none. The memory figures are kept per CPU and may lag behind by some
//! dozens of pages per CPU (before 6.2: per thread).
//!
//! Since: always; the parts of the resident memory Linux 4.5, `THP_enabled` Linux 5.0, `Seccomp` 3.8, `Kthread` is missing in Linux 6.1 and there in 6.12. Anyone may read it,
//! unless /proc is mounted with hidepid.
//!
//! Truth: proc_pid_status(5); `proc_pid_status` in fs/proc/array.c, `task_mem` in fs/proc/task_mmu.c.

use units::Bytes;

use crate::key_lines::{amount, lines, number, required, split};
use crate::{Error, KernelFiles, Pid, Untrusted};

/// What `status` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Command name, at most 15 bytes for a user process, which it chose itself.
    pub name: Untrusted,
    /// The process that this thread belongs to; its own id for the first thread.
    pub thread_group: Pid,
    /// Effective user.
    pub uid: u32,
    /// Real, effective, saved and file-system user, as our user namespace has them.
    pub uids: [u32; 4],
    /// Number of threads.
    pub threads: u32,
    /// A thread of the kernel: no memory of its own, nothing to do here. Where the kernel does not say (as 6.1),
    /// what lives and has no memory counts as one, so for a moment may a process that is exiting.
    pub kernel_thread: bool,
    /// It ended, and its parent has not asked for the result yet.
    pub zombie: bool,
    /// Whether it may have huge pages.
    pub huge_pages: HugePages,
    /// The process that traces it (a debugger, strace), if any.
    pub tracer: Option<Pid>,
    /// Whether its system calls are filtered.
    pub seccomp: Seccomp,
    /// Resident memory. Zero when it has none.
    pub rss: Bytes,
    /// Most resident memory so far.
    pub rss_peak: Bytes,
    /// The part of the resident memory without a file behind it.
    pub rss_anon: Bytes,
    /// The part that is pages of files.
    pub rss_file: Bytes,
    /// The part that is memory shared between processes, and files in tmpfs.
    pub rss_shmem: Bytes,
    /// Memory locked by mlock.
    pub locked: Bytes,
    /// Effective capabilities, one bit each; `capabilities.rs` names them.
    pub effective_capabilities: u64,
}

/// Whether a process may have huge pages (`prctl(PR_SET_THP_DISABLE)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// It did not forbid them.
    Allowed,
    /// It forbade them for itself, and `MADV_COLLAPSE` will be refused.
    Forbidden,
    /// The kernel does not say: before 5.0, or a process without memory.
    NotReported,
}

/// Whether somebody looks over the system calls of a process (seccomp).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seccomp {
    /// Nobody.
    Off,
    /// Only read, write and exit are allowed; any other call kills it.
    Strict,
    /// A filter decides, which may kill it for a call that it does not expect.
    Filtered,
    /// A mode that we do not know.
    Unknown,
    /// The kernel does not say: built without seccomp.
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

/// The lines that we look at, as they were found.
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

/// The text of a `status` file; `object` is the path for messages.
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
        locked: memory("VmLck", lines.vm_lck)?,
        effective_capabilities: u64::from_str_radix(capabilities, 16)
            .map_err(|_| bad(object, "CapEff", capabilities, "a hexadecimal number"))?,
    })
}

fn users(text: &str) -> Option<[u32; 4]> {
    let ids: Option<Vec<u32>> = text.split_whitespace().map(|id| id.parse().ok()).collect();
    ids?.try_into().ok()
}

/// The name behind `Name:` and a tab, in which the kernel escapes a newline and a backslash.
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
