//! `masu facts`.
use crate::args::FactsTask;
use crate::failure::Failure;
use crate::Done;
pub fn run(_task: &FactsTask) -> Result<Done, Failure> { Ok(Done::Whole) }
