//! `schemata` and `size`: ways and bandwidth of a group. Pure.
//!
//! Truth: Documentation/filesystems/resctrl.rst, "Reading/writing the schemata file"; `rdtgroup_schemata_write`,
//! `parse_line`, `parse_cbm`, `parse_bw`, `rdtgroup_schemata_show` in fs/resctrl/ctrlmondata.c; `rdtgroup_size_show`
//! in fs/resctrl/rdtgroup.c.
//!
//! An unknown cache is EINVAL while `info/last_cmd_status` reads `ok`, as up to Linux 6.19. Later kernels say
//! `Invalid domain` there.

use std::collections::BTreeMap;

use rustix::io::Errno;
use units::WayMask;

use crate::group::{GroupId, Mode, Region};
use crate::machine::Machine;
use crate::rules::masks;
use crate::schema::Schema;
use crate::text::{line, unsigned};

/// Parsed values, applied when all of the write is valid: by line and cache.
type Staged = BTreeMap<(Schema, usize), u64>;

impl Machine {
    /// Write to `schemata`: several lines are applied together or, if one is invalid, not at all.
    pub(crate) fn write_schemata(&mut self, id: GroupId, text: &str) -> Result<(), Errno> {
        let text = line(text)?;
        let mode = self.group(id)?.mode;
        self.status.clear();
        if mode == Mode::PseudoLocked {
            return self.status.refuse(Errno::INVAL, "Resource group is pseudo-locked\n");
        }
        let mut staged = Staged::new();
        let mut region = None;
        for line in text.split('\n') {
            let Some((name, values)) = line.split_once(':') else {
                return self.status.refuse(Errno::INVAL, "Missing ':'\n");
            };
            let name = name.trim();
            if values.is_empty() {
                return self.status.refuse(Errno::INVAL, &format!("Missing '{name}' value\n"));
            }
            let Some(schema) = self.schemata().into_iter().find(|schema| schema.name() == name) else {
                let why = format!("Unknown or unsupported resource name '{name}'\n");
                return self.status.refuse(Errno::INVAL, &why);
            };
            region = self.read_line(id, schema, values, &mut staged)?.or(region);
        }
        let class = self.group(id)?.class.ok_or(Errno::INVAL)?;
        self.apply(class, &staged);
        match region {
            Some(region) => self.lock(id, region),
            None => Ok(()),
        }
    }

    /// Parses the values of one line. Returns the region to lock for a group in lock setup.
    fn read_line(
        &mut self,
        id: GroupId,
        schema: Schema,
        values: &str,
        staged: &mut Staged,
    ) -> Result<Option<Region>, Errno> {
        let mode = self.group(id)?.mode;
        if mode == Mode::PseudoLocksetup && schema == Schema::Mb {
            return self.status.refuse(Errno::INVAL, "Cannot pseudo-lock MBA resource\n");
        }
        let mut rest = Some(values);
        while let Some(text) = rest.filter(|text| !text.is_empty()) {
            let (word, behind) = text.split_once(';').map_or((text, None), |(word, behind)| (word, Some(behind)));
            rest = behind;
            let parted = word.split_once('=').and_then(|(cache, value)| Some((unsigned(cache, 10)?, value.trim())));
            let Some((cache_id, value)) = parted else {
                return self.status.refuse(Errno::INVAL, "Missing '=' or non-numeric domain\n");
            };
            let mut known = self.hardware.cache_ids.iter();
            // An unknown cache sets no status text.
            let cache = known.position(|known| u64::from(*known) == cache_id).ok_or(Errno::INVAL)?;
            if staged.contains_key(&(schema, cache)) {
                return self.status.refuse(Errno::INVAL, &format!("Duplicate domain {cache_id}\n"));
            }
            if schema == Schema::Mb {
                self.read_bandwidth(id, cache, value, staged)?;
            } else {
                let mask = self.read_mask(id, schema, cache, value)?;
                staged.insert((schema, cache), mask.0);
                if mode == Mode::PseudoLocksetup {
                    return Ok(Some(Region { schema, cache, mask }));
                }
            }
        }
        Ok(None)
    }

    fn read_mask(&mut self, id: GroupId, schema: Schema, cache: usize, value: &str) -> Result<WayMask, Errno> {
        let group = self.group(id)?;
        let (mode, class) = (group.mode, group.class.ok_or(Errno::INVAL)?);
        if mode == Mode::PseudoLocksetup && self.locked_regions(cache).next().is_some() {
            return self.status.refuse(Errno::INVAL, "Pseudo-locked region in hierarchy\n");
        }
        let mask = match masks::validated(&self.hardware, value) {
            Ok(mask) => mask,
            Err(invalid) => return self.status.refuse(Errno::INVAL, &invalid.to_string()),
        };
        if self.overlaps_locked(cache, mask) {
            return self.status.refuse(Errno::INVAL, "CBM overlaps with pseudo-locked region\n");
        }
        if self.overlaps(schema, cache, mask, class, true) {
            return self.status.refuse(Errno::INVAL, "Overlaps with exclusive group\n");
        }
        let alone = matches!(mode, Mode::Exclusive | Mode::PseudoLocksetup);
        if alone && self.overlaps(schema, cache, mask, class, false) {
            return self.status.refuse(Errno::INVAL, "Overlaps with other group\n");
        }
        Ok(mask)
    }

