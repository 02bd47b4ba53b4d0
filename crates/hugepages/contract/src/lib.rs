//! The contract between masu and the library inside a program. Pure.
//!
//! `preload/` is that library: `masu run --huge touch` loads it into every program that it starts. The build script
//! of `masu` builds it without the standard library, as `libmasu-preload.so` beside the command. Its decisions are
//! made here, where they can be tested outside a program. `placement` places a mapping and chooses the advice on it.
//! `settings` is masu's request, in one environment variable. `status_page` is the page with the library's counts.
//!
//! `track` is the protocol between `masu track` and a cooperating program, which uses the C library in `libmasu/`.
//!
//! Nothing here allocates, does I/O, or can fail visibly to a program.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod image;
pub mod placement;
pub mod settings;
pub mod status_page;
pub mod track;
