//! Result of an observation: for each window its pages, present or not, and the access rate of each. Pure.

use std::time::Duration;

use units::{Bytes, PAGES_PER_WINDOW, PageSize, Pages, Rate, Window};

use crate::Backend;

/// A set of the pages of one window, page `n` by bit `n % 64` of word `n / 64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageSet(pub [u64; 8]);

impl PageSet {
    /// Empty set.
    pub const EMPTY: PageSet = PageSet([0; 8]);

    /// All 512 pages.
    pub const FULL: PageSet = PageSet([u64::MAX; 8]);

    /// Number of pages in it.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether page `index` (below 512) is in it.
    pub fn contains(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }

    /// Adds page `index` (below 512).
    pub fn insert(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    /// Pages in it, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(word, bits)| {
            let mut left = *bits;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(word * 64 + bit)
            })
        })
    }

    /// Pages in it and not in `other`.
    #[must_use]
    pub fn without(&self, other: &PageSet) -> PageSet {
        PageSet(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// Pages in it or in `other`.
    #[must_use]
    pub fn union(&self, other: &PageSet) -> PageSet {
        PageSet(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }
}

/// Access rate of the pages of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Class {
    /// The paper's `acscount`: scans that saw the page young.
    pub accessed_reads: u32,
    /// Accesses that cost a page walk, per second.
    pub rate: Rate,
}

/// One window of 2 MiB and the class of each of its pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowHeat {
    /// Address of the window.
    pub window: Window,
    /// Mapped by one entry: the whole window has one accessed bit, so its pages are all in one class.
    pub huge: bool,
    /// Pages of the program's own in memory, without the zero page.
    pub present: PageSet,
    /// Pages seen touched: not in class 0.
    pub touched: PageSet,
    /// Index into [`AccessMap::classes`], by page. Class 0 is "not seen touched".
    pub class_of: Box<[u8; PAGES_PER_WINDOW]>,
}

/// Puts the pages whose bits are set in `class`, eight at a time and without a branch: in a warm window half the bits
/// are set, in no order that a branch predictor could learn.
fn classify_chosen(classes: &mut [u8; 64], bits: u64, class: u8) {
    const ONE_EACH: u64 = 0x0101_0101_0101_0101;
    for (eight, chosen) in classes.as_chunks_mut::<8>().0.iter_mut().zip(bits.to_le_bytes()) {
        // Bit n of `chosen` alone in byte n, then carried into that byte's top bit, then spread over the byte.
        let alone = (u64::from(chosen) * ONE_EACH) & 0x8040_2010_0804_0201;
        let mask = ((((alone + 0x7f * ONE_EACH) | alone) >> 7) & ONE_EACH) * 0xff;
        let old = u64::from_le_bytes(*eight);
        *eight = ((old & !mask) | ((u64::from(class) * ONE_EACH) & mask)).to_le_bytes();
    }
}

/// Result of an observation. Windows are in order of address; windows without a page in memory are left out.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessMap {
    /// Backend, which determines the exactness.
    pub backend: Backend,
    /// Length of the observation.
    pub observed: Duration,
    /// Class 0 is "not seen touched"; a higher class number is not a higher rate.
    pub classes: Vec<Class>,
    /// The windows.
    pub windows: Vec<WindowHeat>,
}

impl AccessMap {
    /// Empty result.
    pub fn empty(backend: Backend) -> AccessMap {
        AccessMap { backend, observed: Duration::ZERO, classes: vec![Class::default()], windows: Vec::new() }
    }

    /// Class of one page.
    pub fn class(&self, heat: &WindowHeat, page: usize) -> Class {
        self.classes[usize::from(heat.class_of[page])]
    }

    /// Memory present in its windows.
    pub fn present(&self) -> Bytes {
        self.windows.iter().map(WindowHeat::present_bytes).sum()
    }