    fn read_bandwidth(&mut self, id: GroupId, cache: usize, value: &str, staged: &mut Staged) -> Result<(), Errno> {
        let Some(bandwidth) = self.hardware.bandwidth else { return Err(Errno::INVAL) };
        let Some(amount) = unsigned(value, 10).and_then(|amount| u32::try_from(amount).ok()) else {
            return self.status.refuse(Errno::INVAL, &format!("Invalid MB value {value}\n"));
        };
        if bandwidth.in_mib {
            // A value that the kernel keeps itself is not staged.
            let class = self.group(id)?.class.ok_or(Errno::INVAL)?;
            self.set(Schema::Mb, cache, class, u64::from(amount));
            return Ok(());
        }
        if amount < bandwidth.min_percent || amount > 100 {
            let why = format!("MB value {amount} out of range [{},100]\n", bandwidth.min_percent);
            return self.status.refuse(Errno::INVAL, &why);
        }
        let rounded = amount.next_multiple_of(bandwidth.step_percent.max(1));
        staged.insert((Schema::Mb, cache), u64::from(rounded.min(100)));
        Ok(())
    }

    fn apply(&mut self, class: u32, staged: &Staged) {
        for ((schema, cache), value) in staged {
            let value = if schema.is_cache() { self.hardware.read_back(WayMask(*value)).0 } else { *value };
            self.set(*schema, *cache, class, value);
        }
    }

    /// Sets the initial values of a new class.
    ///
    /// # Errors
    /// ENOSPC when exclusive groups leave nothing.
    pub(crate) fn init_class(&mut self, class: u32) -> Result<(), Errno> {
        for schema in self.schemata() {
            let mut staged = Staged::new();
            for cache in 0..self.hardware.cache_ids.len() {
                let value =
                    if schema.is_cache() { self.first_mask(schema, cache, class)?.0 } else { self.most_bandwidth() };
                staged.insert((schema, cache), value);
            }
            self.apply(class, &staged);
        }
        Ok(())
    }

    /// Content of `schemata`.
    pub(crate) fn show_schemata(&self, id: GroupId) -> Result<String, Errno> {
        let group = self.group(id)?;
        if let Some(region) = group.locked {
            return Ok(format!("{}:{}={}\n", region.schema.name(), self.hardware.cache_ids[region.cache], region.mask));
        }
        if group.mode == Mode::PseudoLocksetup {
            return Ok(self.schemata().iter().map(|schema| format!("{}:uninitialized\n", schema.name())).collect());
        }
        let class = group.class.ok_or(Errno::NOENT)?;
        Ok(self.show_lines(|schema, cache| {
            let value = self.value(schema, cache, class);
            if schema.is_cache() { format!("{value:x}") } else { value.to_string() }
        }))
    }

    /// Content of `size`.
    pub(crate) fn show_size(&self, id: GroupId) -> Result<String, Errno> {
        let group = self.group(id)?;
        if let Some(region) = group.locked {
            let size = self.hardware.size_of(region.mask).0;
            let (width, name) = (self.name_width(), region.schema.name());
            return Ok(format!("{name:>width$}:{}={size}\n", self.hardware.cache_ids[region.cache]));
        }
        let class = group.class.ok_or(Errno::NOENT)?;
        let is_set_up = group.mode == Mode::PseudoLocksetup;
        Ok(self.show_lines(|schema, cache| {
            let value = self.value(schema, cache, class);
            let size = if schema.is_cache() { self.hardware.size_of(WayMask(value)).0 } else { value };
            if is_set_up { "0".to_owned() } else { size.to_string() }
        }))
    }

    fn show_lines(&self, value: impl Fn(Schema, usize) -> String) -> String {
        let width = self.name_width();
        let lines = self.schemata().into_iter().map(|schema| {
            let caches = self.hardware.cache_ids.iter().enumerate();
            let values = caches.map(|(cache, id)| format!("{id}={}", value(schema, cache))).collect::<Vec<_>>();
            format!("{:>width$}:{}\n", schema.name(), values.join(";"))
        });
        lines.collect()
    }

    /// Width of the widest possible name: including that of code alone, where that is possible.
    fn name_width(&self) -> usize {
        let names = self.schemata().into_iter().map(|schema| schema.name().len());
        names.chain(self.hardware.cdp_capable.then_some("L3CODE".len())).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
