//! Exchange of requests: sorted by node, sent to all of them, answered, and retried once where needed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::answers::{self, Info, Verdict};
use super::blocks;
use super::connection::{Access, Connection, Failure};
use super::node::Node;
use super::resp::{ErrorLine, Reply, Requests};
use super::topology::Topology;
use super::work::{Asking, Work};
use crate::store::Say;
use crate::store::url::{Host, RedisUrl};

/// Largest number of bytes in flight. More would only wait in buffers, masu's and the server's.
const BATCH_BYTES: usize = 4 << 20;
/// Interval of checking a server without replicas for new ones.
const REPLICAS_AGAIN: Duration = Duration::from_secs(1);
/// Least interval between requests for a Cluster's slots.
const REFRESH_MIN: Duration = Duration::from_millis(20);
/// Time limit of such a request over all nodes, as a multiple of the timeout; the next attempt asks again.
const REFRESH_TIMEOUTS: u32 = 10;
/// Largest number of known nodes. The largest Clusters have a thousand.
pub const NODES_MAX: usize = 1000;

/// Exchange with the servers.
pub struct Exchange {
    name: String,
    run: u64,
    access: Access,
    replicas: Option<u32>,
    say: Say,
    cluster: bool,
    nodes: Mutex<Nodes>,
    topology: RwLock<Arc<Topology>>,
    refreshed: Mutex<Refreshed>,
    unfenced_said: AtomicBool,
}

/// All known servers, at most [`NODES_MAX`]: fences must outlive a change of the map.
struct Nodes {
    by_host: BTreeMap<Host, Arc<Node>>,
    /// The servers of the URL, which stay.
    _given: Vec<Arc<Node>>,
}

impl Nodes {
    fn new<'h>(given: impl Iterator<Item = &'h Host>) -> Nodes {
        let by_host: BTreeMap<_, _> = given.map(|host| (host.clone(), Arc::new(Node::new(host.clone())))).collect();
        Nodes { _given: by_host.values().cloned().collect(), by_host }
    }

    /// Node of a host. Where the table is full, nodes leave that are not in use, and have no fence.
    fn get(&mut self, host: &Host) -> Result<Arc<Node>, Failure> {
        if let Some(node) = self.by_host.get(host) {
            return Ok(Arc::clone(node));
        }
        if self.by_host.len() >= NODES_MAX {
            self.by_host.retain(|_, node| Arc::strong_count(node) > 1 || node.has_fences());
        }
        if self.by_host.len() >= NODES_MAX {
            return Err(Failure::TooManyNodes);
        }
        let node = Arc::new(Node::new(host.clone()));
        self.by_host.insert(host.clone(), Arc::clone(&node));
        Ok(node)
    }
}

/// Last refresh of a Cluster's map, and its source.
#[derive(Default)]
struct Refreshed {
    at: Option<Instant>,
    /// Newest epoch of any node. A master that slept while another replaced it wakes up with the old map, and would for
    /// a moment still return its old pages: no request goes there.
    epoch: u64,
}

/// Failure, and its server.
pub struct Failed {
    /// Cause.
    pub failure: Failure,
    /// The server.
    pub host: Option<Host>,
}

/// Requests for one node.
struct Group {
    node: Arc<Node>,
    /// Indices of the blocks in the work.
    indices: Vec<usize>,
    /// Whether the pages are migrating to this node: then each request needs ASKING.
    asking: Asking,
}

/// Block that is not done.
struct Left {
    index: usize,
    ask: Option<Host>,
}

impl Exchange {
    /// Exchange with the servers of a URL, of which `host` has answered.
    pub fn new(
        name: String,
        run: u64,
        access: Access,
        url: &RedisUrl,
        say: Say,
        cluster: bool,
        host: &Host,
    ) -> Exchange {
        let nodes = Nodes::new(url.hosts.iter().chain([host]));
        let node = Arc::clone(&nodes.by_host[host]);
        Exchange {
            name,
            run,
            access,
            replicas: url.replicas,
            say,
            cluster,
            nodes: Mutex::new(nodes),
            topology: RwLock::new(Arc::new(Topology::single(node))),
            refreshed: Mutex::default(),
            unfenced_said: AtomicBool::new(false),
        }
    }

    /// Whether the exchange has a Cluster.
    pub fn is_cluster(&self) -> bool {
        self.cluster
    }

    /// Returns a connection that was opened elsewhere to the pool.
    pub fn give_back(&self, host: &Host, connection: Connection) {
        if let Ok(node) = self.node(host) {
            node.give_back(connection);
        }
    }

