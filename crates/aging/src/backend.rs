//! By what each class is aged at another rate than the kernel's: chosen by where its dial stands, whose pages are meant, and what the host
//! offers. What is offered is found by trying; what became of it is measured after use.
//!
//! | class                          | dial     | backend           | offered by                                       |
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
pub enum Backend {
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

impl Backend {
    /// As `masu facts` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Pin => "pin",
            Backend::Swappiness => "swappiness",
            Backend::NoSwap => "swap.max",
            Backend::DropBehind => "drop-behind",
            Backend::Kernel => "kernel",
            Backend::NotAged => "not aged",
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

/// Why there is no backend.
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
pub fn of(class: Class, dial: Dial, gently: bool, offers: Offers) -> Result<Backend, Without> {
    let is_normal = dial.get() == 0;
    match class {
        Class::Code | Class::ReadOnly | Class::Shared if is_normal => Ok(Backend::Kernel),
        Class::Code | Class::ReadOnly | Class::Shared if offers.pins => Ok(Backend::Pin),
        Class::Code | Class::ReadOnly | Class::Shared => Err(Without::Pins),
        Class::Cache if dial == Dial::NEVER => Ok(Backend::Kernel),
        Class::Cache if offers.arrivals => Ok(Backend::DropBehind),
        Class::Cache => Err(Without::Arrivals),
        Class::Data if !offers.has_swap => Ok(Backend::NotAged),
        Class::Data => match offers.swap_knob {
            // A weight of 100 % is the kernel's, too; it is written all the same, for the dial may have stood elsewhere.
            Some(SwapKnob::Weight) => Ok(Backend::Swappiness),
            Some(SwapKnob::Most) if dial == Dial::NEVER && !gently => Ok(Backend::NoSwap),
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

    fn backends(value: u8, offers: Offers) -> Vec<Result<Backend, Without>> {
        Class::ALL.into_iter().map(|class| of(class, Dial::clamped(value), false, offers)).collect()
    }

    #[test]
    fn each_class_stands_on_its_backend_and_the_ends_of_the_dials_are_the_kernels() {
        let [pin, weight, drop] = [Backend::Pin, Backend::Swappiness, Backend::DropBehind].map(Ok);
        assert_eq!(backends(50, ALL), [pin, pin, weight, pin, drop]);
        let kernel = Ok(Backend::Kernel);
        assert_eq!(backends(0, ALL), [kernel, kernel, weight, kernel, drop]);
        assert_eq!(backends(100, ALL), [pin, pin, weight, pin, kernel]);
    }

    #[test]
    fn what_a_group_of_version_2_cannot_have_is_refused_and_without_swap_nothing_is_asked() {
        let most = Offers { swap_knob: Some(SwapKnob::Most), ..ALL };
        let data = |value, gently, offers| of(Class::Data, Dial::clamped(value), gently, offers);
        assert_eq!(data(100, false, most), Ok(Backend::NoSwap));
        assert_eq!(data(100, true, most), Err(Without::Between), "a group that may not swap has its programs killed");
        assert_eq!(data(99, false, most), Err(Without::Between));
        let processes = Offers { swap_knob: None, ..ALL };
        assert_eq!(data(100, false, processes), Err(Without::Knob));
        assert_eq!(data(100, false, Offers { has_swap: false, ..processes }), Ok(Backend::NotAged));
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
                    Ok(Backend::Pin) => prop_assert!(pins && value > 0),
                    Ok(Backend::DropBehind) => prop_assert!(arrivals && value < 100),
                    Ok(Backend::Swappiness) => prop_assert!(has_swap && swap_knob == Some(SwapKnob::Weight)),
                    Ok(Backend::NoSwap) => prop_assert!(has_swap && swap_knob == Some(SwapKnob::Most) && !gently && value == 100),
                    Ok(Backend::NotAged) => prop_assert!(class == Class::Data && !has_swap),
                    Ok(Backend::Kernel) => prop_assert_eq!(value, if class == Class::Cache { 100 } else { 0 }),
                    Err(_) => prop_assert!(!pins || !arrivals || swap_knob != Some(SwapKnob::Weight)),
                }
            }
        }
    }
}
