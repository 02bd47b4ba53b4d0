//! Page classes by use, and a rate of aging for each class.
//!
//! LRU list split (Oshima, Aoki and Arai, メモリ管理リスト分割による大容量メモリ管理手法) on a stock kernel. The paper adds one LRU list per
//! use of memory to the kernel, and each list ages at its own rate, down to not at all. A stock kernel has one pair of
//! lists for files and one pair for the rest. The use of a page is visible from user space all the same.
//!
//! `class` classifies a page frame by its use; `sample` chooses the frames to read and bounds the error; `census` reads
//! and adds up.

#![forbid(unsafe_code)]

pub mod backend;
pub mod census;
pub mod class;
pub mod controller;
pub mod daemon;
pub mod headroom;
pub mod headroom_monitor;
pub mod left_out;
pub mod left_pages;
pub mod levels;
pub mod mapped;
pub mod mlocks;
pub mod plan;
pub mod policy;
pub mod ranges;
pub mod report;
pub mod sample;
pub mod scan;
pub mod scope;
pub mod shares;
pub mod streams;
pub mod swap;
