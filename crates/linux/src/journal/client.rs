//! Clients of the journal: modules that undo their records themselves.
//!
//! A record holds the tag of its client, and data that only the client understands. The journal knows no client: each
//! comes with its records ([`HostSettings::record_client_undo`](super::HostSettings::record_client_undo)), and for records of dead processes from
//! the caller of [`replay`](super::replay). A record of an unknown client stays for a newer masu.

use std::collections::BTreeMap;
use std::fmt;

use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{UndoRecord, Undone};
use crate::{Error, KernelFiles};

/// Undo of one client's records.
pub trait Client: fmt::Debug + Sync {
    /// Key of the data in a line of the journal; no other client has the same.
    fn tag(&self) -> &'static str;

    /// True if a journal may hold this record. Others are skipped, since the journal may have been damaged.
    fn is_sound(&self, record: Record<'_>) -> bool;

    /// True if there will never be anything to undo.
    fn is_over(&self, files: &dyn KernelFiles, record: Record<'_>) -> bool;

    /// Description of the undo for the report.
    fn undone(&self, record: Record<'_>) -> Undone;

    /// Takes the locks that the undo of these records needs. Called before the journal is locked.
    fn lock(&self, files: &dyn KernelFiles, records: &[Record<'_>]) -> Box<dyn ClientLocks>;
}

/// Locks of a client, held until they are dropped.
pub trait ClientLocks {
    /// Performs the undo of a record. False when there was nothing to undo.
    ///
    /// # Errors
    /// The kernel's answer; `EAGAIN` when a lock that the undo needs could not be taken.
    fn undo(&self, files: &dyn KernelFiles, when: When, record: Record<'_>) -> Result<bool, Error>;
}

/// Record of a client.
#[derive(Clone, Copy, Debug)]
pub struct Record<'r> {
    /// File or directory, relative to the root.
    pub path: &'r str,
    /// Part of it to undo, if others stay.
    pub part: Option<&'r str>,
    /// Value before the change.
    pub old: &'r str,
    /// The client's data, in JSON.
    pub data: &'r str,
}

/// Time of an undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// By the process that made the change, at its end.
    AtTheEnd,
    /// By another process, at any time after that process was killed.
    AfterACrash,
}

/// Data by the tag of the client, in JSON: at most one, unless a journal was damaged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tagged(BTreeMap<String, String>);

impl Tagged {
    pub(super) fn new(tag: &str, data: String) -> Tagged {
        Tagged([(tag.to_owned(), data)].into())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Tagged {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw = |(tag, data): (&String, &String)| {
            RawValue::from_string(data.clone()).map(|data| (tag.clone(), data)).map_err(S::Error::custom)
        };
        let entries: Vec<(String, Box<RawValue>)> = self.0.iter().map(raw).collect::<Result<_, _>>()?;
        serializer.collect_map(entries)
    }
}

impl<'de> Deserialize<'de> for Tagged {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tagged, D::Error> {
        let entries = BTreeMap::<String, Value>::deserialize(deserializer)?;
        let entries = entries.into_iter().filter(|(_, data)| !data.is_null());
        Ok(Tagged(entries.map(|(tag, data)| (tag, data.to_string())).collect()))
    }
}

impl UndoRecord {
    /// The client of this record, if it is among these, and the record for it.
    pub(super) fn of_client<'c>(&self, clients: &[&'c dyn Client]) -> Option<(&'c dyn Client, Record<'_>)> {
        clients.iter().find_map(|client| {
            let data = self.tagged.0.get(client.tag())?;
            Some((*client, Record { path: &self.path, part: self.part.as_deref(), old: &self.old, data }))
        })
    }
}

/// Locks of all clients.
pub(super) struct Locks<'c>(Vec<(&'c dyn Client, Box<dyn ClientLocks>)>);

impl<'c> Locks<'c> {
    /// Takes the locks that the undo of these records needs.
    pub(super) fn take<'h>(
        files: &dyn KernelFiles,
        clients: &[&'c dyn Client],
        records: impl IntoIterator<Item = &'h UndoRecord>,
    ) -> Locks<'c> {
        let records: Vec<&UndoRecord> = records.into_iter().collect();
        let lock = |client: &&'c dyn Client| {
            let of_client = records.iter().filter_map(|record| record.of_client(&[*client]));
            (*client, client.lock(files, &of_client.map(|(_, record)| record).collect::<Vec<_>>()))
        };
        Locks(clients.iter().map(lock).collect())
    }

    /// Performs the undo by the client of the record; `None` if it has none.
    pub(super) fn undo(&self, files: &dyn KernelFiles, when: When, record: &UndoRecord) -> Option<Result<bool, Error>> {
        self.0.iter().find_map(|(client, locks)| {
            let (_, record) = record.of_client(&[*client])?;
            Some(locks.undo(files, when, record))
        })
    }
}
