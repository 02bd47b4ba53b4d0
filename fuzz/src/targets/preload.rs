//! Inputs of the preloaded library: a variable of the environment, the words of the shared status page, and a program's
//! arguments of mmap. They are understood or ignored; nothing panics, since that would end a program.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use contract::placement::{self, Request, Size, Sizes};
use contract::settings::Settings;
use contract::status_page::{self, Kind, StatusPage, Switches};

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let mut understood = false;
    let mut sizes = Sizes::NONE.with(Size::HUGE);
    if let Some(settings) = Settings::parse(&text) {
        assert_eq!(Settings::parse(&settings.to_string()), Some(settings));
        sizes = settings.sizes;
        understood = true;
    }
    let mut numbers = bytes.as_chunks().0.iter().map(|chunk| u64::from_le_bytes(*chunk) as usize);
    place(numbers.next().unwrap_or(0), numbers.next().unwrap_or(0), sizes);
    sit(bytes);
    understood
}

/// A mapping at any address and of any claimed size.
fn place(start: usize, bytes: usize, sizes: Sizes) {
    let request = Request { bytes, private_anonymous: true, placed: false, stack: false, peculiar: false };
    let placement = placement::placement(request, sizes, true);
    assert_eq!(placement.advise, sizes.largest_within(bytes).is_some());
    let size = placement.align_to.unwrap_or(Size::HUGE);
    if let Some((first, whole)) = placement::whole_part(start, bytes, size) {
        assert!(first >= start && first % size.bytes() == 0 && whole % size.bytes() == 0);
        assert!(first.checked_add(whole).is_some_and(|end| end - start <= bytes));
        assert_eq!(placement::whole_pages(start, bytes, size), whole / size.bytes());
    }
    let _ = placement::gains_by_alignment(start, bytes, size);
}

/// A status page with any words but the first, which marks it as one.
fn sit(bytes: &[u8]) {
    let words: Vec<AtomicU32> = (0..status_page::WORDS).map(|_| AtomicU32::new(0)).collect();
    let Some(board) = StatusPage::new(&words) else { unreachable!("it has the right size") };
    for (word, chunk) in words.iter().skip(1).zip(bytes.as_chunks().0) {
        word.store(u32::from_le_bytes(*chunk), Relaxed);
    }
    for seat in board.slots_in_use() {
        let _ = (seat.stage(), seat.code(), seat.aligned(), seat.switches(), Kind::ALL.map(|kind| seat.reserved(kind)));
    }
    let taken = board.take_slot(4121, Switches::new(true));
    let copy: Vec<u32> = words.iter().map(|word| word.load(Relaxed)).collect();
    assert_eq!(taken.is_some(), status_page::find_switches(&copy, 4121).is_some());
    if let Some(seat) = taken.and_then(|index| board.slot(index)) {
        seat.add_reserved(Kind::Mmap, usize::MAX);
        seat.add_aligned();
        assert!(seat.switches().align() && seat.process() == 4121);
        seat.clear();
    }
}
