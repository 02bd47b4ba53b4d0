//! `/proc/PID/fd`, `/proc/PID/net/tcp`, `/proc/PID/net/tcp6`: processes that talk to each other over a pipe, a FIFO, a Unix
//! socket or TCP.
//!
//! A pipe or FIFO connects a process that may read it with one that may write it; processes that merely inherited the
//! same end are not connected. Peers of Unix sockets are those of `unix_peers`, of our network namespace alone. A TCP
//! connection on one host has a row for each end, in the tables of the namespaces of both. A server that has a process for
//! each connection still listens when that process has ended: it is found by the address that a client is connected to.
//! UDP, vsock, shared memory and connections through a proxy do not show.
//!
//! Cost: some 3 µs a descriptor, 1 µs a socket of the namespace. Side effects: none; no file server is asked
//! (`AT_STATX_DONT_SYNC`).
//!
//! Since: Linux 4.11. Needs ptrace access to the processes. Truth: proc_pid_fd(5), proc_pid_net(5); `get_tcp4_sock` in
//! net/ipv4/tcp_ipv4.c.

use std::collections::BTreeSet;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

use crate::{KernelFiles, Pid, unix_peers};

/// Number of descriptors of one process that are looked at.
const DESCRIPTORS_MAX: usize = 1024;

/// Pipe, by its device and inode; anonymous pipes have the device 0:0.
type Pipe = (u32, u32, u64);

/// Pipes and sockets that processes have open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    read: BTreeSet<Pipe>,
    written: BTreeSet<Pipe>,
    sockets: BTreeSet<u64>,
    /// TCP connections: own and other address, each as in the kernel's table.
    tcp: BTreeSet<(String, String)>,
    /// Network namespaces and addresses that the connections lead to, and that processes listen at.
    reached: BTreeSet<Place>,
    listening: BTreeSet<Place>,
}

/// Network namespace, and an address in it.
type Place = (String, String);

impl Ends {
    /// Pipes and sockets of `pid`; none if it has ended.
    pub fn of(files: &impl KernelFiles, pid: Pid) -> Ends {
        let mut ends = Ends::default();
        let folder = pid.file("fd");
        for number in files.list(&folder).unwrap_or_default().into_iter().take(DESCRIPTORS_MAX) {
            ends.add(&format!("/{folder}/{number}"));
        }
        if !ends.sockets.is_empty() {
            let namespace = std::fs::read_link(format!("/{}", pid.file("ns/net"))).unwrap_or_default();
            let namespace = namespace.to_string_lossy();
            for table in ["net/tcp", "net/tcp6"] {
                let rows = files.read(&pid.file(table)).unwrap_or_default();
                rows.lines().for_each(|row| ends.add_row(row, &namespace));
            }
        }
        ends
    }

    fn add(&mut self, link: &str) {
        let Ok(name) = std::fs::read_link(link) else { return };
        let name = name.to_string_lossy();
        if let Some(inode) = in_brackets(&name, "socket:") {
            self.sockets.insert(inode);
            return;
        }
        let pipe = in_brackets(&name, "pipe:").map(|inode| (0, 0, inode));
        let Some(pipe) = pipe.or_else(|| name.starts_with('/').then(|| fifo(link)).flatten()) else { return };
        // The link's own mode is that of the descriptor.
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
        let Ok(of) = statx(CWD, link, flags, StatxFlags::MODE) else { return };
        if of.stx_mode & 0o400 != 0 {
            self.read.insert(pipe);
        }
        if of.stx_mode & 0o200 != 0 {
            self.written.insert(pipe);
        }
    }

