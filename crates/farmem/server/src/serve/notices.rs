//! Notices about single programs, in bounded number.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Programs of a run with a line of one kind.
const MOST: u32 = 8;

/// Notices of one kind.
#[derive(Debug, Default)]
pub(super) struct Notices(AtomicU32);

impl Notices {
    /// Next line: `one` for the first programs, then `more` once, which is about all others.
    pub(super) fn next(&self, one: impl FnOnce() -> String, more: &str) -> Option<String> {
        let next = |said: u32| (said <= MOST).then_some(said + 1);
        match self.0.fetch_update(Relaxed, Relaxed, next) {
            Ok(MOST) => Some(more.to_owned()),
            Ok(_) => Some(one()),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_programs_have_a_line_each_and_the_others_one() {
        let notices = Notices::default();
        let said: Vec<_> = (1..=20).filter_map(|number| notices.next(|| format!("program {number}"), "more")).collect();
        assert_eq!(said.len(), 9);
        assert_eq!((said[0].as_str(), said[7].as_str(), said[8].as_str()), ("program 1", "program 8", "more"));
    }
}
