//! The status page, shared by masu and the programs that it started: one slot per process. Pure.
//!
//! masu creates it (a memfd); the library in each program maps it and takes a slot. In the slot the library counts
//! its reservations, and masu sets switches. At exit both agree on a last count of the memory. Every value is a
//! 32-bit word, read and written atomically. No state of it can break either side: a word with an invalid value is
//! ignored. Its values are trusted only for a report.
//!
//! A killed program leaves its slot taken; masu clears the slots of dead processes.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::image::LeftOut;

/// Name of the memfd: `/proc/PID/maps` shows it as `/memfd:masu-board (deleted)`.
pub const NAME: &str = "masu-board";

/// Size in bytes.
pub const BYTES: usize = 64 << 10;

/// Size in words.
pub const WORDS: usize = BYTES / size_of::<u32>();

/// Magic number and version of the layout.
const MAGIC: u32 = u32::from_le_bytes(*b"msu2");

const HEAD_WORDS: usize = 32;
const SLOT_WORDS: usize = 16;

/// Number of slots: processes at a time.
pub const SLOTS: usize = (WORDS - HEAD_WORDS) / SLOT_WORDS;

/// Words of the head.
const REFUSED: usize = 1;
const DOORBELL: usize = 2;
const PROCESSES: usize = 4;
const RESERVED_BEFORE: usize = 5;
const ALIGNED_BEFORE: usize = 6;
const CODE_BEFORE: usize = 7;
const CLOSED: usize = 3;
const LEFT_OUT: usize = 8;
const PROGRAMS: usize = HEAD_WORDS - 1;
const WINDOWS_LEFT: usize = HEAD_WORDS - 2;
const KEPT_SMALL: usize = HEAD_WORDS - 3;
const _: () = assert!(LEFT_OUT + LeftOut::ALL.len() <= KEPT_SMALL);

/// Kinds of memory that the library reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Grown by `brk`.
    Heap = 0,
    /// Mapped.
    Mmap = 1,
    /// The programs' and libraries' own data, initialised or not.
    Bss = 2,
    /// Stacks.
    Stack = 3,
    /// Text.
    Code = 4,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 5] = [Kind::Heap, Kind::Mmap, Kind::Bss, Kind::Stack, Kind::Code];
}

/// State of a process in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Running.
    Running = 0,
    /// About to exit, waiting for the last count.
    Leaving = 1,
    /// Counted; the process may exit.
    Counted = 2,
}

/// Result of `--code` for the program text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Code {
    /// Not requested, or shorter than one window.
    #[default]
    Untouched = 0,
    /// The kernel maps the file's own pages huge: profilers see the symbols as before.
    FileMapped = 1,
    /// Copied to anonymous memory: profilers that use the mapping's file do not see the symbols.
    Copied = 2,
    /// Neither worked.
    Refused = 3,
}

fn code_of(word: u32) -> Code {
    match word {
        1 => Code::FileMapped,
        2 => Code::Copied,
        3 => Code::Refused,
        _ => Code::Untouched,
    }
}

/// Sums over all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Windows reserved.
    pub reserved: u64,
    /// Mappings placed at a multiple of a superpage.
    pub aligned: u64,
    /// Worst result of a program text.
    pub code: Code,
}

/// The status page.
#[derive(Clone, Copy, Debug)]
pub struct StatusPage<'a> {
    words: &'a [AtomicU32],
}

