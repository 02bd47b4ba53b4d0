//! Events of a paged program.

use farmem_engine::handshake::Sections;
use proptest::prelude::*;

use super::PAGES;

#[derive(Clone, Debug)]
pub enum Step {
    Touch {
        page: u64,
        write: Option<u64>,
        site: u64,
    },
    /// With a step of the background thread before each page, in this order, repeated.
    Sweep {
        page: u64,
        pages: u64,
        stride: u64,
        background: Vec<u8>,
    },
    Forget {
        page: u64,
        pages: u64,
    },
    Unmap {
        page: u64,
        pages: u64,
    },
    Map {
        page: u64,
        pages: u64,
    },
    Pin {
        page: u64,
    },
    Unpin,
    Hold {
        page: u64,
    },
    LetGo,
    AllHome {
        page: u64,
        pages: u64,
    },
    Move {
        from: u64,
        to: u64,
        pages: u64,
    },
    AllHere,
    Launch,
    RunBatch,
    Land,
    Alone {
        alone: bool,
    },
    Restless {
        restless: bool,
    },
    Unit {
        log2: u8,
    },
    Sections {
        sections: Sections,
    },
    Section {
        begins: bool,
        section: u32,
    },
    Frames {
        frames: u64,
    },
}

const WAYS: [Sections; 3] = [Sections::Off, Sections::Auto, Sections::Marked];

/// Any step, the usual ones more often.
pub fn step() -> impl Strategy<Value = Step> {
    let page = || 0..PAGES;
    let pages = || 1..600_u64;
    prop_oneof![
        12 => (page(), proptest::option::of(prop_oneof![Just(0), 1..u64::MAX]), 1..5_u64).prop_map(|(page, write, site)| Step::Touch { page, write, site }),
        8 => (page(), pages(), 1..9_u64, proptest::collection::vec(0..8_u8, 0..9))
            .prop_map(|(page, pages, stride, background)| Step::Sweep { page, pages, stride, background }),
        2 => (page(), pages()).prop_map(|(page, pages)| Step::Forget { page, pages }),
        1 => (page(), pages()).prop_map(|(page, pages)| Step::Unmap { page, pages }),
        1 => (page(), pages()).prop_map(|(page, pages)| Step::Map { page, pages }),
        2 => page().prop_map(|page| Step::Pin { page }),
        1 => Just(Step::Unpin),
        1 => page().prop_map(|page| Step::Hold { page }),
        1 => Just(Step::LetGo),
        1 => (page(), pages()).prop_map(|(page, pages)| Step::AllHome { page, pages }),
        2 => (page(), page(), pages()).prop_map(|(from, to, pages)| Step::Move { from, to, pages }),
        1 => Just(Step::AllHere),
        5 => Just(Step::Launch),
        3 => Just(Step::RunBatch),
        3 => Just(Step::Land),
        1 => any::<bool>().prop_map(|alone| Step::Alone { alone }),
        1 => any::<bool>().prop_map(|restless| Step::Restless { restless }),
        2 => (0..9_u8).prop_map(|log2| Step::Unit { log2 }),
        1 => (0..3_usize).prop_map(|number| Step::Sections { sections: WAYS[number] }),
        1 => (any::<bool>(), 0..4_u32).prop_map(|(begins, section)| Step::Section { begins, section }),
        1 => (256..1500_u64).prop_map(|frames| Step::Frames { frames }),
    ]
}
