//! Starting a program with the privileges that masu was started with, though masu has given up its own by then.
//!
//! Capabilities and no_new_privs belong to a thread. This one keeps those that masu was started with until it has started
//! the program, so that a set-uid program works, and a program of root's has what it would have without masu. Then it gives
//! them up as well. It stays until masu ends: a program may have asked for a signal at the end of its parent, which the
//! kernel sends at the end of the parent's thread.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};

use linux::capabilities::{self, Capabilities};

/// The thread. Must be started before anything is given up.
#[derive(Debug)]
pub struct Starter {
    orders: Sender<Command>,
    answers: Receiver<io::Result<Child>>,
}

impl Starter {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn ready() -> io::Result<Starter> {
        let (orders, ordered) = channel();
        let (answer, answers) = channel();
        std::thread::Builder::new().name("masu-start".to_owned()).spawn(move || obey(&ordered, &answer))?;
        Ok(Starter { orders, answers })
    }

    /// Starts a program: the first one that can be started is the last.
    ///
    /// # Errors
    /// As [`Command::spawn`].
    pub fn start(&self, program: Command) -> io::Result<Child> {
        let ended = || io::Error::other("the thread that starts programs has ended");
        self.orders.send(program).map_err(|_| ended())?;
        self.answers.recv().map_err(|_| ended())?
    }
}

fn obey(orders: &Receiver<Command>, answers: &Sender<io::Result<Child>>) {
    let started = orders.iter().map(|mut program| program.spawn()).any(|child| {
        let is_started = child.is_ok();
        if is_started {
            // Nobody could be told that it cannot be done, and masu itself could do it.
            let _ = capabilities::keep(Capabilities(0));
        }
        let _ = answers.send(child); // Whoever asked waits for it.
        is_started
    });
    if started {
        loop {
            std::thread::park();
        }
    }
}
