//! The cache without the hardware.
