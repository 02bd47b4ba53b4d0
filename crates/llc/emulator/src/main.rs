//! `resctrl-emulator`: mounts the emulated file system.

#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Parser;
use fuser::BackgroundSession;
use linux::Rooted;
use resctrl_emulator::arguments::Arguments;
use resctrl_emulator::control::{self, Socket};
use resctrl_emulator::cpus::Cpus;
use resctrl_emulator::guard::{self, Guard};
use resctrl_emulator::hardware::models;
use resctrl_emulator::machine::Machine;
use resctrl_emulator::mount;
use resctrl_emulator::processes::Processes;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The failure, and a remedy.
struct Failure(String, &'static str);

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(guard::FLAG) {
        return guard::stand();
    }
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(what, remedy)) => {
            let remedy = if remedy.is_empty() { String::new() } else { format!("    {remedy}\n") };
            // Without a reader of stderr the exit status remains.
            let _ = write!(io::stderr(), "resctrl-emulator: {what}\n{remedy}");
            ExitCode::from(2)
        }
    }
}

/// Prints a line; a closed stdout is no error.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.machines {
        models().iter().for_each(|(name, about, _)| say(&format!("{name:<14} {about}")));
        return Ok(());
    }
    if let Some([socket, line]) = arguments.tell.as_deref() {
        let line = line.to_string_lossy();
        return control::send(socket, &line).map_err(|error| {
            Failure(format!("cannot tell {} \"{line}\": {}", socket.display(), linux::describe_io(&error)), "")
        });
    }
    let directory = arguments.directory.as_deref().unwrap_or(Path::new(""));
    let directory = suitable(directory)?;
    let hardware = arguments.hardware(online()).map_err(|what| Failure(what, "--help says what there is."))?;
    emulate(arguments, &directory, Machine::new(hardware, Processes))
}

/// Mounts the machine and serves it to the end.
fn emulate(arguments: &Arguments, directory: &Path, machine: Machine) -> Result<(), Failure> {
    let at = directory.display();
    let cannot =
        |what: &str, error: io::Error| Failure(format!("cannot {what} {at}: {}", linux::describe_io(&error)), "");
    // Before there are threads, and before there is anything to unmount.
    let mut guard = Guard::start().map_err(|error| cannot("guard", error))?;
    let (ends, end) = mpsc::channel();
    let ignored = linux::signals::ignored(&Rooted::host()).map_err(|error| Failure(error.to_string(), ""))?;
    // Signals ignored by nohup(1) or a shell's `&` stay ignored.
    let taken = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !ignored.contains(*signal));
    let mut signals = Signals::new(taken).map_err(|error| cannot("wait for signals at", error))?;
    let machine = Arc::new(Mutex::new(machine));
    let _socket = arguments.control.as_deref().map(|path| listen(path, &machine)).transpose()?;
    let device = mount::mount(directory, arguments.allow_other).map_err(|error| {
        let of_rights = [Errno::PERM, Errno::ACCESS, Errno::NOENT];
        let is_of_rights = Errno::from_io_error(&error).is_some_and(|errno| of_rights.contains(&errno));
        let remedy = if is_of_rights { "It needs root and /dev/fuse (CONFIG_FUSE_FS)." } else { "" };
        Failure(format!("cannot mount at {at}: {}", linux::describe_io(&error)), remedy)
    })?;
    // The guard knows of it before any program can use it.
    let served = guard.watch(directory).and_then(|()| mount::serve(device, &machine, arguments.allow_other));
    let session = served.map_err(|error| {
        // The first error says more than a failed unmount.
        let _ = unmount(directory, UnmountFlags::DETACH);
        cannot("serve", error)
    })?;
    say(&format!("resctrl-emulator: {} at {at}; Ctrl-C or umount ends it", about(&machine)));
    let of_signals = ends.clone();
    std::thread::spawn(move || {
        let _ = signals.forever().next();
        let _ = of_signals.send(End::Asked);
    });
    until_it_ends(session, directory, ends, &end)?;
    guard.dismiss();
    Ok(())
}

