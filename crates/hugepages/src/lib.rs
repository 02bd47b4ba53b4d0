//! Selection of the windows of a program that get a huge page, and their promotion.
//!
//! HPS on a stock kernel, from outside, without the program's help. `observe` asks `access` for the touched pages and
//! joins them with the program's mappings. `policy` decides, window by window. `act` promotes and demotes through
//! `process_madvise` and measures each window again. `report` gives the result. `attach` runs that loop over one or
//! more programs until nothing changes. `target` is one program with the state of its windows, `program` the
//! interface to it. `rate_limiter` bounds the load on the program. `count` is
//! independent: the number of superpages of any process, from any cause.

#![forbid(unsafe_code)]

pub mod act;
pub mod attach;
pub mod backends;
pub mod count;
pub mod observe;
pub mod policy;
pub mod program;
pub mod rate_limiter;
pub mod refusal;
pub mod report;
pub mod target;
pub mod torn;
pub mod track;
pub mod trim;

pub use refusal::Refusal;
