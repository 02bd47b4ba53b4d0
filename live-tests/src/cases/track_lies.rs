//! Trackers that lie: the library checks everything before it believes it, and the program goes on.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use contract::track::list::{Head, MAGIC, Page, Window};
use contract::track::wire::{Answer, MOST_BYTES, Request, SHORT_BYTES};
use linux::message_socket::{Connection, Listener};
use linux::sealed_memory::sealed;

use super::Outcome;
use super::programs::TIME_LIMIT;
use super::run::{Folder, Result, said};
use super::track::track_client;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    track_lies requires [MasuCommand];
    a_list_comes_with_one_descriptor;
    a_list_that_cannot_be_trusted_ends_the_conversation;
    a_window_whose_pages_are_not_in_the_list_is_left_out;
    an_answer_without_a_meaning_is_as_good_as_no_tracker;
    a_tracker_that_does_not_answer_is_given_up [RealProcessor];
};

/// A fake tracker: talks over one connection, until the program has gone.
type Liar = fn(&Connection) -> Outcome;

/// The program that is lied to.
struct Told {
    folder: Folder,
    program: String,
}

impl Told {
    fn new() -> Result<Told> {
        let folder = Folder::make("lies")?;
        Ok(Told { program: track_client(&folder)?, folder })
    }

    /// The program's output after the lie.
    fn heard(&self, liar: Liar) -> Result<String> {
        let socket = self.folder.0.join("track.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = Listener::at(&socket)?;
        std::thread::scope(|threads| {
            let talk = threads.spawn(move || -> Result<()> {
                let connection = listener.accept(TIME_LIMIT)?.ok_or("nobody came")?;
                liar(&connection)
            });
            let said = said(Command::new(&self.program).arg("lied").env("MASU_TRACK", &socket))?;
            talk.join().map_err(|_| "the liar broke down")??;
            assert!(said.code() == 0 && said.out.ends_with("\nright\n") && said.err.is_empty(), "{said:?}");
            Ok(said.out.trim_end_matches("\nright\n").to_owned())
        })
    }
}

/// Waits for a message of the program.
fn hear(connection: &Connection) -> Outcome {
    connection.receive(&mut [0; MOST_BYTES], TIME_LIMIT)?.ok_or("the program went away")?;
    Ok(())
}

fn answer(connection: &Connection, answer: &Answer, files: &[OwnedFd]) -> Outcome {
    let mut message = [0; SHORT_BYTES];
    let bytes = answer.write(&mut message);
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    Ok(connection.send(&message[..bytes], &files)?)
}

/// Welcomes the program, and answers its wish for the list; then waits until it has gone.
fn hand_over(connection: &Connection, what: &Answer, files: &[OwnedFd]) -> Outcome {
    hear(connection)?;
    answer(connection, &Answer::Welcome, &[])?;
    hear(connection)?;
    answer(connection, what, files)?;
    let mut message = [0; MOST_BYTES];
    while let Some((bytes, _)) = connection.receive(&mut message, TIME_LIMIT)? {
        if Request::read(&message[..bytes]) == Ok(Request::Unregister) {
            answer(connection, &Answer::Bye, &[])?;
        }
    }
    Ok(())
}

const LIST: Answer = Answer::List { generation: 1, windows: 1, pages: 2 };

/// A list of one window with two pages, modified by `change`.
fn list(change: fn(&mut Head, &mut Window)) -> Vec<u8> {
    let mut head = Head { magic: MAGIC, generation: 1, windows: 1, pages: 2 };
    let mut window = Window { address: 2 << 20, first: 0, hot: 2, resident: 2, walks: 1.0, suggested: 1 };
    change(&mut head, &mut window);
    let page = Page { address: 2 << 20, count: 1, rate: 1.0 };
    let mut bytes: Vec<u8> = Vec::new();
    for word in [head.magic, head.generation, head.windows, head.pages, window.address, window.first] {
        bytes.extend(word.to_ne_bytes());
    }
    for half in [window.hot, window.resident, window.walks.to_bits(), window.suggested] {
        bytes.extend(half.to_ne_bytes());
    }
    for _ in 0..2 {
        bytes.extend(page.address.to_ne_bytes());
        bytes.extend(page.count.to_ne_bytes());
        bytes.extend(page.rate.to_bits().to_ne_bytes());
    }
    bytes
}

fn hand_over_list(connection: &Connection, change: fn(&mut Head, &mut Window)) -> Outcome {
    hand_over(connection, &LIST, &[sealed("masu-lie", &list(change))?])
}

/// The truth, for comparison. More descriptors than belong to it are no truth, and none of them is left in the program.
fn a_list_comes_with_one_descriptor(_: &Host) -> Outcome {
    let told = Told::new()?;
    assert_eq!(told.heard(|connection| hand_over_list(connection, |_, _| ()))?, "enable 0 handle 0 windows 1 wait 1");
    let many: Liar = |connection| {
        let files = (0..3).map(|_| sealed("masu-lie", &list(|_, _| ()))).collect::<std::result::Result<Vec<_>, _>>()?;
        hand_over(connection, &LIST, &files)
    };
    assert_eq!(told.heard(many)?, "enable 0 handle -4 windows 0 wait -4");
    Ok(())
}

/// The list is writable while it is read, or is invalid; all later messages of such a tracker are ignored.
fn a_list_that_cannot_be_trusted_ends_the_conversation(_: &Host) -> Outcome {
    let told = Told::new()?;
    let unsealed: Liar = |connection| {
        let file = rustix::fs::memfd_create("masu-lie", rustix::fs::MemfdFlags::ALLOW_SEALING)?;
        let mut file = File::from(file);
        file.write_all(&list(|_, _| ()))?;
        hand_over(connection, &LIST, &[file.into()])
    };
    let liars: [(&str, Liar); 8] = [
        ("not sealed", unsealed),
        ("no memory file", |connection| hand_over(connection, &LIST, &[File::open("/dev/zero")?.into()])),
        ("no file", |connection| hand_over(connection, &LIST, &[])),
        ("too short for a head", |connection| hand_over(connection, &LIST, &[sealed("masu-lie", &[0; 31])?])),
        ("another magic number", |connection| hand_over_list(connection, |head, _| head.magic += 1)),
        ("more pages than bytes", |connection| hand_over_list(connection, |head, _| head.pages = 3)),
        ("windows beyond counting", |connection| hand_over_list(connection, |head, _| head.windows = u64::MAX / 8)),
        ("an answer to something else", |connection| hand_over(connection, &Answer::Welcome, &[])),
    ];
    for (name, liar) in liars {
        let heard = told.heard(liar)?;
        assert!(heard.starts_with("enable 0 handle -4 windows 0 wait -4"), "{name}: {heard}");
    }
    Ok(())
}

/// The list is one; the window is left out.
fn a_window_whose_pages_are_not_in_the_list_is_left_out(_: &Host) -> Outcome {
    let told = Told::new()?;
    let liars: [Liar; 3] = [
        |connection| hand_over_list(connection, |_, window| window.first = 1),
        |connection| hand_over_list(connection, |_, window| window.first = u64::MAX),
        |connection| hand_over_list(connection, |_, window| window.hot = u32::MAX),
    ];
    for liar in liars {
        assert_eq!(told.heard(liar)?, "enable 0 handle 0 windows 0 wait 1");
    }
    Ok(())
}

/// Bytes without a meaning, or none at all.
fn an_answer_without_a_meaning_is_as_good_as_no_tracker(_: &Host) -> Outcome {
    let told = Told::new()?;
    let nonsense: Liar = |connection| {
        hear(connection)?;
        Ok(connection.send(&[0xff; 24], &[])?)
    };
    let hangs_up: Liar = hear;
    let hangs_up_later: Liar = |connection| {
        hear(connection)?;
        answer(connection, &Answer::Welcome, &[])?;
        hear(connection)
    };
    assert_eq!(told.heard(nonsense)?, "enable -4");
    assert_eq!(told.heard(hangs_up)?, "enable -4");
    assert_eq!(told.heard(hangs_up_later)?, "enable 0 handle -4 windows 0 wait -4");
    Ok(())
}

/// The program waits for ten seconds, once, and goes on.
fn a_tracker_that_does_not_answer_is_given_up(_: &Host) -> Outcome {
    let told = Told::new()?;
    let silent: Liar = |connection| {
        hear(connection)?;
        // Until the program has gone.
        while connection.receive(&mut [0; MOST_BYTES], TIME_LIMIT)?.is_some() {}
        Ok(())
    };
    let begun = Instant::now();
    assert_eq!(told.heard(silent)?, "enable -4");
    assert!(begun.elapsed() >= Duration::from_secs(9), "it did not wait: {:?}", begun.elapsed());
    Ok(())
}
