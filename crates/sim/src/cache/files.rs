//! Files of a scenario: the scenario itself, and traces.

use std::io::{self, BufReader};
use std::path::Path;

use linux::named_file;
use units::Bytes;

use super::scenario::{BadScenario, Scenario};
use super::trace::Source;

/// Largest scenario.
const SCENARIO_MOST: Bytes = Bytes::mib(16);

/// Reason that there is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum NoScenario {
    /// The file cannot be read.
    #[error("cannot read the scenario {file}: {why}")]
    Unread {
        /// File name.
        file: String,
        /// Error of the system.
        why: String,
    },
    /// The file is readable, but its content is invalid.
    #[error(transparent)]
    Bad(#[from] BadScenario),
}

/// Reads a scenario.
///
/// # Errors
/// When the file cannot be read, or its content is invalid.
pub fn scenario(file: &Path) -> Result<Scenario, NoScenario> {
    let unread =
        |error: io::Error| NoScenario::Unread { file: file.display().to_string(), why: linux::describe_io(&error) };
    let text = named_file::read_text(file, SCENARIO_MOST).map_err(unread)?;
    Ok(Scenario::parse(file, &text)?)
}

/// Opens a trace for reading line by line: it may be larger than memory.
///
/// # Errors
/// When it cannot be opened, or is no plain file: it must be readable twice.
pub fn trace(file: &Path) -> io::Result<Box<dyn Source>> {
    let opened = named_file::open(file)?;
    Ok(Box::new(BufReader::with_capacity(1 << 18, opened)))
}
