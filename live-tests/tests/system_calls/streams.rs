//! Calls on pipes and sockets, and calls that wait for descriptors.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

use farmem_engine::calls::number as n;

use crate::arena::{Attempt, Good, Trial, make, six};

/// All of them; the sockets with names are in the folder.
pub fn trial(trial: &mut Trial, folder: &str) {
    pipes(trial);
    waits(trial);
    addresses(trial, folder);
    messages(trial);
    options(trial);
}

/// A pipe's two ends; it holds a few bytes.
fn pipe(attempt: &mut Attempt) -> (u64, u64) {
    let (read, mut write) = std::io::pipe().unwrap();
    write.write_all(b"0123456789").unwrap();
    (attempt.keep(read), attempt.keep(write))
}

fn pipes(trial: &mut Trial) {
    for number in [n::PIPE, n::PIPE2] {
        trial.call(number, Good::Yes, |attempt| six(&[attempt.buffer(8), 0]));
    }
    trial.call(n::READ, Good::Count(10), |attempt| six(&[pipe(attempt).0, attempt.buffer(10), 10]));
    trial.call(n::WRITE, Good::Count(6000), |attempt| six(&[pipe(attempt).1, attempt.put(&[1; 6000]), 6000]));
    trial.call(n::SPLICE, Good::Count(10), |attempt| {
        let from = attempt.keep(std::fs::File::open("/proc/self/exe").unwrap());
        [from, attempt.words(&[1]), pipe(attempt).1, 0, 10, 0]
    });
    trial.call(n::VMSPLICE, Good::Count(10), |attempt| {
        let data = attempt.buffer(10);
        six(&[pipe(attempt).1, attempt.words(&[data, 10]), 1, 0])
    });
    trial.call(n::IOCTL, Good::Yes, |attempt| six(&[pipe(attempt).0, 0x541b, attempt.buffer(4)]));
    trial.call(n::IOCTL, Good::Yes, |attempt| six(&[pipe(attempt).0, 0x5421, attempt.buffer(4)]));
    trial.call(n::READ, Good::Count(8), |attempt| {
        let event = attempt.made(make(n::EVENTFD2, six(&[3])));
        six(&[event, attempt.buffer(8), 8])
    });
    // TCGETS, TIOCGWINSZ, TIOCGPTN of a terminal.
    for (request, bytes) in [(0x5401, 36), (0x5413, 8), (0x8004_5430, 4)] {
        trial.call(n::IOCTL, Good::Yes, |attempt| {
            let terminal = std::fs::OpenOptions::new().read(true).write(true).open("/dev/ptmx").unwrap();
            six(&[attempt.keep(terminal), request, attempt.buffer(bytes)])
        });
    }
}

fn waits(trial: &mut Trial) {
    // select reads no more bits than the process has space for descriptors, which begins with 64.
    let high = make(n::FCNTL, six(&[1, libc::F_DUPFD as u64, 200]));
    assert!(high >= 200 && make(n::CLOSE, six(&[high as u64])) == 0);
    for number in [n::POLL, n::PPOLL] {
        trial.call(number, Good::Yes, |attempt| {
            let end = pipe(attempt).0 | 1 << 32;
            let ends = attempt.words(&[end; 3]);
            // The time left is written if it can be.
            let time = attempt.loose(&[0; 16]);
            if number == n::POLL { six(&[ends, 3, 0]) } else { six(&[ends, 3, time, attempt.words(&[0]), 8]) }
        });
    }
    trial.call(n::PPOLL, Good::Count(0), |attempt| six(&[0, 0, attempt.words(&[0, 0]), 0, 8]));
    trial.call(n::SELECT, Good::Yes, |attempt| {
        let sets = [attempt.words(&[0; 2]), attempt.words(&[0; 2]), attempt.words(&[0; 2])];
        six(&[128, sets[0], sets[1], sets[2], attempt.words(&[0, 0])])
    });
    trial.call(n::PSELECT6, Good::Yes, |attempt| {
        let sets = [attempt.words(&[0; 2]), attempt.words(&[0; 2]), attempt.words(&[0; 2])];
        let mask = attempt.words(&[0]);
        [128, sets[0], sets[1], sets[2], attempt.words(&[0, 0]), attempt.words(&[mask, 8])]
    });
    trial.call(n::EPOLL_CTL, Good::Yes, |attempt| {
        let group = attempt.made(make(n::EPOLL_CREATE1, six(&[0])));
        six(&[group, 1, pipe(attempt).0, attempt.put(&[1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0])])
    });
    for number in [n::EPOLL_WAIT, n::EPOLL_PWAIT, n::EPOLL_PWAIT2] {
        trial.call(number, Good::Count(2), |attempt| {
            let group = attempt.made(make(n::EPOLL_CREATE1, six(&[0])));
            for _ in 0..2 {
                let event = libc::epoll_event { events: 1, u64: 5 };
                assert_eq!(make(n::EPOLL_CTL, six(&[group, 1, pipe(attempt).0, &raw const event as u64])), 0);
            }
            let found = attempt.buffer(24);
            match number {
                n::EPOLL_WAIT => six(&[group, found, 2, 0]),
                n::EPOLL_PWAIT => [group, found, 2, 0, attempt.words(&[0]), 8],
                _ => [group, found, 2, attempt.words(&[0, 0]), attempt.words(&[0]), 8],
            }
        });
    }
}

