//! The live tests as a separate program: run it as root, or boot a virtual machine with it as the first process.

use std::process::ExitCode;

fn main() -> ExitCode {
    live_tests::main()
}
