//! Capabilities: the parts of root's power; reads the sets of a process and drops capabilities.
//!
//! The sets come from `status.rs`; each interface's file names the capabilities that its calls need.
//!
//! Cost: one read of `/proc/self/status`; [`restrict_to`] some 50 system calls. Side effects: none of reading; [`restrict_to`]
//! changes the calling thread for good, and the threads and processes that it starts afterwards.
//!
//! Since: CAP_PERFMON and CAP_BPF Linux 5.8, before and still also covered by CAP_SYS_ADMIN. In a user namespace a full
//! set says little: most of these calls ask for the capability in the first namespace.
//!
//! Truth: capabilities(7), prctl(2); include/uapi/linux/capability.h.

use std::fmt;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};
use serde::{Serialize, Serializer};

use crate::{Error, KernelFiles, Pid, status, user_namespace};

/// Capabilities that masu uses. The discriminant is the kernel's number of the bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// Read and write files of others.
    DacOverride = 1,
    /// Read files of others, search their folders, and open files by handle.
    DacReadSearch = 2,
    /// Act as the owner of others' files: open them without updating the access time, query their pages in memory.
    Fowner = 3,
    /// Signal processes of others.
    Kill = 5,
    /// Change the group.
    Setgid = 6,
    /// Change the user.
    Setuid = 7,
    /// Lock more memory than the limit.
    IpcLock = 14,
    /// Inspect the processes of others.
    SysPtrace = 19,
    /// Write settings, and read frame numbers.
    SysAdmin = 21,
    /// Give advice about the memory of others.
    SysNice = 23,
    /// Exceed resource limits.
    SysResource = 24,
    /// Let a BPF program read kernel memory.
    Perfmon = 38,
    /// Load a BPF program.
    Bpf = 39,
}

impl Capability {
    /// All capabilities, by number.
    pub const ALL: [Capability; 13] = [
        Capability::DacOverride,
        Capability::DacReadSearch,
        Capability::Fowner,
        Capability::Kill,
        Capability::Setgid,
        Capability::Setuid,
        Capability::IpcLock,
        Capability::SysPtrace,
        Capability::SysAdmin,
        Capability::SysNice,
        Capability::SysResource,
        Capability::Perfmon,
        Capability::Bpf,
    ];

    /// Name in documents: `CAP_SYS_PTRACE`.
    pub const fn name(self) -> &'static str {
        match self {
            Capability::DacOverride => "CAP_DAC_OVERRIDE",
            Capability::DacReadSearch => "CAP_DAC_READ_SEARCH",
            Capability::Fowner => "CAP_FOWNER",
            Capability::Kill => "CAP_KILL",
            Capability::Setgid => "CAP_SETGID",
            Capability::Setuid => "CAP_SETUID",
            Capability::IpcLock => "CAP_IPC_LOCK",
            Capability::SysPtrace => "CAP_SYS_PTRACE",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
            Capability::SysNice => "CAP_SYS_NICE",
            Capability::SysResource => "CAP_SYS_RESOURCE",
            Capability::Perfmon => "CAP_PERFMON",
            Capability::Bpf => "CAP_BPF",
        }
    }

    /// The capability of this name.
    pub fn of_name(name: &str) -> Option<Capability> {
        Capability::ALL.into_iter().find(|capability| capability.name() == name)
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A set of capabilities, one bit each. Serialises as the list of the known names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// CAP_SETPCAP alone: kept until the last of several steps, so that this step cuts the bounding set, too.
    pub const STEPS: Capabilities = Capabilities(1 << 8);

    /// Set of the listed capabilities.
    pub const fn of(list: &[Capability]) -> Capabilities {
        let (mut bits, mut at) = (0, 0);
        while at < list.len() {
            bits |= 1 << list[at] as u32;
            at += 1;
        }
        Capabilities(bits)
    }

    /// Union of the two sets.
    pub const fn and(self, other: Capabilities) -> Capabilities {
        Capabilities(self.0 | other.0)
    }

    /// True when the bit itself is set.
    pub const fn contains(self, capability: Capability) -> bool {
        self.0 & (1 << capability as u32) != 0
    }

    /// True when the kernel would grant `capability` to the holder of this set: by the bit, or for CAP_BPF and
    /// CAP_PERFMON by CAP_SYS_ADMIN.
    pub const fn covers(self, capability: Capability) -> bool {
        let by_admin = matches!(capability, Capability::Bpf | Capability::Perfmon);
        self.contains(capability) || (by_admin && self.contains(Capability::SysAdmin))
    }

    /// Capabilities in the set that masu knows, by number.
    pub fn known(self) -> impl Iterator<Item = Capability> {
        Capability::ALL.into_iter().filter(move |capability| self.contains(*capability))
    }
}

