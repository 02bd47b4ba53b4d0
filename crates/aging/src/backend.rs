//! Selection of the backend of each class, from its protection level, the scope and the host's capabilities.
//! Capabilities are found by trying; effects are measured after use.
//!
//! | class                          | level    | backend        | needs                                            |
//! | code, read-only data, shared   | above 0  | mlock          | mlock of masu's own mapping, seen at the frame   |
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
    Mlock,
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
            Backend::Mlock => "mlock",
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
pub enum SwapSetting {
    /// `swappiness`: weight beside files.
    Weight,
    /// `memory.swap.max`: the most that may be in swap.
    Most,
}

/// Host capabilities for the chosen scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Pages can be mlocked.
    pub mlock: bool,
    /// Page-cache insertions can be traced.
    pub insertions: bool,
    /// Swap is configured.
    pub has_swap: bool,
    /// Setting of the host or of the control group; `None` for single processes.
    pub swap_setting: Option<SwapSetting>,
}

/// Reason that no backend is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// mlock is not possible.
    Mlocks,
    /// Page-cache insertions cannot be traced.
    Insertions,
    /// The kernel has a swappiness weight for the host and for control groups only.
    Setting,
    /// This control group supports level 100 only, which disables its swap entirely.
    Between,
}

/// Backend for a class at a protection level. `gently`: swapping must stay possible.
///
/// # Errors
/// The missing capability.
pub fn of(class: Class, level: Level, gently: bool, capabilities: Capabilities) -> Result<Backend, Without> {
    let is_normal = level.get() == 0;
    match class {
        Class::Code | Class::ReadOnly | Class::Shared if is_normal => Ok(Backend::Kernel),
        Class::Code | Class::ReadOnly | Class::Shared if capabilities.mlock => Ok(Backend::Mlock),
        Class::Code | Class::ReadOnly | Class::Shared => Err(Without::Mlocks),
        Class::Cache if level == Level::NEVER => Ok(Backend::Kernel),
        Class::Cache if capabilities.insertions => Ok(Backend::DropBehind),
        Class::Cache => Err(Without::Insertions),
        Class::Data if !capabilities.has_swap => Ok(Backend::NotAged),
        Class::Data => match capabilities.swap_setting {
            // At level 0 the weight is the kernel's own. It is written anyway, because the level may have been another
            // before.
            Some(SwapSetting::Weight) => Ok(Backend::Swappiness),
            Some(SwapSetting::Most) if level == Level::NEVER && !gently => Ok(Backend::NoSwap),
            Some(SwapSetting::Most) => Err(Without::Between),
            None => Err(Without::Setting),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: Capabilities =
        Capabilities { mlock: true, insertions: true, has_swap: true, swap_setting: Some(SwapSetting::Weight) };

    fn backends(value: u8, capabilities: Capabilities) -> Vec<Result<Backend, Without>> {
        Class::ALL.into_iter().map(|class| of(class, Level::clamped(value), false, capabilities)).collect()
    }

    #[test]
    fn each_class_has_its_backend_and_the_kernel_has_the_ends_of_the_levels() {
        let [mlock, weight, drop] = [Backend::Mlock, Backend::Swappiness, Backend::DropBehind].map(Ok);
        assert_eq!(backends(50, ALL), [mlock, mlock, weight, mlock, drop]);
        let kernel = Ok(Backend::Kernel);
        assert_eq!(backends(0, ALL), [kernel, kernel, weight, kernel, drop]);
        assert_eq!(backends(100, ALL), [mlock, mlock, weight, mlock, kernel]);
    }

    #[test]
    fn a_version_2_group_refuses_levels_below_100_and_without_swap_nothing_is_required() {
        let most = Capabilities { swap_setting: Some(SwapSetting::Most), ..ALL };
        let data = |value, gently, capabilities| of(Class::Data, Level::clamped(value), gently, capabilities);
        assert_eq!(data(100, false, most), Ok(Backend::NoSwap));
        assert_eq!(data(100, true, most), Err(Without::Between), "a group that may not swap has its programs killed");
        assert_eq!(data(99, false, most), Err(Without::Between));
        let processes = Capabilities { swap_setting: None, ..ALL };
        assert_eq!(data(100, false, processes), Err(Without::Setting));
        assert_eq!(data(100, false, Capabilities { has_swap: false, ..processes }), Ok(Backend::NotAged));
    }

    proptest! {
        #[test]
        fn no_backend_without_its_capability_is_chosen(
            value in 0u8..=100, gently: bool, mlock: bool, insertions: bool, has_swap: bool, setting in 0u8..3,
        ) {
            let swap_setting = [None, Some(SwapSetting::Weight), Some(SwapSetting::Most)][usize::from(setting)];
            let capabilities = Capabilities { mlock, insertions, has_swap, swap_setting };
            for class in Class::ALL {
                match of(class, Level::clamped(value), gently, capabilities) {
                    Ok(Backend::Mlock) => prop_assert!(mlock && value > 0),
                    Ok(Backend::DropBehind) => prop_assert!(insertions && value < 100),
                    Ok(Backend::Swappiness) => prop_assert!(has_swap && swap_setting == Some(SwapSetting::Weight)),
                    Ok(Backend::NoSwap) => prop_assert!(has_swap && swap_setting == Some(SwapSetting::Most) && !gently && value == 100),
                    Ok(Backend::NotAged) => prop_assert!(class == Class::Data && !has_swap),
                    Ok(Backend::Kernel) => prop_assert_eq!(value, if class == Class::Cache { 100 } else { 0 }),
                    Err(_) => prop_assert!(!mlock || !insertions || swap_setting != Some(SwapSetting::Weight)),
                }
            }
        }
    }
}
