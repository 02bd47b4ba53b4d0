//! Cache partitions: the simulator's results for policies, and the cost of finding and warming shared lines on this
//! machine.
//!
//! - `index`, `refill`, `guests`: real merged pages, found and brought into the cache; `ksm` has them merged and
//!   restores KSM's settings;
//! - `figure`, `mixes`, `speed`: `masu llc simulate` by `scenario`: the paper's figure, programs of all kinds beside
//!   each other, and the simulator's own speed.

pub mod figure;
pub mod guests;
pub mod index;
pub mod ksm;
pub mod mixes;
pub mod refill;
pub mod scenario;
pub mod speed;
