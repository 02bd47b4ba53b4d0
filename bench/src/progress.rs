//! Progress of a long measurement: each step on a terminal, a line each half minute elsewhere.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two lines where there is no terminal.
const EVERY: Duration = Duration::from_secs(30);

/// Shows the present step on standard error.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The present step; unused on a terminal.
    step: Arc<Mutex<String>>,
    is_terminal: bool,
}

impl Progress {
    /// Starts the clock of the lines, in a thread that sleeps in between and ends with the process.
    pub fn start() -> Progress {
        let is_terminal = std::io::stderr().is_terminal();
        let step = Arc::new(Mutex::new(String::new()));
        if !is_terminal {
            let (shown, start) = (Arc::clone(&step), Instant::now());
            std::thread::spawn(move || {
                loop {
                    std::thread::sleep(EVERY);
                    eprintln!("{}", line(start.elapsed(), &shown.lock().unwrap_or_else(PoisonError::into_inner)));
                }
            });
        }
        Progress { step, is_terminal }
    }

    /// Begins a step.
    pub fn at(&self, step: &str) {
        if self.is_terminal {
            eprintln!("  {step}");
        } else {
            step.clone_into(&mut self.step.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

fn line(elapsed: Duration, step: &str) -> String {
    let step = if step.is_empty() { "preparing" } else { step };
    format!("  {} s: {step}", elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_the_time_and_the_step() {
        assert_eq!(line(Duration::from_millis(60_400), "reload 1 of 2"), "  60 s: reload 1 of 2");
        assert_eq!(line(EVERY, ""), "  30 s: preparing");
    }
}
