//! `tasks`: the threads of each group. A write moves one thread for each id. Pure.
//!
//! Truth: Documentation/filesystems/resctrl.rst, `tasks`; `rdtgroup_tasks_write`, `rdtgroup_move_task`,
//! `show_rdt_tasks` in fs/resctrl/rdtgroup.c.

use rustix::io::Errno;

use crate::group::{GroupId, Kind};
use crate::machine::Machine;
use crate::members::Writer;
use crate::text::signed;

impl Machine {
    /// The threads of a group, those of its monitoring groups included.
    pub(crate) fn threads_of(&mut self, id: GroupId) -> Vec<u32> {
        self.look();
        let groups = &self.groups;
        let within = |other: GroupId| groups.get(&other).is_some_and(|group| group.kind == Kind::Monitor { of: id });
        self.members.of(|other| other == id || within(other))
    }

    /// Content of `tasks`.
    pub(crate) fn show_tasks(&mut self, id: GroupId) -> Result<String, Errno> {
        self.group(id)?;
        Ok(self.threads_of(id).iter().map(|tid| format!("{tid}\n")).collect())
    }

    /// Write to `tasks`.
    pub(crate) fn write_tasks(&mut self, id: GroupId, text: &str, writer: Writer) -> Result<(), Errno> {
        let mode = self.group(id)?.mode;
        self.status.clear();
        if mode.is_of_pseudo_locking() {
            return self.status.refuse(Errno::INVAL, "Pseudo-locking in progress\n");
        }
        self.look();
        let mut rest = Some(text);
        while let Some(text) = rest.filter(|text| !text.is_empty() && !text.starts_with('\n')) {
            let (word, behind) = text.split_once(',').map_or((text, None), |(word, behind)| (word, Some(behind)));
            rest = behind;
            let word = word.trim();
            let Some(tid) = signed(word, 0) else {
                return self.status.refuse(Errno::INVAL, &format!("Task list parsing error pid {word}\n"));
            };
            let Ok(tid) = u32::try_from(tid) else {
                return self.status.refuse(Errno::INVAL, &format!("Invalid pid {tid}\n"));
            };
            if let Err(errno) = self.move_task(id, tid, writer) {
                return self.status.refuse(errno, &format!("Error while processing task {tid}\n"));
            }
        }
        Ok(())
    }

    fn move_task(&mut self, id: GroupId, tid: u32, writer: Writer) -> Result<(), Errno> {
        let mover = if tid == 0 { writer.tid } else { tid };
        let (Some(now), Some(owner)) = (self.members.group_of(mover), self.tasks.owner(mover)) else {
            return self.status.refuse(Errno::SRCH, &format!("No task {mover}\n"));
        };
        if writer.uid != 0 && writer.uid != owner.uid && writer.uid != owner.saved_uid {
            return self.status.refuse(Errno::PERM, &format!("No permission to move task {mover}\n"));
        }
        if let Kind::Monitor { of } = self.group(id)?.kind
            && self.control_of(now) != of
        {
            return self.status.refuse(Errno::INVAL, "Can't move task to different control group\n");
        }
        self.members.put(mover, id);
        Ok(())
    }
}
