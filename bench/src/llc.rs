//! Cache partitions: what the simulator says of policies, and what it costs here to find and to refill what is shared.
//!
//! - `index`, `refill`, `guests`: real merged pages, found and brought into the cache; `ksm` has them merged and puts KSM back;
//! - `figure`, `mixes`, `speed`: `masu llc simulate` by `scenario`: the paper's figure, programs of all kinds beside each other, and the
//!   simulator itself.

pub mod figure;
pub mod guests;
pub mod index;
pub mod ksm;
pub mod mixes;
pub mod refill;
pub mod scenario;
pub mod speed;
