//! What a client of the tracker may send, and what a program takes from a tracker.
//!
//! The first byte says how many bytes the first message has, and so on; between the messages lists are given. Whatever comes is
//! understood as it was said, or is nonsense; no wish names a window that was not given. The same bytes as an answer and as the
//! head of a list lead to nothing that lies outside.

#![no_main]

use hugepages::track::session::{Session, Wanted};
use libfuzzer_sys::fuzz_target;
use libmasu::track::list::{Head, Window as Listed};
use libmasu::track::wire::{Answer, MOST_BYTES, Request};
use quantities::Window;

fuzz_target!(|bytes: &[u8]| {
    messages(bytes);
    answer(bytes);
    list(bytes);
});

fn messages(mut bytes: &[u8]) {
    let mut session = Session::default();
    let mut given = 0;
    let mut space = [0; MOST_BYTES];
    while let Some((length, rest)) = bytes.split_first() {
        let (message, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        bytes = rest;
        if let Ok(request) = Request::read(message) {
            let length = request.write(&mut space);
            assert_eq!(Request::read(&space[..length]).map(|again| format!("{again:?}")), Ok(format!("{request:?}")));
        }
        match session.understand(message) {
            Wanted::Register(terms) => {
                assert!(terms.are_sound());
                session.set_registered(true);
            }
            Wanted::Unregister => session.set_registered(false),
            Wanted::Fetch => {
                given = u64::from(*length % 5);
                session.give((0..given).map(Window).collect());
            }
            Wanted::Decided(wishes) => assert!(wishes.keys().all(|window| window.0 < given)),
            Wanted::Nonsense => session = Session::default(),
            Wanted::Arena(_) | Wanted::Progress | Wanted::More | Wanted::No(_) => {}
        }
    }
}

fn answer(bytes: &[u8]) {
    let mut space = [0; MOST_BYTES];
    if let Ok(answer) = Answer::read(bytes) {
        let length = answer.write(&mut space);
        assert_eq!(&space[..length], bytes);
    }
}

fn list(bytes: &[u8]) {
    let word = |number: usize| {
        bytes.get(number * 8..number * 8 + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
    };
    let head = Head { magic: word(0), generation: word(1), windows: word(2), pages: word(3) };
    if head.fits(bytes.len() as u64) {
        assert!(head.windows * 32 + head.pages * 16 + 32 <= bytes.len() as u64);
    }
    let window = Listed { first: word(1), hot: word(2) as u32, ..Listed::default() };
    if window.is_within(word(3)) {
        assert!(window.first + u64::from(window.hot) <= word(3));
    }
}
