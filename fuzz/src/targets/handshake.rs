//! Handshake between masu and the library in a paged program: messages, and words of the shared memory. The peer may be
//! any process, and the program may write to the wrong place.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::input::Input;
use farmem_engine::handshake::{Go, Identity, MAGIC, Message, REJECTED, Ready, Secret, SessionParameters};
use farmem_engine::segment::{ASKED, Ask, Layout, StoreRequest};
use farmem_engine::{MAX_UNIT_PAGES, PAGE_BYTES};

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let mut input = Input(bytes);
    let marked = input.byte() % 8 != 0;
    let mut message: Message = std::array::from_fn(|_| input.word());
    if marked {
        message[0] = MAGIC;
    }
    // A message that is accepted is encoded again to the same words.
    let mut understood = message != REJECTED && Go::of(&message).is_some();
    if let Some(secret) = Secret::of(bytes) {
        assert_eq!(secret.to_string().as_bytes(), bytes);
        understood = true;
    }
    if let Some(identity) = Identity::of(&message) {
        understood = true;
        assert_eq!((Identity::of(&identity.message()), message[0]), (Some(identity), MAGIC));
    }
    if let Some(ready) = Ready::of(&message) {
        understood = true;
        assert_eq!((Ready::of(&ready.message()), message[0]), (Some(ready), MAGIC));
    }
    if let Some((parameters, secret)) = SessionParameters::of(&message) {
        understood = true;
        assert_eq!(
            (SessionParameters::of(&parameters.message(secret)), message[0]),
            (Some((parameters, secret)), MAGIC)
        );
        lies_in_order(&Layout::new(parameters.most_pages as usize, parameters.budget_frames as usize));
    }
    request(&mut input) || understood
}

/// No table of any size reaches into the next one.
fn lies_in_order(layout: &Layout) {
    let slots = layout.victims + layout.slots * 8;
    let queues = [layout.queues[0] + layout.units * 8, layout.queues[1] + layout.units * 8];
    let tables = [
        (layout.bases, layout.entries),
        (layout.entries + layout.pages * 8, layout.checksums),
        (layout.checksums + layout.pages * 16, layout.victims),
        (slots, layout.queues[0]),
        (queues[0], layout.queues[1]),
        (queues[1], layout.data),
        (layout.data + (u64::from(MAX_UNIT_PAGES) * PAGE_BYTES) as usize, layout.learned),
        (layout.learned, layout.ghosts),
        (layout.ghosts + layout.ghost_words * 8, layout.bytes),
    ];
    for (end, next) in tables {
        assert!(end <= next, "{layout:?}");
    }
    assert!(layout.bytes < 1 << 47, "more than there are addresses: {layout:?}");
}

/// A synchronous store request read by masu: valid, or none.
fn request(input: &mut Input<'_>) -> bool {
    let words: [AtomicU32; 5] = std::array::from_fn(|_| AtomicU32::new(input.int() % 8));
    words[2].store(input.int(), Relaxed);
    words[3].store(input.int() >> (input.byte() % 32), Relaxed);
    let request = StoreRequest(&words);
    match request.asked() {
        Some((Ask::Read | Ask::Write, _, pages)) => assert!((1..=MAX_UNIT_PAGES).contains(&pages)),
        Some((Ask::Copy, ..)) => {}
        None => assert!(
            words[0].load(Relaxed) != ASKED || !(1..=3).contains(&words[1].load(Relaxed)) || {
                !(1..=MAX_UNIT_PAGES).contains(&words[3].load(Relaxed))
            }
        ),
    }
    let asked = request.asked();
    if let Some((ask, page, pages)) = asked {
        request.ask(ask, page, pages);
        assert_eq!(request.asked(), Some((ask, page, pages)));
        request.answer(true);
        assert_eq!((request.asked(), request.answered(), request.answered()), (None, Some(true), None));
    }
    asked.is_some()
}
