//! Lines of a command whose work goes on when they cannot be written: the reader has left, or the disk is full.

use std::io;

use crate::Done;
use crate::failure::Failure;
use crate::terminal::print;

/// Whether a line could not be written. The first failure is said on standard error, once.
#[derive(Debug)]
pub struct Unwritten {
    work: &'static str,
    is_lost: bool,
}

impl Unwritten {
    /// No line is lost so far; `work` names what goes on, such as `aging`.
    pub fn of(work: &'static str) -> Unwritten {
        Unwritten { work, is_lost: false }
    }

    /// Notes the outcome of writing a line while the work goes on. True if it was written.
    pub fn take(&mut self, written: io::Result<()>) -> bool {
        let work = self.work;
        self.note(written, |why| format!("cannot write the lines any more: {why}; {work} goes on without them"))
    }

    /// Notes the outcome of writing the last lines.
    pub fn take_last(&mut self, written: io::Result<()>) {
        self.note(written, |why| format!("cannot write the last lines: {why}"));
    }

    fn note(&mut self, written: io::Result<()>, line: impl Fn(String) -> String) -> bool {
        let Err(error) = written else { return true };
        if !std::mem::replace(&mut self.is_lost, true) {
            print::note(line(linux::describe_io(&error)));
        }
        false
    }

    /// True from the first failure on.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Outcome of work that is done: in part, if a line was lost.
    pub fn done(&self) -> Done {
        if self.is_lost { Done::InPart } else { Done::Whole }
    }
}

/// Outcome of work that is done, whose report may be unwritten: that is a part, and its reason is said. A reader that has
/// left is a normal end.
pub fn report_of_work(written: Result<(), Failure>) -> Done {
    match written {
        Err(failure) if !failure.is_broken_pipe() => {
            print::note(failure.of_report());
            Done::InPart
        }
        Ok(()) | Err(_) => Done::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_whose_report_is_lost_is_done_in_part_and_not_undone() {
        let failed = |kind: io::ErrorKind| report_of_work(Err(io::Error::from(kind).into()));
        assert_eq!(report_of_work(Ok(())), Done::Whole);
        assert_eq!(failed(io::ErrorKind::StorageFull), Done::InPart);
        assert_eq!(failed(io::ErrorKind::BrokenPipe), Done::Whole);
    }

    #[test]
    fn one_lost_line_is_a_part_that_was_not_done() {
        let mut lines = Unwritten::of("aging");
        assert!(lines.take(Ok(())));
        assert_eq!((lines.is_lost(), lines.done()), (false, Done::Whole));
        assert!(!lines.take(Err(io::ErrorKind::StorageFull.into())));
        lines.take_last(Ok(()));
        assert_eq!((lines.is_lost(), lines.done()), (true, Done::InPart));
    }
}
