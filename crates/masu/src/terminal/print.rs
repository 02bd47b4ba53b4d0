//! All text output of masu: standard output, standard error, and lines.
//!
//! Names that others chose come as [`linux::Untrusted`], which shows itself escaped. This module is the second line of
//! defence, for text such as a library's messages: [`Clean`] passes no control character but the newline, and a line, a
//! cell and a message are one line each. `cargo xtask check` ensures that nothing else in masu writes to the two.

use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Stderr, Stdout, Write};
use std::os::fd::{AsFd, OwnedFd};

use linux::untrusted::{visible, visible_but};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::Failure;

/// Passes printable characters and newlines. Each write must hold whole characters.
#[derive(Debug)]
pub struct Clean<W>(pub W);

/// Standard output.
pub fn out() -> Clean<Stdout> {
    Clean(io::stdout())
}

/// Descriptor of the standard output, for a process of masu's own to which it is no output.
///
/// # Errors
/// When there is no descriptor left.
pub fn descriptor() -> io::Result<OwnedFd> {
    io::stdout().as_fd().try_clone_to_owned()
}

/// Standard error.
pub fn err() -> Clean<Stderr> {
    Clean(io::stderr())
}

/// Writes at most 4096 bytes (PIPE_BUF) to standard error, and nothing while its reader is slow.
pub fn err_if_ready(line: &[u8]) -> io::Result<()> {
    let stderr = io::stderr();
    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
    if poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1) {
        err().write_all(&line[..line.len().min(4096)])?;
    }
    Ok(())
}

/// Shows a line of progress in place of the one before, on a terminal only; an empty one removes it.
pub fn progress(line: &str) {
    let mut err = io::stderr();
    if err.is_terminal() {
        // A terminal that went away shows no progress.
        let _ = write!(err, "\r{}\x1b[K", visible(line));
    }
}

/// Writes `masu: ` and a line to standard error; a missing reader is no reason to end.
pub fn note(line: impl Display) {
    let _ = writeln!(err(), "masu: {}", visible(&line.to_string()));
}

/// Writes a failure to standard error; a missing reader is no reason to end.
pub fn failure(failure: &Failure) {
    let _ = writeln!(err(), "{failure}");
}

/// Writes a text over the previous one on a terminal: from the top, clearing the rest of each line and of the screen.
pub fn in_place(text: &[u8], is_first: bool) -> io::Result<()> {
    let clear = if is_first { "\x1b[2J" } else { "" };
    let lines = cleaned(text).replace('\n', "\x1b[K\n");
    let mut out = io::stdout().lock();
    write!(out, "{clear}\x1b[H{lines}\x1b[J")?;
    out.flush()
}

fn cleaned(bytes: &[u8]) -> String {
    visible_but(&String::from_utf8_lossy(bytes), &['\n']).into_owned()
}

impl<W: IsTerminal> Clean<W> {
    pub fn is_terminal(&self) -> bool {
        self.0.is_terminal()
    }
}

impl<W: Write> Write for Clean<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(cleaned(bytes).as_bytes())?;
        Ok(bytes.len())
    }

    /// One write for the whole text, so that lines of several threads do not mix.
    fn write_fmt(&mut self, text: fmt::Arguments<'_>) -> io::Result<()> {
        self.write_all(text.to_string().as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A signed change in percent: `+0.31 %`.
pub fn percent(part: f64) -> String {
    format!("{:+.2} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_control_character_gets_through_and_what_is_printable_does(
            pieces in prop::collection::vec(prop_oneof![".{0,20}", "(?s).{0,20}", "[\\x00-\\u{a0}]{0,5}"], 0..5),
            bytes in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut out = Clean(Vec::new());
            pieces.iter().for_each(|piece| write!(out, "{piece}").unwrap());
            out.write_all(&bytes).unwrap();
            let text = String::from_utf8(out.0).unwrap();
            prop_assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{:?}", text);
            let printable: String = pieces.concat().chars().filter(char::is_ascii_graphic).collect();
            let mut rest = text.chars();
            prop_assert!(printable.chars().all(|letter| rest.any(|other| other == letter)));
        }
    }

    #[test]
    fn what_was_json_still_is() {
        let mut out = Clean(Vec::new());
        let text = "a\u{9b}b\u{202e}\u{7f}\n\u{1b}\u{e0001}";
        serde_json::to_writer(&mut out, text).unwrap();
        assert_eq!(serde_json::from_slice::<String>(&out.0).unwrap(), text);
        assert!(out.0.is_ascii());
    }
}
