//! Groups: creation, removal and moves. Pure.
//!
//! Truth: Documentation/filesystems/resctrl.rst, "Resource alloc and monitor groups"; `rdtgroup_mkdir`,
//! `rdtgroup_rmdir`, `rdtgroup_rename` and their callees in fs/resctrl/rdtgroup.c.

use rustix::io::Errno;

use crate::group::{Group, GroupId, Kind};
use crate::machine::Machine;
use crate::node::Node;

impl Machine {
    /// Makes a group: a control group in the root, a monitoring group in a directory `mon_groups`.
    ///
    /// # Errors
    /// EEXIST; ENODEV in `info`, EPERM elsewhere; EINVAL for a newline in the name; ENOSPC when classes, counters or
    /// ways are used up; EBUSY while counters are in limbo.
    pub fn mkdir(&mut self, parent: Node, name: &str, owner: (u32, u32)) -> Result<Node, Errno> {
        if !parent.is_directory() {
            return Err(Errno::NOTDIR);
        }
        if self.lookup(parent, name).is_ok() {
            return Err(Errno::EXIST);
        }
        if name.contains('\n') {
            return Err(Errno::INVAL);
        }
        let is_root = parent == Node::Group(GroupId::ROOT);
        if !is_root && self.hardware.monitoring.is_none() {
            return Err(Errno::PERM);
        }
        // Without a group at this node.
        if parent.group().is_none() {
            return Err(Errno::NODEV);
        }
        self.status.clear();
        let id = match parent {
            _ if is_root => self.make_control(name, owner),
            Node::MonGroups(of) if name != "mon_groups" => self.make_monitor(of, name, owner),
            _ => Err(Errno::PERM),
        }?;
        Ok(Node::Group(id))
    }

    fn make_control(&mut self, name: &str, owner: (u32, u32)) -> Result<GroupId, Errno> {
        let Some(class) = self.free_classes.pop_first() else {
            return self.status.refuse(Errno::NOSPC, "Out of CLOSIDs\n");
        };
        let made = self.take_rmid().and_then(|rmid| match self.init_class(class) {
            Ok(()) => Ok(rmid),
            Err(errno) => {
                // An unused counter is freed like all others.
                rmid.into_iter().for_each(|rmid| self.give_back_rmid(GroupId::ROOT, rmid));
                Err(errno)
            }
        });
        match made {
            Ok(rmid) => Ok(self.insert(name, Kind::Control, Some(class), rmid, owner)),
            Err(errno) => {
                self.free_classes.insert(class);
                Err(errno)
            }
        }
    }

    fn make_monitor(&mut self, of: GroupId, name: &str, owner: (u32, u32)) -> Result<GroupId, Errno> {
        if self.group(of)?.mode.is_of_pseudo_locking() {
            return self.status.refuse(Errno::INVAL, "Pseudo-locking in progress\n");
        }
        let rmid = self.take_rmid()?;
        Ok(self.insert(name, Kind::Monitor { of }, None, rmid, owner))
    }

    fn insert(&mut self, name: &str, kind: Kind, class: Option<u32>, rmid: Option<u32>, owner: (u32, u32)) -> GroupId {
        self.last_id += 1;
        let id = GroupId(self.last_id);
        self.groups.insert(id, Group { name: name.to_owned(), kind, class, rmid, owner, ..Group::empty() });
        id
    }

    /// Removes a group. Its threads and CPUs go to the default group, those of a monitoring group to its control
    /// group.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR for a file, EPERM for a directory that is no group.
    pub fn rmdir(&mut self, parent: Node, name: &str) -> Result<(), Errno> {
        let node = self.lookup(parent, name)?;
        if !node.is_directory() {
            return Err(Errno::NOTDIR);
        }
        let Node::Group(id) = node else { return Err(Errno::PERM) };
        self.look();
        let children = self.children(id);
        match self.group(id)?.kind {
            Kind::Control => {
                children.into_iter().for_each(|child| self.remove(child, GroupId::ROOT));
                self.remove(id, GroupId::ROOT);
            }
            Kind::Monitor { of } => self.remove(id, of),
        }
        Ok(())
    }

    fn remove(&mut self, id: GroupId, heir: GroupId) {
        if let Some(rmid) = self.groups.get_mut(&id).and_then(|group| group.rmid.take()) {
            self.give_back_rmid(id, rmid);
        }
        let Some(group) = self.groups.remove(&id) else { return };
        self.members.put_all(id, heir);
        self.forget_readings(id);
        if let Some(class) = group.class {
            self.free_classes.insert(class);
        }
        // A monitoring group's CPUs are its parent's already.
        if group.kind == Kind::Control
            && let Some(root) = self.groups.get_mut(&GroupId::ROOT)
        {
            root.cpus.0.extend(group.cpus.0);
        }
    }

    /// Renames a monitoring group, or moves it to another control group: all its threads get that group's class at
    /// once, and its counts stay.
    ///
    /// # Errors
    /// ENOENT; EPERM for anything else, or for a group that monitors CPUs.
    pub fn rename(&mut self, parent: Node, name: &str, new_parent: Node, new_name: &str) -> Result<(), Errno> {
        let node = self.lookup(parent, name)?;
        // Neither info nor its content belongs to a group.
        if node.group().is_none() || new_parent.group().is_none() {
            return Err(Errno::NOENT);
        }
        self.status.clear();
        if !node.is_directory() {
            // The kernel's text has no newline here.
            return self.status.refuse(Errno::PERM, "Source and destination must be directories");
        }
        let moved = if let Node::Group(id) = node { self.group(id)?.parent().map(|of| (id, of)) } else { None };
        let Some((id, of)) = moved else {
            return self.status.refuse(Errno::PERM, "Source must be a MON group\n");
        };
        let Node::MonGroups(new) = new_parent else {
            return self.status.refuse(Errno::PERM, "Destination must be a mon_groups subdirectory\n");
        };
        if new_name == "mon_groups" {
            return self.status.refuse(Errno::PERM, "Destination must be a mon_groups subdirectory\n");
        }
        if of != new && !self.group(id)?.cpus.is_empty() {
            return self.status.refuse(Errno::PERM, "Cannot move a MON group that monitors CPUs\n");
        }
        if self.lookup(new_parent, new_name).is_ok_and(|there| there != node) {
            return Err(Errno::EXIST);
        }
        let group = self.group_mut(id)?;
        group.kind = Kind::Monitor { of: new };
        group.name = new_name.to_owned();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