    fn add_row(&mut self, row: &str, namespace: &str) {
        let Some(Row { own, peer, listens }) = row_of(row, &self.sockets) else { return };
        if listens {
            self.listening.insert((namespace.to_owned(), own));
            return;
        }
        // A server on all addresses may have connections of this host alone.
        let (host, port) = peer.rsplit_once(':').unwrap_or_default();
        let is_of_host =
            (host.len() == 8 && host.ends_with("7F")) || own.rsplit_once(':').is_some_and(|(own, _)| own == host);
        let all = ["00000000", ANY_IPV6].map(|any| format!("{any}:{port}"));
        let places = all.into_iter().filter(|_| is_of_host).chain([peer.clone()]);
        self.reached.extend(places.map(|place| (namespace.to_owned(), place)));
        self.tcp.insert((own, peer));
    }

    /// Adds the pipes and sockets of another process.
    pub fn extend(&mut self, other: Ends) {
        let Ends { read, written, sockets, tcp, reached, listening } = other;
        self.reached.extend(reached);
        self.listening.extend(listening);
        self.read.extend(read);
        self.written.extend(written);
        self.sockets.extend(sockets);
        self.tcp.extend(tcp);
    }

    /// Removes what these processes hold in common with both ends of a pipe, as make's job server.
    pub fn remove_shared(&mut self, holder: &Ends) {
        let both: BTreeSet<Pipe> = holder.read.intersection(&holder.written).copied().collect();
        self.read.retain(|pipe| !both.contains(pipe));
        self.written.retain(|pipe| !both.contains(pipe));
    }

    /// True if these processes and the `other` ones talk to each other.
    pub fn meet(&self, other: &Ends) -> bool {
        let by_pipe = !self.read.is_disjoint(&other.written) || !self.written.is_disjoint(&other.read);
        let by_tcp = || self.tcp.iter().any(|(own, peer)| other.tcp.contains(&(peer.clone(), own.clone())));
        by_pipe || by_tcp() || self.meet_by_unix_socket(other)
    }

    /// True if these processes are connected to an address of this host that the `other` ones listen at.
    pub fn meet_listener(&self, other: &Ends) -> bool {
        !self.reached.is_disjoint(&other.listening)
    }

    fn meet_by_unix_socket(&self, other: &Ends) -> bool {
        if self.sockets.is_empty() || other.sockets.is_empty() {
            return false;
        }
        let peers = unix_peers::unix_peers().unwrap_or_default();
        peers.iter().any(|(own, peer)| self.sockets.contains(own) && other.sockets.contains(peer))
    }
}

fn in_brackets(name: &str, kind: &str) -> Option<u64> {
    name.strip_prefix(kind)?.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

fn fifo(link: &str) -> Option<Pipe> {
    let of =
        statx(CWD, link, AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT, StatxFlags::TYPE | StatxFlags::INO).ok()?;
    let is_fifo = FileType::from_raw_mode(u32::from(of.stx_mode)) == FileType::Fifo;
    is_fifo.then_some((of.stx_dev_major, of.stx_dev_minor, of.stx_ino))
}

/// Row of the kernel's table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    own: String,
    peer: String,
    listens: bool,
}

/// Any address of the host.
const ANY_IPV6: &str = "00000000000000000000000000000000";

/// Row, if one of these sockets has it.
fn row_of(row: &str, sockets: &BTreeSet<u64>) -> Option<Row> {
    const LISTEN: &str = "0A";
    let words: Vec<&str> = row.split_whitespace().collect();
    let inode: u64 = words.get(9)?.parse().ok()?;
    let found = || Row { own: address(words[1]), peer: address(words[2]), listens: words[3] == LISTEN };
    sockets.contains(&inode).then(found)
}

