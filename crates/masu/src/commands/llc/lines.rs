//! Lines for a reader who may stop reading: the writing thread waits for the reader, the caller does not.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Lines on their way to a reader, in order. Lines beyond [`Lines::WAITING`] are dropped and counted.
#[derive(Debug)]
pub struct Lines {
    waiting: Option<SyncSender<String>>,
    written: Receiver<io::Error>,
    writer: JoinHandle<()>,
    left_out: u64,
    say_left_out: fn(u64) -> String,
}

impl Lines {
    /// Most lines that wait for the reader.
    pub const WAITING: usize = 1024;

    /// Sends lines to `out`. `say_left_out` makes the line that reports the number of dropped lines.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn to(mut out: impl Write + Send + 'static, say_left_out: fn(u64) -> String) -> io::Result<Lines> {
        let (waiting, lines) = sync_channel::<String>(Lines::WAITING);
        let (trouble, written) = sync_channel(1);
        let writer = std::thread::Builder::new().name("lines".to_owned()).spawn(move || {
            for line in lines {
                if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
                    // The sender may have ended too.
                    trouble.try_send(error).ok();
                    return;
                }
            }
        })?;
        Ok(Lines { waiting: Some(waiting), written, writer, left_out: 0, say_left_out })
    }

    /// Sends a line, or drops it when the queue is full.
    ///
    /// # Errors
    /// As [`Lines::check`], for an earlier line.
    pub fn say(&mut self, line: String) -> io::Result<()> {
        if self.left_out > 0 && self.send((self.say_left_out)(self.left_out))? {
            self.left_out = 0;
        }
        if self.left_out > 0 || !self.send(line)? {
            self.left_out += 1;
        }
        Ok(())
    }

    /// False when the queue is full.
    fn send(&self, line: String) -> io::Result<bool> {
        let Some(waiting) = &self.waiting else { return Ok(false) };
        match waiting.try_send(line) {
            Ok(()) => Ok(true),
            Err(TrySendError::Full(_)) => Ok(false),
            Err(TrySendError::Disconnected(_)) => self.check().and(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Reports a failed write.
    ///
    /// # Errors
    /// The write failed: the reader has left, or the disk is full.
    pub fn check(&self) -> io::Result<()> {
        self.written.try_recv().map_or(Ok(()), Err)
    }

    /// Waits until all lines are written. A reader who has stopped reading gets `patience` from the moment
    /// `told_to_end` turns true.
    ///
    /// # Errors
    /// As [`Lines::check`].
    pub fn end(mut self, patience: Duration, told_to_end: impl Fn() -> bool) -> io::Result<()> {
        const LOOK_EVERY: Duration = Duration::from_millis(10);
        self.waiting = None;
        let mut told = None;
        while !self.writer.is_finished() {
            if told_to_end() && told.get_or_insert_with(Instant::now).elapsed() >= patience {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.check()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Takes a line for each permit, and leaves when the permits end.
    struct Slow {
        permits: Receiver<()>,
        line: Vec<u8>,
        read: Arc<Mutex<Vec<String>>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.line.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            self.permits.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            let line = String::from_utf8(std::mem::take(&mut self.line)).unwrap();
            self.read.lock().unwrap().push(line.trim_end().to_owned());
            Ok(())
        }
    }

    fn slow() -> (Lines, SyncSender<()>, Arc<Mutex<Vec<String>>>) {
        let (permit, permits) = sync_channel(10_000);
        let read = Arc::new(Mutex::new(Vec::new()));
        let out = Slow { permits, line: Vec::new(), read: Arc::clone(&read) };
        (Lines::to(out, |lines| format!("{lines} left out")).unwrap(), permit, read)
    }

    #[test]
    fn a_reader_gets_all_lines_in_order() {
        let (mut lines, permit, read) = slow();
        for nth in 0..100 {
            permit.send(()).unwrap();
            lines.say(nth.to_string()).unwrap();
        }
        lines.end(Duration::ZERO, || false).unwrap();
        assert_eq!(*read.lock().unwrap(), (0..100).map(|nth| nth.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn nobody_waits_for_a_reader_who_stands_still_and_he_hears_what_he_missed() {
        let (mut lines, permit, read) = slow();
        let said = Lines::WAITING * 2;
        for nth in 0..said {
            lines.say(nth.to_string()).unwrap(); // would block here
        }
        for _ in 0..said {
            permit.send(()).unwrap();
        }
        while read.lock().unwrap().len() < Lines::WAITING {
            std::thread::yield_now();
        }
        lines.say("last".to_owned()).unwrap();
        lines.end(Duration::ZERO, || false).unwrap();
        let read = read.lock().unwrap();
        let (heard, after) = read.split_at(read.len() - 2);
        // One line more than the queue holds is with the reader.
        assert!((Lines::WAITING..=Lines::WAITING + 1).contains(&heard.len()), "{}", heard.len());
        assert_eq!(heard, (0..heard.len()).map(|nth| nth.to_string()).collect::<Vec<_>>());
        assert_eq!(after, [format!("{} left out", said - heard.len()), "last".to_owned()]);
    }

    #[test]
    fn a_reader_who_left_is_noticed() {
        let (mut lines, permit, _) = slow();
        drop(permit);
        let error = loop {
            if let Err(error) = lines.say("a line".to_owned()) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_reader_who_left_is_noticed_at_the_end() {
        let (mut lines, permit, _) = slow();
        lines.say("a line".to_owned()).unwrap();
        drop(permit);
        assert_eq!(lines.end(Duration::ZERO, || false).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn who_is_told_to_end_does_so_while_a_reader_stands_still() {
        let (mut lines, _permit, read) = slow();
        lines.say("a line".to_owned()).unwrap();
        lines.end(Duration::ZERO, || true).unwrap();
        assert_eq!(*read.lock().unwrap(), [""; 0]);
    }
}
