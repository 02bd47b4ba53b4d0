//! Detection of streams among page-cache insertions, when no process was named. Pure.
//!
//! A stream reads or writes files in order: a backup, a copy, a search, a growing log. A program with random lookups
//! inserts scattered pages. A process counts as a stream after it has inserted much, nearly all of it in order: each run
//! begins at the end of an earlier run in its file, or at the file's first page.
//!
//! Insertions before the detection belong to the stream, too.
//!
//! A second pass over its files in order is a stream's, as of a backup that hashes all files and then copies them. A
//! process that inserts pages for the third time has constant use for them ([`super::passes`]), and is no stream for as
//! long as it does so.
//!
//! No I/O, no clock, no randomness.

use std::collections::BTreeMap;

use access::insertions::Insertion;
use linux::Pid;
use units::Pages;

use super::passes::{Passes, Time, is_in_order};
use crate::left_pages::Ended;

/// Insertions in order after which a process is a stream: 64 MiB.
pub const MUCH: Pages = Pages(16384);

/// Number of files of all processes that are remembered, some 100 bytes each.
pub const FILES_MOST: usize = 1 << 18;

/// Number of remembered processes with few insertions.
const PROCESSES_MOST: usize = 1024;

/// Pages inserted by a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Pages, file and process.
    pub insertion: Insertion,
    /// How often the process has inserted them.
    pub time: Time,
}

/// State of the processes with insertions.
#[derive(Debug, Default)]
pub struct Detector {
    processes: BTreeMap<Pid, Process>,
    /// Number of all remembered files.
    files: usize,
    /// Processes that have ended to be streams since the last call of [`Detector::ended`].
    ended: Vec<(Pid, Ended)>,
}

#[derive(Debug, Default)]
struct Process {
    /// Pages since the last decision.
    all: u64,
    in_order: u64,
    later: u64,
    passes: Passes,
    /// Insertions before the decision.
    before: Vec<Part>,
    is_stream: bool,
}

impl Detector {
    /// Insertions of a stream: of this one, and of earlier ones by the same process.
    pub fn add(&mut self, insertion: Insertion) -> Vec<Part> {
        if !self.processes.contains_key(&insertion.process) {
            self.forget_small();
        }
        if self.files >= FILES_MOST
            && let Some(process) = self.processes.values_mut().max_by_key(|process| process.passes.files())
        {
            self.files -= process.passes.files();
            process.passes.forget();
        }
        let pid = insertion.process;
        let process = self.processes.entry(pid).or_default();
        let before = process.passes.files();
        let parts = process.note(&insertion);
        self.files += process.passes.files() - before;
        if process.is_stream {
            self.ended.extend(process.end().map(|why| (pid, why)));
            return parts;
        }
        process.before.extend(parts);
        if process.all >= MUCH.0 {
            process.is_stream = is_in_order(process.in_order, process.all);
            let before = std::mem::take(&mut process.before);
            if process.is_stream {
                return before;
            }
            // No stream now; the next insertions may be one.
            (process.all, process.in_order, process.later) = (0, 0, 0);
        }
        Vec::new()
    }

    /// Forgets the half of the undecided processes with the fewest insertions when there are too many. Many short-lived
    /// readers therefore cannot hide other processes.
    fn forget_small(&mut self) {
        let undecided = self.processes.values().filter(|process| !process.is_stream);
        let mut amounts: Vec<u64> = undecided.map(|process| process.all).collect();
        if amounts.len() < PROCESSES_MOST {
            return;
        }
        amounts.sort_unstable();
        let little = amounts[amounts.len() / 2];
        self.processes.retain(|_, process| process.is_stream || process.all > little);
        self.count_files();
    }

    /// Processes that are streams.
    pub fn streams(&self) -> impl Iterator<Item = Pid> + '_ {
        self.processes.iter().filter(|(_, process)| process.is_stream).map(|(pid, _)| *pid)
    }

    /// Files of a process, and its passes over them.
    pub fn passes(&self, pid: Pid) -> Option<&Passes> {
        self.processes.get(&pid).map(|process| &process.passes)
    }

    /// Processes that have ended to be streams since the last call, each with the reason.
    pub fn ended(&mut self) -> Vec<(Pid, Ended)> {
        std::mem::take(&mut self.ended)
    }

    /// Forgets processes that have ended.
    pub fn forget(&mut self, mut has_ended: impl FnMut(Pid) -> bool) {
        self.processes.retain(|pid, _| !has_ended(*pid));
        self.count_files();
    }

    fn count_files(&mut self) {
        self.files = self.processes.values().map(|process| process.passes.files()).sum();
    }
}

impl Process {
    fn note(&mut self, insertion: &Insertion) -> Vec<Part> {
        let noted = self.passes.note(insertion);
        let mut parts = Vec::new();
        for (pages, time) in noted.parts {
            let count = pages.end - pages.start;
            self.all += count;
            match time {
                Time::Later => self.later += count,
                Time::First | Time::Second => self.in_order += if noted.in_order { count } else { 0 },
            }
            parts.push(Part { insertion: Insertion { pages, ..insertion.clone() }, time });
        }
        parts
    }

    /// Decides again about a stream, after enough insertions.
    fn end(&mut self) -> Option<Ended> {
        if self.all < 2 * MUCH.0 {
            return None;
        }
        self.is_stream = is_in_order(self.in_order, self.all);
        let scattered = self.all - self.in_order - self.later;
        let why = if self.later >= scattered { Ended::ReadsAgain } else { Ended::Scattered };
        (self.all, self.in_order, self.later) = (0, 0, 0);
        (!self.is_stream).then_some(why)
    }
}

#[cfg(test)]
mod tests;