/// IPv4 addresses in IPv6 form become those of IPv4: a server may listen on both.
fn address(text: &str) -> String {
    text.strip_prefix("0000000000000000FFFF0000").unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::Rooted;

    const ROW: &str =
        "   1: 0100007F:1F90 0100007F:C3A8 01 00000000:00000000 00:00000000 00000000     0        0 5120 1 0";

    #[test]
    fn a_row_is_that_of_a_socket_and_both_forms_of_an_address_are_one() {
        let sockets = BTreeSet::from([5120]);
        let (own, peer) = ("0100007F:1F90".to_owned(), "0100007F:C3A8".to_owned());
        let expected = || Some(Row { own: own.clone(), peer: peer.clone(), listens: false });
        assert_eq!(row_of(ROW, &sockets), expected());
        let mapped = ROW.replace("0100007F", "0000000000000000FFFF00000100007F");
        assert_eq!(row_of(&mapped, &sockets), expected());
        assert_eq!(row_of(ROW, &BTreeSet::from([7])), None);
        assert_eq!(row_of("  sl  local_address rem_address", &sockets), None);
        assert_eq!((in_brackets("pipe:[12]", "pipe:"), in_brackets("pipe:[x]", "pipe:")), (Some(12), None));
    }

    #[test]
    fn a_client_is_connected_to_who_listens_at_its_peer_address_on_this_host() {
        let ends = |rows: &[&str], namespace: &str| {
            let mut ends = Ends { sockets: BTreeSet::from([5120]), ..Ends::default() };
            rows.iter().for_each(|row| ends.add_row(row, namespace));
            ends
        };
        let client = ends(&[ROW], "net:[1]");
        let listener = |own: &str| ROW.replace("0100007F:C3A8 01", "00000000:0000 0A").replace("0100007F:1F90", own);
        let meets = |client: &Ends, own: &str, namespace| client.meet_listener(&ends(&[&listener(own)], namespace));
        assert!(meets(&client, "0100007F:C3A8", "net:[1]"));
        assert!(meets(&client, "00000000:C3A8", "net:[1]"));
        assert!(meets(&client, &format!("{ANY_IPV6}:C3A8"), "net:[1]"));
        assert!(!meets(&client, "0100007F:C3A9", "net:[1]"), "another port");
        assert!(!meets(&client, "0100007F:C3A8", "net:[2]"), "another network");
        let elsewhere = ends(&[&ROW.replace("0100007F:C3A8", "0500000A:C3A8")], "net:[1]");
        assert!(!meets(&elsewhere, "00000000:C3A8", "net:[1]"), "another host's port of the same number");
        assert!(meets(&elsewhere, "0500000A:C3A8", "net:[1]"), "its own address");
        assert!(!client.meet_listener(&client));
    }

    #[test]
    fn who_may_read_a_pipe_meets_who_may_write_it_and_two_writers_do_not_meet() {
        let of = |read: &[u64], written: &[u64]| {
            let pipes = |all: &[u64]| all.iter().map(|inode| (0, 0, *inode)).collect();
            Ends { read: pipes(read), written: pipes(written), ..Ends::default() }
        };
        assert!(of(&[1], &[]).meet(&of(&[], &[1])));
        assert!(!of(&[], &[1]).meet(&of(&[], &[1])), "both inherited the same standard error");
        let mut job = of(&[2], &[2]);
        job.remove_shared(&of(&[2], &[2, 3]));
        assert!(!job.meet(&of(&[2], &[2])));
    }

    fn sleeper(input: impl Into<Stdio>) -> Child {
        Command::new("sleep").arg("60").stdin(input).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn meets_us(mut other: Child) -> bool {
        let files = Rooted::host();
        let pid = Pid(i32::try_from(other.id()).unwrap());
        let meets = Ends::of(&files, Pid::own()).meet(&Ends::of(&files, pid));
        other.kill().unwrap();
        other.wait().unwrap();
        meets
    }

    #[test]
    fn each_kind_of_connection_of_this_kernel_is_seen() {
        let mut by_pipe = sleeper(Stdio::piped());
        let mut pipe = by_pipe.stdin.take().unwrap();
        pipe.write_all(b"a").unwrap();
        assert!(meets_us(by_pipe));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        assert!(meets_us(sleeper(std::os::fd::OwnedFd::from(server))));
        drop(client);
        assert!(!meets_us(sleeper(Stdio::null())));
        if unix_peers::unix_peers().is_ok() {
            let (_own, other) = UnixStream::pair().unwrap();
            assert!(meets_us(sleeper(std::os::fd::OwnedFd::from(other))));
        }
    }
}
