//! Which frames the kernel merged, and who has them.
//!
//! The flow: `observe` reads page tables and the flags of frames and hands each process's merged pages to the `index`, which takes over
//! what changed; `domain` says who trusts whom; `report` says what is shared, what it saves, and between whom it should not be.
//!
//! A frame is merged when the kernel says so (KPF_KSM) and when more than one mapping has it. One that is left to a single mapping is shared with
//! nobody. Empty pages that KSM made the zero page (`use_zero_pages`) are no frames of KSM's: everybody has the zero page, and
//! nobody learns from it; the kernel counts them apart.
//!
//! Looking un-merges nothing: no content is read, and no page is pinned.

pub mod domain;
pub mod index;
pub mod observe;
pub mod report;
