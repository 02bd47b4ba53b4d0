//! List of a program's active pages, from an observation.
//!
//! Only windows on small pages are in it: a huge page has one accessed bit, and the only decision about it is whether
//! it stays, which the rule makes.
//!
//! Pure: an observation comes in, the list goes out, in its memory layout for the program.

use access::AccessMap;
use contract::track::list::{Head, MAGIC, Page, Verdict, Window as Listed};
use units::Window;
use units::cast::{fits, index};

use crate::policy::{self, Settings, WindowView};

/// A list, and its windows in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct List {
    /// The windows.
    pub windows: Vec<Listed>,
    /// Their active pages.
    pub pages: Vec<Page>,
}

impl List {
    /// List of an observation, with the windows of `views` that could be huge. Both in order of address.
    pub fn of(map: &AccessMap, views: &[WindowView], s: Settings) -> List {
        let mut list = List::default();
        let mut views = views.iter().peekable();
        let hot: Vec<bool> =
            map.classes.iter().map(|class| class.accessed_reads > 0 && class.rate >= s.hot_rate).collect();
        for heat in map.windows.iter().filter(|heat| !heat.huge) {
            while views.next_if(|view| view.window < heat.window).is_some() {}
            let Some(view) = views.peek().filter(|view| view.window == heat.window && view.hot.0 > 0) else { continue };
            let (first, start) = (list.pages.len(), heat.window.start().0);
            for page in heat.touched.iter() {
                let number = usize::from(heat.class_of[page]);
                if hot[number] {
                    let class = map.classes[number];
                    list.pages.push(Page {
                        address: start + page as u64 * 4096,
                        count: class.accessed_reads,
                        rate: narrow(class.rate.get()),
                    });
                }
            }
            let suggested = if policy::is_hot(view, s) { Verdict::Promote } else { Verdict::Compact };
            list.windows.push(Listed {
                address: start,
                first: first as u64,
                hot: fits(list.pages.len() - first),
                resident: fits(view.resident.0),
                walks: narrow(view.walks.get()),
                suggested: suggested as u32,
            });
        }
        list
    }

    /// Bytes in the memory layout.
    pub fn bytes(&self, generation: u64) -> Vec<u8> {
        let (windows, pages) = (self.windows.len() as u64, self.pages.len() as u64);
        let head = Head { magic: MAGIC, generation, windows, pages };
        let mut bytes = Vec::with_capacity(head.bytes().map_or(0, index));
        for word in [head.magic, head.generation, head.windows, head.pages] {
            bytes.extend(word.to_ne_bytes());
        }
        for window in &self.windows {
            bytes.extend(window.address.to_ne_bytes());
            bytes.extend(window.first.to_ne_bytes());
            bytes.extend(window.hot.to_ne_bytes());
            bytes.extend(window.resident.to_ne_bytes());
            bytes.extend(window.walks.to_ne_bytes());
            bytes.extend(window.suggested.to_ne_bytes());
        }
        for page in &self.pages {
            bytes.extend(page.address.to_ne_bytes());
            bytes.extend(page.count.to_ne_bytes());
            bytes.extend(page.rate.to_ne_bytes());
        }
        bytes
    }

    /// Its windows, by their index in it.
    pub fn ordered_windows(&self) -> Vec<Window> {
        self.windows.iter().map(|window| units::Address(window.address).window()).collect()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a rate, of which a few digits are known")]
fn narrow(rate: f64) -> f32 {
    rate as f32
}

#[cfg(test)]
mod tests {
    use access::{Backend, Class, PageSet, WindowHeat};
    use units::{Pages, Rate};

    use super::*;

    fn seen(window: u64, hot: &[usize], cold: &[usize]) -> WindowHeat {
        let set = |pages: &[usize]| {
            let mut set = PageSet::EMPTY;
            pages.iter().for_each(|page| set.insert(*page));
            set
        };
        let mut heat = WindowHeat::untouched(Window(window));
        heat.present = PageSet::FULL;
        heat.classify(&set(hot), 1);
        heat.classify(&set(cold), 2);
        heat
    }

    fn map(windows: Vec<WindowHeat>) -> AccessMap {
        let class = |accessed_reads, rate| Class { accessed_reads, rate: Rate::per_second(rate) };
        let classes = vec![Class::default(), class(3, 5.0), class(1, 0.05)];
        AccessMap { classes, windows, ..AccessMap::empty(Backend::BpfWalk) }
    }

    fn view(window: u64, hot: u64) -> WindowView {
        let walks = Rate::per_second(7.0);
        WindowView {
            window: Window(window),
            hot: Pages(hot),
            resident: Pages(512),
            walks,
            huge: None,
            preference: None,
        }
    }

    #[test]
    fn a_window_with_few_hot_pages_is_to_be_compacted_and_one_with_many_promoted() {
        let many: Vec<usize> = (0..200).collect();
        let map = map(vec![seen(3, &[7, 511], &[9]), seen(4, &many, &[]), seen(5, &[], &[1, 2])]);
        let list = List::of(&map, &[view(3, 2), view(4, 200), view(5, 0)], policy::PAPER);
        assert_eq!(list.ordered_windows(), [Window(3), Window(4)]);
        assert_eq!(list.windows[0].suggested, Verdict::Compact as u32);
        assert_eq!(list.windows[1].suggested, Verdict::Promote as u32);
        assert_eq!(list.pages[0], Page { address: (3 << 21) + 7 * 4096, count: 3, rate: 5.0 });
        assert_eq!((list.windows[0].hot, list.windows[1].first, list.pages.len()), (2, 2, 202));
    }

    #[test]
    fn windows_that_cannot_be_huge_or_are_so_already_are_not_in_it() {
        let mut huge = seen(6, &[], &[]);
        huge.huge = true;
        let map = map(vec![seen(3, &[1], &[]), huge]);
        assert_eq!(List::of(&map, &[view(6, 512)], policy::PAPER), List::default());
    }

    #[test]
    fn in_memory_it_is_as_long_as_its_head_says() {
        let map = map(vec![seen(3, &[1, 2], &[])]);
        let bytes = List::of(&map, &[view(3, 2)], policy::PAPER).bytes(9);
        let head = Head { magic: MAGIC, generation: 9, windows: 1, pages: 2 };
        assert_eq!(head.bytes(), Some(bytes.len() as u64));
        assert_eq!(&bytes[..8], b"masu-l01");
        assert_eq!(u64::from_ne_bytes(bytes[32..40].try_into().unwrap()), 3 << 21);
    }
}
