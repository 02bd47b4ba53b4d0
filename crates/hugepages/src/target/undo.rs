//! End of a run with `--undo`.

use std::collections::BTreeMap;

use linux::Error;
use units::Window;

use super::Target;
use crate::Refusal;

/// Looks for windows that the program moves meanwhile.
const LOOKS_MAX: u32 = 3;

impl Target {
    /// Splits every window that masu promoted (`--undo`), also those that the program moved or of which it gave back a
    /// part, and returns those that stayed huge all the same, by reason. A program that has ended has nothing to undo.
    pub fn undo(&mut self) -> BTreeMap<Refusal, u64> {
        self.try_undo().unwrap_or_default()
    }

    fn try_undo(&mut self) -> Result<BTreeMap<Refusal, u64>, Error> {
        for _ in 0..LOOKS_MAX {
            self.demote_promoted()?;
            if !self.has_lost()? {
                break;
            }
            unless_gone(self.scan())?;
        }
        unless_gone(self.split_moved(true))?;
        // Given back in part since the last look.
        unless_gone(self.torn.split_all(self.process.program(), &|| false))?;
        unless_gone(self.huge.measure_extra(self.process.program()))?;
        unless_gone(self.plan_again())?;
        let mut stayed = self.moved_left()?;
        for (.., huge) in self.huge.promoted() {
            // Neither split nor refused: gone from its address at each look.
            *stayed.entry(huge.kept.unwrap_or(Refusal::Moved)).or_insert(0) += 1;
        }
        Ok(stayed)
    }

    fn demote_promoted(&mut self) -> Result<(), Error> {
        let ours: Vec<Window> = self.huge.promoted().map(|(window, ..)| window).collect();
        // Windows that were not split are still promoted, and counted at the end.
        ours.into_iter().try_for_each(|window| unless_gone(self.demote(window)))
    }

    /// Whether a window of masu's is not huge at its address: given back or moved since the last scan.
    fn has_lost(&self) -> Result<bool, Error> {
        for (window, ..) in self.huge.promoted() {
            if !self.process.program().state(window)?.is_some_and(|state| state.huge) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn unless_gone(done: Result<(), Error>) -> Result<(), Error> {
    done.or_else(|error| if error.is_gone() { Err(error) } else { Ok(()) })
}
