//! Merged frames and the processes that share them.
//!
//! The flow: `observe` reads page tables and frame flags and hands each process's merged pages to the `index`, which
//! applies the changes; `domain` says which processes trust each other; `report` lists the shared memory, its saving,
//! and the processes that should not share. `offer` says why nothing is merged.
//!
//! A frame is merged if the kernel says so (KPF_KSM; `fork_shared` where that flag is wrong) and more than one mapping has
//! it. A KSM frame with one mapping
//! left is shared with no process. Empty pages that KSM replaced by the zero page (`use_zero_pages`) are not KSM
//! frames: every process has the zero page, and it leaks nothing; the kernel counts them apart.
//!
//! A scan un-merges nothing: no content is read, and no page is pinned.

pub mod domain;
mod fork_shared;
pub mod index;
pub mod observe;
pub mod offer;
pub mod report;
