//! The command `masu`. All code is in the library, so that tests and the man pages can reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    masu::main()
}
