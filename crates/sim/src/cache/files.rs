//! The files of a scenario: itself, and traces.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use super::scenario::{BadScenario, Scenario};
use super::trace::Source;

/// Why there is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum NoScenario {
    /// The file cannot be read.
    #[error("cannot read the scenario {file}: {why}")]
    Unread {
        /// Its name.
        file: String,
        /// The system's answer.
        why: String,
    },
    /// It can, and something in it is wrong.
    #[error(transparent)]
    Bad(#[from] BadScenario),
}

/// Reads a scenario.
///
/// # Errors
/// When it cannot be read, or says what cannot be meant.
pub fn scenario(file: &Path) -> Result<Scenario, NoScenario> {
    let unread =
        |error: io::Error| NoScenario::Unread { file: file.display().to_string(), why: linux::describe_io(&error) };
    let text = std::fs::read_to_string(file).map_err(unread)?;
    Ok(Scenario::parse(file, &text)?)
}

/// Opens a trace, to be read line by line: it may be larger than memory.
///
/// # Errors
/// When it cannot be opened, or is no plain file and so could not be read twice.
pub fn trace(file: &Path) -> io::Result<Box<dyn Source>> {
    // Before it is opened: a pipe without a writer would be waited for.
    if !std::fs::metadata(file)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file"));
    }
    let opened = File::open(file)?;
    Ok(Box::new(BufReader::with_capacity(1 << 18, opened)))
}