    /// Known map of slots to nodes.
    pub fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn node(&self, host: &Host) -> Result<Arc<Node>, Failure> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).get(host)
    }

    /// `INFO` of a server, which also tells the number of replicas that acknowledge its writes.
    ///
    /// # Errors
    /// As [`Connection::ask`].
    pub fn info_of(&self, node: &Node) -> Result<Info, Failure> {
        let mut connection = node.connection(&self.access)?;
        let info = connection.info(None)?;
        node.give_back(connection);
        self.note_replicas(node, info.replicas > 0);
        Ok(info)
    }

    fn note_replicas(&self, node: &Node, has_any: bool) {
        let mut known = node.replicas();
        known.wanted = Some(self.replicas.unwrap_or(u32::from(has_any)));
        known.checked = Instant::now();
        if !has_any && self.replicas.is_none() && !known.said {
            known.said = true;
            let which = if self.cluster { format!("{}, in {}", node.host, self.name) } else { self.name.clone() };
            (self.say)(&format!("one server without replica: what it loses is lost ({which})"));
        }
    }

    /// Carries out all of the work, or fails.
    ///
    /// # Errors
    /// The first permanent failure; else the last one of the second attempt.
    pub fn carry_out(&self, work: &mut dyn Work) -> Result<(), Failed> {
        let mut left: Vec<Left> = (0..work.len()).map(|index| Left { index, ask: None }).collect();
        let mut last = None;
        for attempt in 0..2 {
            if attempt > 0 {
                // Only the retry counts: if this fails, so will the second attempt.
                let _ = self.refresh();
            }
            let mut again = Vec::new();
            while !left.is_empty() {
                let batch = left.drain(..batch_length(work, &left)).collect();
                if let Some(failed) = self.attempt(work, batch, &mut again)? {
                    last = Some(failed);
                    // The rest would most likely wait just as long.
                    again.append(&mut left);
                }
            }
            if again.is_empty() {
                return Ok(());
            }
            left = again;
        }
        Err(last.unwrap_or(Failed { failure: Failure::NoMaster(0), host: None }))
    }

    /// One attempt at one batch: blocks to be retried go to `again`; returns the last reason.
    fn attempt(&self, work: &mut dyn Work, batch: Vec<Left>, again: &mut Vec<Left>) -> Result<Option<Failed>, Failed> {
        let mut last = None;
        let groups = self.by_node(work, batch, again, &mut last);
        let sent: Vec<_> = groups.iter().map(|group| self.send(work, group)).collect();
        let mut fatal = None;
        for (group, sent) in groups.iter().zip(sent) {
            let failed = match sent {
                Ok((connection, wanted)) => self.receive(work, group, connection, wanted, again),
                Err(failure) => {
                    again.extend(group.indices.iter().map(|&index| Left { index, ask: None }));
                    Some(failure)
                }
            };
            let Some(failure) = failed else { continue };
            let passes = match &failure {
                Failure::Said { verdict, .. } => {
                    matches!(verdict, Verdict::Moved | Verdict::Ask(_) | Verdict::Later)
                }
                _ => true,
            };
            let failed = Failed { failure, host: Some(group.node.host.clone()) };
            // All replies are read first: other calls can reuse the connections.
            if passes { last = Some(failed) } else { fatal = fatal.or(Some(failed)) }
        }
        fatal.map_or(Ok(last), Err)
    }

    fn by_node(
        &self,
        work: &dyn Work,
        batch: Vec<Left>,
        again: &mut Vec<Left>,
        last: &mut Option<Failed>,
    ) -> Vec<Group> {
        let topology = self.topology();
        let mut groups: Vec<Group> = Vec::new();
        for Left { index, ask } in batch {
            let (node, asking) = match ask {
                Some(host) => match self.node(&host) {
                    Ok(node) => (node, Asking::Yes),
                    Err(failure) => {
                        *last = Some(Failed { failure, host: None });
                        again.push(Left { index, ask: None });
                        continue;
                    }
                },
                None => {
                    let slot = blocks::slot(&work.block(index).key(self.run));
                    let Some(master) = topology.of_slot(slot) else {
                        *last = Some(Failed { failure: Failure::NoMaster(slot), host: None });
                        again.push(Left { index, ask: None });
                        continue;
                    };
                    (Arc::clone(master), Asking::No)
                }
            };
            match groups.iter_mut().find(|group| Arc::ptr_eq(&group.node, &node) && group.asking == asking) {
                Some(group) => group.indices.push(index),
                None => groups.push(Group { node, indices: vec![index], asking }),
            }
        }
        groups
    }

    /// Sends a node its part. Returns the connection with the coming replies, and the required number of
    /// acknowledgements.
    fn send(&self, work: &dyn Work, group: &Group) -> Result<(Connection, u32), Failure> {
        let mut connection = group.node.connection(&self.access)?;
        let mut wanted = 0;
        if work.writes() {
            let prepared = self.prepare_write(&group.node, &mut connection);
            match prepared {
                Ok(replicas) => wanted = replicas,
                Err(failure) => {
                    group.node.discard(connection, false);
                    return Err(failure);
                }
            }
        }
        let mut out = Requests::default();
        for &index in &group.indices {
            work.request(index, &work.block(index).key(self.run), group.asking, &mut out);
        }
        if wanted > 0 {
            let patience = (self.access.timeout / 2).as_millis().max(1).to_string();
            out.request(&[b"WAIT", wanted.to_string().as_bytes(), patience.as_bytes()]);
        }
        match connection.send(&out) {
            Ok(()) => Ok((connection, wanted)),
            Err(error) => {
                self.discard(&group.node, connection, work.writes());
                Err(error.into())
            }
        }
    }

    fn prepare_write(&self, node: &Node, connection: &mut Connection) -> Result<u32, Failure> {
        if let Some(refused) = node.put_up_fences(connection)? {
            self.say_unfenced(&refused.to_string());
        }
        let known = *node.replicas();
        match known.wanted {
            Some(wanted) if wanted > 0 || self.replicas.is_some() || known.checked.elapsed() < REPLICAS_AGAIN => {
                Ok(wanted)
            }
            Some(_) => {
                let info = connection.info(Some("replication"))?;
                self.note_replicas(node, info.replicas_online > 0);
                Ok(node.replicas().wanted.unwrap_or(0))
            }
            None => {
                let info = connection.info(Some("replication"))?;
                self.note_replicas(node, info.replicas > 0);
                Ok(node.replicas().wanted.unwrap_or(0))
            }
        }
    }

    /// Reads a node's replies.
    fn receive(
        &self,
        work: &mut dyn Work,
        group: &Group,
        mut connection: Connection,
        wanted: u32,
        again: &mut Vec<Left>,
    ) -> Option<Failure> {
        connection.await_replies();
        let mut last = None;
        for (place, &index) in group.indices.iter().enumerate() {
            match work.reply(index, connection.input()) {
                Ok(Ok(())) => (),
                Ok(Err(ErrorLine(line))) => {
                    let ask = match answers::verdict(&line) {
                        Verdict::Ask(host) => Some(host),
                        _ => None,
                    };
                    again.push(Left { index, ask });
                    last = Some(connection.said(&line));
                }
                Err(error) => {
                    self.discard(&group.node, connection, work.writes());
                    again.extend(group.indices[place..].iter().map(|&index| Left { index, ask: None }));
                    return Some(error.into());
                }
            }
        }
        if wanted > 0
            && let Err(failure) = self.acknowledged(&group.node, &mut connection, wanted)
        {
            if matches!(failure, Failure::Io(_)) {
                self.discard(&group.node, connection, true);
            } else {
                group.node.give_back(connection);
            }
            again.extend(group.indices.iter().map(|&index| Left { index, ask: None }));
            again.sort_by_key(|left| left.index);
            again.dedup_by_key(|left| left.index);
            return Some(last.unwrap_or(failure));
        }
        group.node.give_back(connection);
        last
    }

    /// Reads the reply to `WAIT`. With the rule "one, if there is any", too few may mean that no replica is left.
    fn acknowledged(&self, node: &Node, connection: &mut Connection, wanted: u32) -> Result<(), Failure> {
        let acknowledged = match connection.reply()? {
            Reply::Integer(acknowledged) => acknowledged,
            Reply::Error(line) => return Err(connection.said(&line)),
            _ => return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "no number in reply to WAIT").into()),
        };
        if acknowledged >= i64::from(wanted) {
            return Ok(());
        }
        let short = Failure::Unacknowledged { acknowledged, wanted };
        if self.replicas.is_some() {
            return Err(short);
        }
        let info = connection.info(Some("replication"))?;
        if info.replica_of.is_some() || info.replicas > 0 {
            return Err(short);
        }
        // Cut off from its replicas, a master of a Cluster looks like one without. The Cluster decides.
        if self.cluster {
            let reply = connection.ask(&[b"CLUSTER", b"SLOTS"])?;
            let ranges = answers::slots(&reply, &node.host).unwrap_or_default();
            if ranges.iter().any(|range| range.master == node.host && range.replicas > 0) {
                return Err(short);
            }
        }
        self.note_replicas(node, false);
        Ok(())
    }

    fn discard(&self, node: &Node, connection: Connection, wrote: bool) {
        if !node.discard(connection, wrote) {
            self.say_unfenced("it does not know CLIENT INFO");
        }
    }

    fn say_unfenced(&self, why: &str) {
        if !self.unfenced_said.swap(true, Ordering::Relaxed) {
            (self.say)(&format!(
                "{} cannot be kept from carrying out late what was asked on a lost connection ({why}); \
                 a page that is overwritten so is found by its checksum",
                self.name
            ));
        }
    }

    /// Refreshes the map of a Cluster. A single server has a fixed one.
    ///
    /// # Errors
    /// No node answered; the last one's failure.
    pub fn refresh(&self) -> Result<(), Failure> {
        if !self.cluster {
            return Ok(());
        }
        let mut refreshed = self.refreshed.lock().unwrap_or_else(PoisonError::into_inner);
        if refreshed.at.is_some_and(|at| at.elapsed() < REFRESH_MIN) {
            return Ok(());
        }
        // The masters first, then all servers ever known.
        let masters = self.topology().masters().to_vec();
        let all: Vec<_> = self.nodes.lock().unwrap_or_else(PoisonError::into_inner).by_host.values().cloned().collect();
        let mut asked = BTreeSet::new();
        let (begun, mut last) = (Instant::now(), Failure::NoMaster(0));
        for node in masters.into_iter().chain(all).filter(|node| asked.insert(node.host.clone())) {
            match self.slots_by(&node, &mut refreshed.epoch) {
                Ok(topology) => {
                    *self.topology.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(topology);
                    refreshed.at = Some(Instant::now());
                    return Ok(());
                }
                Err(failure) => last = failure,
            }
            if begun.elapsed() > self.access.timeout * REFRESH_TIMEOUTS {
                break;
            }
        }
        Err(last)
    }

    fn slots_by(&self, node: &Node, newest: &mut u64) -> Result<Topology, Failure> {
        let mut connection = node.connection(&self.access)?;
        let asked = connection.ask(&[b"CLUSTER", b"INFO"]).and_then(|info| {
            let slots = connection.ask(&[b"CLUSTER", b"SLOTS"])?;
            Ok((info, slots))
        });
        let (info, reply) = match asked {
            Ok(replies) => replies,
            Err(failure) => {
                node.discard(connection, false);
                return Err(failure);
            }
        };
        let epoch = match &info {
            Reply::Bulk(text) => answers::epoch(&String::from_utf8_lossy(text)).unwrap_or(0),
            _ => 0,
        };
        if epoch < *newest {
            node.give_back(connection);
            return Err(Failure::OutOfDate { epoch, newest: *newest });
        }
        *newest = epoch;
        node.give_back(connection);
        let ranges = answers::slots(&reply, &node.host).filter(|ranges| !ranges.is_empty());
        let ranges = ranges.ok_or(Failure::NoMaster(0))?;
        Topology::cluster(&ranges, |host| self.node(host))
    }
}