impl<'a> StatusPage<'a> {
    /// Initialises a status page over words of zero: masu's side.
    pub fn new(words: &'a [AtomicU32]) -> Option<StatusPage<'a>> {
        (words.len() == WORDS).then_some(())?;
        words[0].store(MAGIC, Relaxed);
        Some(StatusPage { words })
    }

    /// A status page created by another process; `None` if the words are none.
    pub fn of(words: &'a [AtomicU32]) -> Option<StatusPage<'a>> {
        (words.len() == WORDS && words[0].load(Relaxed) == MAGIC).then_some(StatusPage { words })
    }

    /// Futex word on which masu waits; the library changes it when a process exits.
    pub fn doorbell(&self) -> &'a AtomicU32 {
        &self.words[DOORBELL]
    }

    /// Limits the windows that all programs of the run may reserve from now on.
    pub fn limit_windows(&self, windows: u32) {
        // Zero means no limit.
        self.words[WINDOWS_LEFT].store(windows.saturating_add(1), Relaxed);
    }

    /// Takes windows out of the limit, and returns the number that fits. The others stay on small pages, and are counted.
    #[expect(clippy::cast_possible_truncation, reason = "an address space of 2^47 bytes has 2^26 windows")]
    pub fn take_windows(&self, windows: usize) -> usize {
        let wanted = windows as u32;
        let fitting = |left: u32| if left == 0 { wanted } else { wanted.min(left - 1) };
        let take = |left: u32| if left == 0 { None } else { Some(left - fitting(left)) };
        let before = self.words[WINDOWS_LEFT].fetch_update(Relaxed, Relaxed, take);
        let taken = fitting(before.unwrap_or(0));
        if taken < wanted {
            self.words[KEPT_SMALL].fetch_add(wanted - taken, Relaxed);
        }
        taken as usize
    }

    /// Windows that did not fit in the limit.
    pub fn kept_small(&self) -> u32 {
        self.words[KEPT_SMALL].load(Relaxed)
    }

    /// Marks that masu counts no more, so that no process waits for it. Switches can still be set.
    pub fn close(&self) {
        self.words[CLOSED].store(1, Relaxed);
    }

    /// Whether masu has ended.
    pub fn is_closed(&self) -> bool {
        self.words[CLOSED].load(Relaxed) != 0
    }

    /// Processes that took a slot, including those no longer in it.
    pub fn processes(&self) -> u32 {
        self.words[PROCESSES].load(Relaxed)
    }

    /// Counts a program that has loaded the library.
    pub fn count_program(&self) {
        self.words[PROGRAMS].fetch_add(1, Relaxed);
    }

    /// Programs that have loaded the library: at each exec one, whatever the number of its processes.
    pub fn programs(&self) -> u32 {
        self.words[PROGRAMS].load(Relaxed)
    }

    /// Sums over the slots in use and those left.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals {
            reserved: self.words[RESERVED_BEFORE].load(Relaxed).into(),
            aligned: self.words[ALIGNED_BEFORE].load(Relaxed).into(),
            code: code_of(self.words[CODE_BEFORE].load(Relaxed)),
        };
        for slot in self.slots_in_use() {
            totals.reserved += u64::from(slot.reserved_in_all());
            totals.aligned += u64::from(slot.aligned());
            totals.code = totals.code.max(slot.code());
        }
        totals
    }

    /// Adds the counts of a slot to the totals, and frees it.
    pub fn release(&self, slot: &ProcessSlot<'_>) {
        self.add(slot);
        slot.clear();
    }

    fn add(&self, slot: &ProcessSlot<'_>) {
        self.words[RESERVED_BEFORE].fetch_add(slot.reserved_in_all(), Relaxed);
        self.words[ALIGNED_BEFORE].fetch_add(slot.aligned(), Relaxed);
        self.words[CODE_BEFORE].fetch_max(slot.code() as u32, Relaxed);
    }

    /// Processes without a free slot.
    pub fn refused(&self) -> u32 {
        self.words[REFUSED].load(Relaxed)
    }

    /// Counts a program that was started without the library, or is left alone from now on.
    pub fn count_left_out(&self, why: LeftOut) {
        self.words[LEFT_OUT + why as usize].fetch_add(1, Relaxed);
    }

    /// Takes such a program back: it was not started.
    pub fn uncount_left_out(&self, why: LeftOut) {
        self.words[LEFT_OUT + why as usize].fetch_sub(1, Relaxed);
    }

    /// Programs that were left out for this reason.
    pub fn left_out(&self, why: LeftOut) -> u32 {
        self.words[LEFT_OUT + why as usize].load(Relaxed)
    }

    /// Slot with this number.
    pub fn slot(&self, index: usize) -> Option<ProcessSlot<'a>> {
        let first = HEAD_WORDS.checked_add(index.checked_mul(SLOT_WORDS)?)?;
        let words = self.words.get(first..first.checked_add(SLOT_WORDS)?)?;
        Some(ProcessSlot { words })
    }

    /// Slots in use.
    pub fn slots_in_use(&self) -> impl Iterator<Item = ProcessSlot<'a>> {
        let page = *self;
        (0..SLOTS).filter_map(move |index| page.slot(index)).filter(|slot| slot.process() != 0)
    }

    /// Takes a slot for a process and returns its number: the slot from before exec, or the first free one. `None`
    /// when no slot is free; that is counted.
    pub fn take_slot(&self, process: u32, switches: Switches) -> Option<usize> {
        let before = self.index_of(process);
        let index = before.or_else(|| (0..SLOTS).find(|index| self.claim(*index, process)));
        let Some(slot) = index.and_then(|index| self.slot(index)) else {
            self.words[REFUSED].fetch_add(1, Relaxed);
            return None;
        };
        match before {
            Some(_) => self.add(&slot),
            None => {
                self.words[PROCESSES].fetch_add(1, Relaxed);
            }
        }
        for word in &slot.words[1..] {
            word.store(0, Relaxed);
        }
        slot.words[SWITCHES].store(switches.0, Relaxed);
        index
    }

    fn index_of(&self, process: u32) -> Option<usize> {
        (0..SLOTS).find(|index| self.slot(*index).is_some_and(|slot| slot.process() == process))
    }

    fn claim(&self, index: usize, process: u32) -> bool {
        let taken = |slot: ProcessSlot<'_>| slot.words[PROCESS].compare_exchange(0, process, Relaxed, Relaxed).is_ok();
        self.slot(index).is_some_and(taken)
    }
}

