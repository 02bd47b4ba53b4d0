//! `mode`: whether a group shares its ways, and locking memory into the cache. Pure.
//!
//! Truth: Documentation/filesystems/resctrl.rst, `mode` and "Cache Pseudo-Locking"; `rdtgroup_mode_write`,
//! `rdtgroup_mode_test_exclusive` in fs/resctrl/rdtgroup.c; `rdtgroup_locksetup_enter`, `rdtgroup_pseudo_lock_create`
//! in fs/resctrl/pseudo_lock.c.
//!
//! No memory is locked here: the files change as if it were, and there is no device in /dev/pseudo_lock.

use rustix::io::Errno;
use units::{Bytes, WayMask};

use crate::group::{GroupId, Kind, Mode, Region};
use crate::machine::Machine;
use crate::text::line;

/// Greatest contiguous allocation of the kernel (KMALLOC_MAX_SIZE).
const LARGEST_REGION: Bytes = Bytes(4 << 20);

impl Machine {
    /// Write to `mode`.
    pub(crate) fn write_mode(&mut self, id: GroupId, text: &str) -> Result<(), Errno> {
        let wanted = line(text)?;
        let now = self.group(id)?.mode;
        self.status.clear();
        if wanted == now.name() {
            return Ok(());
        }
        if now == Mode::PseudoLocked {
            return self.status.refuse(Errno::INVAL, "Cannot change pseudo-locked group\n");
        }
        let mode = match wanted {
            "shareable" => Mode::Shareable,
            "exclusive" => {
                self.check_exclusive(id)?;
                Mode::Exclusive
            }
            "pseudo-locksetup" => {
                self.enter_locksetup(id)?;
                Mode::PseudoLocksetup
            }
            _ => return self.status.refuse(Errno::INVAL, "Unknown or unsupported mode\n"),
        };
        if now == Mode::PseudoLocksetup {
            let rmid = self.take_rmid()?;
            self.group_mut(id)?.rmid = rmid;
        }
        self.group_mut(id)?.mode = mode;
        Ok(())
    }

    fn check_exclusive(&mut self, id: GroupId) -> Result<(), Errno> {
        let class = self.group(id)?.class.ok_or(Errno::INVAL)?;
        for schema in self.schemata().into_iter().filter(|schema| schema.is_cache()) {
            for cache in 0..self.hardware.cache_ids.len() {
                let mask = self.mask(schema, cache, class);
                if self.overlaps(schema, cache, mask, class, false) {
                    return self.status.refuse(Errno::INVAL, "Schemata overlaps\n");
                }
            }
        }
        Ok(())
    }

    fn enter_locksetup(&mut self, id: GroupId) -> Result<(), Errno> {
        let is_monitored = self.groups.values().any(|group| group.kind == Kind::Monitor { of: id });
        let has_threads = !self.threads_of(id).is_empty();
        let has_cpus = !self.group(id)?.cpus.is_empty();
        let obstacles = [
            (id == GroupId::ROOT, "Cannot pseudo-lock default group\n"),
            (self.hardware.cdp, "CDP enabled\n"),
            (!self.hardware.pseudo_lock, "Pseudo-locking not supported\n"),
            (is_monitored, "Monitoring in progress\n"),
            (has_threads, "Tasks assigned to resource group\n"),
            (has_cpus, "CPUs assigned to resource group\n"),
        ];
        if let Some((_, why)) = obstacles.into_iter().find(|(is_there, _)| *is_there) {
            return self.status.refuse(Errno::INVAL, why);
        }
        if let Some(rmid) = self.group_mut(id)?.rmid.take() {
            self.give_back_rmid(id, rmid);
        }
        Ok(())
    }

    /// Locks the region written to `schemata`. A failure leaves the group as it was, with its class.
    pub(crate) fn lock(&mut self, id: GroupId, region: Region) -> Result<(), Errno> {
        if self.hardware.size_of(region.mask) > LARGEST_REGION {
            return self.status.refuse(Errno::TOOBIG, "Requested region exceeds maximum size\n");
        }
        let group = self.group_mut(id)?;
        group.mode = Mode::PseudoLocked;
        group.locked = Some(region);
        // The ways are safe while no class has them, so the class is free for others.
        if let Some(class) = group.class.take() {
            self.free_classes.insert(class);
        }
        Ok(())
    }

    /// Ways of locked regions in a cache.
    pub(crate) fn locked_regions(&self, cache: usize) -> impl Iterator<Item = WayMask> {
        let regions = self.groups.values().filter_map(|group| group.locked);
        regions.filter(move |region| region.cache == cache).map(|region| region.mask)
    }
}

#[cfg(test)]
mod tests;
