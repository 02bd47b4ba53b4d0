//! Tests that need a running kernel, and most of them root.
//!
//! A test is a function in `cases/`. Each file there lists its tests with their requirements, and [`table`] lists the
//! files. A missing capability is a named skip, decided by trying ([`requirement`]). With `LIVE_REQUIRE=all` a test may
//! be skipped only for capabilities that *this kernel* cannot offer; a missing privilege or program is a failure. Tests
//! never look at their own memory: each starts a [`target_process`] and controls its every page. Settings of the host
//! are changed through [`setting`], which restores them, also when the tests are killed.
//!
//! The same code is `cargo test -p live-tests`, the program `live-tests`, and, linked statically, the first process of
//! a virtual machine ([`first_process`]): `cargo xtask boot-test`.

pub mod backends;
pub mod cases;
pub mod first_process;
mod group;
pub mod host;
mod probe;
mod program;
pub mod requirement;
pub mod runner;
mod secret_memory;
pub mod setting;
mod swap;
pub mod table;
pub mod target_process;
mod user_faults;

use std::process::ExitCode;

/// Entry point of one program with six parts, selected by its first argument or by being the first process.
pub fn main() -> ExitCode {
    match std::env::args_os().nth(1).as_deref().and_then(std::ffi::OsStr::to_str) {
        Some(target_process::FLAG) => target_process::served::run(),
        Some(program::FLAG) => program::run(),
        Some(target_process::task::FLAG) => target_process::task::run(),
        Some(setting::FLAG) => setting::restore(),
        Some(backends::FLAG) => {
            println!("{}{}", backends::LINE, backends::of_this_host());
            ExitCode::SUCCESS
        }
        _ if first_process::is_this() => first_process::run(),
        _ => runner::run(libtest_mimic::Arguments::from_args()).exit_code(),
    }
}
