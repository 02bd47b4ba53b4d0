//! First process of a virtual machine: mounts the file systems of the tests, runs the tests, reports, switches the
//! machine off.
//!
//! The machine is started by `cargo xtask boot-test`: a kernel, this program as the whole initial file system, and a
//! serial line for all output. Arguments after `--` on the kernel's command line arrive as ours, and `NAME=value` as
//! environment.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::ExitCode;

use rustix::mount::{MountFlags, mount};
use rustix::net::{AddressFamily, SocketType, socket};

use crate::backends;
use crate::runner;

/// Prefix of the last line, read by xtask; JSON follows.
pub const RESULT: &str = "LIVE-RESULT ";

/// True in a machine that has just started: the first process, and not even /proc is there. A container has it.
pub fn is_this() -> bool {
    rustix::process::getpid().is_init() && !Path::new("/proc/self").exists()
}

/// Runs all tests and ends the machine. Comes back only when the machine cannot be switched off.
pub fn run() -> ExitCode {
    mount_everything();
    if let Err(error) = start_loopback() {
        println!("cannot switch the loopback interface on: {}", linux::describe_io(&error));
    }
    println!("{}{}", backends::LINE, backends::of_this_host());
    let conclusion = runner::run(libtest_mimic::Arguments::from_args());
    println!(
        "{RESULT}{{\"passed\":{},\"failed\":{},\"skipped\":{}}}",
        conclusion.num_passed, conclusion.num_failed, conclusion.num_ignored
    );
    rustix::fs::sync();
    if let Err(errno) = rustix::system::reboot(rustix::system::RebootCommand::PowerOff) {
        println!("cannot switch off: {}", linux::describe(errno));
    }
    ExitCode::FAILURE
}

fn mount_everything() {
    const FILE_SYSTEMS: [(&str, &str); 10] = [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("tmpfs", "/run"),
        ("tmpfs", "/tmp"),
        ("tmpfs", "/var/tmp"),
        ("cgroup2", "/sys/fs/cgroup"),
        ("debugfs", "/sys/kernel/debug"),
        ("securityfs", "/sys/kernel/security"),
        ("bpf", "/sys/fs/bpf"),
    ];
    for (kind, place) in FILE_SYSTEMS {
        // Mount points under /sys exist when the kernel offers them; creating fails there, and then so does mounting.
        let _ = fs::create_dir_all(place);
        if let Err(errno) = mount(kind, place, kind, MountFlags::empty(), None) {
            println!("cannot mount {kind} on {place}: {}", linux::describe(errno));
        }
    }
}

/// Switches the loopback interface on (netdevice(7)): clients of the page reach it by 127.0.0.1.
fn start_loopback() -> io::Result<()> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: a struct of numbers, for which zero bytes are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = 1; // IFF_UP
    // SAFETY: the call reads one `ifreq`, which outlives it.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
