//! Priority of masu's own threads.

/// Priority of one thread. While a window is promoted the program may wait for masu, and masu should not wait for
/// others: those calls are short, with pauses of more than half of the time between them. Scans and clears take longer
/// and keep the usual priority.
#[derive(Debug, Default)]
pub struct Priority {
    is_raised: bool,
}

impl Priority {
    /// Raises or restores the priority of this thread. Without the privilege it stays.
    pub fn set(&mut self, raised: bool) {
        const STEP: i32 = 10;
        if raised && !self.is_raised {
            self.is_raised = rustix::process::nice(-STEP).is_ok();
        } else if !raised && self.is_raised {
            self.is_raised = rustix::process::nice(STEP).is_err();
        }
    }
}
