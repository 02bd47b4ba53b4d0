//! The live tests as a program of its own: run it as root, or boot a virtual machine with it as the first process.

use std::process::ExitCode;

fn main() -> ExitCode {
    live_tests::main()
}
