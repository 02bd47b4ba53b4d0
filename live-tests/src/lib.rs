//! Tests that need a running kernel, and most of them root.
//!
//! A test is a function in `cases/`, listed in [`table`] with its requirements on the kernel. A missing capability is a
//! named skip, decided by trying ([`need`]). With `LIVE_REQUIRE=all` a test may be skipped only for capabilities that
//! *this kernel* cannot offer; a missing privilege or program is a failure. Tests never look at their own memory: each
//! starts a [`toy`], a target process whose every page it controls. Settings of the host are changed through [`knob`],
//! which restores them, also when the tests are killed.
//!
//! The same code is `cargo test -p live-tests`, the program `live-tests`, and, linked statically, the first process of
//! a virtual machine ([`first_process`]): `cargo xtask boot-test`.

pub mod backends;
pub mod cases;
pub mod first_process;
mod group;
pub mod knob;
pub mod live;
pub mod need;
mod probe;
mod program;
pub mod runner;
mod swap;
pub mod table;
pub mod toy;
mod user_faults;

use std::process::ExitCode;

/// Entry point of one program with six parts, selected by its first argument or by being the first process.
pub fn main() -> ExitCode {
    match std::env::args_os().nth(1).as_deref().and_then(std::ffi::OsStr::to_str) {
        Some(toy::FLAG) => toy::served::run(),
        Some(program::FLAG) => program::run(),
        Some(toy::subject::FLAG) => toy::subject::run(),
        Some(knob::FLAG) => knob::keep(),
        Some(backends::FLAG) => {
            println!("{}{}", backends::LINE, backends::of_this_host());
            ExitCode::SUCCESS
        }
        _ if first_process::is_this() => first_process::run(),
        _ => runner::run(libtest_mimic::Arguments::from_args()).exit_code(),
    }
}