/// Number of blocks that go at once: at least one.
fn batch_length(work: &dyn Work, left: &[Left]) -> usize {
    let mut bytes = 0;
    let fits = |left: &&Left| {
        bytes += work.bytes(left.index);
        bytes <= BATCH_BYTES
    };
    left.iter().take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, port: usize) -> Host {
        Host { name: name.to_owned(), port: u16::try_from(port).unwrap() }
    }

    #[test]
    fn no_server_names_more_nodes_than_the_bound() {
        let given = [host("given", 1), host("given", 2)];
        let mut nodes = Nodes::new(given.iter());
        let held: Vec<_> = (given.len()..NODES_MAX).map(|port| nodes.get(&host("named", port)).unwrap()).collect();
        let Err(failure) = nodes.get(&host("more", 1)) else { panic!("one more than the bound") };
        assert_eq!(failure.to_string(), "it names more than 1000 nodes");
        assert_eq!(nodes.by_host.len(), NODES_MAX);
        assert!(nodes.get(&held[0].host).is_ok());
    }

    #[test]
    fn a_new_node_takes_the_room_of_those_in_no_use_and_never_that_of_the_urls_hosts() {
        let given = [host("given", 1), host("given", 2)];
        let mut nodes = Nodes::new(given.iter());
        let held = nodes.get(&host("held", 1)).unwrap();
        for port in 1..4 * NODES_MAX {
            nodes.get(&host("named", port)).unwrap();
            assert!(nodes.by_host.len() <= NODES_MAX);
        }
        assert!(given.iter().chain([&held.host]).all(|host| nodes.by_host.contains_key(host)));
    }
}
