//! Page sizes that a program can get at the first touch on this host, and the settings to change for others. Pure: the
//! host's settings come as arguments.

use contract::placement::{Size, Sizes};
use linux::thp::{Enabled, Settings, SizeEnabled};
use units::{Bytes, PageSize};

use crate::failure::Failure;

/// The host's setting for a page size.
fn file_of(size: Size) -> String {
    format!("/{}/hugepages-{}kB/enabled", linux::thp::ROOT, size.kib())
}

/// Whether the host gives pages of a size to memory that asks for it, and the file that decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// Given.
    Yes,
    /// Not given; writing `write` to `file` changes that.
    No { file: String, says: &'static str, write: &'static str },
    /// This kernel has no such pages.
    Unknown,
}

/// Whether this host gives pages of `size` to memory that asks.
pub fn given(size: Size, host: &Settings) -> Given {
    let whole = format!("/{}", linux::thp::ENABLED);
    let by_all = || match host.enabled {
        Enabled::Never => Given::No { file: whole.clone(), says: "never", write: "madvise" },
        Enabled::Always | Enabled::Madvise => Given::Yes,
    };
    let listed = host.sizes.iter().find(|listed| listed.bytes == Bytes::kib(u64::from(size.kib())));
    match listed.and_then(|listed| listed.enabled) {
        // Before Linux 6.8: one size, and one file.
        None if size == Size::HUGE && host.sizes.is_empty() && host.pmd_bytes == PageSize::Huge.bytes() => by_all(),
        None => Given::Unknown,
        Some(SizeEnabled::Inherit) => by_all(),
        Some(SizeEnabled::Never) => Given::No { file: file_of(size), says: "never", write: "madvise" },
        Some(SizeEnabled::Always | SizeEnabled::Madvise) => Given::Yes,
    }
}

/// Every page size of this kernel for private memory, largest first, and whether the host gives it.
pub fn all(host: &Settings) -> Vec<(Size, Given)> {
    let sizes = (12..=20).rev().filter_map(|order| Size::of_kib(1 << (order - 9)));
    sizes.map(|size| (size, given(size, host))).filter(|(_, given)| *given != Given::Unknown).collect()
}

/// Sizes to ask for: the requested ones, or all that the host gives.
pub fn choose(wanted: &[Size], host: &Settings) -> Result<Sizes, Failure> {
    let yes = all(host).into_iter().filter(|(_, given)| *given == Given::Yes).map(|(size, _)| size);
    if wanted.is_empty() {
        return Ok(yes.fold(Sizes::NONE, Sizes::with));
    }
    for size in wanted {
        match given(*size, host) {
            Given::Yes => {}
            Given::No { file, says, write } => {
                let line = format!("cannot use pages of {}: {file} is {says}", shown(*size));
                return Err(Failure::new(line).remedy(format!(
                    "As root: echo {write} > {file}   (for all programs that ask); `masu facts` lists the sizes."
                )));
            }
            Given::Unknown => {
                let line = format!("cannot use pages of {}: there is no {}", shown(*size), file_of(*size));
                return Err(Failure::new(line).remedy("`masu facts` lists the sizes that this kernel has."));
            }
        }
    }
    let wanted: Sizes = wanted.iter().copied().fold(Sizes::NONE, Sizes::with);
    // The kernel gives the largest page that fits: a size above the requested ones cannot be left out from inside.
    let smallest = wanted.iter().last();
    let larger = |size: &Size| !wanted.contains(*size) && smallest.is_some_and(|smallest| *size > smallest);
    if let Some(size) = yes.into_iter().find(larger) {
        let line = format!("cannot leave out pages of {}: {} gives them to all that ask", shown(size), file_of(size));
        return Err(Failure::new(line).remedy(format!(
            "Name {} too, or as root: echo never > {}   (for all programs).",
            shown(size),
            file_of(size)
        )));
    }
    Ok(wanted)
}

/// `64 KiB`, `2 MiB`.
pub fn shown(size: Size) -> String {
    if size == Size::HUGE { "2 MiB".to_owned() } else { format!("{} KiB", size.kib()) }
}

#[cfg(test)]
mod tests {
    use linux::thp::{Defrag, Size as Listed};

    use super::*;

    fn host(enabled: Enabled, sizes: &[(u64, SizeEnabled)]) -> Settings {
        let sizes = sizes.iter().map(|(kib, on)| Listed { bytes: Bytes::kib(*kib), enabled: Some(*on) }).collect();
        Settings {
            enabled,
            defrag: Defrag::Madvise,
            shmem_enabled: None,
            use_zero_page: true,
            pmd_bytes: Bytes::mib(2),
            sizes,
        }
    }

    fn kib(kib: u32) -> Size {
        Size::of_kib(kib).unwrap()
    }

    const NEW: [(u64, SizeEnabled); 2] = [(64, SizeEnabled::Never), (2048, SizeEnabled::Inherit)];

    #[test]
    fn by_default_all_that_the_host_gives() {
        let of = |enabled, sizes: &[_]| choose(&[], &host(enabled, sizes)).unwrap().iter().collect::<Vec<_>>();
        assert_eq!(of(Enabled::Madvise, &NEW), [Size::HUGE]);
        assert_eq!(of(Enabled::Madvise, &[]), [Size::HUGE], "before Linux 6.8");
        assert_eq!(of(Enabled::Never, &NEW), []);
        let both = [(64, SizeEnabled::Madvise), (2048, SizeEnabled::Always)];
        assert_eq!(of(Enabled::Never, &both), [Size::HUGE, kib(64)]);
    }

    #[test]
    fn a_size_that_is_off_names_the_file_and_the_word() {
        let error = choose(&[Size::HUGE, kib(64)], &host(Enabled::Madvise, &NEW)).unwrap_err().to_string();
        assert_eq!(
            error,
            "masu: cannot use pages of 64 KiB: /sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled is never\n    \
             As root: echo madvise > /sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled   (for all programs that \
             ask); `masu facts` lists the sizes."
        );
        let error = choose(&[Size::HUGE], &host(Enabled::Never, &NEW)).unwrap_err().to_string();
        assert!(error.contains("/sys/kernel/mm/transparent_hugepage/enabled is never"), "{error}");
    }

    #[test]
    fn a_size_that_the_kernel_does_not_have_is_said_so() {
        let error = choose(&[kib(32)], &host(Enabled::Madvise, &NEW)).unwrap_err().to_string();
        assert!(error.contains("there is no /sys/kernel/mm/transparent_hugepage/hugepages-32kB/enabled"), "{error}");
        let error = choose(&[kib(64)], &host(Enabled::Madvise, &[])).unwrap_err().to_string();
        assert!(error.contains("there is no"), "{error}");
    }

    #[test]
    fn a_larger_size_that_is_on_cannot_be_left_out() {
        let both = [(64, SizeEnabled::Madvise), (2048, SizeEnabled::Inherit)];
        let error = choose(&[kib(64)], &host(Enabled::Madvise, &both)).unwrap_err().to_string();
        assert!(error.contains("cannot leave out pages of 2 MiB"), "{error}");
        assert!(choose(&[kib(64), Size::HUGE], &host(Enabled::Madvise, &both)).is_ok());
        let small_only = [(64, SizeEnabled::Madvise), (2048, SizeEnabled::Never)];
        assert!(choose(&[kib(64)], &host(Enabled::Madvise, &small_only)).is_ok());
    }
}
