//! Drop-behind that keeps what was there: what streams bring into the page cache goes again, and nothing else.
//!
//! `policy` says when; `detect` which of what comes is a stream's when nobody has said; `act` lets go, and looks what went.

pub mod act;
pub mod detect;
pub mod policy;
