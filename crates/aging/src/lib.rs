//! Pages by what they are used for, and a rate of aging for each class.
//!
//! LRU list split (Oshima, Aoki and Arai, メモリ管理リスト分割による大容量メモリ管理手法) on a stock kernel. The paper gives each use
//! of memory a list of its own in the kernel, so that each ages at its own rate, down to not at all. The kernel that we have keeps
//! one pair of lists for files and one for the rest; what a page is used for can be seen from outside all the same.
//!
//! `class` says what a page frame is used for; `sample` which frames to look at, and how far what they say can be wrong;
//! `census` looks, and adds up.

#![forbid(unsafe_code)]

pub mod backend;
pub mod census;
pub mod class;
pub mod controller;
pub mod dials;
pub mod guard;
pub mod keep;
pub mod left_out;
pub mod look;
pub mod mapped;
pub mod pins;
pub mod plan;
pub mod policy;
pub mod ranges;
pub mod report;
pub mod room;
pub mod sample;
pub mod shares;
pub mod streams;
pub mod swap;
