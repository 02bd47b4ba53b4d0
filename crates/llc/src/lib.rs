//! Who shares which pages, partitions of the last-level cache (LLC), and a simulator of it.
//!
//! 藤 and 山田, ページ共有を考慮した CPU キャッシュパーティショニング機構 (cache partitioning that knows shared pages). CAT limits in which
//! ways of the cache a class of service may *allocate*; a *lookup* hits anywhere. So the lines of a page that KSM merged lie in the
//! partition of whoever touched them first: that one pays, the others ride free. The paper gives shared lines a region of their
//! own, kept filled by a daemon, and partitions the rest fairly.
//!
//! `shared` finds which frames are merged and between whom; `policy` decides who gets which ways; `keep` puts that in place through
//! resctrl, keeps the region filled, and puts everything back; `simulate` is the cache without the hardware: the same policies drive it.

#![forbid(unsafe_code)]

pub mod keep;
pub mod policy;
pub mod shared;
pub mod simulate;

/// Why a file cannot be read: the kernel's answer as everywhere, or what else was wrong.
pub(crate) fn why(error: &std::io::Error) -> String {
    rustix::io::Errno::from_io_error(error).map_or_else(|| error.to_string(), linux::describe)
}
