//! Metrics of a run: fairness and throughput from the slowdowns of its programs.
//!
//! A slowdown is a program's time beside the others, over its time with the whole cache to itself: 1 is no loss.
//!
//! | name       | formula               | best | source |
//! |------------|-----------------------|------|--------|
//! | unfairness | max s / min s         | 1    | Selfa et al., PACT'17 |
//! | STP        | Σ 1/s                 | n    | Eyerman and Eeckhout, IEEE Micro 2008 |
//! | ANTT       | (Σ s) / n             | 1    | the same |
//! | Jain       | (Σ s)² / (n · Σ s²)   | 1    | Jain, Chiu and Hawe, DEC TR-301, 1984 |

use serde::{Deserialize, Serialize};

/// The four figures of one run.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Metrics {
    /// Greatest over least slowdown.
    pub unfairness: f64,
    /// System throughput: the sum of progress, in programs.
    pub stp: f64,
    /// Average normalized turnaround time: the mean slowdown.
    pub antt: f64,
    /// Jain's index of fairness.
    pub jain: f64,
}

impl Metrics {
    /// Metrics of these slowdowns, each above 0; `None` without any.
    pub fn of(slowdowns: &[f64]) -> Option<Metrics> {
        let largest = slowdowns.iter().copied().reduce(f64::max)?;
        let least = slowdowns.iter().copied().reduce(f64::min)?;
        #[expect(clippy::cast_precision_loss, reason = "a handful of programs")]
        let count = slowdowns.len() as f64;
        let sum: f64 = slowdowns.iter().sum();
        let squares: f64 = slowdowns.iter().map(|slowdown| slowdown * slowdown).sum();
        Some(Metrics {
            unfairness: largest / least,
            stp: slowdowns.iter().map(|slowdown| 1.0 / slowdown).sum(),
            antt: sum / count,
            jain: sum * sum / (count * squares),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_programs_one_of_them_twice_as_slow() {
        // 2/1; 1/1 + 1/2; 3/2; 9/(2·5).
        let expected = Metrics { unfairness: 2.0, stp: 1.5, antt: 1.5, jain: 0.9 };
        assert_eq!(Metrics::of(&[1.0, 2.0]), Some(expected));
        assert_eq!(Metrics::of(&[]), None);
    }

    proptest! {
        #[test]
        fn equal_slowdowns_are_fair_and_others_are_less(slowdowns in prop::collection::vec(1.0f64..10.0, 1..12)) {
            let even = Metrics::of(&vec![slowdowns[0]; slowdowns.len()]).unwrap();
            prop_assert!((even.unfairness - 1.0).abs() < 1e-12 && (even.jain - 1.0).abs() < 1e-12);
            let found = Metrics::of(&slowdowns).unwrap();
            prop_assert!(found.unfairness >= 1.0 && found.jain <= 1.0 + 1e-12 && found.antt >= 1.0);
        }
    }
}
