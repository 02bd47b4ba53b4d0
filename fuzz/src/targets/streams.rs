//! Page-cache insertions of streams: each four bytes are an insertion, a wait, a scan, or pages that stayed. Every inserted
//! page is dropped once, or given up; nothing waits for ever; and the ranges of a file are a set.

use std::collections::BTreeSet;
use std::time::Duration;

use access::insertions::{FileId, Insertion};
use aging::controller::{self, Measured};
use aging::levels::{Bounds, Level};
use aging::ranges::Ranges;
use aging::streams::detect::Detector;
use aging::streams::policy::{Queue, SETTINGS, Settings};
use linux::Pid;
use units::cast::fits;
use units::{Fraction, Pages};

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let Some((keep, bytes)) = bytes.split_first() else { return false };
    let mut queue = Queue::new(Settings { keep: Pages(u64::from(*keep) * 16), ..SETTINGS });
    let mut detector = Detector::default();
    let (mut now, mut came, mut went, mut given_up) = (Duration::ZERO, 0u64, 0u64, 0u64);
    let (mut set, mut model) = (Ranges::default(), BTreeSet::new());
    for word in bytes.chunks_exact(4) {
        let [what, a, b, c] = [word[0], word[1], word[2], word[3]].map(u64::from);
        let range = a * 16..a * 16 + b;
        match what % 8 {
            0..=2 => {
                let file = FileId { device: (8, 1), inode: c % 5, generation: 0 };
                let process = Pid(fits(c / 5 + 1));
                let insertion = Insertion { file, pages: range.clone(), process };
                if b > 0 {
                    queue.insert(now, &insertion, Pages(c));
                    came += b;
                    detector.add(insertion);
                }
            }
            3 => now += Duration::from_millis(a * b),
            4 | 5 => {
                for due in queue.due(now) {
                    let count = due.pages.end - due.pages.start;
                    // A part of some ranges stays: dirty, or in use.
                    let stays = if (due.pages.start + c) % 3 == 0 { count / 2 } else { 0 };
                    went += count - stays;
                    let pages = due.pages.start..due.pages.start + stays;
                    if stays > 0 && !queue.stayed(now, &due, pages, what % 8 == 5 && c % 2 == 0) {
                        given_up += stays;
                    }
                }
            }
            6 => {
                set.insert(range.clone());
                model.extend(range);
            }
            _ => {
                set.remove(&range);
                model.retain(|page| !range.contains(page));
            }
        }
        assert_eq!(queue.waiting().0, came - went - given_up);
        let bounds = Bounds { low: Level::clamped(word[1].min(word[2])), high: Level::clamped(word[1].max(word[2])) };
        let measured = Measured {
            refaults_per_s: a as f64,
            quiet: Duration::from_secs(b),
            stalled: Fraction::clamped(c as f64 / 255.0),
        };
        if let Some((to, _)) = controller::moved(bounds.low, bounds, measured) {
            assert!((bounds.low..=bounds.high).contains(&to));
        }
    }
    assert_eq!(set.iter().flatten().collect::<BTreeSet<u64>>(), model);
    went += queue.rest().iter().map(|due| due.pages.end - due.pages.start).sum::<u64>();
    assert_eq!(came, went + given_up);
    assert_eq!(queue.waiting(), Pages(0));
    came > 0
}
