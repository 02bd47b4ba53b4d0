//! Helper processes of masu: locks on a process, calls with a deadline, steps that outlive masu.

pub mod confinement;
pub mod forked;
pub mod process_lock;
pub mod proxy;
#[cfg(test)]
pub mod quiet_process;
pub mod signal_detector;