/// Words of a slot.
const PROCESS: usize = 0;
const STAGE: usize = 1;
const SWITCHES: usize = 2;
const RESERVED: usize = 3;
const ALIGNED: usize = RESERVED + Kind::ALL.len();
const CODE: usize = ALIGNED + 1;

/// Switches that masu can set in a running program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches(u32);

impl Switches {
    /// Mappings are aligned, or not.
    pub const fn new(align: bool) -> Switches {
        Switches(align as u32)
    }

    /// Value on the status page.
    pub const fn word(self) -> u32 {
        self.0
    }

    /// Whether mappings are aligned.
    pub const fn align(self) -> bool {
        self.0 & 1 != 0
    }
}

/// Slot of one process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessSlot<'a> {
    words: &'a [AtomicU32],
}

impl<'a> ProcessSlot<'a> {
    /// Process id in the process's own PID namespace; zero for a free slot.
    pub fn process(&self) -> u32 {
        self.words[PROCESS].load(Relaxed)
    }

    /// Frees the slot of a process that has ended or is about to.
    pub fn clear(&self) {
        self.words[PROCESS].store(0, Relaxed);
    }

    /// State of the process.
    pub fn stage(&self) -> Stage {
        match self.words[STAGE].load(Relaxed) {
            1 => Stage::Leaving,
            2 => Stage::Counted,
            _ => Stage::Running,
        }
    }

    /// Sets the state of the process.
    pub fn set_stage(&self, stage: Stage) {
        self.words[STAGE].store(stage as u32, Relaxed);
    }