fn address(name: &str) -> Vec<u8> {
    let mut bytes = (libc::AF_UNIX as u16).to_le_bytes().to_vec();
    bytes.extend(name.bytes());
    bytes.push(0);
    bytes
}

fn socket(attempt: &mut Attempt, kind: i32) -> u64 {
    attempt.made(make(n::SOCKET, six(&[libc::AF_UNIX as u64, kind as u64, 0])))
}

fn addresses(trial: &mut Trial, folder: &str) {
    let name = format!("{folder}/socket");
    let bytes = address(&name);
    let length = bytes.len() as u64;
    trial.call(n::SOCKETPAIR, Good::Yes, |attempt| six(&[1, 1, 0, attempt.buffer(8)]));
    trial.call(n::BIND, Good::Yes, |attempt| {
        let _ = std::fs::remove_file(&name);
        six(&[socket(attempt, libc::SOCK_STREAM), attempt.put(&bytes), length])
    });
    for number in [n::ACCEPT, n::ACCEPT4, n::GETSOCKNAME, n::GETPEERNAME, n::CONNECT] {
        trial.call(number, Good::Yes, |attempt| {
            let _ = std::fs::remove_file(&name);
            let listener = UnixListener::bind(&name).unwrap();
            let at = attempt.keep(listener);
            if number == n::CONNECT {
                return six(&[socket(attempt, libc::SOCK_STREAM), attempt.put(&bytes), length]);
            }
            // A client without a name has two bytes of address.
            let client = UnixStream::connect(&name).unwrap();
            let connected = attempt.keep(client);
            let (asked, told) = match number {
                n::GETPEERNAME => (connected, length as usize),
                n::GETSOCKNAME => (at, length as usize),
                _ => (at, 2),
            };
            six(&[asked, attempt.buffer(told), attempt.halves(&[told as u32]), 0])
        });
    }
    trial.call(n::SENDTO, Good::Count(5000), |attempt| {
        let _ = std::fs::remove_file(&name);
        attempt.keep(UnixDatagram::bind(&name).unwrap());
        [socket(attempt, libc::SOCK_DGRAM), attempt.put(&[1; 5000]), 5000, 0, attempt.put(&bytes), length]
    });
    trial.call(n::RECVFROM, Good::Count(5000), |attempt| {
        let (at, from) = (format!("{name}-a"), name.as_str());
        for name in [&at, from] {
            let _ = std::fs::remove_file(name);
        }
        let (to, sender) = (UnixDatagram::bind(&at).unwrap(), UnixDatagram::bind(from).unwrap());
        sender.send_to(&[1; 5000], &at).unwrap();
        let to = attempt.keep(to);
        [to, attempt.buffer(5000), 5000, 0, attempt.buffer(length as usize), attempt.halves(&[length as u32])]
    });
}

