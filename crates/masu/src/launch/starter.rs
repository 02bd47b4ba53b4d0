//! Starts a program with masu's original privileges, after masu has given up its own.
//!
//! Capabilities and no_new_privs belong to a thread. This thread keeps the original ones until it has started the
//! program: a set-uid program works, and a program of root has the same capabilities as without masu. Then the thread
//! gives them up as well. It stays until masu ends: a program may have asked for a signal at the end of its parent
//! (PR_SET_PDEATHSIG), and the kernel sends it when the parent's thread ends.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};

use linux::capabilities::{self, Capabilities};

/// The starting thread. Must be started before any privilege is given up.
#[derive(Debug)]
pub struct Starter {
    orders: Sender<Command>,
    answers: Receiver<io::Result<Child>>,
}

impl Starter {
    /// Starts the thread.
    ///
    /// # Errors
    /// No further thread can be started.
    pub fn ready() -> io::Result<Starter> {
        let (orders, ordered) = channel();
        let (answer, answers) = channel();
        std::thread::Builder::new().name("masu-start".to_owned()).spawn(move || obey(&ordered, &answer))?;
        Ok(Starter { orders, answers })
    }

    /// Starts a program. After the first success the thread starts no more.
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
            // No caller could handle a failure; the same call has already succeeded in the rest of masu.
            let _ = capabilities::restrict_to(Capabilities(0));
        }
        let _ = answers.send(child); // The caller waits for the answer.
        is_started
    });
    if started {
        loop {
            std::thread::park();
        }
    }
}
