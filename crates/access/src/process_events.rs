//! Processes that are started, execute a program, enter a control group or end, by BPF at the kernel's own tracepoints.
//!
//! An event has the process number alone. More events between two calls than the ring has space for (8,192) are counted:
//! the caller then looks at all processes.
//!
//! Cost: below a microsecond in the path of fork, exec, exit and of moves between groups; loading takes about 0.1 s. Since: Linux 5.5
//! (BTF tracepoints), CONFIG_CGROUPS. Needs CAP_BPF and CAP_PERFMON. Numbers are those of the first pid namespace.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel, RingBuffer, RingBufferBuilder};
use linux::Pid;

use crate::backend::Unavailable;
use crate::bpf_object::{self, Aligned};

/// Name in messages.
const PROGRAM: &str = "the program for process events";

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!("../bpf/processes.bpf.o"));

/// The loaded program. Dropping it detaches it.
#[derive(Debug)]
pub struct ProcessEvents {
    ring: RingBuffer<'static>,
    fetched: Rc<RefCell<BTreeSet<Pid>>>,
    lost: MapHandle,
    lost_before: u64,
    _links: Vec<Link>,
    _object: Object,
}

/// Events since the last call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Processes, each once; some have ended.
    pub processes: BTreeSet<Pid>,
    /// Number of events without space in the ring.
    pub lost: u64,
}

impl ProcessEvents {
    /// Starts reporting.
    ///
    /// # Errors
    /// Reason for which this host does not allow it, and the remedy.
    pub fn begin() -> Result<ProcessEvents, Unavailable> {
        libbpf_rs::set_print(None::<(PrintLevel, fn(PrintLevel, String))>);
        let open = ObjectBuilder::default().open_memory(&OBJECT.0).map_err(|e| refused("be opened", &e))?;
        let object = open.load().map_err(|e| refused("be loaded", &e))?;
        let lost = bpf_object::map_of(&object, PROGRAM, "lost")?;
        let fetched = Rc::new(RefCell::new(BTreeSet::new()));
        let into = Rc::clone(&fetched);
        let mut builder = RingBufferBuilder::new();
        let changed = bpf_object::map_of(&object, PROGRAM, "changed")?;
        let added = builder.add(&changed, move |bytes| {
            into.borrow_mut().extend(process_of(bytes));
            0
        });
        added.map_err(|e| refused("share its maps", &e))?;
        let ring = builder.build().map_err(|e| refused("share its maps", &e))?;
        let links = object.progs_mut().map(|program| program.attach()).collect::<Result<Vec<Link>, _>>();
        let _links = links.map_err(|e| refused("be attached", &e))?;
        Ok(ProcessEvents { ring, fetched, lost, lost_before: 0, _links, _object: object })
    }

    /// Events since the last call.
    ///
    /// # Errors
    /// When the kernel takes the maps away, which it does not.
    pub fn fetch(&mut self) -> Result<Fetched, Unavailable> {
        // The ring has one reader: what comes meanwhile is for the next call.
        self.ring.consume().map_err(|e| refused("be read", &e))?;
        let bytes = self.lost.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).map_err(|e| refused("be read", &e))?;
        let total = bytes.and_then(|bytes| Some(u64::from_ne_bytes(*bytes.first_chunk()?))).unwrap_or_default();
        let lost = total.saturating_sub(std::mem::replace(&mut self.lost_before, total));
        Ok(Fetched { processes: std::mem::take(&mut self.fetched.borrow_mut()), lost })
    }
}

fn process_of(bytes: &[u8]) -> Option<Pid> {
    Some(Pid(i32::from_ne_bytes(*bytes.first_chunk()?))).filter(|pid| pid.0 > 0)
}

fn refused(what: &str, error: &libbpf_rs::Error) -> Unavailable {
    bpf_object::refused(PROGRAM, what, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_process_number() {
        assert_eq!(process_of(&7i32.to_ne_bytes()), Some(Pid(7)));
        assert_eq!((process_of(&0i32.to_ne_bytes()), process_of(&[1, 0])), (None, None));
    }
}
