//! Files below `/proc`, one file per interface.

pub mod auxv;
pub mod buddyinfo;
pub mod children;
pub mod clear_refs;
pub mod executable;
pub mod frame_file;
pub mod iomem;
pub mod key_lines;
pub mod kpagecgroup;
pub mod kpageflags;
pub mod map_files;
pub mod map_limit;
pub mod maps;
pub mod meminfo;
pub mod memory_file;
pub mod mounts;
pub mod pagemap;
pub mod pressure;
pub mod processes;
pub mod shared_segments;
pub mod smaps;
pub mod stat;
pub mod status;
pub mod user_namespace;
pub mod vmstat;
pub mod zoneinfo;
