//! How the service learns of processes: from the kernel's events, or by lists of all processes.

use access::backend::Unavailable;
use access::process_events::ProcessEvents;
use linux::processes;

use crate::HOST;

/// Name of the backend, in lines and in `masu facts`.
pub const EVENTS: &str = "events";
pub const LISTS: &str = "lists";

/// Begins the events of processes.
///
/// # Errors
/// Why this host has none; in a pid namespace they would have other numbers.
pub fn events() -> Result<ProcessEvents, Unavailable> {
    if processes::some_are_hidden(&*HOST) {
        let reason = "this pid namespace has numbers of its own for processes".to_owned();
        let remedy = "Start masu in the host's pid namespace (containers: --pid=host).".to_owned();
        return Err(Unavailable { reason, remedy });
    }
    ProcessEvents::begin()
}
