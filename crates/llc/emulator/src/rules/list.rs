//! Directory content, lookup, and rights. Pure.

use rustix::io::Errno;
use units::cast::fits;

use crate::group::{GroupId, Kind, Mode};
use crate::machine::Machine;
use crate::node::{GroupFile, Node};

impl Machine {
    /// Entries of a directory, by name.
    ///
    /// # Errors
    /// ENOTDIR for a file, ENODEV for the content of a removed group.
    pub fn list(&self, node: Node) -> Result<Vec<(String, Node)>, Errno> {
        if let Some(id) = node.group() {
            self.group(id)?;
        }
        Ok(match node {
            Node::Group(id) => self.list_group(id)?,
            Node::MonGroups(id) => self.named_groups(Kind::Monitor { of: id }),
            Node::MonData(id) => {
                let caches = self.hardware.cache_ids.iter().enumerate();
                caches.map(|(cache, number)| (format!("mon_L3_{number:02}"), Node::MonCache(id, cache))).collect()
            }
            Node::MonCache(id, cache) => {
                let mut all = self.list_events(id, cache, None);
                let nodes = self.hardware.nodes_per_cache();
                // Nodes are numbered over all caches.
                let first = fits::<_, u32>(cache) * nodes;
                let nodes = (0..nodes).filter(|_| nodes > 1);
                all.extend(
                    nodes.map(|node| (format!("mon_sub_L3_{:02}", first + node), Node::MonNode(id, cache, node))),
                );
                all
            }
            Node::MonNode(id, cache, node) => self.list_events(id, cache, Some(node)),
            Node::Info => {
                let folders = self.folders().into_iter().map(|folder| (folder.name().to_owned(), Node::Folder(folder)));
                folders.chain([("last_cmd_status".to_owned(), Node::LastCommand)]).collect()
            }
            Node::Folder(folder) => {
                let files = self.info_files(folder).into_iter();
                files.map(|file| (file.name().to_owned(), Node::InfoFile(folder, file))).collect()
            }
            Node::File(..) | Node::Event(..) | Node::LastCommand | Node::InfoFile(..) => return Err(Errno::NOTDIR),
        })
    }

    fn list_group(&self, id: GroupId) -> Result<Vec<(String, Node)>, Errno> {
        let group = self.group(id)?;
        let controls = group.kind == Kind::Control;
        let monitors = self.hardware.monitoring.is_some();
        let in_mib = self.hardware.bandwidth.is_some_and(|bandwidth| bandwidth.in_mib);
        let is_there = |file: &GroupFile| match file {
            GroupFile::Cpus | GroupFile::CpusList | GroupFile::Tasks => true,
            GroupFile::Mode | GroupFile::Schemata | GroupFile::Size => controls,
            GroupFile::CtrlHwId => controls && self.hardware.debug,
            GroupFile::MbaMbpsEvent => controls && in_mib,
            GroupFile::MonHwId => monitors && self.hardware.debug,
        };
        let files = GroupFile::ALL.into_iter().filter(is_there);
        let mut all: Vec<(String, Node)> = files.map(|file| (file.name().to_owned(), Node::File(id, file))).collect();
        if monitors {
            all.push(("mon_data".to_owned(), Node::MonData(id)));
        }
        if monitors && controls {
            all.push(("mon_groups".to_owned(), Node::MonGroups(id)));
        }
        if id == GroupId::ROOT {
            all.push(("info".to_owned(), Node::Info));
            let groups = self.named_groups(Kind::Control);
            all.extend(groups.into_iter().filter(|(_, node)| *node != Node::Group(GroupId::ROOT)));
        }
        Ok(all)
    }

    fn named_groups(&self, kind: Kind) -> Vec<(String, Node)> {
        let groups = self.groups.iter().filter(|(_, group)| group.kind == kind);
        groups.map(|(id, group)| (group.name.clone(), Node::Group(*id))).collect()
    }

    fn list_events(&self, id: GroupId, cache: usize, node: Option<u32>) -> Vec<(String, Node)> {
        let events = self.events().iter();
        events.map(|event| (event.name().to_owned(), Node::Event(id, cache, node, *event))).collect()
    }

    /// The entry of this name in a directory.
    ///
    /// # Errors
    /// ENOENT; ENOTDIR for a file.
    pub fn lookup(&self, parent: Node, name: &str) -> Result<Node, Errno> {
        let all = match self.list(parent) {
            Err(Errno::NODEV) => return Err(Errno::NOENT),
            all => all?,
        };
        all.into_iter().find(|(other, _)| other == name).map(|(_, node)| node).ok_or(Errno::NOENT)
    }

    /// The node at a path from the root, such as `web/mon_groups/vm1/tasks`.
    ///
    /// # Errors
    /// As for `lookup`.
    pub fn find(&self, path: &str) -> Result<Node, Errno> {
        let names = path.split('/').filter(|name| !name.is_empty() && *name != ".");
        names.into_iter().try_fold(Node::Group(GroupId::ROOT), |node, name| self.lookup(node, name))
    }

    /// The rights on a node, as `ls` shows them.
    pub fn rights(&self, node: Node) -> u16 {
        let mode = node.group().and_then(|id| self.groups.get(&id)).map(|group| group.mode);
        match node {
            // No threads, CPUs or counters for a group that is, or is to be, a locked region.
            Node::File(_, GroupFile::Cpus | GroupFile::CpusList) if mode == Some(Mode::PseudoLocked) => 0o444,
            Node::File(_, GroupFile::Cpus | GroupFile::CpusList | GroupFile::Tasks) | Node::MonGroups(_)
                if mode.is_some_and(Mode::is_of_pseudo_locking) =>
            {
                0
            }
            Node::File(_, GroupFile::Size | GroupFile::CtrlHwId | GroupFile::MonHwId) => 0o444,
            Node::File(..) => 0o644,
            Node::Event(..) | Node::LastCommand => 0o444,
            Node::InfoFile(_, file) => {
                if file.is_writable() {
                    0o644
                } else {
                    0o444
                }
            }
            // The root is made by kernfs, and its entries have its rights.
            _ if node.group().is_none_or(|id| id == GroupId::ROOT) => 0o555,
            _ => 0o755,
        }
    }
}
