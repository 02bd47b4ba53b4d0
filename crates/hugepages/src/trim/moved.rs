//! Windows that the program moved since the last scan: what is known of them follows.

use std::collections::{BTreeMap, BTreeSet};

use linux::Error;
use units::{AddressRange, Window};

use super::policy::HugeWindow;
use super::policy::moved::{self, Look, Move, Seen};
use super::{REFUSED_MAX, Trimmer};
use crate::target::moved::may_be_elsewhere;

impl Trimmer {
    /// Takes what is known of moved windows to their new addresses. Returns the looks at windows that became huge, and
    /// whether others vanished. `huge`, `mappings`: those of now.
    pub(super) fn follow_moves(
        &mut self,
        huge: &BTreeSet<Window>,
        mappings: Vec<AddressRange>,
        stop: &dyn Fn() -> bool,
    ) -> Result<(BTreeMap<Window, Look>, bool), Error> {
        let moved = moved::mappings(&self.mappings, &mappings);
        self.mappings = mappings;
        let vanished = std::mem::take(&mut self.vanished);
        let mut lost: Vec<Window> = self.huge.difference(huge).copied().collect();
        lost.extend(vanished.keys().filter(|window| !huge.contains(window)));
        lost.sort_unstable();
        lost.dedup();
        let new: Vec<Window> = huge.difference(&self.huge).copied().collect();
        let mut looks = BTreeMap::new();
        let mut moves = Vec::new();
        if !lost.is_empty() && !new.is_empty() {
            let lost = self.lost(&lost, &vanished)?;
            let found = self.found(&new, &mut looks, stop)?;
            moves = moved::pair(&lost, &found, &moved);
        }
        self.follow_split(huge, &moved)?;
        moves.iter().for_each(|one| self.follow(*one, &vanished));
        Ok((looks, lost.len() > moves.len()))
    }

    /// Windows that may be at another address now, as they were.
    fn lost(&self, lost: &[Window], vanished: &BTreeMap<Window, HugeWindow>) -> Result<Vec<Seen>, Error> {
        let mut seen = Vec::new();
        for window in lost.iter().copied() {
            let state = self.program.state(window)?.unwrap_or_default();
            let frame = self.frames.get(&window).copied();
            if !may_be_elsewhere(self.program.as_ref(), window, state, frame)? {
                continue;
            }
            let known = self.windows.get(&window).or(vanished.get(&window));
            let look = match known {
                _ if self.shared.contains_key(&window) => Look::Shared,
                Some(known) => Look::Sampled(known.sampled()),
                None => Look::Unknown,
            };
            seen.push(Seen { window, frame, look });
        }
        Ok(seen)
    }

    /// Windows that became huge, as they are; after `stop` the rest is not read.
    fn found(
        &mut self,
        new: &[Window],
        looks: &mut BTreeMap<Window, Look>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Vec<Seen>, Error> {
        let mut seen = Vec::new();
        for window in new.iter().copied() {
            let mut look = Look::Unknown;
            if !stop() {
                look = self.look(window)?;
                looks.insert(window, look);
            }
            seen.push(Seen { window, frame: self.frames.get(&window).copied(), look });
        }
        Ok(seen)
    }

    fn follow(&mut self, Move { from, to, is_certain }: Move, vanished: &BTreeMap<Window, HugeWindow>) {
        if let Some(known) = self.windows.remove(&from).or(vanished.get(&from).copied()) {
            self.windows.insert(to, known.moved(self.totals.scans, is_certain));
        }
        if let Some(times) = self.refused.remove(&from) {
            // A window that is locked is asked once more, if it may be another one.
            let most = if is_certain { REFUSED_MAX } else { REFUSED_MAX - 1 };
            self.refused.insert(to, times.min(most));
        }
        if let Some(split_window) = self.split.remove(&from) {
            self.split.insert(to, split_window);
        }
        if let Some(wasted) = self.shared.remove(&from) {
            self.shared.insert(to, wasted);
        }
        if self.again.remove(&from) {
            self.again.insert(to);
        }
    }

    /// Windows that were split here and moved with their mapping: those that have as many pages as before.
    fn follow_split(
        &mut self,
        huge: &BTreeSet<Window>,
        mappings: &[(AddressRange, AddressRange)],
    ) -> Result<(), Error> {
        if mappings.is_empty() {
            return Ok(());
        }
        let small = self.split.iter().filter(|(window, _)| !self.huge.contains(window));
        let moved = small.filter_map(|(window, known)| Some((*window, moved::shifted(*window, mappings)?, *known)));
        for (from, to, known) in moved.filter(|(_, to, _)| !huge.contains(to)).collect::<Vec<_>>() {
            if self.program.state(to)?.is_some_and(|state| state.resident == known.resident) {
                self.split.remove(&from);
                self.split.insert(to, known);
            }
        }
        Ok(())
    }
}
