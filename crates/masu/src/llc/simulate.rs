//! `masu llc simulate`.

use crate::Done;
use crate::args::SimulateTask;
use crate::failure::Failure;

pub fn run(_task: &SimulateTask) -> Result<Done, Failure> {
    Err(Failure::new("not yet"))
}
