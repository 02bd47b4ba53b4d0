//! `cpus` and `cpus_list`: assignment of CPUs to groups. Pure.
//!
//! Truth: Documentation/filesystems/resctrl.rst, `cpus`; `rdtgroup_cpus_write` and its callees in
//! fs/resctrl/rdtgroup.c.

use rustix::io::Errno;

use crate::cpus::Cpus;
use crate::group::{GroupId, Kind, Mode};
use crate::machine::Machine;

impl Machine {
    /// Content of `cpus` (`list` false) and `cpus_list`.
    pub(crate) fn show_cpus(&self, group: GroupId, list: bool) -> Result<String, Errno> {
        let group = self.group(group)?;
        // A locked region shows the CPUs of its cache: here all, since an emulated cache has no CPUs of its own.
        let cpus = if group.mode == Mode::PseudoLocked { &self.hardware.online } else { &group.cpus };
        let highest = self.hardware.online.0.last().copied().unwrap_or(0);
        Ok(if list { format!("{cpus}\n") } else { format!("{}\n", cpus.mask(highest)) })
    }

    /// Write to `cpus` or `cpus_list`.
    pub(crate) fn write_cpus(&mut self, id: GroupId, text: &str, list: bool) -> Result<(), Errno> {
        let group = self.group(id)?;
        let (mode, kind) = (group.mode, group.kind);
        self.status.clear();
        if mode.is_of_pseudo_locking() {
            return self.status.refuse(Errno::INVAL, "Pseudo-locking in progress\n");
        }
        let parsed = if list { Cpus::of_list(text) } else { Cpus::of_mask(text) };
        let wanted = match parsed {
            Ok(cpus) => cpus,
            Err(errno) => return self.status.refuse(errno, "Bad CPU list/mask\n"),
        };
        if !wanted.without(&self.hardware.online).is_empty() {
            return self.status.refuse(Errno::INVAL, "Can only assign online CPUs\n");
        }
        match kind {
            Kind::Control => self.give_cpus_to_control(id, wanted),
            Kind::Monitor { of } => self.give_cpus_to_monitor(id, of, wanted),
        }
    }

    fn give_cpus_to_control(&mut self, id: GroupId, wanted: Cpus) -> Result<(), Errno> {
        let dropped = self.group(id)?.cpus.without(&wanted);
        if !dropped.is_empty() {
            if id == GroupId::ROOT {
                return self.status.refuse(Errno::INVAL, "Can't drop CPUs from default group\n");
            }
            self.group_mut(GroupId::ROOT)?.cpus.0.extend(&dropped.0);
        }
        for (other, group) in &mut self.groups {
            let is_child = group.kind == Kind::Monitor { of: id };
            if *other == id {
                group.cpus = wanted.clone();
            } else if is_child {
                // Monitoring groups lose their CPUs: the kernel begins anew with each write.
                group.cpus = Cpus::default();
            } else {
                group.cpus = group.cpus.without(&wanted);
            }
        }
        Ok(())
    }

    fn give_cpus_to_monitor(&mut self, id: GroupId, parent: GroupId, wanted: Cpus) -> Result<(), Errno> {
        if !wanted.without(&self.group(parent)?.cpus).is_empty() {
            return self.status.refuse(Errno::INVAL, "Can only add CPUs to mongroup that belong to parent\n");
        }
        for (other, group) in &mut self.groups {
            if *other == id {
                group.cpus = wanted.clone();
            } else if group.kind == (Kind::Monitor { of: parent }) {
                group.cpus = group.cpus.without(&wanted);
            }
        }
        Ok(())
    }
}
