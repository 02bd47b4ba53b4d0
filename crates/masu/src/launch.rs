//! Starting a program: the file to run, its environment, the process, and its end.

pub mod child;
pub mod command;
pub mod environment;
pub mod starter;
