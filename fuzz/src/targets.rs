//! The targets: one module each; its head describes the bytes and the properties.

pub mod arguments;
pub mod attach_loop;
pub mod calls;
pub mod damon;
pub mod handshake;
pub mod host_files;
pub mod journal;
pub mod llc_config;
pub mod llc_policies;
pub mod llc_shared;
pub mod llc_simulate;
pub mod pager;
pub mod planted;
pub mod policies;
pub mod preload;
pub mod process_files;
pub mod profile;
pub mod redis;
pub mod resctrl;
pub mod resctrl_emulator;
pub mod shared_segment;
pub mod store_url;
pub mod streams;
pub mod trace;
pub mod track;
