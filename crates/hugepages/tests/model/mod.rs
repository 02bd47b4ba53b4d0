//! A model in place of a kernel: programs whose windows answer advice as the kernel does, fail when a script says so,
//! and change between any two calls.
//!
//! `cell` is one window and the kernel's effects on it, `space` one program's address space, `world` the clock, the
//! events and the record of masu's violations. `program`, `source` and `control` are the loop's three interfaces to
//! it. A `script` is a list of bytes in readable form: the fuzz target and the property tests run the same ones.
//! `check` compares masu's report with the world.

#![allow(dead_code, reason = "the property tests and the fuzz target each use a part of it")]

pub mod cell;
pub mod check;
pub mod control;
pub mod program;
pub mod script;
pub mod source;
pub mod space;
pub mod world;
