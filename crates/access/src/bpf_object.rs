//! What all our BPF programs have in common: how their bytes lie, and why a kernel refuses them.

use crate::rung::Unavailable;

/// A compiled program, aligned as the ELF reader expects it.
#[repr(align(16))]
pub struct Aligned<T: ?Sized>(pub T);

/// Why `program` ("the walk's program") may or can not `what` ("be loaded").
pub fn refused(program: &str, what: &str, error: &libbpf_rs::Error) -> Unavailable {
    use libbpf_rs::ErrorKind;
    let errno = std::io::Error::last_os_error();
    let (reason, remedy) = match error.kind() {
        ErrorKind::PermissionDenied => (
            format!("{program} may not {what}: operation not permitted (EPERM)"),
            "Run as root, or with CAP_BPF and CAP_PERFMON; kernel lockdown (confidentiality) forbids it to all.",
        ),
        ErrorKind::NotFound => (
            "the kernel has no type information (/sys/kernel/btf/vmlinux)".to_owned(),
            "Use a kernel built with CONFIG_DEBUG_INFO_BTF=y.",
        ),
        _ => (
            format!("{program} cannot {what}: {error} ({errno})"),
            "Use Linux 6.1 or newer with CONFIG_BPF_SYSCALL=y and CONFIG_DEBUG_INFO_BTF=y.",
        ),
    };
    Unavailable { reason, remedy: remedy.to_owned() }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    fn refusal(errno: Errno) -> Unavailable {
        refused("the walk's program", "be loaded", &std::io::Error::from_raw_os_error(errno.raw_os_error()).into())
    }

    #[test]
    fn a_locked_down_kernel_is_named_beside_the_missing_privilege() {
        let Unavailable { reason, remedy } = refusal(Errno::PERM);
        assert_eq!(reason, "the walk's program may not be loaded: operation not permitted (EPERM)");
        assert!(remedy.contains("CAP_BPF") && remedy.contains("lockdown (confidentiality)"), "{remedy}");
    }

    #[test]
    fn a_kernel_without_type_information_or_too_old_is_told_which_option_or_version_it_takes() {
        assert!(refusal(Errno::NOENT).remedy.contains("CONFIG_DEBUG_INFO_BTF"));
        assert!(refusal(Errno::INVAL).remedy.contains("Linux 6.1"));
    }
}
