//! Join of touched pages and mappings: the windows that the policy judges. Pure.

use std::collections::BTreeMap;

use access::{AccessMap, Backend, WindowHeat};
use linux::maps::Mapping;
use serde::{Deserialize, Serialize};
use units::{Bytes, PageSize, Pages, Rate, Window};

use crate::Refusal;
use crate::policy::{Evidence, HugeView, Observation, Settings, WindowView, hot_pages_needed};

/// State of a window from earlier rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HugeWindow {
    /// State at its promotion by masu; `None` for a window that was huge already.
    pub before: Option<Before>,
    /// First frame of its huge page, where masu promoted it and frames are visible.
    pub frame: Option<u64>,
    /// Rounds without an access since it is huge.
    pub idle_rounds: u32,
    /// Its accessed bit was cleared with a flush at the end of the last round.
    pub probed: bool,
    /// It was asked to split and did not (locked memory), or was split before and became huge again without
    /// masu: it is left as it is.
    pub left_alone: bool,
    /// Reason for which it did not split or could not be probed, when last asked.
    pub kept: Option<Refusal>,
    /// Rounds since then.
    pub kept_rounds: u32,
    /// Number of splits by masu before it promoted the window again.
    pub times_split: u32,
}

impl HugeWindow {
    /// View for the policy.
    pub fn view(&self) -> HugeView {
        HugeView {
            resident_before: self.before.map(|before| before.resident),
            idle_rounds: self.idle_rounds,
            probed: self.probed,
            times_split: self.times_split,
        }
    }
}

/// State of a window before its promotion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Before {
    /// Hot pages.
    pub hot: Pages,
    /// Resident pages.
    pub resident: Pages,
    /// Page walks per second.
    pub walks: Rate,
    /// Length of its observation.
    pub observation: Observation,
}

/// The windows of one scan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Windows that could be huge, or are.
    pub windows: Vec<WindowView>,
    /// Hot windows that can never be huge, with the reason and their resident pages.
    pub ineligible: BTreeMap<Window, (Refusal, Pages)>,
    /// Memory in mappings without a window.
    pub pieces: Pieces,
}

/// Private anonymous mappings with memory in them and without an aligned 2 MiB range: no huge page fits in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Pieces {
    /// Number of mappings.
    #[serde(rename = "small_mappings", default)]
    pub mappings: u64,
    /// Memory resident in them.
    #[serde(rename = "small_mapping_bytes", default)]
    pub resident: Bytes,
}

impl Pieces {
    /// Adds a mapping with this number of resident pages, if it is private anonymous memory without a window.
    pub fn add(&mut self, mapping: &Mapping, resident: Pages) {
        let holds_none = mapping.range.whole_windows().len() == 0;
        if resident > Pages(0) && holds_none && mapping.is_anonymous() && mapping.permissions.read {
            self.mappings += 1;
            self.resident += resident.bytes();
        }
    }

    /// The line for people; `None` below one window of memory.
    pub fn text(&self) -> Option<String> {
        let Pieces { mappings, resident } = self;
        let shown = *resident >= PageSize::Huge.bytes();
        shown.then(|| format!("in mappings without a window of 2 MiB: {resident} in {mappings} mappings"))
    }
}

/// Sums up the mappings without a window.
pub fn pieces(map: &AccessMap, mappings: &[Mapping]) -> Pieces {
    let mut sum = Pieces::default();
    for mapping in mappings.iter().filter(|mapping| mapping.range.whole_windows().len() == 0) {
        let parts = mapping.range.touched_windows().filter_map(|window| {
            let at = map.windows.binary_search_by_key(&window, |heat| heat.window).ok()?;
            let part = mapping.range.intersection(window.range())?;
            let first = part.start().page_in_window();
            let pages = first..first + units::cast::index(part.pages().0);
            Some(map.windows[at].present.iter().filter(|page| pages.contains(page)).count() as u64)
        });
        sum.add(mapping, Pages(parts.sum()));
    }
    sum
}

/// Joins an access map with the mappings of the same moment. Windows without any mapping are left out.
pub fn observe(map: &AccessMap, mappings: &[Mapping], states: &BTreeMap<Window, HugeWindow>, s: Settings) -> Observed {
    let mut observed = Observed { pieces: pieces(map, mappings), ..Observed::default() };
    let mut ahead = mappings;
    for heat in &map.windows {
        let range = heat.window.range();
        while ahead.first().is_some_and(|mapping| mapping.range.end() <= range.start()) {
            ahead = &ahead[1..];
        }
        let Some(mapping) = ahead.first().filter(|mapping| mapping.range.intersection(range).is_some()) else {
            continue;
        };
        let view = view(map, heat, states.get(&heat.window), s);
        match eligible(mapping, heat) {
            Ok(()) => observed.windows.push(view),
            Err(why) if view.hot >= hot_pages_needed(s.hot_fraction) => {
                observed.ineligible.insert(heat.window, (why, view.resident));
            }
            Err(_) => {}
        }
    }
    observed
}

/// Whether this window can be one huge page of anonymous memory.
fn eligible(mapping: &Mapping, heat: &WindowHeat) -> Result<(), Refusal> {
    if !mapping.is_anonymous() || !mapping.permissions.read {
        return Err(Refusal::NotAnonymous);
    }
    if !mapping.range.covers(heat.window.range()) {
        return Err(Refusal::CrossesMappings);
    }
    Ok(())
}