fn messages(trial: &mut Trial) {
    /// A `msghdr` with two vectors and a control message of one descriptor.
    fn message(attempt: &mut Attempt, control: u64) -> [u64; 7] {
        let (one, two) = (attempt.put(&[1; 5000]), attempt.put(&[1; 3]));
        let vectors = attempt.words(&[one, 5000, two, 3]);
        [0, 0, vectors, 2, control, if control == 0 { 0 } else { 24 }, 0]
    }
    /// `mmsghdr`s, without the last one's padding.
    fn heads_of(attempt: &mut Attempt, words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        attempt.put(&bytes[..bytes.len() - 4])
    }
    let rights = |of: u64| [20_u64, 1 | 1 << 32, of];
    let all = Good::Count(5003);
    trial.call(n::SENDMSG, all, |attempt| {
        let (a, b) = UnixDatagram::pair().unwrap();
        let (a, _) = (attempt.keep(a), attempt.keep(b));
        // The last four bytes of the control message are padding.
        let control = attempt.words(&rights(1));
        let head = message(attempt, control);
        six(&[a, attempt.words(&head), 0])
    });
    trial.call(n::RECVMSG, all, |attempt| {
        let (a, b) = UnixDatagram::pair().unwrap();
        a.send(&[1; 5003]).unwrap();
        let control = attempt.loose(&[0; 24]);
        let head = message(attempt, control);
        six(&[attempt.keep(b), attempt.words(&head), 0])
    });
    for number in [n::SENDMMSG, n::RECVMMSG] {
        trial.call(number, Good::Count(2), |attempt| {
            let (a, b) = UnixDatagram::pair().unwrap();
            if number == n::RECVMMSG {
                a.send(&[1; 5003]).unwrap();
                a.send(&[1; 5003]).unwrap();
            }
            let mut heads = message(attempt, 0).to_vec();
            heads.push(0);
            heads.extend(message(attempt, 0));
            heads.push(0);
            let end = if number == n::SENDMMSG { &a } else { &b }.as_raw_fd();
            let (a, b) = (attempt.keep(a), attempt.keep(b));
            assert!([a, b].contains(&(end as u64)));
            six(&[end as u64, heads_of(attempt, &heads), 2, 0])
        });
    }
    trial.call(n::RECVMMSG, Good::Count(1), |attempt| {
        let (a, b) = UnixDatagram::pair().unwrap();
        a.send(&[1; 5003]).unwrap();
        let mut heads = message(attempt, 0).to_vec();
        heads.push(0);
        six(&[attempt.keep(b), heads_of(attempt, &heads), 1, 0, attempt.words(&[1, 0])])
    });
}

fn options(trial: &mut Trial) {
    const SOCKET: u64 = libc::SOL_SOCKET as u64;
    trial.call(n::SETSOCKOPT, Good::Yes, |attempt| {
        six(&[socket(attempt, libc::SOCK_STREAM), SOCKET, libc::SO_SNDBUF as u64, attempt.halves(&[10_000]), 4])
    });
    trial.call(n::GETSOCKOPT, Good::Yes, |attempt| {
        let value = attempt.buffer(4);
        six(&[socket(attempt, libc::SOCK_STREAM), SOCKET, libc::SO_SNDBUF as u64, value, attempt.halves(&[4])])
    });
    trial.call(n::SETSOCKOPT, Good::Yes, |attempt| {
        // "Take all": one instruction.
        let program = attempt.words(&[0xffff_ffff_0000_0006]);
        let socket = socket(attempt, libc::SOCK_DGRAM);
        six(&[socket, SOCKET, libc::SO_ATTACH_FILTER as u64, attempt.words(&[1, program]), 16])
    });
    // And asked for again: two instructions.
    trial.call(n::GETSOCKOPT, Good::Yes, |attempt| {
        let socket = socket(attempt, libc::SOCK_DGRAM);
        let code = [0x0000_0000_0000_0000_u64, 0xffff_ffff_0000_0006];
        let program = [2, code.as_ptr() as u64];
        let attach = [socket, SOCKET, libc::SO_ATTACH_FILTER as u64, program.as_ptr() as u64, 16];
        assert_eq!(make(n::SETSOCKOPT, six(&attach)), 0);
        six(&[socket, SOCKET, libc::SO_ATTACH_FILTER as u64, attempt.buffer(16), attempt.halves(&[2])])
    });
    // SIOCGIFCONF with space for the loopback.
    trial.call(n::IOCTL, Good::Yes, |attempt| {
        let inet = attempt.made(make(n::SOCKET, six(&[libc::AF_INET as u64, libc::SOCK_DGRAM as u64, 0])));
        let list = attempt.buffer(40);
        six(&[inet, 0x8912, attempt.words(&[40, list])])
    });
}
