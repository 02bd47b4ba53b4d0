//! `masu llc run`.

use crate::Done;
use crate::args::LlcRunTask;
use crate::failure::Failure;

pub fn run(_task: &LlcRunTask) -> Result<Done, Failure> {
    Err(Failure::new("not yet"))
}
