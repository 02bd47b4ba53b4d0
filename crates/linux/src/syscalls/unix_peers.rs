//! `NETLINK_SOCK_DIAG`: the peer of each connected Unix socket, by inodes.
//!
//! `/proc/net/unix` does not show peers. The sockets are those of our network namespace.
//!
//! Cost: 1 µs a socket. Side effects: the kernel may load its module `unix_diag`, as for ss(8).
//!
//! Since: Linux 3.3, with CONFIG_UNIX_DIAG. Truth: sock_diag(7).

use std::collections::BTreeMap;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

use units::cast;

use crate::Error;

/// Answers that are read, 16 KiB each: some 100,000 sockets.
const ANSWERS_MOST: usize = 512;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const UDIAG_SHOW_PEER: u32 = 4;
const UNIX_DIAG_PEER: u16 = 2;
/// Length of `nlmsghdr`, and of `unix_diag_msg`.
const HEAD: usize = 16;

/// Inode of the peer, by the inode of each connected socket.
///
/// # Errors
/// `Unsupported` if this kernel has no `unix_diag`.
pub fn unix_peers() -> Result<BTreeMap<u64, u64>, Error> {
    let failed = |errno| Error::of_host("ask", "NETLINK_SOCK_DIAG", errno);
    let kind = Some(netlink::SOCK_DIAG);
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, kind).map_err(failed)?;
    send(&socket, &request(), SendFlags::empty()).map_err(failed)?;
    let mut peers = BTreeMap::new();
    let mut buffer = vec![0; 1 << 15];
    for _ in 0..ANSWERS_MOST {
        // The kernel writes each part of the answer in the call that reads the one before.
        let (_, length) = recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT).map_err(failed)?;
        match decode(&buffer[..length.min(buffer.len())], &mut peers) {
            Part::More => {}
            Part::Last => break,
            Part::Refused(errno) => return Err(failed(errno)),
        }
    }
    Ok(peers)
}

fn request() -> Vec<u8> {
    let [family, protocol] = [cast::fits(libc::AF_UNIX), 0];
    let length: u32 = 16 + 24;
    let head =
        [&length.to_ne_bytes()[..], &SOCK_DIAG_BY_FAMILY.to_ne_bytes(), &NLM_F_REQUEST_DUMP.to_ne_bytes(), &[0; 8]];
    // `unix_diag_req`: all states, no single inode.
    let body =
        [&[family, protocol, 0, 0][..], &u32::MAX.to_ne_bytes(), &[0; 4], &UDIAG_SHOW_PEER.to_ne_bytes(), &[0; 8]];
    [head.concat(), body.concat()].concat()
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    More,
    Last,
    Refused(Errno),
}

/// Adds the sockets of one answer, a sequence of messages.
fn decode(mut answer: &[u8], peers: &mut BTreeMap<u64, u64>) -> Part {
    while let Some(length) = u32_at(answer, 0).map(|length| cast::index(length.into()))
        && length >= HEAD
        && length <= answer.len()
    {
        let (message, rest) = answer.split_at(length);
        answer = rest.get(padding(length)..).unwrap_or_default();
        match u16_at(message, 4) {
            Some(NLMSG_DONE) => return Part::Last,
            Some(NLMSG_ERROR) => {
                let number = u32_at(message, HEAD).map_or(libc::EIO, |value| value.cast_signed().wrapping_neg());
                return Part::Refused(Errno::from_raw_os_error(number));
            }
            Some(SOCK_DIAG_BY_FAMILY) => {
                if let Some((own, peer)) = socket_of(&message[HEAD..]) {
                    peers.insert(own, peer);
                }
            }
            _ => {}
        }
    }
    Part::More
}

/// Inodes of a socket (`unix_diag_msg`) and of its peer, an attribute.
fn socket_of(message: &[u8]) -> Option<(u64, u64)> {
    let inode = u32_at(message, 4)?;
    let mut attributes = message.get(HEAD..)?;
    while let Some(length) = u16_at(attributes, 0).map(usize::from)
        && length >= 4
        && length <= attributes.len()
    {
        if u16_at(attributes, 2) == Some(UNIX_DIAG_PEER) {
            return Some((inode.into(), u32_at(attributes, 4)?.into()));
        }
        attributes = attributes.get(length + padding(length)..)?;
    }
    None
}

fn padding(length: usize) -> usize {
    length.next_multiple_of(4) - length
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_two_ends_of_a_pair_are_each_others_peers() {
        let (one, other) = UnixStream::pair().unwrap();
        let inode = |socket: &UnixStream| {
            let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(socket));
            std::fs::metadata(link).unwrap().ino()
        };
        match unix_peers() {
            Ok(peers) => assert_eq!(peers.get(&inode(&one)), Some(&inode(&other))),
            Err(why) => assert!(matches!(why, Error::Unsupported(_) | Error::Denied(_)), "{why}"),
        }
    }

    proptest! {
        #[test]
        fn any_answer_is_decoded(answer in prop::collection::vec(any::<u8>(), 0..200)) {
            decode(&answer, &mut BTreeMap::new());
        }
    }
}
