//! Selection of the backend of each class, from its protection level, the scope and the host's capabilities.
//! Capabilities are found by trying; effects are measured after use.
//!
//! | class                          | level    | backend        | needs                                            |
//! | code, read-only data, shared   | above 0  | pin            | mlock of masu's own mapping, seen at the frame   |
//! | data                           | above 0  | swappiness     | the host; a control group of version 1           |
//! | data                           | 100      | no swap        | a control group of version 2 (`memory.swap.max`) |
//! | page cache                     | below 100| drop-behind    | a tracepoint for page-cache insertions           |
//! | each                           | the rest | kernel         |                                                  |
//!
//! Without swap, data is not aged at all, at any protection level.
//!
//! No I/O, no clock, no randomness.

use crate::class::Class;
use crate::levels::Level;

/// Mechanism that sets the aging of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Mapped and mlocked by masu as well.
    Pin,
    /// A swappiness weight beside files.
    Swappiness,
    /// `memory.swap.max` = 0.
    NoSwap,
    /// Pages that streams insert are dropped behind the reader.
    DropBehind,
    /// The kernel's own aging.
    Kernel,
    /// No aging: there is no swap.
    NotAged,
}

impl Backend {
    /// Name in `masu facts`.
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

/// Kernel setting for the swapping of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapKnob {
    /// `swappiness`: weight beside files.
    Weight,
    /// `memory.swap.max`: the most that may be in swap.
    Most,
}

/// Host capabilities for the chosen scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    /// Pages can be mlocked.
    pub pins: bool,
    /// Page-cache insertions can be traced.
    pub arrivals: bool,
    /// Swap is configured.
    pub has_swap: bool,
    /// Setting of the host or of the control group; `None` for single processes.
    pub swap_knob: Option<SwapKnob>,
}

/// Reason that no backend is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// mlock is not possible.
    Mlocks,
    /// Page-cache insertions cannot be traced.
    Insertions,
    /// The kernel has a swappiness weight for the host and for control groups only.
    Knob,
    /// This control group supports level 100 only, which disables its swap entirely.
    Between,
}

/// Backend for a class at a protection level. `gently`: swapping must stay possible.
///
/// # Errors
/// The missing capability.
pub fn of(class: Class, dial: Level, gently: bool, offers: Offers) -> Result<Backend, Without> {
    let is_normal = dial.get() == 0;
    match class {
        Class::Code | Class::ReadOnly | Class::Shared if is_normal => Ok(Backend::Kernel),
        Class::Code | Class::ReadOnly | Class::Shared if offers.pins => Ok(Backend::Pin),
        Class::Code | Class::ReadOnly | Class::Shared => Err(Without::Mlocks),
        Class::Cache if dial == Level::NEVER => Ok(Backend::Kernel),
        Class::Cache if offers.arrivals => Ok(Backend::DropBehind),
        Class::Cache => Err(Without::Insertions),
        Class::Data if !offers.has_swap => Ok(Backend::NotAged),
        Class::Data => match offers.swap_knob {
            // At level 0 the weight is the kernel's own. It is written anyway, because the level may have been another
            // before.
            Some(SwapKnob::Weight) => Ok(Backend::Swappiness),
            Some(SwapKnob::Most) if dial == Level::NEVER && !gently => Ok(Backend::NoSwap),
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
        Class::ALL.into_iter().map(|class| of(class, Level::clamped(value), false, offers)).collect()
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
        let data = |value, gently, offers| of(Class::Data, Level::clamped(value), gently, offers);
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
                match of(class, Level::clamped(value), gently, offers) {
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
