//! What masu and the library inside a program agree on. Pure.
//!
//! `preload/` is the library: it is loaded into every program that `masu run --huge touch` starts, and is built without
//! the standard library, by the build script of `masu`, as `libmasu-preload.so` beside it. What it decides is here,
//! so that it can be tested without being inside anything: `policy` says where a mapping should lie and what is advised
//! about it, `settings` is what masu asks of it, through one environment variable, and `board` the shared page on which
//! it says what it did.
//!
//! `track` is what a program with a say, through the C library in `api/`, and `masu track` say to each other.
//!
//! Nothing here allocates, does I/O, or can fail in a way that a program would notice.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod board;
pub mod policy;
pub mod settings;
pub mod track;