impl Serialize for Capabilities {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.known().map(Capability::name))
    }
}

/// Effective set of this process.
///
/// # Errors
/// As [`status::status`].
pub fn own(files: &impl KernelFiles) -> Result<Capabilities, Error> {
    status::status(files, Pid::own()).map(|status| Capabilities(status.effective_capabilities))
}

/// Whether this process may advise on the memory of others: by CAP_SYS_NICE over the host. A user namespace's own root
/// has the bit and not the right. Where the namespace is not known, the bit decides.
///
/// # Errors
/// As [`own`].
pub fn may_advise_others(files: &impl KernelFiles) -> Result<bool, Error> {
    Ok(own(files)?.contains(Capability::SysNice) && user_namespace::is_initial().unwrap_or(true))
}

/// Refuses if this process lacks the capability. For calls that the kernel would allow, but answer wrongly: `object` is
/// the object to be read.
///
/// # Errors
/// `Denied` without the capability; else as [`own`].
pub fn need(files: &impl KernelFiles, capability: Capability, object: &str) -> Result<(), Error> {
    if own(files)?.covers(capability) {
        return Ok(());
    }
    Err(Error::of_host("read", format_args!("{object} without {capability}"), Errno::PERM))
}

/// Drops all capabilities but `kept` for the calling thread and its later children: also the inheritable, ambient and
/// bounding ones. Sets no_new_privs, so that no program that it starts regains any.
///
/// A thread without CAP_SETPCAP cannot cut its bounding set; with no_new_privs that set gives nothing.
///
/// # Errors
/// The kernel's answer: a seccomp filter that forbids the calls.
pub fn restrict_to(kept: Capabilities) -> Result<(), Errno> {
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if kept.0 & one.bits() != 0 {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // Beyond the kernel's last capability; or without CAP_SETPCAP.
            Err(Errno::INVAL | Errno::PERM) => break,
            Err(error) => return Err(error),
        }
    }
    clear_ambient_capability_set()?;
    let kept = CapabilitySet::from_bits_retain(kept.0);
    let CapabilitySets { effective, permitted, inheritable } = capabilities(None)?;
    let less =
        CapabilitySets { effective: effective & kept, permitted: permitted & kept, inheritable: inheritable & kept };
    set_capabilities(None, less)?;
    set_no_new_privs(true)?;
    crate::proxy::retire(); // proxies still have the previous rights
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rooted;
    use crate::fake::FakeKernel;

    const RECORDED: &str = include_str!("../../tests/recorded/6.18/status");

    #[test]
    fn each_name_belongs_to_one_bit_and_back() {
        for capability in Capability::ALL {
            assert_eq!(Capability::of_name(capability.name()), Some(capability));
            let only = Capabilities(1 << capability as u32);
            assert_eq!(only.known().collect::<Vec<_>>(), [capability]);
        }
        assert_eq!(Capability::of_name("CAP_CHOWN"), None);
    }

    #[test]
    fn the_numbers_are_those_of_the_kernel() {
        let theirs = [
            CapabilitySet::DAC_OVERRIDE,
            CapabilitySet::DAC_READ_SEARCH,
            CapabilitySet::FOWNER,
            CapabilitySet::KILL,
            CapabilitySet::SETGID,
            CapabilitySet::SETUID,
            CapabilitySet::IPC_LOCK,
            CapabilitySet::SYS_PTRACE,
            CapabilitySet::SYS_ADMIN,
            CapabilitySet::SYS_NICE,
            CapabilitySet::SYS_RESOURCE,
            CapabilitySet::PERFMON,
            CapabilitySet::BPF,
        ];
        assert_eq!(Capability::ALL.map(|capability| 1 << capability as u32), theirs.map(|set| set.bits()));
    }

    #[test]
    fn sys_admin_covers_bpf_and_perfmon_but_not_ptrace() {
        let admin = Capabilities(1 << 21);
        assert!(admin.covers(Capability::Bpf) && admin.covers(Capability::Perfmon));
        assert!(!admin.covers(Capability::SysPtrace) && !admin.contains(Capability::Bpf));
        assert!(Capabilities(1 << 39).covers(Capability::Bpf));
    }

    #[test]
    fn our_own_set_is_read_and_serialises_as_names() {
        let kernel = FakeKernel::new().file(&Pid::own().file("status"), RECORDED);
        let own = own(&kernel).unwrap();
        assert!(!own.contains(Capability::SysResource)); // the recorder ran without it
        let names = r#"["CAP_DAC_OVERRIDE","CAP_DAC_READ_SEARCH","CAP_FOWNER","CAP_KILL","CAP_SETGID","CAP_SETUID","CAP_IPC_LOCK","CAP_SYS_PTRACE","CAP_SYS_ADMIN","CAP_SYS_NICE","CAP_PERFMON","CAP_BPF"]"#;
        assert_eq!(serde_json::to_string(&own).unwrap(), names);
    }

    #[test]
    fn a_missing_status_is_an_error_and_not_an_empty_set() {
        assert!(own(&FakeKernel::new()).is_err());
    }

    #[test]
    fn what_is_lacking_is_named_with_what_it_is_needed_for() {
        let kernel = FakeKernel::new().file(&Pid::own().file("status"), RECORDED);
        assert_eq!(need(&kernel, Capability::SysAdmin, "frame numbers"), Ok(()));
        let error = need(&kernel, Capability::SysResource, "frame numbers").unwrap_err();
        assert!(matches!(error, Error::Denied(_)));
        let expected = "cannot read frame numbers without CAP_SYS_RESOURCE: operation not permitted (EPERM)";
        assert_eq!(error.to_string(), expected);
        assert!(need(&FakeKernel::new(), Capability::SysAdmin, "frame numbers").is_err());
    }

    #[test]
    fn a_set_has_what_it_is_made_of_and_nothing_else() {
        let two = Capabilities::of(&[Capability::Kill]).and(Capabilities::of(&[Capability::Bpf]));
        assert_eq!(two.known().collect::<Vec<_>>(), [Capability::Kill, Capability::Bpf]);
        assert_eq!(two.0.count_ones(), 2);
    }

    /// Runs in a thread of its own: the dropped capabilities are lost for that thread alone.
    fn status_after(kept: Capabilities) -> String {
        let thread = std::thread::spawn(move || {
            restrict_to(kept).unwrap();
            std::fs::read_to_string("/proc/thread-self/status").unwrap()
        });
        thread.join().unwrap()
    }

    #[test]
    fn what_is_not_kept_is_given_up_by_the_calling_thread_alone() {
        let before = own(&Rooted::host()).unwrap();
        let kept = Capabilities::of(&[Capability::SysNice, Capability::Kill]);
        let after = status_after(kept);
        let set = |key: &str| {
            let line = after.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        assert_eq!(set("CapEff:"), before.0 & kept.0);
        assert_eq!(set("CapPrm:"), before.0 & kept.0);
        assert_eq!((set("CapInh:") & !kept.0, set("CapAmb:"), set("NoNewPrivs:")), (0, 0, 1));
        if before.0 & (1 << 8) != 0 {
            assert_eq!(set("CapBnd:") & !kept.0, 0, "with CAP_SETPCAP the bounding set is cut, too");
        }
        assert_eq!(own(&Rooted::host()).unwrap(), before);
    }

    #[test]
    fn what_was_given_up_does_not_come_back() {
        let thread = std::thread::spawn(|| {
            restrict_to(Capabilities::of(&[Capability::Kill])).unwrap();
            let held = capabilities(None).unwrap();
            restrict_to(Capabilities(u64::MAX)).unwrap();
            assert_eq!(capabilities(None).unwrap(), held);
            let all = CapabilitySet::from_bits_retain(1 << Capability::SysAdmin as u32);
            let more = CapabilitySets { effective: all, permitted: all, inheritable: all };
            assert_eq!(set_capabilities(None, more), Err(Errno::PERM));
        });
        thread.join().unwrap();
    }

    #[test]
    fn the_kernel_says_the_same_of_this_process() {
        let theirs = rustix::thread::capabilities(None).unwrap().effective.bits();
        assert_eq!(own(&Rooted::host()).unwrap(), Capabilities(theirs));
    }
}
