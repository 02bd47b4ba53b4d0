//! Map of slots to nodes: a single server has all slots, a Cluster reports them by `CLUSTER SLOTS`.

use std::sync::Arc;

use super::answers::Range;
use super::node::Node;
use crate::store::url::Host;

/// Number of slots of a Cluster.
pub const SLOTS: u16 = 16384;

/// The masters, and their slots.
pub struct Topology {
    masters: Vec<Arc<Node>>,
    /// Index of the master of each slot; beyond the end for a slot without one.
    of_slot: Vec<usize>,
}

impl Topology {
    /// Map of one server.
    pub fn single(node: Arc<Node>) -> Topology {
        Topology { masters: vec![node], of_slot: vec![0; usize::from(SLOTS)] }
    }

    /// Map of a Cluster; `node` gives the node of a host.
    ///
    /// # Errors
    /// The first of `node`.
    pub fn cluster<E>(ranges: &[Range], mut node: impl FnMut(&Host) -> Result<Arc<Node>, E>) -> Result<Topology, E> {
        let mut topology = Topology { masters: Vec::new(), of_slot: vec![usize::MAX; usize::from(SLOTS)] };
        for range in ranges {
            let known = topology.masters.iter().position(|master| master.host == range.master);
            let index = match known {
                Some(index) => index,
                None => {
                    topology.masters.push(node(&range.master)?);
                    topology.masters.len() - 1
                }
            };
            for slot in range.first..=range.last {
                topology.of_slot[usize::from(slot)] = index;
            }
        }
        Ok(topology)
    }

    /// The masters.
    pub fn masters(&self) -> &[Arc<Node>] {
        &self.masters
    }

    /// Master of a slot; `None` if it has none.
    pub fn of_slot(&self, slot: u16) -> Option<&Arc<Node>> {
        self.masters.get(*self.of_slot.get(usize::from(slot))?)
    }

    /// First slot without a master.
    pub fn uncovered(&self) -> Option<u16> {
        (0..SLOTS).find(|&slot| self.of_slot(slot).is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(port: u16) -> Host {
        Host { name: "h".to_owned(), port }
    }

    fn range(first: u16, last: u16, port: u16) -> Range {
        Range { first, last, master: host(port), replicas: 1 }
    }

    #[test]
    fn every_slot_has_its_master_and_a_gap_is_found() {
        let node = |host: &Host| Ok::<_, ()>(Arc::new(Node::new(host.clone())));
        let ranges = [range(0, 99, 1), range(100, 199, 2), range(200, 16382, 1)];
        let topology = Topology::cluster(&ranges, node).unwrap();
        assert_eq!(topology.masters().len(), 2);
        assert_eq!(topology.of_slot(150).unwrap().host, host(2));
        assert_eq!(topology.of_slot(201).unwrap().host, host(1));
        assert_eq!(topology.uncovered(), Some(16383));
        assert!(topology.of_slot(16383).is_none());
    }

    #[test]
    fn one_server_has_all_slots() {
        let topology = Topology::single(Arc::new(Node::new(host(1))));
        assert_eq!(topology.uncovered(), None);
    }
}