    /// Word of the stage: the library's futex.
    pub fn stage_word(&self) -> &'a AtomicU32 {
        &self.words[STAGE]
    }

    /// Switches as set.
    pub fn switches(&self) -> Switches {
        Switches(self.words[SWITCHES].load(Relaxed))
    }

    /// Sets the switches.
    pub fn set_switches(&self, to: Switches) {
        self.words[SWITCHES].store(to.0, Relaxed);
    }

    /// Adds reserved windows.
    #[expect(clippy::cast_possible_truncation, reason = "an address space of 2^47 bytes has 2^26 windows")]
    pub fn add_reserved(&self, kind: Kind, windows: usize) {
        self.words[RESERVED + kind as usize].fetch_add(windows as u32, Relaxed);
    }

    /// Windows reserved since the process began, including those unmapped since.
    pub fn reserved(&self, kind: Kind) -> u32 {
        self.words[RESERVED + kind as usize].load(Relaxed)
    }

    /// Counts a mapping moved to a multiple of a superpage.
    pub fn add_aligned(&self) {
        self.words[ALIGNED].fetch_add(1, Relaxed);
    }

    /// Mappings moved to a multiple of a superpage since the process began.
    pub fn aligned(&self) -> u32 {
        self.words[ALIGNED].load(Relaxed)
    }

    /// Windows of all kinds reserved since the process began.
    pub fn reserved_in_all(&self) -> u32 {
        Kind::ALL.iter().fold(0, |sum, kind| sum.saturating_add(self.reserved(*kind)))
    }

    /// Result for the program text.
    pub fn code(&self) -> Code {
        code_of(self.words[CODE].load(Relaxed))
    }

    /// Sets the result for the program text.
    pub fn set_code(&self, code: Code) {
        self.words[CODE].store(code as u32, Relaxed);
    }
}

