//! One type per quantity: a number never travels without its unit. Pure.
//!
//! No I/O, no clock, nothing about Linux beyond the two page sizes of x86-64. Every other crate may use this one.

#![forbid(unsafe_code)]

mod address;
mod bytes;
pub mod cast;
mod fraction;
mod rate;
pub mod renamed;
pub mod spread;
mod ways;

pub use address::{Address, AddressRange, BadRange, PAGES_PER_WINDOW, PageSize, Window};
pub use bytes::{BadBytes, Bytes, Pages};
pub use fraction::{BadFraction, Fraction, NonZeroFraction};
pub use rate::Rate;
pub use ways::{BadWayMask, WayMask, Ways};
