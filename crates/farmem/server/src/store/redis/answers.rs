//! Parser of a server's answers: error lines, `INFO`, `CLUSTER SLOTS`.
//!
//! Truth: `src/server.c`, `src/cluster.c` of Redis 7 (the errors' first words),
//! <https://redis.io/docs/latest/commands/info/>.

use super::resp::Reply;
use crate::store::url::Host;

/// Consequence of an error line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The slot's pages moved to another node: read the map again.
    Moved,
    /// The slot is migrating: ask that node, this once.
    Ask(Host),
    /// Temporary failure.
    Later,
    /// Permission denied.
    Refused,
    /// The server is full.
    Full,
    /// The server cannot be used.
    Unfit,
}

/// Classifies an error line.
pub fn verdict(line: &str) -> Verdict {
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or("");
    match first {
        "MOVED" | "READONLY" => Verdict::Moved,
        "ASK" => match words.nth(1).and_then(host) {
            Some(host) => Verdict::Ask(host),
            None => Verdict::Later,
        },
        "TRYAGAIN" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "BUSY" | "NOREPLICAS" | "UNBLOCKED" | "FAILOVER" => {
            Verdict::Later
        }
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" => Verdict::Refused,
        "OOM" | "MISCONF" => Verdict::Full,
        // Error of WAIT where a master has become a replica.
        "ERR" if line.contains("replica instance") => Verdict::Moved,
        "ERR" if line.contains("max number of clients") => Verdict::Later,
        "ERR" if line.contains("AUTH") || line.contains("invalid password") => Verdict::Refused,
        _ => Verdict::Unfit,
    }
}

/// `10.0.0.1:7000`, `[::1]:7000` and `::1:7000` (as Redis prints it) as a host.
fn host(text: &str) -> Option<Host> {
    let (name, port) = text.rsplit_once(':')?;
    let name = name.trim_start_matches('[').trim_end_matches(']');
    Some(Host { name: name.to_owned(), port: port.parse().ok()? }).filter(|host| !host.name.is_empty())
}

/// Fields of `INFO` that are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Whether the server belongs to a Cluster.
    pub in_cluster: bool,
    /// Master of a replica; `None` for a master.
    pub replica_of: Option<String>,
    /// Connected replicas, in sync or not.
    pub replicas: u32,
    /// Replicas in sync, which can acknowledge.
    pub replicas_online: u32,
    /// Memory limit in bytes; 0 is none.
    pub maxmemory_bytes: u64,
    /// Memory in use, in bytes.
    pub used_bytes: u64,
    /// Eviction policy at the limit; `noeviction` evicts nothing.
    pub eviction: String,
}

/// Parses the text of `INFO`; missing fields stay at zero.
pub fn info(text: &str) -> Info {
    let mut info = Info::default();
    for line in text.lines() {
        let Some((key, value)) = line.trim_end().split_once(':') else { continue };
        match key {
            "cluster_enabled" => info.in_cluster = value == "1",
            "role" if value == "slave" => {
                info.replica_of.get_or_insert_default();
            }
            "master_host" => info.replica_of = Some(value.to_owned()),
            "connected_slaves" => info.replicas = value.parse().unwrap_or(0),
            "maxmemory" => info.maxmemory_bytes = value.parse().unwrap_or(0),
            "used_memory" => info.used_bytes = value.parse().unwrap_or(0),
            "maxmemory_policy" => info.eviction = value.to_owned(),
            slave if is_replica(slave) && value.split(',').any(|pair| pair == "state=online") => {
                info.replicas_online += 1;
            }
            _ => (),
        }
    }
    info
}

/// `slave0`, `slave1`, and not `slave_read_only`.
fn is_replica(key: &str) -> bool {
    key.strip_prefix("slave").is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// Newest epoch that a node knows, from `CLUSTER INFO`: it grows with every change of masters.
pub fn epoch(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.trim_end().strip_prefix("cluster_current_epoch:")?.parse().ok())
}

/// Range of slots, its master, and the number of that master's healthy replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first slot.
    pub first: u16,
    /// The last one.
    pub last: u16,
    /// Their master.
    pub master: Host,
    /// Number of replicas that the Cluster does not consider failed.
    pub replicas: u32,
}

/// Parses `CLUSTER SLOTS`, as answered by `asked`. A node without a name of its own is `asked`.
pub fn slots(reply: &Reply, asked: &Host) -> Option<Vec<Range>> {
    let Reply::Array(ranges) = reply else { return None };
    // More ranges than slots are an invalid map.
    if ranges.len() > usize::from(super::topology::SLOTS) {
        return None;
    }
    ranges.iter().map(|range| slot_range(range, asked)).collect()
}

fn slot_range(range: &Reply, asked: &Host) -> Option<Range> {
    let Reply::Array(parts) = range else { return None };
    let [Reply::Integer(first), Reply::Integer(last), Reply::Array(master), replicas @ ..] = &parts[..] else {
        return None;
    };
    let [name, Reply::Integer(port), ..] = &master[..] else { return None };
    let name = match name {
        Reply::Bulk(name) if !name.is_empty() && name != b"?" => String::from_utf8(name.clone()).ok()?,
        Reply::Bulk(_) | Reply::Nil => asked.name.clone(),
        _ => return None,
    };
    let slot = |number: &i64| u16::try_from(*number).ok().filter(|&slot| slot < super::topology::SLOTS);
    Some(Range {
        first: slot(first)?,
        last: slot(last)?,
        master: Host { name, port: u16::try_from(*port).ok()? },
        replicas: u32::try_from(replicas.len()).ok()?,
    })
}

