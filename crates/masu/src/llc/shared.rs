//! `masu llc shared`.

use crate::Done;
use crate::args::SharedTask;
use crate::failure::Failure;

pub fn run(_task: &SharedTask) -> Result<Done, Failure> {
    Err(Failure::new("not yet"))
}
