//! `resctrl-emulator`: mounts it.

fn main() {}
