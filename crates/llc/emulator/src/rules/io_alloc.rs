//! `io_alloc` and `io_alloc_cbm`: the ways that devices fill, if they have a class of their own (AMD's SDCIAE). Pure.
//!
//! The highest class is theirs while it is enabled. Truth: Documentation/filesystems/resctrl.rst, `io_alloc`;
//! `resctrl_io_alloc_write`, `resctrl_io_alloc_cbm_write` in fs/resctrl/ctrlmondata.c.

use rustix::io::Errno;
use units::WayMask;

use crate::machine::Machine;
use crate::rules::masks;
use crate::schema::Schema;
use crate::text::{line, truth, unsigned};

impl Machine {
    /// Content of `io_alloc`.
    pub(crate) fn show_io_alloc(&self) -> &'static str {
        match (self.hardware.io_alloc_capable, self.io_alloc) {
            (false, _) => "not supported\n",
            (true, false) => "disabled\n",
            (true, true) => "enabled\n",
        }
    }

    /// Write to `io_alloc`: 1 or 0.
    pub(crate) fn write_io_alloc(&mut self, schema: Schema, text: &str) -> Result<(), Errno> {
        let enable = truth(text).ok_or(Errno::INVAL)?;
        self.status.clear();
        self.check_io_alloc_capable(schema)?;
        if enable == self.io_alloc {
            return Ok(());
        }
        let class = self.io_alloc_class();
        if !enable {
            self.free_classes.insert(class);
            self.io_alloc = false;
            return Ok(());
        }
        if !self.free_classes.remove(&class) {
            let holder = self.groups.values().find(|group| group.class == Some(class));
            let name = holder.map_or("another", |group| group.name.as_str()).to_owned();
            let why = format!("CLOSID (ctrl_hw_id) {class} for io_alloc is used by {name} group\n");
            return self.status.refuse(Errno::NOSPC, &why);
        }
        if let Err(errno) = self.init_class(class) {
            self.free_classes.insert(class);
            return self.status.refuse(errno, "Failed to initialize io_alloc allocations\n");
        }
        self.io_alloc = true;
        Ok(())
    }

    /// Content of `io_alloc_cbm`.
    pub(crate) fn show_io_alloc_cbm(&mut self, schema: Schema) -> Result<String, Errno> {
        self.status.clear();
        self.check_io_alloc(schema)?;
        let class = self.io_alloc_class();
        let caches = self.hardware.cache_ids.iter().enumerate();
        let masks = caches.map(|(cache, id)| format!("{id}={}", self.mask(schema, cache, class)));
        Ok(format!("{}\n", masks.collect::<Vec<_>>().join(";")))
    }

    /// Write to `io_alloc_cbm`: `0=ffff;1=00ff`. Code and data have the same.
    pub(crate) fn write_io_alloc_cbm(&mut self, schema: Schema, text: &str) -> Result<(), Errno> {
        let text = line(text)?;
        self.status.clear();
        self.check_io_alloc(schema)?;
        let class = self.io_alloc_class();
        let mut staged: Vec<(usize, WayMask)> = Vec::new();
        for word in text.split_terminator(';') {
            let parted = word.split_once('=').and_then(|(cache, value)| Some((unsigned(cache, 10)?, value.trim())));
            let Some((cache_id, value)) = parted else {
                return self.status.refuse(Errno::INVAL, "Missing '=' or non-numeric domain\n");
            };
            let mut known = self.hardware.cache_ids.iter();
            let cache = known.position(|known| u64::from(*known) == cache_id).ok_or(Errno::INVAL)?;
            if staged.iter().any(|(other, _)| *other == cache) {
                return self.status.refuse(Errno::INVAL, &format!("Duplicate domain {cache_id}\n"));
            }
            match masks::validated(&self.hardware, value) {
                Ok(mask) if self.overlaps(schema, cache, mask, class, true) => {
                    return self.status.refuse(Errno::INVAL, "Overlaps with exclusive group\n");
                }
                Ok(mask) => staged.push((cache, mask)),
                Err(invalid) => return self.status.refuse(Errno::INVAL, &invalid.to_string()),
            }
        }
        for (cache, mask) in staged {
            for schema in schema.with_peer() {
                self.set(schema, cache, class, mask.0);
            }
        }
        Ok(())
    }

    fn io_alloc_class(&self) -> u32 {
        self.hardware.usable_classes().saturating_sub(1)
    }

    fn check_io_alloc_capable(&mut self, schema: Schema) -> Result<(), Errno> {
        match self.hardware.io_alloc_capable {
            true => Ok(()),
            false => self.status.refuse(Errno::NODEV, &format!("io_alloc is not supported on {}\n", schema.name())),
        }
    }

    fn check_io_alloc(&mut self, schema: Schema) -> Result<(), Errno> {
        self.check_io_alloc_capable(schema)?;
        match self.io_alloc {
            true => Ok(()),
            false => self.status.refuse(Errno::INVAL, &format!("io_alloc is not enabled on {}\n", schema.name())),
        }
    }
}

#[cfg(test)]
mod tests;
