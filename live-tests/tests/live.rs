//! The live tests under `cargo test`.

use std::process::ExitCode;

fn main() -> ExitCode {
    live_tests::main()
}
