//! A program and its observer, in one address space. Detects exec.

use access::Observer;
use linux::Error;

use crate::program::Program;

/// Report of the source on an exec. It reports each one at the scan after it, until it begins again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExecReport {
    /// None is expected.
    None,
    /// The exec was found otherwise, and the source has not reported it yet.
    Expected,
    /// The source reports an exec that is known.
    Repeated,
}

/// Address space after a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSpace {
    /// The one of the scan before.
    Same,
    /// Another one (exec).
    New,
}

/// A program under observation.
pub struct Process {
    program: Box<dyn Program>,
    source: Box<dyn Observer>,
    exec: ExecReport,
}

impl Process {
    /// A program and its observer.
    pub fn new(program: Box<dyn Program>, source: Box<dyn Observer>) -> Process {
        Process { program, source, exec: ExecReport::None }
    }

    /// Interface to the program.
    pub fn program(&self) -> &dyn Program {
        self.program.as_ref()
    }

    /// Its observer.
    pub fn source(&self) -> &dyn Observer {
        self.source.as_ref()
    }

    /// Starts an observation: clears the accessed bits.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn begin(&mut self) -> Result<(), Error> {
        if self.exec == ExecReport::Repeated {
            self.exec = ExecReport::None;
        }
        self.source.begin()
    }

    /// Reads the accesses since the start of the observation. In a new address space they are void.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn scan(&mut self) -> Result<AddressSpace, Error> {
        self.source.scan()?;
        // Not every source reports an exec, and one may fall between its scan and this.
        let (replaced, reported) = (self.program.renew()?, self.source.address_space_changed());
        let is_news = reported && self.exec == ExecReport::None;
        if replaced || is_news {
            self.exec = if is_news { ExecReport::None } else { ExecReport::Expected };
            return Ok(AddressSpace::New);
        }
        if reported {
            self.exec = ExecReport::Repeated;
        }
        Ok(AddressSpace::Same)
    }

    /// Records an exec that the source has not reported.
    pub fn expect_exec_report(&mut self) {
        self.exec = ExecReport::Expected;
    }
}