/// Unique identity of a connection in its server: its number, and its client address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientId {
    /// Number from the server's counter, from 1 at its start.
    pub id: String,
    /// Client address, as the server sees it; tells it from a connection of the same number after a restart of the
    /// server.
    pub address: String,
}

/// Parses `CLIENT INFO`.
pub fn client_id(text: &str) -> Option<ClientId> {
    let field = |name: &str| text.split_whitespace().find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    Some(ClientId { id: field("id")?.to_owned(), address: field("addr")?.to_owned() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(name: &str, port: u16) -> Host {
        Host { name: name.to_owned(), port }
    }

    #[test]
    fn errors_are_sorted_by_what_to_do() {
        let cases = [
            ("MOVED 3999 127.0.0.1:6381", Verdict::Moved),
            ("READONLY You can't write against a read only replica.", Verdict::Moved),
            ("ERR WAIT cannot be used with replica instances. Please also note", Verdict::Moved),
            ("ASK 3999 127.0.0.1:6381", Verdict::Ask(at("127.0.0.1", 6381))),
            ("ASK 3999 ::1:6381", Verdict::Ask(at("::1", 6381))),
            ("ASK 3999 :6381", Verdict::Later),
            ("CLUSTERDOWN Hash slot not served", Verdict::Later),
            ("LOADING Redis is loading the dataset in memory", Verdict::Later),
            ("ERR max number of clients reached", Verdict::Later),
            ("NOREPLICAS Not enough good replicas to write.", Verdict::Later),
            ("NOAUTH Authentication required.", Verdict::Refused),
            ("WRONGPASS invalid username-password pair or user is disabled.", Verdict::Refused),
            ("NOPERM this user has no permissions to run the 'hset' command", Verdict::Refused),
            ("ERR AUTH <password> called without any password configured for the default user.", Verdict::Refused),
            ("OOM command not allowed when used memory > 'maxmemory'.", Verdict::Full),
            ("MISCONF Redis is configured to save RDB snapshots", Verdict::Full),
            ("ERR unknown command 'HMGET'", Verdict::Unfit),
            ("WRONGTYPE Operation against a key", Verdict::Unfit),
            ("", Verdict::Unfit),
        ];
        for (line, expected) in cases {
            assert_eq!(verdict(line), expected, "{line}");
        }
    }

    #[test]
    fn info_is_read_and_what_is_missing_is_zero() {
        let text = "# Replication\r\nrole:master\r\nconnected_slaves:2\r\nslave0:ip=::1,port=1,state=online,offset=4,lag=0\r\n\
                    slave1:ip=::1,port=2,state=wait_bgsave,offset=0,lag=0\r\nslave_read_only:1\r\nmaxmemory:0\r\nused_memory:77\r\n\
                    maxmemory_policy:noeviction\r\ncluster_enabled:1\r\nsomething_new:9\r\n";
        let info = info(text);
        assert_eq!((info.replicas, info.replicas_online, info.in_cluster), (2, 1, true));
        assert_eq!((info.replica_of, info.maxmemory_bytes, info.eviction.as_str()), (None, 0, "noeviction"));
        assert_eq!(info.used_bytes, 77);
        assert_eq!(super::info(""), Info::default());
    }

    #[test]
    fn a_replica_names_its_master() {
        let info = info("role:slave\r\nmaster_host:node1\r\n");
        assert_eq!(info.replica_of.as_deref(), Some("node1"));
    }

    #[test]
    fn the_epoch_is_read() {
        assert_eq!(epoch("cluster_state:ok\r\ncluster_current_epoch:7\r\ncluster_my_epoch:1\r\n"), Some(7));
        assert_eq!(epoch("cluster_state:ok\r\n"), None);
    }

    #[test]
    fn slots_name_a_master_and_count_its_replicas() {
        let node = |name: &str, port| Reply::Array(vec![Reply::Bulk(name.into()), Reply::Integer(port)]);
        let range = |first, last, nodes: Vec<Reply>| {
            Reply::Array([vec![Reply::Integer(first), Reply::Integer(last)], nodes].concat())
        };
        let reply = Reply::Array(vec![
            range(0, 99, vec![node("10.0.0.1", 7000), node("10.0.0.2", 7000)]),
            range(100, 16383, vec![node("", 7001)]),
        ]);
        let read = slots(&reply, &at("seed", 1)).unwrap();
        assert_eq!(read[0], Range { first: 0, last: 99, master: at("10.0.0.1", 7000), replicas: 1 });
        assert_eq!(read[1], Range { first: 100, last: 16383, master: at("seed", 7001), replicas: 0 });
        assert_eq!(slots(&Reply::Array(vec![range(0, 99999, vec![node("a", 1)])]), &at("seed", 1)), None);
        assert_eq!(slots(&Reply::Nil, &at("seed", 1)), None);
    }

    #[test]
    fn a_connection_is_known_by_number_and_address() {
        let id = client_id("id=7 addr=127.0.0.1:50000 laddr=127.0.0.1:6379 fd=8 name= age=0").unwrap();
        assert_eq!((id.id.as_str(), id.address.as_str()), ("7", "127.0.0.1:50000"));
        assert_eq!(client_id("addr=x"), None);
    }

    proptest! {
        #[test]
        fn nothing_a_server_says_panics(text in any::<String>()) {
            let _ = (verdict(&text), info(&text), client_id(&text), host(&text), epoch(&text));
        }
    }
}
