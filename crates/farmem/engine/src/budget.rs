//! Budget of a paged program: its frames, the part of them for evicted pages, and its largest transfer size.

use crate::MAX_UNIT_PAGES;
use crate::cast::saturated;
use crate::policy::replacement::{aside_pages, most_aside_pages};

/// Number of frames, and their division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// All frames.
    pub frames: u32,
    /// Frames for the victim queue once all are in use, and as many for probation.
    pub aside: u32,
    /// Pages that the program has beyond these frames.
    pub beyond: u32,
}

impl Budget {
    /// Smallest budget that works: a call may have pages pinned while others come.
    pub const LEAST_FRAMES: u32 = 256;

    /// Budget of a program with this number of pages. A smaller number of frames becomes the minimum.
    pub fn new(frames: u32, pages: u64) -> Budget {
        let frames = frames.max(Self::LEAST_FRAMES);
        let beyond = saturated(pages.saturating_sub(frames.into()));
        Budget { frames, aside: aside_pages(frames, beyond), beyond }
    }

    /// Largest transfer size that makes sense: a unit passes through the victim queue, and several should fit into the
    /// program.
    pub fn largest_unit_pages(&self) -> u32 {
        let most = (most_aside_pages(self.frames) / 2).min(MAX_UNIT_PAGES);
        1 << most.max(1).ilog2()
    }
}
