//! End of a run with `--undo`.

use std::collections::BTreeMap;

use units::Window;

use super::Target;
use crate::Refusal;

impl Target {
    /// Splits every window that masu promoted (`--undo`), also those of which the program gave back a part, and returns those that stayed huge all the same, by reason. A
    /// program that has ended has nothing to undo.
    pub fn undo(&mut self) -> BTreeMap<Refusal, u64> {
        let ours: Vec<Window> = self.huge.promoted().map(|(window, ..)| window).collect();
        for window in ours {
            match self.demote(window) {
                Err(error) if error.is_gone() => return BTreeMap::new(),
                // Windows that were not split are still promoted, and counted below.
                Ok(()) | Err(_) => {}
            }
        }
        // Given back in part since the last look.
        if self.torn.split_all(self.process.program(), &|| false).is_err_and(|error| error.is_gone()) {
            return BTreeMap::new();
        }
        let mut stayed = BTreeMap::new();
        for (.., huge) in self.huge.promoted() {
            *stayed.entry(huge.kept.unwrap_or(Refusal::Other)).or_insert(0) += 1;
        }
        stayed
    }
}
