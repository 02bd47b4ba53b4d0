//! Operations of the file system, and their refusals with reasons: one file for each.
//!
//! Nothing here knows of FUSE, of time or of processes: `mount.rs` calls these functions for system calls, the tests
//! call them directly.

use rustix::io::Errno;

use crate::group::GroupId;
use crate::machine::Machine;
use crate::members::Writer;
use crate::node::{GroupFile, Node};
use crate::text::line;

mod cpus;
mod groups;
mod info;
mod io_alloc;
mod list;
pub mod masks;
mod mode;
mod monitoring;
mod schemata;
mod tasks;

/// Greatest size of one write: a page.
pub const MOST_BYTES: usize = 4096;

impl Machine {
    /// Current content of a file.
    ///
    /// # Errors
    /// EISDIR for a directory; ENODEV for a file of a removed group; EINVAL and ENODEV for `io_alloc_cbm` where there
    /// is none.
    pub fn read(&mut self, node: Node) -> Result<String, Errno> {
        match node {
            Node::File(id, file) => self.read_group_file(id, file),
            Node::Event(id, cache, node, event) => self.show_event(id, event, cache, node),
            Node::LastCommand => Ok(self.status.show()),
            Node::InfoFile(folder, file) => self.show_info(folder, file),
            _ => Err(Errno::ISDIR),
        }
    }

    fn read_group_file(&mut self, id: GroupId, file: GroupFile) -> Result<String, Errno> {
        let group = self.group(id)?;
        match file {
            GroupFile::Cpus => self.show_cpus(id, false),
            GroupFile::CpusList => self.show_cpus(id, true),
            GroupFile::CtrlHwId => Ok(format!("{}\n", group.class.unwrap_or(0))),
            GroupFile::MonHwId => Ok(format!("{}\n", group.rmid.unwrap_or(0))),
            GroupFile::MbaMbpsEvent => {
                Ok(if group.kept_by_total { "mbm_total_bytes\n" } else { "mbm_local_bytes\n" }.to_owned())
            }
            GroupFile::Mode => Ok(format!("{}\n", group.mode.name())),
            GroupFile::Schemata => self.show_schemata(id),
            GroupFile::Size => self.show_size(id),
            GroupFile::Tasks => self.show_tasks(id),
        }
    }

    /// One write, which is one command.
    ///
    /// # Errors
    /// E2BIG for more than a page; EACCES for a read-only file; else by the rules, with the reason in
    /// `info/last_cmd_status`.
    pub fn write(&mut self, node: Node, bytes: &[u8], writer: Writer) -> Result<(), Errno> {
        if bytes.len() > MOST_BYTES {
            return Err(Errno::TOOBIG);
        }
        let text = String::from_utf8_lossy(bytes);
        match node {
            Node::File(id, GroupFile::Cpus) => self.write_cpus(id, &text, false),
            Node::File(id, GroupFile::CpusList) => self.write_cpus(id, &text, true),
            Node::File(id, GroupFile::MbaMbpsEvent) => self.write_mbps_event(id, &text),
            Node::File(id, GroupFile::Mode) => self.write_mode(id, &text),
            Node::File(id, GroupFile::Schemata) => self.write_schemata(id, &text),
            Node::File(id, GroupFile::Tasks) => self.write_tasks(id, &text, writer),
            Node::InfoFile(folder, file) => self.write_info(folder, file, &text),
            _ if node.is_directory() => Err(Errno::ISDIR),
            _ => Err(Errno::ACCESS),
        }
    }

    fn write_mbps_event(&mut self, id: GroupId, text: &str) -> Result<(), Errno> {
        let wanted = line(text)?;
        self.group(id)?;
        self.status.clear();
        let known = self.events().iter().any(|event| event.name() == wanted);
        match wanted {
            "mbm_local_bytes" | "mbm_total_bytes" if known => {
                self.group_mut(id)?.kept_by_total = wanted == "mbm_total_bytes";
                Ok(())
            }
            _ => self.status.refuse(Errno::INVAL, &format!("Unsupported event id '{wanted}'\n")),
        }
    }
}

#[cfg(test)]
mod tests;
