//! Messages of a client to the tracker, and of a tracker to a program.
//!
//! A byte with its length precedes each message; between the messages lists are given. Each message is understood as
//! sent, or is nonsense; no preference names a window that was not given. The same bytes as an answer and as the head
//! of a list lead to no access outside. The same bytes are also limits on huge pages, and programs that want some.

use contract::track::list::{Head, Window as Listed};
use contract::track::wire::{Answer, MOST_BYTES, Request};
use hugepages::track::admission::Account;
use hugepages::track::session::{ClientRequest, Session};
use hugepages::track::share::{Candidate, Limits, OwnedWindow, Owner, arena, share};
use units::{Rate, Window};

use crate::input::Input;

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let said = messages(bytes);
    list(bytes);
    limits(bytes);
    answer(bytes) || said
}

/// True if a message was neither nonsense nor refused.
fn messages(mut bytes: &[u8]) -> bool {
    let mut session = Session::default();
    let (mut given, mut meant) = (0, false);
    let mut space = [0; MOST_BYTES];
    while let Some((length, rest)) = bytes.split_first() {
        let (message, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        bytes = rest;
        if let Ok(request) = Request::read(message) {
            let length = request.write(&mut space);
            assert_eq!(Request::read(&space[..length]).map(|again| format!("{again:?}")), Ok(format!("{request:?}")));
        }
        let wanted = session.decode(message);
        meant |= !matches!(wanted, ClientRequest::Malformed | ClientRequest::Refuse(_));
        match wanted {
            ClientRequest::Register(terms) => {
                assert!(terms.are_sound());
                session.set_registered(true);
            }
            ClientRequest::Unregister => session.set_registered(false),
            ClientRequest::Fetch => {
                given = u64::from(*length % 5);
                session.set_list((0..given).map(Window).collect());
            }
            ClientRequest::Decided(wishes) => assert!(wishes.keys().all(|window| window.0 < given)),
            ClientRequest::Malformed => session = Session::default(),
            ClientRequest::Arena(_)
            | ClientRequest::Progress
            | ClientRequest::Incomplete
            | ClientRequest::Refuse(_) => {}
        }
    }
    meant
}

fn answer(bytes: &[u8]) -> bool {
    let mut space = [0; MOST_BYTES];
    let answer = Answer::read(bytes);
    if let Ok(answer) = answer {
        let length = answer.write(&mut space);
        assert_eq!(&space[..length], bytes);
    }
    answer.is_ok()
}

fn list(bytes: &[u8]) {
    let word = |number: usize| bytes.as_chunks().0.get(number).map_or(0, |word| u64::from_le_bytes(*word));
    let head = Head { magic: word(0), generation: word(1), windows: word(2), pages: word(3) };
    if head.fits(bytes.len() as u64) {
        assert!(head.windows * 32 + head.pages * 16 + 32 <= bytes.len() as u64);
    }
    let window = Listed { first: word(1), hot: word(2) as u32, ..Listed::default() };
    if window.is_within(word(3)) {
        assert!(window.first + u64::from(window.hot) <= word(3));
    }
}

/// Limits on huge pages, and the requests of several programs under them: no program has more than a limit allows, and
/// no window makes way twice.
fn limits(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut limit = || if input.byte().is_multiple_of(4) { u64::MAX } else { u64::from(input.byte() % 8) };
    let limits = Limits { of_program: limit(), of_user: limit(), of_all: limit() };
    let owner = |byte: u8| Owner { program: usize::from(byte % 4), user: Account::User(u32::from(byte % 4 / 2)) };
    let walks = |byte: u8| Rate::per_second(f64::from(byte));
    let held: Vec<OwnedWindow> = (0..input.byte() % 8)
        .map(|window| {
            let movable = input.byte() % 4 > 0;
            let window = movable.then_some(Window(window.into()));
            OwnedWindow { owner: owner(input.byte()), window, walks: walks(input.byte()) }
        })
        .collect();
    let candidates: Vec<Candidate> = (100..100 + input.byte() % 8)
        .map(|window| Candidate {
            owner: owner(input.byte()),
            window: Window(window.into()),
            walks: walks(input.byte()),
        })
        .collect();
    let shares = share(&candidates, &held, limits);
    assert_eq!(shares.granted.len() + shares.refused.len(), candidates.len());
    let taken: Vec<_> = shares.granted.iter().filter_map(|(_, taken)| *taken).collect();
    assert!(taken.iter().enumerate().all(|(at, one)| !taken[..at].contains(one)), "{shares:?}");
    let grown = shares.granted.len() - taken.len();
    let most = |before: usize, limit: u64| limit.max(before as u64);
    assert!((held.len() + grown) as u64 <= most(held.len(), limits.of_all), "{shares:?}");
    let (wanted, used) = (input.word(), [input.word(), input.word(), input.word()]);
    let granted = arena(wanted, used[0], used[1], used[2], limits);
    let most = [limits.of_program, limits.of_user, limits.of_all];
    assert!(granted <= wanted && most.iter().zip(used).all(|(most, used)| granted <= most.saturating_sub(used)));
}
