//! Which frames the kernel merged, and who has them.
