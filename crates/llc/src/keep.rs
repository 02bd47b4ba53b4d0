//! The daemon: classes in place, the shared region filled, everything put back.
