//! System calls: one file per call or group of calls, and the memory and descriptors for them.

pub mod advice;
pub mod cache_line;
pub mod cachestat;
pub mod capabilities;
pub mod children_usage;
pub mod cpu_time;
pub mod file_handle;
pub mod injection;
pub mod merged_memory;
pub mod message_socket;
pub mod open_files;
pub mod page_cache;
pub mod path_descriptor;
pub mod perf_counters;
pub mod pinned_file;
pub mod preallocated_page;
pub mod process_madvise;
pub mod process_vm;
pub mod ptrace_access;
pub mod queued_signal;
pub mod scratch;
pub mod sealed_memory;
pub mod shared_memory;
pub mod signals;
pub mod syscall_dispatch;
pub mod userfaultfd;
