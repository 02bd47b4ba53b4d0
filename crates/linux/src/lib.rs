//! Typed kernel interfaces, one file each. Mechanism only, never a decision.
//!
//! The head of every file states interface, cost, first version and source of truth. Text interfaces are read through
//! [`KernelFiles`], so the same code runs over a fake tree in tests. Binary ones split into a pure `decode` and a
//! system call of ten lines. `probe` asks by trying, never by the kernel's version number.
//!
//! `units` is the only crate of the workspace that this one uses.

mod elf;
mod proc;
mod process;
mod sys;
mod syscalls;

pub mod cgroup;
pub mod damon;
pub mod journal;
pub mod probe;
pub mod resctrl;
pub mod subordinate_ids;
pub mod untrusted;

mod error;
mod files;
mod pid;

#[cfg(any(test, feature = "fake"))]
pub mod fake;

pub use elf::{build_id, program_file};
pub use journal::runtime_directory;
pub use proc::{
    auxv, buddyinfo, children, clear_refs, connections, environ, executable, fuse_server, halted, iomem, kpagecgroup,
    kpageflags, map_files, map_limit, maps, meminfo, memory_file, mounts, open_inodes, pagemap, pressure, processes,
    shared_segments, smaps, stat, status, user_namespace, vmstat, zoneinfo,
};
use proc::{frame_file, key_lines, system_call};
use process::forked;
#[cfg(test)]
use process::quiet_process;
pub use process::{confinement, process_lock, proxy, signal_detector};
use sys::bracketed;
pub use sys::{block_device, caches, ksm, lru_gen, read_ahead, thp, thp_stats};
use syscalls::{advice, file_handle, scratch};
pub use syscalls::{
    cache_line, cachestat, capabilities, children_usage, cpu_time, file_size, file_systems, file_walk, injection,
    loop_device, memory_limit, merged_memory, message_socket, named_file, open_files, open_watch, page_cache,
    path_descriptor, perf_counters, pinned_file, preallocated_page, process_madvise, process_vm, ptrace_access,
    queued_signal, same_memory, sealed_memory, seccomp_filter, shared_memory, signals, syscall_dispatch,
    thp_permission, unix_peers, userfaultfd,
};

pub use error::{At, Error, NotRead, describe, describe_io, symbol};
pub use files::{KernelFiles, Lock, Locked, Rooted};
pub use pid::Pid;
pub use untrusted::Untrusted;
