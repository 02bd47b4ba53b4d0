//! Which windows of a program deserve a huge page, and putting them there.
//!
//! HPS on a stock kernel, from outside, without the program's help: `observe` asks `access` which pages are touched and
//! joins that with the program's mappings; `policy` decides, window by window; `act` promotes and demotes through
//! `process_madvise` and measures each window again; `report` says what came of it. `attach` runs that loop over one or
//! more programs until nothing changes any more; `target` is one program with what is known about it, `program` the
//! interface through which it is touched; `pace` keeps the
//! acting, and later the watching, within what the program does not feel. `count` stands for itself: how many superpages
//! a process has, whoever made them.

#![forbid(unsafe_code)]

pub mod act;
pub mod attach;
pub mod count;
pub mod observe;
pub mod pace;
pub mod policy;
pub mod program;
pub mod refusal;
pub mod report;
pub mod standing;
pub mod target;
pub mod track;
pub mod trim;

pub use refusal::Refusal;
