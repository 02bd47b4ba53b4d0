//! Torn huge pages of a program under attach.

use linux::Error;
use units::{Bytes, Pages, Window};

use super::Target;

impl Target {
    /// Windows that may hold a torn huge page.
    pub fn maybe_torn(&mut self) -> Vec<Window> {
        let small = self.process.source().map().windows.iter().filter(|heat| !heat.huge);
        self.torn.update(small.map(|heat| (heat.window, Pages(u64::from(heat.present.count())))));
        self.torn.to_try(self.process.program())
    }

    /// Splits a torn huge page, if the window has one.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn split_torn(&mut self, window: Window) -> Result<(), Error> {
        let program = self.process.program();
        if self.torn.try_split(program, window)? {
            self.huge.measure_torn(window, program)?;
        }
        Ok(())
    }

    /// Torn huge pages that masu split, and the memory that this freed.
    pub fn torn(&self) -> (u64, Bytes) {
        (self.torn.split, self.torn.returned)
    }

    /// Torn huge pages that the kernel does not split, and the memory that it keeps of them.
    pub fn torn_left(&self) -> (u64, Bytes) {
        self.torn.stays()
    }

    /// Torn huge pages of the host that stay, of which some may be the program's.
    pub fn torn_maybe_left(&self) -> u64 {
        self.torn.maybe_stays(self.process.program())
    }
}
