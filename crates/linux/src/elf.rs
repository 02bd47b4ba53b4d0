//! Program and library files, read before or during their run.

pub mod build_id;
pub mod program_file;
