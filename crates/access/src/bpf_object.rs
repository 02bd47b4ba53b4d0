//! Common parts of our BPF programs: their alignment, and the reasons for which a kernel refuses them.

use libbpf_rs::{MapCore, MapHandle, Object};

use crate::backend::Unavailable;

/// A compiled program, aligned as the ELF reader expects it.
#[repr(align(16))]
pub struct Aligned<T: ?Sized>(pub T);

/// Reason for which `program` ("the walk's program") may or can not `what` ("be loaded").
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
        _ if errno.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => {
            (format!("{program} cannot {what}: {error} (EMFILE)"), "Raise the limit of open files: `ulimit -n 256`.")
        }
        _ => (
            format!("{program} cannot {what}: {error} ({errno})"),
            "Use Linux 6.1 or newer with CONFIG_BPF_SYSCALL=y and CONFIG_DEBUG_INFO_BTF=y.",
        ),
    };
    Unavailable { reason, remedy: remedy.to_owned() }
}

/// Map of this name in a loaded object of `program`.
pub fn map_of(object: &Object, program: &str, name: &str) -> Result<MapHandle, Unavailable> {
    let map = object.maps().find(|map| map.name() == name).ok_or_else(|| Unavailable {
        reason: format!("{program} has no map {name}"),
        remedy: "Rebuild masu: its BPF object does not fit.".to_owned(),
    })?;
    MapHandle::try_from(&map).map_err(|error| refused(program, "share its maps", &error))
}

/// Members of a struct in the compiled program, each with its offset, for tests: `object` is its name in `bpf/`.
#[cfg(test)]
pub fn layout(object: &str, record: &str) -> Vec<(String, u32)> {
    use libbpf_rs::btf::Btf;
    use libbpf_rs::btf::types::{MemberAttr, Struct, StructMember};
    let btf = Btf::from_path(format!("{}/bpf/{object}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let offset = |member: &StructMember<'_>| match member.attr {
        MemberAttr::Normal { offset } => offset / 8,
        MemberAttr::BitField { .. } => panic!("no bit fields here"),
    };
    let record = btf.type_by_name::<Struct<'_>>(record).unwrap();
    record.iter().map(|member| (member.name.unwrap().to_string_lossy().into_owned(), offset(&member))).collect()
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
