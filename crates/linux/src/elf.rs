//! Files of programs and libraries, read before or beside their run.

pub mod build_id;
pub mod program_file;
