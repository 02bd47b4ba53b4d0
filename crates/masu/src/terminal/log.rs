//! Log lines of `--verbose` and `MASU_LOG`, on standard error.

use std::io::{self, Write};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;

use crate::failure::Failure;
use crate::terminal::print;

const VARIABLE: &str = "MASU_LOG";

/// Standard error, without waiting for a reader: an event may come while locks are held that other programs wait for.
struct Unwaiting;

impl Write for Unwaiting {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        print::err_if_ready(line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts the log: of `MASU_LOG` if it is set, else of the number of `--verbose`; none by default.
///
/// # Errors
/// `MASU_LOG` names no level.
pub fn start(verbose: u8) -> Result<(), Failure> {
    let variable = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let Some(filter) = filter(verbose, variable.as_deref())? else { return Ok(()) };
    let lines = tracing_subscriber::fmt::layer().with_writer(|| Unwaiting).with_ansi(false).without_time();
    // Nobody else has set one in this process.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(lines).with(filter));
    Ok(())
}

fn filter(verbose: u8, variable: Option<&str>) -> Result<Option<Targets>, Failure> {
    if let Some(text) = variable {
        let refused = |why: String| {
            Failure::new(format!("cannot read {VARIABLE}={text}: {why}")).remedy(
                "Say a level (error, warn, info, debug, trace), or crates with levels: linux=trace,hugepages=debug.",
            )
        };
        // Without a level, a word would be a crate that logs everything.
        let no_level = text.split(',').find(|part| !part.contains('=') && part.parse::<LevelFilter>().is_err());
        if let Some(part) = no_level {
            return Err(refused(format!("{part} is no level")));
        }
        let filter = text.parse::<Targets>().map_err(|error| refused(error.to_string()))?;
        return Ok(Some(filter));
    }
    let level = match verbose {
        0 => return Ok(None),
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    Ok(Some(Targets::new().with_default(level)))
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn the_variable_counts_before_the_option_and_a_wrong_one_is_refused() {
        let enabled = |verbose, variable, target: &str, level| {
            filter(verbose, variable).unwrap().is_some_and(|filter| filter.would_enable(target, &level))
        };
        assert!(!enabled(0, None, "linux", Level::ERROR));
        assert!(enabled(1, None, "linux", Level::DEBUG) && !enabled(1, None, "linux", Level::TRACE));
        assert!(enabled(2, None, "linux", Level::TRACE));
        assert!(enabled(0, Some("linux=trace"), "linux::proxy", Level::TRACE));
        assert!(!enabled(2, Some("linux=trace"), "hugepages", Level::ERROR));
        let failure = filter(0, Some("linux=loud")).unwrap_err().to_string();
        assert!(failure.starts_with("masu: cannot read MASU_LOG=linux=loud: "), "{failure}");
        let failure = filter(0, Some("loud")).unwrap_err().to_string();
        assert!(failure.starts_with("masu: cannot read MASU_LOG=loud: loud is no level"), "{failure}");
    }
}
