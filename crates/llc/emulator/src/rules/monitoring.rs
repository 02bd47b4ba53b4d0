//! Monitoring: ids of counters (RMIDs), their limbo, and the values. Pure.
//!
//! Nothing is measured here. A value is the configured one (`control.rs`), or, for occupancy, the lesser of the
//! configured demand of a group's programs and the capacity of its ways; by default it is 0. Each group's demand is
//! met independently, so the sum over several groups may exceed the capacity of their ways.
//!
//! Truth: Documentation/filesystems/resctrl.rst, `mon_data` and "max_threshold_occupancy"; `alloc_rmid`, `free_rmid`,
//! `__check_limbo`, `mon_event_count`, `__mon_event_count` in fs/resctrl/monitor.c; `rdtgroup_mondata_show` in
//! fs/resctrl/ctrlmondata.c.

use rustix::io::Errno;
use units::{Bytes, WayMask};

use crate::counters::{Event, Value};
use crate::group::GroupId;
use crate::machine::Machine;
use crate::schema::Schema;

impl Machine {
    /// Sets the time since the mount.
    pub fn pass_time(&mut self, now_ms: u64) {
        self.counters.pass(now_ms);
    }

    /// Takes an RMID; `None` for a machine without counters.
    ///
    /// # Errors
    /// ENOSPC if there are none, EBUSY if some may come out of limbo.
    pub(crate) fn take_rmid(&mut self) -> Result<Option<u32>, Errno> {
        if self.hardware.monitoring.is_none() {
            return Ok(None);
        }
        match self.counters.take() {
            Some(rmid) => Ok(Some(rmid)),
            None => {
                let errno = if self.counters.are_in_limbo() { Errno::BUSY } else { Errno::NOSPC };
                self.status.refuse(errno, "Out of RMIDs\n")
            }
        }
    }

    /// Frees an RMID, to limbo while lines of its group are in the cache.
    pub(crate) fn give_back_rmid(&mut self, id: GroupId, rmid: u32) {
        let limbo_ms = self.hardware.monitoring.map_or(0, |monitoring| monitoring.limbo_ms);
        let caches = 0..self.hardware.cache_ids.len();
        let in_cache = |cache| match self.own_value(id, Event::Occupancy, cache, None) {
            Value::Count(bytes) => bytes,
            _ => 0,
        };
        let occupancy = if id == GroupId::ROOT { 0 } else { caches.map(in_cache).max().unwrap_or(0) };
        self.counters.give_back(rmid, Bytes(occupancy), limbo_ms);
    }

    /// The events of this machine.
    pub(crate) fn events(&self) -> &'static [Event] {
        match self.hardware.monitoring {
            None => &[],
            Some(monitoring) if monitoring.bandwidth => &Event::ALL,
            Some(_) => &Event::ALL[..1],
        }
    }

    /// Content of a file of `mon_data`: for a control group, the sum with its monitoring groups.
    pub(crate) fn show_event(
        &self,
        id: GroupId,
        event: Event,
        cache: usize,
        node: Option<u32>,
    ) -> Result<String, Errno> {
        self.group(id)?;
        let groups = [id].into_iter().chain(self.children(id));
        let values: Vec<Value> = groups.map(|group| self.own_value(group, event, cache, node)).collect();
        // With words alone the last one read is shown.
        let value = sum(&values).or(values.last().copied()).unwrap_or(Value::Error);
        Ok(format!("{value}\n"))
    }

    /// Without a node, the sum over all nodes of the cache with a count; without any count it is not available.
    fn own_value(&self, id: GroupId, event: Event, cache: usize, node: Option<u32>) -> Value {
        let nodes = self.hardware.nodes_per_cache();
        let Some(node) = node else {
            let values: Vec<Value> = (0..nodes).map(|node| self.own_value(id, event, cache, Some(node))).collect();
            return match values[..] {
                [alone] => alone,
                _ => sum(&values).unwrap_or(Value::Unavailable),
            };
        };
        if let Some(value) = self.counters.said.get(&(id, event, cache, node)) {
            return *value;
        }
        match (event, self.counters.wanted.get(&id)) {
            (Event::Occupancy, Some(wanted)) => {
                let room = self.hardware.size_of(self.ways_of(id, cache)).0;
                Value::Count(room.min(wanted.0) / u64::from(nodes))
            }
            _ => Value::Count(0),
        }
    }

    /// The ways of a group's class in a cache, for code and data together.
    fn ways_of(&self, id: GroupId, cache: usize) -> WayMask {
        let class = self.groups.get(&self.control_of(id)).and_then(|group| group.class);
        let lines = self.schemata().into_iter().filter(|schema: &Schema| schema.is_cache());
        lines.fold(WayMask::NONE, |ways, schema| match class {
            Some(class) => ways.or(self.mask(schema, cache, class)),
            None => ways,
        })
    }

    /// Forgets the configured values of a removed group.
    pub(crate) fn forget_readings(&mut self, id: GroupId) {
        self.counters.said.retain(|(group, _, _, _), _| *group != id);
        self.counters.wanted.remove(&id);
    }
}

/// Sum of the counts, words left out; `None` if there are only words.
fn sum(values: &[Value]) -> Option<Value> {
    let counts = values.iter().filter_map(|value| match value {
        Value::Count(bytes) => Some(*bytes),
        _ => None,
    });
    counts.reduce(u64::wrapping_add).map(Value::Count)
}

#[cfg(test)]
mod tests;