    /// Number of pages of a window touched at `threshold` or above, and the rate of all its pages together.
    pub fn heat(&self, heat: &WindowHeat, threshold: Rate) -> (Pages, Rate) {
        if heat.huge {
            let class = self.class(heat, 0);
            let hot = if class.rate >= threshold && class.accessed_reads > 0 { PAGES_PER_WINDOW as u64 } else { 0 };
            return (Pages(hot), class.rate);
        }
        let mut in_class = [0u32; 256];
        for class in heat.class_of.iter() {
            in_class[usize::from(*class)] += 1;
        }
        let seen = self.classes.iter().zip(in_class).skip(1).filter(|(_, pages)| *pages > 0);
        seen.fold((Pages(0), Rate::ZERO), |(hot, rate), (class, pages)| {
            let is_hot = class.rate >= threshold && class.accessed_reads > 0;
            let hot = if is_hot { Pages(hot.0 + u64::from(pages)) } else { hot };
            (hot, Rate::per_second(rate.get() + class.rate.get() * f64::from(pages)))
        })
    }
}

impl WindowHeat {
    /// A window without an access.
    pub fn untouched(window: Window) -> WindowHeat {
        WindowHeat {
            window,
            huge: false,
            present: PageSet::EMPTY,
            touched: PageSet::EMPTY,
            class_of: Box::new([0; PAGES_PER_WINDOW]),
        }
    }

    /// Puts `pages` in `class`, which is not 0, unless they are in one already.
    pub fn classify(&mut self, pages: &PageSet, class: u8) {
        debug_assert!(class != 0, "class 0 is for pages not seen touched");
        let fresh = pages.without(&self.touched);
        for (classes, bits) in self.class_of.as_chunks_mut::<64>().0.iter_mut().zip(fresh.0) {
            match bits {
                0 => {}
                u64::MAX => classes.fill(class),
                _ => classify_chosen(classes, bits, class),
            }
        }
        self.touched = self.touched.union(&fresh);
    }

    /// Removes all accesses.
    pub fn forget(&mut self) {
        if self.touched != PageSet::EMPTY {
            self.touched = PageSet::EMPTY;
            self.class_of.fill(0);
        }
    }

    /// Its memory that is present.
    pub fn present_bytes(&self) -> Bytes {
        if self.huge { PageSize::Huge.bytes() } else { Pages(u64::from(self.present.count())).bytes() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hot_pages_are_those_at_the_threshold_or_above() {
        let mut heat = WindowHeat::untouched(Window(1));
        heat.class_of[..100].fill(1);
        heat.class_of[100..130].fill(2);
        let map = AccessMap {
            classes: vec![
                Class::default(),
                Class { accessed_reads: 3, rate: Rate::per_second(10.0) },
                Class { accessed_reads: 1, rate: Rate::per_second(1.0) },
            ],
            ..AccessMap::empty(Backend::BpfWalk)
        };
        let (hot, rate) = map.heat(&heat, Rate::per_second(5.0));
        assert_eq!(hot, Pages(100));
        assert!((rate.get() - 1030.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn each_page_is_in_the_class_it_was_first_put_in(first in any::<[u64; 8]>(), second in any::<[u64; 8]>()) {
            let mut heat = WindowHeat::untouched(Window(1));
            let (first, second) = (PageSet(first), PageSet(second));
            heat.classify(&first, 3);
            heat.classify(&second, 250);
            for page in 0..PAGES_PER_WINDOW {
                let expected = if first.contains(page) { 3 } else if second.contains(page) { 250 } else { 0 };
                prop_assert_eq!(heat.class_of[page], expected);
            }
            prop_assert_eq!(heat.touched, first.union(&second));
        }

        #[test]
        fn a_page_set_holds_what_was_inserted(pages in prop::collection::btree_set(0usize..512, 0..512)) {
            let mut set = PageSet::EMPTY;
            pages.iter().for_each(|page| set.insert(*page));
            prop_assert_eq!(set.iter().collect::<std::collections::BTreeSet<_>>(), pages.clone());
            prop_assert_eq!(set.count() as usize, pages.len());
            prop_assert!(pages.iter().all(|page| set.contains(*page)));
            prop_assert_eq!(set.without(&set), PageSet::EMPTY);
            prop_assert_eq!(set.union(&PageSet::EMPTY), set);
        }
    }
}
