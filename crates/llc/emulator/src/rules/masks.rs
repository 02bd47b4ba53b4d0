//! Valid masks of a class: the rules of one mask, and of several together. Pure.
//!
//! Truth: `cbm_validate`, `parse_cbm` in fs/resctrl/ctrlmondata.c; `__rdtgroup_cbm_overlaps`,
//! `rdtgroup_cbm_overlaps`, `__init_one_rdt_domain`, `cbm_ensure_valid`, `rdt_bit_usage_show` in
//! fs/resctrl/rdtgroup.c.

use std::fmt;

use rustix::io::Errno;
use units::{WayMask, Ways};

use crate::group::Mode;
use crate::hardware::Hardware;
use crate::machine::Machine;
use crate::schema::Schema;
use crate::text::unsigned;

/// Violated rule of one mask. Its text is that of `info/last_cmd_status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidMask {
    /// No hexadecimal number.
    NotHex(String),
    /// Empty, or ways that the cache does not have.
    OutOfRange,
    /// Ways that are not in a row.
    NotContiguous(WayMask),
    /// Fewer ways than this.
    TooFew(Ways),
}

impl fmt::Display for InvalidMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidMask::NotHex(text) => writeln!(f, "Non-hex character in the mask {text}"),
            InvalidMask::OutOfRange => writeln!(f, "Mask out of range"),
            InvalidMask::NotContiguous(mask) => writeln!(f, "The mask {mask} has non-consecutive 1-bits"),
            InvalidMask::TooFew(ways) => writeln!(f, "Need at least {ways} bits in the mask"),
        }
    }
}

/// Reads a mask and applies the rules of one mask.
///
/// # Errors
/// The violated rule; the kernel answers EINVAL to each.
pub fn validated(hardware: &Hardware, text: &str) -> Result<WayMask, InvalidMask> {
    let Some(bits) = unsigned(text, 16) else {
        return Err(InvalidMask::NotHex(text.to_owned()));
    };
    let mask = WayMask(bits);
    if hardware.min_ways.0 > 0 && mask.is_empty() || !hardware.all_ways().covers(mask) {
        return Err(InvalidMask::OutOfRange);
    }
    if !hardware.sparse_masks && !mask.is_contiguous() {
        return Err(InvalidMask::NotContiguous(mask));
    }
    if mask.first_run().ways() < hardware.min_ways {
        return Err(InvalidMask::TooFew(hardware.min_ways));
    }
    Ok(mask)
}

impl Machine {
    /// Whether `mask` has a way of another class's mask of that cache. With `exclusive` only of the class of an
    /// exclusive group; without it, also of the ways that devices use. Of code and data both count.
    pub(crate) fn overlaps(&self, schema: Schema, cache: usize, mask: WayMask, class: u32, exclusive: bool) -> bool {
        if !exclusive && mask.overlaps(self.hardware.shareable) {
            return true;
        }
        let others = self.taken_classes().filter(|other| *other != class);
        others.into_iter().any(|other| {
            let mode = self.mode_of_class(other);
            let counts = if exclusive { mode == Some(Mode::Exclusive) } else { mode != Some(Mode::PseudoLocksetup) };
            counts && schema.with_peer().any(|schema| self.mask(schema, cache, other).overlaps(mask))
        })
    }

    /// Whether it has a way of a locked region of that cache.
    pub(crate) fn overlaps_locked(&self, cache: usize, mask: WayMask) -> bool {
        self.locked_regions(cache).any(|locked| locked.overlaps(mask))
    }

    /// Initial mask of a new class in a cache: the first contiguous run of the ways that devices use, of those of
    /// shareable classes, and of unused ones.
    ///
    /// # Errors
    /// ENOSPC if there are too few.
    pub(crate) fn first_mask(&mut self, schema: Schema, cache: usize, class: u32) -> Result<WayMask, Errno> {
        let shareable = self.hardware.shareable;
        let (mut open, mut used) = (shareable, shareable);
        for other in self.taken_classes().filter(|other| *other != class) {
            let mode = self.mode_of_class(other);
            if mode == Some(Mode::PseudoLocksetup) {
                continue;
            }
            for schema in schema.with_peer() {
                let mask = self.mask(schema, cache, other);
                used = used.or(mask);
                open = if mode == Some(Mode::Shareable) { open.or(mask) } else { open };
            }
        }
        used = self.locked_regions(cache).fold(used, WayMask::or);
        let mask = open.or(self.hardware.all_ways().without(used)).first_run();
        if mask.ways() < self.hardware.min_ways {
            let text = format!("No space on {}:{}\n", schema.name(), self.hardware.cache_ids[cache]);
            return self.status.refuse(Errno::NOSPC, &text);
        }
        Ok(mask)
    }

    /// Content of `bit_usage`: a letter for each way, the highest first.
    pub(crate) fn show_bit_usage(&self, schema: Schema) -> String {
        let caches = (0..self.hardware.cache_ids.len()).map(|cache| {
            let letters = self.usage(schema, cache);
            format!("{}={letters}", self.hardware.cache_ids[cache])
        });
        format!("{}\n", caches.collect::<Vec<_>>().join(";"))
    }

    fn usage(&self, schema: Schema, cache: usize) -> String {
        let (mut hardware, mut software, mut exclusive) = (self.hardware.shareable, WayMask::NONE, WayMask::NONE);
        for class in self.taken_classes() {
            let mask = self.mask(schema, cache, class);
            match self.mode_of_class(class) {
                Some(Mode::Shareable) => software = software.or(mask),
                Some(Mode::Exclusive) => exclusive = exclusive.or(mask),
                // The class of devices belongs to no group.
                None => hardware = hardware.or(mask),
                Some(Mode::PseudoLocksetup | Mode::PseudoLocked) => (),
            }
        }
        let locked = self.locked_regions(cache).fold(WayMask::NONE, WayMask::or);
        let letter = |way: u32| match (hardware.contains(way), software.contains(way)) {
            (true, true) => 'X',
            (true, false) => 'H',
            (false, true) => 'S',
            (false, false) if exclusive.contains(way) => 'E',
            (false, false) if locked.contains(way) => 'P',
            (false, false) => '0',
        };
        (0..self.hardware.ways.0).rev().map(letter).collect()
    }
}
