//! Placement of a mapping so that more of it can be huge, and the choice to ask for huge pages in it. Pure.
//!
//! Hayasaka and Shimizu, "IA32 版 Linux Super Page の実現と評価" (2003), sections 4.1 and 4.2:
//!
//! | paper                                              | here                                                     |
//! | a superpage of 4 MiB                               | a [`Size`]: 2 MiB, or one of those below it              |
//! | Super Page 予約: reserve, at mmap, the aligned part | [`Placement::advise`]: MADV_HUGEPAGE on the mapping      |
//! | allocate at the access                             | the kernel's, at the first access to a window            |
//! | アライン: an option that aligns anonymous mmap      | [`Placement::align_to`]                                  |
//! | ワーキングセット: only aligned parts of the request | nothing is mapped beyond the request                     |
//!
//! We differ: several sizes; a mapping is only moved when that gains a superpage; a mapping that the program placed
//! itself (a hint, MAP_FIXED) stays there; memory for stacks, shared memory and files are left alone.

/// Page size, as a power of two of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(u8);

impl Size {
    /// 4 KiB: no superpage.
    pub const SMALL: Size = Size(12);
    /// 2 MiB: one entry of a page middle directory.
    pub const HUGE: Size = Size(21);

    /// Size from KiB: a power of two between 8 and 2048.
    pub const fn of_kib(kib: u32) -> Option<Size> {
        let mut order = Size::SMALL.0 + 1;
        while order <= Size::HUGE.0 {
            if 1 << (order - 10) == kib {
                return Some(Size(order));
            }
            order += 1;
        }
        None
    }

    /// In bytes.
    pub const fn bytes(self) -> usize {
        1 << self.0
    }

    /// In KiB.
    pub const fn kib(self) -> u32 {
        1 << (self.0 - 10)
    }
}

/// Set of page sizes available to a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes(u32);

impl Sizes {
    /// Empty set.
    pub const NONE: Sizes = Sizes(0);

    /// The set with `size` added.
    #[must_use]
    pub const fn with(self, size: Size) -> Sizes {
        Sizes(self.0 | 1 << size.0)
    }

    /// True if `size` is one of them.
    pub const fn contains(self, size: Size) -> bool {
        self.0 & 1 << size.0 != 0
    }

    /// Largest size of at most `bytes`.
    pub const fn largest_within(self, bytes: usize) -> Option<Size> {
        let mut order = Size::HUGE.0;
        while order > Size::SMALL.0 {
            if self.0 & 1 << order != 0 && 1 << order <= bytes {
                return Some(Size(order));
            }
            order -= 1;
        }
        None
    }

    /// Sizes of the set, largest first.
    pub fn iter(self) -> impl Iterator<Item = Size> {
        (0..=Size::HUGE.0).rev().map(Size).filter(move |size| self.contains(*size))
    }
}

/// Arguments of an `mmap` call, as far as the placement needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes asked for.
    pub bytes: usize,
    /// Private memory without a file: the only kind that is reserved.
    pub private_anonymous: bool,
    /// The program named an address: as a hint, or with MAP_FIXED.
    pub placed: bool,
    /// Meant for a stack (MAP_STACK, MAP_GROWSDOWN).
    pub stack: bool,
    /// Has a flag that ties it to its address or to a page size (MAP_LOCKED, MAP_HUGETLB, MAP_32BIT).
    pub peculiar: bool,
}

/// Placement of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Alignment for a mapping that may lie anywhere, if it gains a superpage.
    pub align_to: Option<Size>,
    /// Ask the kernel for huge pages in it.
    pub advise: bool,
}

/// Placement of `request` with the available page sizes `sizes`.
pub const fn placement(request: Request, sizes: Sizes, align: bool) -> Placement {
    let fits = sizes.largest_within(request.bytes);
    let ours = request.private_anonymous && !request.stack && !request.peculiar;
    match fits {
        Some(size) if ours => {
            Placement { align_to: if align && !request.placed { Some(size) } else { None }, advise: true }
        }
        _ => Placement { align_to: None, advise: false },
    }
}

/// Number of whole pages of `size` in the `bytes` from `start`.
pub const fn whole_pages(start: usize, bytes: usize, size: Size) -> usize {
    let unit = size.bytes();
    match (start.checked_next_multiple_of(unit), start.checked_add(bytes)) {
        (Some(first), Some(end)) if first < end => (end - first) / unit,
        _ => 0,
    }
}

/// Whether moving a mapping to a multiple of `size` gains a page.
pub const fn gains_by_alignment(start: usize, bytes: usize, size: Size) -> bool {
    whole_pages(start, bytes, size) < bytes / size.bytes()
}

