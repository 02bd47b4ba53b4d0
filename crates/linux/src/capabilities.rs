//! Capabilities: the pieces of root's power, and which of them a process holds.
//!
//! The sets come from `status.rs`; which call needs which is said by each interface's file.
//!
//! Cost: one read of `/proc/self/status`. Side effects: none.
//!
//! Since: CAP_PERFMON and CAP_BPF Linux 5.8, before and still also covered by CAP_SYS_ADMIN. In a user namespace a full
//! set says little: most of these calls ask for the capability in the first namespace.
//!
//! Truth: capabilities(7); include/uapi/linux/capability.h.

use std::fmt;

use rustix::io::Errno;
use serde::{Serialize, Serializer};

use crate::{Error, KernelFiles, Pid, status};

/// The capabilities that masu asks for. The discriminant is the kernel's number of the bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// To look into the processes of others.
    SysPtrace = 19,
    /// To set knobs, and to see frame numbers.
    SysAdmin = 21,
    /// To give advice about the memory of others.
    SysNice = 23,
    /// To go over limits.
    SysResource = 24,
    /// To let a BPF program read kernel memory.
    Perfmon = 38,
    /// To load a BPF program.
    Bpf = 39,
}

impl Capability {
    /// All of them, by number.
    pub const ALL: [Capability; 6] = [
        Capability::SysPtrace,
        Capability::SysAdmin,
        Capability::SysNice,
        Capability::SysResource,
        Capability::Perfmon,
        Capability::Bpf,
    ];

    /// Its name in documents: `CAP_SYS_PTRACE`.
    pub const fn name(self) -> &'static str {
        match self {
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

/// A set of capabilities, one bit each. Serialises as the list of names that we know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// True when the bit itself is set.
    pub const fn contains(self, capability: Capability) -> bool {
        self.0 & (1 << capability as u32) != 0
    }

    /// True when the kernel would let its holder do what `capability` is for: by the bit, or for CAP_BPF and
    /// CAP_PERFMON by CAP_SYS_ADMIN.
    pub const fn covers(self, capability: Capability) -> bool {
        let by_admin = matches!(capability, Capability::Bpf | Capability::Perfmon);
        self.contains(capability) || (by_admin && self.contains(Capability::SysAdmin))
    }

    /// Those of ours that are in it, by number.
    pub fn known(self) -> impl Iterator<Item = Capability> {
        Capability::ALL.into_iter().filter(move |capability| self.contains(*capability))
    }
}

impl Serialize for Capabilities {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.known().map(Capability::name))
    }
}

/// The effective set of this process.
///
/// # Errors
/// As [`status::status`].
pub fn own(files: &impl KernelFiles) -> Result<Capabilities, Error> {
    status::status(files, Pid::own()).map(|status| Capabilities(status.effective_capabilities))
}

/// Says no where this process lacks what the kernel would let pass, and answer wrongly: `object` is what would be read.
///
/// # Errors
/// `Denied` without it; else as [`own`].
pub fn need(files: &impl KernelFiles, capability: Capability, object: &str) -> Result<(), Error> {
    if own(files)?.covers(capability) {
        return Ok(());
    }
    Err(Error::of_host("read", format_args!("{object} without {capability}"), Errno::PERM))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rooted;
    use crate::fake::FakeKernel;

    const RECORDED: &str = include_str!("../tests/recorded/6.18/status");

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
        use rustix::thread::CapabilitySet;
        let theirs = [
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
        let names = r#"["CAP_SYS_PTRACE","CAP_SYS_ADMIN","CAP_SYS_NICE","CAP_PERFMON","CAP_BPF"]"#;
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
    fn the_kernel_says_the_same_of_this_process() {
        let theirs = rustix::thread::capabilities(None).unwrap().effective.bits();
        assert_eq!(own(&Rooted::host()).unwrap(), Capabilities(theirs));
    }
}