/// Offset in bytes of the switches of `process` in a copied status page, and their value.
pub fn find_switches(copy: &[u32], process: u32) -> Option<(usize, Switches)> {
    (copy.len() == WORDS && copy[0] == MAGIC).then_some(())?;
    let (slots, _) = copy[HEAD_WORDS..].as_chunks::<SLOT_WORDS>();
    let index = slots.iter().position(|slot| slot[PROCESS] == process)?;
    let word = HEAD_WORDS + index * SLOT_WORDS + SWITCHES;
    Some((word * size_of::<u32>(), Switches(copy[word])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<AtomicU32> {
        (0..WORDS).map(|_| AtomicU32::new(0)).collect()
    }

    #[test]
    fn a_process_takes_a_slot_and_counts_in_it() {
        let words = words();
        let page = StatusPage::new(&words).unwrap();
        let slot = page.slot(page.take_slot(42, Switches::new(true)).unwrap()).unwrap();
        slot.add_reserved(Kind::Mmap, 3);
        slot.add_reserved(Kind::Mmap, 4);
        slot.add_aligned();
        slot.set_code(Code::Copied);
        let found: Vec<_> = StatusPage::of(&words).unwrap().slots_in_use().collect();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].process(), found[0].reserved(Kind::Mmap), found[0].aligned()), (42, 7, 1));
        assert_eq!(
            (found[0].code(), found[0].stage(), found[0].reserved(Kind::Bss)),
            (Code::Copied, Stage::Running, 0)
        );
        assert!(found[0].switches().align());
    }

    #[test]
    fn a_released_slot_is_clean_for_the_next_process() {
        let words = words();
        let page = StatusPage::new(&words).unwrap();
        let slot = page.slot(page.take_slot(42, Switches::new(true)).unwrap()).unwrap();
        slot.add_reserved(Kind::Heap, 9);
        slot.set_stage(Stage::Counted);
        slot.clear();
        assert_eq!(page.slots_in_use().count(), 0);
        let next = page.slot(page.take_slot(43, Switches::new(false)).unwrap()).unwrap();
        assert_eq!((next.reserved(Kind::Heap), next.stage(), next.switches().align()), (0, Stage::Running, false));
    }

    #[test]
    fn counts_are_kept_when_a_slot_is_released_or_taken_again() {
        let words = words();
        let page = StatusPage::new(&words).unwrap();
        let first = page.slot(page.take_slot(41, Switches::new(true)).unwrap()).unwrap();
        first.add_reserved(Kind::Mmap, 3);
        first.set_code(Code::Copied);
        page.take_slot(41, Switches::new(true)).unwrap(); // exec
        first.add_reserved(Kind::Bss, 4);
        page.release(&first);
        let second = page.slot(page.take_slot(42, Switches::new(true)).unwrap()).unwrap();
        second.add_aligned();
        assert_eq!(page.processes(), 2);
        assert_eq!(page.totals(), Totals { reserved: 7, aligned: 1, code: Code::Copied });
    }

    #[test]
    fn after_exec_a_process_has_the_same_slot_and_starts_anew() {
        let words = words();
        let page = StatusPage::new(&words).unwrap();
        page.take_slot(41, Switches::new(true)).unwrap();
        let before = page.take_slot(42, Switches::new(true)).unwrap();
        page.slot(before).unwrap().add_reserved(Kind::Heap, 9);
        assert_eq!(page.take_slot(42, Switches::new(true)), Some(before));
        assert_eq!(page.slot(before).unwrap().reserved(Kind::Heap), 0);
    }

    #[test]
    fn a_process_without_a_slot_is_counted() {
        let words = words();
        let page = StatusPage::new(&words).unwrap();
        for process in 1..=u32::try_from(SLOTS).unwrap() {
            assert!(page.take_slot(process, Switches::new(true)).is_some());
        }
        assert!(page.take_slot(77_777, Switches::new(true)).is_none());
        assert_eq!(page.refused(), 1);
    }

    #[test]
    fn programs_that_are_left_out_are_counted_by_reason() {
        let words = words();
        let page = StatusPage::new(&words).unwrap();
        page.count_left_out(LeftOut::Sanitizer);
        page.count_left_out(LeftOut::Privileged);
        page.count_left_out(LeftOut::Privileged);
        page.count_left_out(LeftOut::Go);
        page.uncount_left_out(LeftOut::Go); // its start failed
        let counted: Vec<u32> = LeftOut::ALL.iter().map(|why| page.left_out(*why)).collect();
        assert_eq!(counted, [1, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!((page.processes(), page.slots_in_use().count()), (0, 0));
    }

    #[test]
    fn programs_are_counted_apart_from_processes_and_from_those_left_out() {
        let words = words();
        let page = StatusPage::new(&words).unwrap();
        page.count_program();
        page.take_slot(41, Switches::new(true)).unwrap();
        page.take_slot(42, Switches::new(true)).unwrap(); // fork
        LeftOut::ALL.iter().for_each(|why| page.count_left_out(*why));
        assert_eq!((page.programs(), page.processes()), (1, 2));
    }

    #[test]
    fn windows_are_taken_up_to_the_limit_and_without_one_all_are() {
        let words = words();
        let page = StatusPage::new(&words).unwrap();
        assert_eq!([1 << 26, 1].map(|windows| page.take_windows(windows)), [1 << 26, 1]);
        page.limit_windows(25);
        assert_eq!([20, 0, 101, 1].map(|windows| page.take_windows(windows)), [20, 0, 5, 0]);
        assert_eq!(page.kept_small(), 97);
        page.limit_windows(3);
        assert_eq!([2, 2].map(|windows| page.take_windows(windows)), [2, 1]);
        page.limit_windows(0);
        assert_eq!(page.take_windows(1), 0);
    }

    #[test]
    fn a_closed_page_is_still_valid() {
        let words = words();
        let page = StatusPage::new(&words).unwrap();
        assert!(!page.is_closed());
        page.close();
        let found = StatusPage::of(&words).unwrap();
        assert!(found.is_closed());
        assert!(found.take_slot(42, Switches::new(true)).is_some());
    }

    #[test]
    fn other_memory_is_no_status_page() {
        assert!(StatusPage::of(&words()).is_none());
        assert!(StatusPage::new(&words()[1..]).is_none());
    }

    #[test]
    fn the_switches_are_found_in_a_copy() {
        let words = words();
        let page = StatusPage::new(&words).unwrap();
        page.take_slot(41, Switches::new(false)).unwrap();
        page.take_slot(42, Switches::new(true)).unwrap();
        let copy: Vec<u32> = words.iter().map(|word| word.load(Relaxed)).collect();
        let (offset, switches) = find_switches(&copy, 42).unwrap();
        assert!(switches.align());
        assert_eq!(copy[offset / 4], 1);
        words[offset / 4].store(0, Relaxed);
        assert!(!page.slot(1).unwrap().switches().align());
        assert_eq!(find_switches(&copy, 43), None);
        assert_eq!(find_switches(&copy[1..], 42), None);
    }
}
