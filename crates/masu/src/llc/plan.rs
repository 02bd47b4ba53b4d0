//! `masu llc plan`.

use crate::Done;
use crate::args::PlanTask;
use crate::failure::Failure;

pub fn run(_task: &PlanTask) -> Result<Done, Failure> {
    Err(Failure::new("not yet"))
}
