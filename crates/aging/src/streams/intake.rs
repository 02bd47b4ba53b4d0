//! Reads the insertions of the streams, and those that others make for them, into the queue.

use std::time::Duration;

use access::backend::Unavailable;
use access::insertions::{FileId, Filter, Insertion};
use linux::open_inodes::open_inodes;
use linux::read_ahead::read_ahead;
use linux::{KernelFiles, Pid, block_device, stat};
use units::Pages;

use super::detect::{FILES_MOST, Part};
use super::passes::Time;
use super::tally::Owner;
use super::{EVERY, Followed, Keep, Streams, USUAL, name_of};
use crate::left_pages::Reason;

/// Insertions of one step after which the next one is early: 8 MiB. A fast stream is far ahead after [`EVERY`].
const MANY: Pages = Pages(2048);
/// Servers below servers that are looked for in one step.
const LAYERS_MAX: u32 = 6;
/// Interval of reading the insertions of a fast stream.
const EARLY: Duration = Duration::from_millis(3);

/// Shortest interval of looking for closed files.
const CLOSED_EVERY: Duration = Duration::from_millis(10);

impl Streams {
    /// Reads the insertions into the queue. If the end has begun, those of the layers alone: a stream that goes on is no
    /// longer followed.
    pub(super) fn fetch(&mut self, files: &impl KernelFiles, now: Duration, is_over: bool) -> Result<(), Unavailable> {
        let own = Pid::own();
        let before = self.tally.all_brought_in();
        let fetched = self.insertions.fetch()?;
        // Pages that masu reads for itself are few, and not of a stream.
        for insertion in fetched.into_iter().filter(|insertion| insertion.process != own) {
            if !is_over || self.layers.is_of_layer(insertion.file, insertion.process) {
                self.take(files, now, insertion);
            }
        }
        let others = self.insertions.fetch_others()?;
        let others = others.into_iter().filter(|insertion| insertion.process != own).collect();
        self.layers.add(now, others, |pid| self.insertions.inserter(pid));
        // The files of a server may be on a file system of the next server.
        for _ in 0..LAYERS_MAX {
            let claimed = self.layers.claimed(files, self.dropper.file_systems(), now);
            if claimed.is_empty() {
                break;
            }
            claimed.into_iter().for_each(|insertion| self.take(files, now, insertion));
        }
        self.layers.look_at_large(files, || self.insertions.member_pids(), now);
        self.count_metadata(files, false);
        let new = self.tally.all_brought_in().0 - before.0;
        self.close(files, now);
        self.wait = if new >= MANY.0 { EARLY } else { EVERY };
        Ok(())
    }

    /// Finds files that no followed process has open any more: the ends of files need not wait for more insertions.
    fn close(&mut self, files: &impl KernelFiles, now: Duration) {
        if self.filter != Filter::Members || self.queue.waiting() == Pages(0) || now < self.closed_at + CLOSED_EVERY {
            return;
        }
        self.closed_at = now;
        let Some(open) = open_inodes(files, self.insertions.member_pids()) else { return };
        // Pages of a layer wait: its file is open in the kernel or in a server.
        let layers = &self.layers;
        self.queue.close(|due| open.contains(&due.file.inode) || layers.is_of_layer(due.file, due.process));
    }

    /// Takes an insertion of a followed process, or of one that works for it.
    fn take(&mut self, files: &impl KernelFiles, now: Duration, insertion: Insertion) {
        let FileId { device, inode, .. } = insertion.file;
        let all = match block_device::of_inode(files, device, inode) {
            Some(_) => self.raw.add(insertion),
            None => vec![insertion],
        };
        for insertion in all {
            let is_layer = self.layers.is_backing(insertion.file) && is_of_kernel(files, insertion.process);
            let parts = match &mut self.followed {
                // A worker of the kernel reads for many, and is judged by none of them.
                Followed::Detect(_) if is_layer => vec![Part { insertion, time: Time::First }],
                followed => followed.parts(insertion),
            };
            parts.into_iter().for_each(|part| self.add(files, now, part));
        }
    }

    fn add(&mut self, files: &impl KernelFiles, now: Duration, part: Part) {
        let Part { insertion, time } = part;
        let count = insertion.pages.end - insertion.pages.start;
        self.tally.brought_in(count);
        let FileId { device, inode, .. } = insertion.file;
        let device = block_device::of_inode(files, device, inode).unwrap_or(device);
        self.dropper.note_reader(device, insertion.process);
        self.layers.note(files, self.dropper.file_systems_mut(), device, insertion.process, now);
        match (self.keep, time) {
            (Keep::ReadAgain, Time::Later) => {
                let pid = insertion.process;
                self.tally.left(Reason::ReadAgain, Some(Owner::Process(pid, name_of(files, pid))), count);
            }
            (_, Time::Second | Time::Later) if self.room.0 >= count => {
                self.room.0 -= count;
                self.lifetimes.note(files, insertion.process);
                self.kept.keep(insertion.file, insertion.pages, insertion.process);
            }
            _ => {
                let ahead =
                    *self.read_ahead.entry(device).or_insert_with(|| read_ahead(files, device).unwrap_or(USUAL));
                self.queue.insert(now, &insertion, ahead);
            }
        }
    }

    /// Adds pages of metadata to the account: they stay.
    pub(super) fn count_metadata(&mut self, files: &impl KernelFiles, is_over: bool) {
        for (file, pages) in self.raw.take_metadata(is_over) {
            let device = block_device::of_inode(files, file.device, file.inode).unwrap_or(file.device);
            self.tally.brought_in(pages);
            self.tally.left(Reason::Metadata, Some(Owner::Device(device)), pages);
        }
    }
}

impl Followed {
    fn parts(&mut self, insertion: Insertion) -> Vec<Part> {
        match self {
            Followed::Detect(detector) => detector.add(insertion),
            Followed::Whole(passes) => {
                if passes.files() >= FILES_MOST {
                    passes.forget();
                }
                let parts = passes.note(&insertion).parts;
                let part = |(pages, time)| Part { insertion: Insertion { pages, ..insertion.clone() }, time };
                parts.into_iter().map(part).collect()
            }
        }
    }
}

fn is_of_kernel(files: &impl KernelFiles, pid: Pid) -> bool {
    stat::stat(files, pid).is_ok_and(|stat| stat.of_kernel)
}
