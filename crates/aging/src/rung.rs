//! By what each class is aged at another rate than the kernel's: chosen by where its dial stands, whose pages are meant, and what the host
//! offers. What is offered is found by trying; what became of it is measured after use.
//!
//! | class                          | dial     | rung           | offered by                                       |
//! | code, read-only data, shared   | above 0  | pin            | mlock of a mapping of our own, seen at the frame |
//! | data                           | above 0  | swappiness     | the host; a control group of version 1           |
//! | data                           | 100      | no swap        | a control group of version 2 (`memory.swap.max`) |
//! | page cache                     | below 100| drop-behind    | a tracepoint that tells what comes               |
//! | each                           | the rest | kernel         |                                                  |
//!
//! Where there is no swap data is not aged at all, whatever its dial.
//!
//! No I/O, no clock, no randomness.

use crate::class::Class;
use crate::dials::Dial;

/// By what a class is aged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// Mapped and locked by us as well.
    Pin,
    /// A weight beside files.
    Swappiness,
    /// None of it may be in swap.
    NoSwap,
    /// What streams bring in goes behind them.
    DropBehind,
    /// As the kernel does it.
    Kernel,
    /// By nobody: there is no swap.
    NotAged,
}

impl Rung {
    /// As `masu facts` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Rung::Pin => "pin",
            Rung::Swappiness => "swappiness",
            Rung::NoSwap => "swap.max",
            Rung::DropBehind => "drop-behind",
            Rung::Kernel => "kernel",
            Rung::NotAged => "not aged",
        }
    }
}

/// What the kernel can be told of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapKnob {
    /// Its weight beside files.
    Weight,
    /// How much of it may be in swap.
    Most,
}

/// What the host offers for the pages that are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    /// A page can be pinned.
    pub pins: bool,
    /// What comes into the page cache is told.
    pub arrivals: bool,
    /// There is swap.
    pub has_swap: bool,
    /// For the host or the control group; none for single processes.
    pub swap_knob: Option<SwapKnob>,
}

/// Why there is no rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// Nothing can be pinned.
    Pins,
    /// What comes into the page cache is not told.
    Arrivals,
    /// The kernel weighs data for the host and for control groups alone.
    Knob,
    /// This control group can have it at 100 only, and must swap nothing then.
    Between,
}

/// By what a class is aged whose dial stands here. `gently`: swapping must stay possible.
///
/// # Errors
/// What is missing.
pub fn of(class: Class, dial: Dial, gently: bool, offers: Offers) -> Result<Rung, Without> {
    let is_normal = dial.get() == 0;
    match class {
        Class::Code | Class::ReadOnly | Class::Shared if is_normal => Ok(Rung::Kernel),
        Class::Code | Class::ReadOnly | Class::Shared if offers.pins => Ok(Rung::Pin),
        Class::Code | Class::ReadOnly | Class::Shared => Err(Without::Pins),
        Class::Cache if dial == Dial::NEVER => Ok(Rung::Kernel),
        Class::Cache if offers.arrivals => Ok(Rung::DropBehind),
        Class::Cache => Err(Without::Arrivals),
        Class::Data if !offers.has_swap => Ok(Rung::NotAged),
        Class::Data => match offers.swap_knob {
            // A weight of 100 % is the kernel's, too; it is written all the same, for the dial may have stood elsewhere.
            Some(SwapKnob::Weight) => Ok(Rung::Swappiness),
            Some(SwapKnob::Most) if dial == Dial::NEVER && !gently => Ok(Rung::NoSwap),
            Some(SwapKnob::Most) => Err(Without::Between),
            None => Err(Without::Knob),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: Offers = Offers { pins: true, arrivals: true, has_swap: true, swap_knob: Some(SwapKnob::Weight) };

    fn rungs(value: u8, offers: Offers) -> Vec<Result<Rung, Without>> {
        Class::ALL.into_iter().map(|class| of(class, Dial::clamped(value), false, offers)).collect()
    }

    #[test]
    fn each_class_stands_on_its_rung_and_the_ends_of_the_dials_are_the_kernels() {
        let [pin, weight, drop] = [Rung::Pin, Rung::Swappiness, Rung::DropBehind].map(Ok);
        assert_eq!(rungs(50, ALL), [pin, pin, weight, pin, drop]);
        let kernel = Ok(Rung::Kernel);
        assert_eq!(rungs(0, ALL), [kernel, kernel, weight, kernel, drop]);
        assert_eq!(rungs(100, ALL), [pin, pin, weight, pin, kernel]);
    }

    #[test]
    fn what_a_group_of_version_2_cannot_have_is_refused_and_without_swap_nothing_is_asked() {
        let most = Offers { swap_knob: Some(SwapKnob::Most), ..ALL };
        let data = |value, gently, offers| of(Class::Data, Dial::clamped(value), gently, offers);
        assert_eq!(data(100, false, most), Ok(Rung::NoSwap));
        assert_eq!(data(100, true, most), Err(Without::Between), "a group that may not swap has its programs killed");
        assert_eq!(data(99, false, most), Err(Without::Between));
        let processes = Offers { swap_knob: None, ..ALL };
        assert_eq!(data(100, false, processes), Err(Without::Knob));
        assert_eq!(data(100, false, Offers { has_swap: false, ..processes }), Ok(Rung::NotAged));
    }

    proptest! {
        #[test]
        fn nothing_that_is_not_offered_is_chosen(
            value in 0u8..=100, gently: bool, pins: bool, arrivals: bool, has_swap: bool, knob in 0u8..3,
        ) {
            let swap_knob = [None, Some(SwapKnob::Weight), Some(SwapKnob::Most)][usize::from(knob)];
            let offers = Offers { pins, arrivals, has_swap, swap_knob };
            for class in Class::ALL {
                match of(class, Dial::clamped(value), gently, offers) {
                    Ok(Rung::Pin) => prop_assert!(pins && value > 0),
                    Ok(Rung::DropBehind) => prop_assert!(arrivals && value < 100),
                    Ok(Rung::Swappiness) => prop_assert!(has_swap && swap_knob == Some(SwapKnob::Weight)),
                    Ok(Rung::NoSwap) => prop_assert!(has_swap && swap_knob == Some(SwapKnob::Most) && !gently && value == 100),
                    Ok(Rung::NotAged) => prop_assert!(class == Class::Data && !has_swap),
                    Ok(Rung::Kernel) => prop_assert_eq!(value, if class == Class::Cache { 100 } else { 0 }),
                    Err(_) => prop_assert!(!pins || !arrivals || swap_knob != Some(SwapKnob::Weight)),
                }
            }
        }
    }
}
