//! The table of system calls against the running kernel.
//!
//! Each call is made with all its buffers on missing pages, and must fail. Then `buffers` is asked, exactly the pages
//! that it names are mapped in, and the call must succeed. Then it is made again and again, with one of the pages left
//! out, and must fail each time: this finds a page that is not named. Every buffer ends with a single byte on a page of
//! its own: this finds a struct whose size is too small in the table. Every byte changed by the kernel must lie in a
//! buffer that the table lists as written.
//!
//! Needs userfaultfd for user mode, which takes no privilege. Calls that this kernel or this user does not have are
//! printed.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Arguments of system calls are registers.
#![allow(clippy::unwrap_used)] // All other functions here are called by a test function.

mod arena;
mod files;
mod numbers;
mod processes;
mod streams;
mod time;

use arena::Trial;

#[test]
fn the_kernel_finds_all_pages_that_the_table_names_and_needs_no_other() {
    let Some(mut trial) = Trial::start() else {
        assert_ne!(std::env::var("LIVE_REQUIRE").as_deref(), Ok("all"), "no userfaultfd for user mode");
        println!("SKIP no userfaultfd for user mode");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    files::trial(&mut trial, folder.path().to_str().unwrap());
    streams::trial(&mut trial, folder.path().to_str().unwrap());
    time::trial(&mut trial);
    processes::trial(&mut trial, folder.path().to_str().unwrap());
    println!("{}", trial.report());
    assert!(trial.wrong.is_empty(), "{:#?}", trial.wrong);
    assert!(trial.held >= 150, "only {} calls could be tried", trial.held);
}
