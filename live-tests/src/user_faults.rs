//! `userfaultfd(2)` as this host offers it, asked by the tests alone.

use rustix::io::Errno;

/// Paging backends of `masu run --local` on this host, best first.
pub(crate) fn paging_backends() -> Vec<&'static str> {
    const WRITE_PROTECT: u64 = 1 << 0;
    const SIGBUS: u64 = 1 << 7;
    const MOVE: u64 = 1 << 16;
    let features = features().unwrap_or(0);
    let backends = [("move", SIGBUS | MOVE), ("copy", SIGBUS | WRITE_PROTECT)];
    backends.into_iter().filter(|(_, needs)| features & needs == *needs).map(|(name, _)| name).collect()
}

/// Features from the system call and its handshake.
pub(crate) fn features() -> Result<u64, Errno> {
    const USER_MODE_ONLY: libc::c_long = 1;
    // `_IOWR(0xaa, 0x3f, struct uffdio_api)`.
    const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
    let mut api = [0xaa_u64, 0, 0];
    // SAFETY: a system call with numbers; the second reads and writes our own 24 bytes; the third closes the descriptor
    // of the first.
    let answer = unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, USER_MODE_ONLY | libc::c_long::from(libc::O_CLOEXEC));
        let Ok(fd @ 0..) = libc::c_int::try_from(fd) else { return Err(last_errno()) };
        let answer = libc::ioctl(fd, UFFDIO_API, api.as_mut_ptr());
        let errno = last_errno();
        libc::close(fd);
        if answer < 0 { Err(errno) } else { Ok(()) }
    };
    answer.map(|()| api[1])
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
