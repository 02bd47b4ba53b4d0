//! One file or folder per command: from its arguments to its report.

pub mod aging;
pub mod attach;
pub mod census;
pub mod completions;
pub mod facts;
pub mod llc;
pub mod pages;
pub mod restore;
pub mod run;
pub mod serve;
pub mod set;
pub mod stat;
pub mod status;
pub mod track;