fn listen(path: &Path, machine: &Arc<Mutex<Machine>>) -> Result<Socket, Failure> {
    control::listen(path, Arc::clone(machine)).map_err(|error| {
        let (why, remedy) = match error.kind() {
            io::ErrorKind::AddrInUse => (
                "somebody listens there, or it is no socket: address in use (EADDRINUSE)".to_owned(),
                "Choose another path.",
            ),
            _ => (linux::describe_io(&error), ""),
        };
        Failure(format!("cannot listen at {}: {why}", path.display()), remedy)
    })
}

/// Reason of the end.
enum End {
    /// A signal.
    Asked,
    /// The file system ended, usually by an unmount.
    Unasked(io::Result<()>),
}

/// Waits for a signal, or an unmount. A file system still in use is unmounted all the same, and ends with its users.
fn until_it_ends(
    session: BackgroundSession,
    directory: &Path,
    ends: Sender<End>,
    end: &Receiver<End>,
) -> Result<(), Failure> {
    let at = directory.display();
    let cannot = |error: io::Error| Failure(format!("cannot unmount {at}: {}", linux::describe_io(&error)), "");
    let device = guard::device_at(directory).map_err(cannot)?;
    std::thread::spawn(move || {
        let _ = ends.send(End::Unasked(session.join()));
    });
    let ended = end.recv().unwrap_or(End::Asked);
    let is_mounted = device.is_some() && guard::device_at(directory).map_err(cannot)? == device;
    if is_mounted {
        unmount(directory, UnmountFlags::DETACH).map_err(|errno| cannot(errno.into()))?;
    }
    match ended {
        End::Asked => {
            // With a file open in it, it goes on without a name; this program does not wait for that.
            let _ = end.recv_timeout(Duration::from_millis(500));
            Ok(())
        }
        End::Unasked(Err(error)) => {
            Err(Failure(format!("{at} is no longer served: {}", linux::describe_io(&error)), ""))
        }
        End::Unasked(Ok(())) if is_mounted => Err(Failure(format!("{at} is no longer served: it was cut off"), "")),
        End::Unasked(Ok(())) => Ok(()),
    }
}

/// Checks that the directory is empty and no mount point; returns its full path.
fn suitable(directory: &Path) -> Result<PathBuf, Failure> {
    let at = directory.display();
    let full = fs::canonicalize(directory)
        .map_err(|error| Failure(format!("cannot mount at {at}: {}", linux::describe_io(&error)), "mkdir makes it."))?;
    match guard::device_at(&full) {
        Ok(None) => (),
        Ok(Some(_)) => {
            let what = format!("cannot mount at {at}: something is mounted there already");
            return Err(Failure(what, "umount it first, or choose another directory."));
        }
        Err(error) => {
            return Err(Failure(format!("cannot read /proc/self/mountinfo: {}", linux::describe_io(&error)), ""));
        }
    }
    let mut entries = fs::read_dir(&full)
        .map_err(|error| Failure(format!("cannot mount at {at}: {}", linux::describe_io(&error)), ""))?;
    match entries.next() {
        None => Ok(full),
        Some(_) => Err(Failure(format!("cannot mount at {at}: it is not empty"), "Choose an empty directory.")),
    }
}

/// CPUs of this machine; one, if they cannot be read.
fn online() -> Cpus {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    Cpus::of_list(&text).ok().filter(|cpus| !cpus.is_empty()).unwrap_or(Cpus::first(1))
}

fn about(machine: &Mutex<Machine>) -> String {
    let machine = machine.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let hardware = machine.hardware();
    let caches = match hardware.cache_ids.len() {
        1 => "1 cache".to_owned(),
        many => format!("{many} caches"),
    };
    format!("{caches} of {} ways, {} classes", hardware.ways, hardware.usable_classes())
}
