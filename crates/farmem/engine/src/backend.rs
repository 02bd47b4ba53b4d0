//! Backends that evict pages of a program and map them in again, and the choice of one for a kernel. Pure.
//!
//! | backend | how a page leaves | since |
//! |---|---|---|
//! | move | its frame is moved (`UFFDIO_MOVE`) | Linux 6.8 |
//! | copy | protected against writes (`UFFDIO_WRITEPROTECT`), copied, its frame given to the kernel | Linux 5.7 |
//!
//! Both backends serve a fault in the faulting thread (`UFFD_FEATURE_SIGBUS`).

/// Feature bits of a kernel's userfaultfd (linux/userfaultfd.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// A write to a page that is protected against writes is a fault (`UFFD_FEATURE_PAGEFAULT_FLAG_WP`).
    pub const WRITE_PROTECT: Features = Features(1 << 0);
    /// A fault is a signal in the faulting thread (`UFFD_FEATURE_SIGBUS`).
    pub const SIGBUS: Features = Features(1 << 7);
    /// Frames are moved (`UFFD_FEATURE_MOVE`).
    pub const MOVE: Features = Features(1 << 16);

    /// Union of both sets of bits.
    pub const fn and(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// Whether all bits of `all` are set.
    pub const fn has(self, all: Features) -> bool {
        self.0 & all.0 == all.0
    }
}

/// Backend that evicts pages and maps them in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Moves frames without a copy.
    Move = 1,
    /// Copies pages between frames of the kernel.
    Copy = 2,
}

impl Backend {
    /// All backends, best first.
    pub const ALL: [Backend; 2] = [Backend::Move, Backend::Copy];

    /// Name in output and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Move => "move",
            Backend::Copy => "copy",
        }
    }

    /// Features that the backend requires.
    pub const fn needs(self) -> Features {
        match self {
            Backend::Move => Features::SIGBUS.and(Features::MOVE),
            Backend::Copy => Features::SIGBUS.and(Features::WRITE_PROTECT),
        }
    }

    /// Largest number of pages that are in two places at a time and take a frame in each.
    pub const fn doubled_pages(self) -> u32 {
        match self {
            Backend::Move => 0,
            Backend::Copy => 16,
        }
    }

    /// The best backend that the kernel offers, or the `wanted` one if the kernel offers it.
    pub fn choose(offered: Features, wanted: Option<Backend>) -> Option<Backend> {
        let fits = |backend: &Backend| offered.has(backend.needs()) && wanted.is_none_or(|wanted| wanted == *backend);
        Backend::ALL.into_iter().find(fits)
    }

    pub(crate) fn of_word(word: u64) -> Option<Backend> {
        Backend::ALL.into_iter().find(|backend| *backend as u64 == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Features of Debian's 6.1, and of 6.18: every bit up to `UFFD_FEATURE_WP_HUGETLBFS_SHMEM`, and to
    /// `UFFD_FEATURE_MOVE`.
    const OLD: Features = Features(0x1fff);
    const NEW: Features = Features(0x1_ffff);

    #[test]
    fn the_best_backend_that_a_kernel_has_is_taken() {
        assert_eq!(Backend::choose(NEW, None), Some(Backend::Move));
        assert_eq!(Backend::choose(OLD, None), Some(Backend::Copy));
        assert_eq!(
            Backend::choose(Features(NEW.0 | 1 << 40), None),
            Some(Backend::Move),
            "newer bits are nothing to us"
        );
    }

    #[test]
    fn the_wanted_backend_is_taken_or_none() {
        assert_eq!(Backend::choose(NEW, Some(Backend::Copy)), Some(Backend::Copy));
        assert_eq!(Backend::choose(NEW, Some(Backend::Move)), Some(Backend::Move));
        assert_eq!(Backend::choose(OLD, Some(Backend::Copy)), Some(Backend::Copy));
        assert_eq!(Backend::choose(OLD, Some(Backend::Move)), None);
    }

    #[test]
    fn there_is_no_backend_without_the_signal_or_without_either_way() {
        assert_eq!(Backend::choose(Features(NEW.0 & !Features::SIGBUS.0), None), None);
        assert_eq!(Backend::choose(Features::SIGBUS, None), None);
        assert_eq!(Backend::choose(Features(0), None), None);
        let unprotected = Features(NEW.0 & !Features::WRITE_PROTECT.0);
        assert_eq!(Backend::choose(unprotected, None), Some(Backend::Move));
        assert_eq!(Backend::choose(unprotected, Some(Backend::Copy)), None);
    }

    #[test]
    fn only_a_copy_takes_frames_besides() {
        assert_eq!(Backend::ALL.map(Backend::doubled_pages), [0, 16]);
    }
}
