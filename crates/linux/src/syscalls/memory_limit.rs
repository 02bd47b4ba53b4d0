//! `RLIMIT_AS` and `RLIMIT_DATA`: limits on the address space and the data of a process (`ulimit -v`, `ulimit -d`).
//!
//! A program that is started inherits them. Each mapping counts, whether touched or not: also that of a library.
//!
//! Cost: two system calls. Side effects: none.
//!
//! Since: always; RLIMIT_DATA counts private writable mappings since Linux 4.7.
//!
//! Truth: getrlimit(2); `may_expand_vm` in mm/mmap.c.

use rustix::process::{Resource, getrlimit};

/// Whether this process has one of them.
pub fn is_set() -> bool {
    [Resource::As, Resource::Data].into_iter().any(|resource| getrlimit(resource).current.is_some())
}
