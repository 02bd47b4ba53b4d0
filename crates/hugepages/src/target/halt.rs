//! Times in which the program could not run (frozen, stopped, traced). Its idle windows are no evidence then.

use linux::halted::Halted;

use super::Target;

/// Cause now, and whether there was one in the present round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Halt {
    now: Option<Halted>,
    in_round: bool,
    looked: bool,
}

impl Halt {
    /// Starts a round.
    pub fn begin_round(&mut self) {
        self.in_round = self.now.is_some();
    }
}

impl Target {
    /// Cause for which it cannot run, at the last look.
    pub fn halted(&self) -> Option<&Halted> {
        self.halt.now.as_ref()
    }

    /// Whether it could not run at some look in this round: then the round finds no window idle, and settles nothing.
    pub fn was_halted(&self) -> bool {
        self.halt.in_round
    }

    /// Looks whether it can run. True at the first look, and if that changed.
    pub fn look_for_halt(&mut self) -> bool {
        let now = self.process.program().halted();
        let is_new = !std::mem::replace(&mut self.halt.looked, true) || now != self.halt.now;
        self.halt.in_round |= now.is_some();
        self.halt.now = now;
        is_new
    }
}
