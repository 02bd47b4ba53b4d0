//! What the kernel serves, typed: one file per interface. Mechanism only, never a decision.
//!
//! Every file here says in its head what the interface is, what it costs, since when it exists and where the truth
//! about it stands. Text interfaces are read through [`KernelFiles`], so that the same code runs over a fake tree in
//! tests; binary ones split into a pure `decode` and a system call of ten lines. `facts` asks by trying, never by the
//! kernel's version number.
//!
//! `quantities` is the only crate of the house that this one may use.

pub mod auxv;
pub mod buddyinfo;
pub mod build_id;
pub mod cache_line;
pub mod caches;
pub mod cachestat;
pub mod capabilities;
pub mod cgroup;
pub mod children;
pub mod children_usage;
pub mod clear_refs;
pub mod cpu_time;
pub mod damon;
pub mod executable;
pub mod facts;
pub mod file_handle;
pub mod handover;
pub mod injection;

pub mod iomem;
pub mod knobs;
pub mod kpagecgroup;
pub mod kpageflags;
pub mod ksm;
pub mod lru_gen;
pub mod map_files;
pub mod map_limit;
pub mod maps;
pub mod meminfo;
pub mod memory_file;
pub mod merged_memory;
pub mod mounts;
pub mod open_files;
pub mod page_cache;
pub mod pagemap;
pub mod perf_counters;
pub mod pinned_file;
pub mod place;
pub mod pressure;
pub mod process_lock;
pub mod process_madvise;
pub mod process_vm;
pub mod processes;
pub mod program_file;
pub mod ptrace_access;
pub mod queued_signal;
pub mod read_ahead;
pub mod resctrl;
pub mod runtime_directory;
pub mod sealed_memory;
pub mod shared_memory;
pub mod shared_segments;
pub mod signals;
pub mod smaps;
pub mod spare;
pub mod stat;
pub mod status;
pub mod subordinate_ids;
pub mod syscall_dispatch;
pub mod thp;
pub mod thp_stats;
pub mod untrusted;
pub mod user_namespace;
pub mod userfaultfd;
pub mod vmstat;
pub mod witness;
pub mod zoneinfo;

mod choice;
mod error;
mod files;
mod forked;
mod frame_file;
mod key_lines;
mod pid;
pub mod proxy;
#[cfg(test)]
mod quiet_process;
mod scratch;

#[cfg(any(test, feature = "fake"))]
pub mod fake;

pub use error::{At, Error, NotRead, describe, symbol};
pub use files::{KernelFiles, Lock, Locked, Rooted};
pub use pid::Pid;
pub use untrusted::Untrusted;