/// Part of `[start, start + bytes)` in whole pages of `size`: its start and its bytes.
pub const fn whole_part(start: usize, bytes: usize, size: Size) -> Option<(usize, usize)> {
    match whole_pages(start, bytes, size) {
        0 => None,
        pages => Some((start.next_multiple_of(size.bytes()), pages * size.bytes())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: usize = 1 << 20;
    const PLAIN: Request =
        Request { bytes: 8 * MIB, private_anonymous: true, placed: false, stack: false, peculiar: false };
    const HUGE: Sizes = Sizes::NONE.with(Size::HUGE);

    #[test]
    fn a_large_anonymous_mapping_is_aligned_and_reserved() {
        let aligned = Placement { align_to: Some(Size::HUGE), advise: true };
        assert_eq!(placement(PLAIN, HUGE, true), aligned);
        assert_eq!(placement(Request { bytes: 2 * MIB, ..PLAIN }, HUGE, true), aligned);
        assert_eq!(placement(PLAIN, HUGE, false), Placement { align_to: None, advise: true });
    }

    #[test]
    fn what_is_smaller_than_a_superpage_is_left_alone() {
        let nothing = Placement { align_to: None, advise: false };
        assert_eq!(placement(Request { bytes: 2 * MIB - 4096, ..PLAIN }, HUGE, true), nothing);
        assert_eq!(placement(PLAIN, Sizes::NONE, true), nothing);
    }

    #[test]
    fn sizes_in_between_serve_mappings_in_between() {
        let sizes = HUGE.with(Size::of_kib(64).unwrap());
        let of = |bytes| placement(Request { bytes, ..PLAIN }, sizes, true).align_to;
        assert_eq!(of(100 << 10), Size::of_kib(64));
        assert_eq!(of(3 * MIB), Some(Size::HUGE));
        assert_eq!(of(60 << 10), None);
    }

    #[test]
    fn what_the_program_placed_stays_there() {
        let placed = placement(Request { placed: true, ..PLAIN }, HUGE, true);
        assert_eq!(placed, Placement { align_to: None, advise: true });
    }

    #[test]
    fn stacks_files_shared_and_peculiar_memory_are_left_alone() {
        let nothing = Placement { align_to: None, advise: false };
        assert_eq!(placement(Request { stack: true, ..PLAIN }, HUGE, true), nothing);
        assert_eq!(placement(Request { private_anonymous: false, ..PLAIN }, HUGE, true), nothing);
        assert_eq!(placement(Request { peculiar: true, ..PLAIN }, HUGE, true), nothing);
    }

    #[test]
    fn the_paper_s_figure_7_loses_a_superpage_at_both_ends() {
        // 9 MiB from 1 MiB on: whole windows only from 2 to 10 MiB. An aligned mapping has as many.
        assert_eq!(whole_pages(MIB, 9 * MIB, Size::HUGE), 4);
        assert!(!gains_by_alignment(MIB, 9 * MIB, Size::HUGE));
        // 8 MiB from 1 MiB on: 2 to 8, three of four.
        assert_eq!(whole_part(MIB, 8 * MIB, Size::HUGE), Some((2 * MIB, 6 * MIB)));
        assert!(gains_by_alignment(MIB, 8 * MIB, Size::HUGE));
    }

    #[test]
    fn sizes_are_powers_of_two_up_to_two_mib() {
        assert_eq!(Size::of_kib(2048), Some(Size::HUGE));
        assert_eq!(Size::of_kib(64).map(Size::bytes), Some(65536));
        assert_eq!(Size::of_kib(64).map(Size::kib), Some(64));
        for bad in [0, 1, 4, 48, 4096] {
            assert_eq!(Size::of_kib(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn an_aligned_mapping_has_as_many_whole_pages_as_fit(start in 0usize..1 << 46, bytes in 1usize..1 << 40) {
            let start = start & !4095;
            let aligned = start.next_multiple_of(Size::HUGE.bytes());
            prop_assert!(!gains_by_alignment(aligned, bytes, Size::HUGE));
            prop_assert!(whole_pages(start, bytes, Size::HUGE) <= whole_pages(aligned, bytes, Size::HUGE));
        }

        #[test]
        fn the_whole_part_lies_within_and_is_aligned(start in any::<usize>(), bytes in any::<usize>()) {
            if let Some((first, whole)) = whole_part(start, bytes, Size::HUGE) {
                prop_assert!(first >= start && first + whole <= start + bytes);
                prop_assert!(first % Size::HUGE.bytes() == 0 && whole % Size::HUGE.bytes() == 0 && whole > 0);
            }
        }
    }
}