fn view(map: &AccessMap, heat: &WindowHeat, state: Option<&HugeWindow>, s: Settings) -> WindowView {
    let present = Pages(u64::from(heat.present.count()));
    // Residency carries no information on use: a resident page counts as used.
    let (hot, walks) = match map.backend {
        Backend::Residency => (present, Rate::per_second(f64::from(heat.present.count()))),
        _ => map.heat(heat, s.hot_rate),
    };
    let huge = heat.huge.then(|| state.copied().unwrap_or_default().view());
    WindowView { window: heat.window, hot, resident: present, walks, huge, preference: None }
}

/// The windows as they were before masu promoted any: the input of the what-if table.
pub fn before_promotion(windows: &[WindowView], states: &BTreeMap<Window, HugeWindow>) -> Vec<Evidence> {
    windows
        .iter()
        .map(|view| match states.get(&view.window).and_then(|state| state.before) {
            Some(Before { hot, resident, walks, observation }) if view.huge.is_some() => {
                Evidence { view: WindowView { hot, resident, walks, huge: None, ..*view }, observation }
            }
            _ => Evidence { view: *view, observation: Observation::Whole },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use access::{Class, PageSet};

    use super::*;
    use crate::policy::PAPER;

    fn mappings(text: &str) -> Vec<Mapping> {
        linux::maps::parse(text, "maps").unwrap()
    }

    /// Windows 1 to 8, all pages present and hot.
    fn all_hot() -> AccessMap {
        let windows = (1..=8).map(|number| {
            let mut heat = WindowHeat::untouched(Window(number));
            heat.present = PageSet::FULL;
            heat.classify(&PageSet::FULL, 1);
            heat
        });
        let hot = Class { accessed_reads: 1, rate: Rate::per_second(5.0) };
        AccessMap {
            classes: vec![Class::default(), hot],
            windows: windows.collect(),
            ..AccessMap::empty(Backend::BpfWalk)
        }
    }

    #[test]
    fn only_whole_windows_of_anonymous_memory_can_be_huge() {
        // Windows 1 and 2 whole; 3 cut by a change of protection; 5 a file; 6 shared memory; the rest unmapped.
        let maps = mappings(
            "200000-700000 rw-p 00000000 00:00 0 \n\
             700000-800000 r--p 00000000 00:00 0 \n\
             a00000-c00000 r--p 00000000 08:01 77 /usr/lib/locale/locale-archive\n\
             c00000-e00000 rw-s 00000000 00:01 88 /dev/zero (deleted)\n",
        );
        let observed = observe(&all_hot(), &maps, &BTreeMap::new(), PAPER);
        assert_eq!(observed.windows.iter().map(|v| v.window.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(observed.windows[0].hot, Pages(512));
        assert_eq!(observed.ineligible[&Window(3)].0, Refusal::CrossesMappings);
        assert_eq!(observed.ineligible[&Window(5)].0, Refusal::NotAnonymous);
        assert_eq!(observed.ineligible[&Window(6)].0, Refusal::NotAnonymous);
        assert_eq!(observed.ineligible.len(), 3);
    }

    #[test]
    fn memory_in_mappings_too_small_for_a_window_is_summed_up() {
        // 256 KiB inside window 2; 1 MiB across windows 3 and 4; whole windows 5 and 6; a file.
        let maps = mappings(
            "440000-480000 rw-p 00000000 00:00 0 \n\
             780000-880000 rw-p 00000000 00:00 0 \n\
             a00000-e00000 rw-p 00000000 00:00 0 \n\
             e00000-e40000 rw-p 00000000 08:01 77 /some/file\n",
        );
        assert_eq!(pieces(&all_hot(), &maps), Pieces { mappings: 2, resident: Pages(64 + 256).bytes() });
        assert_eq!(pieces(&all_hot(), &maps).text(), None, "below one window");
        let many = Pieces { mappings: 776, resident: Bytes::mib(194) };
        let line = "in mappings without a window of 2 MiB: 194.0 MiB in 776 mappings";
        assert_eq!(many.text().as_deref(), Some(line));
        assert_eq!(pieces(&AccessMap::empty(Backend::BpfWalk), &maps), Pieces::default(), "nothing is in memory");
    }

    #[test]
    fn cold_windows_that_cannot_be_huge_are_not_reported() {
        let mut map = all_hot();
        map.windows.iter_mut().for_each(WindowHeat::forget);
        let maps = mappings("a00000-c00000 r--p 00000000 08:01 77 /usr/lib/locale/locale-archive\n");
        assert_eq!(observe(&map, &maps, &BTreeMap::new(), PAPER), Observed::default());
    }

    #[test]
    fn the_what_if_table_sees_promoted_windows_as_they_were() {
        let before = Before {
            hot: Pages(130),
            resident: Pages(200),
            walks: Rate::per_second(9.0),
            observation: Observation::CutShort,
        };
        let states = BTreeMap::from([(Window(1), HugeWindow { before: Some(before), ..HugeWindow::default() })]);
        let mut map = all_hot();
        map.windows.truncate(1);
        map.windows[0].huge = true;
        let observed = observe(&map, &mappings("200000-400000 rw-p 00000000 00:00 0 \n"), &states, PAPER);
        assert_eq!(observed.windows[0].huge.unwrap().resident_before, Some(Pages(200)));
        let [Evidence { view, observation }] = before_promotion(&observed.windows, &states)[..] else {
            panic!("one window")
        };
        assert_eq!(
            (view.hot, view.resident, view.huge, observation),
            (Pages(130), Pages(200), None, Observation::CutShort)
        );
    }
}
