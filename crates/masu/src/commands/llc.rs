//! `masu llc`.

mod daemon;
mod lines;
mod plan;
mod run;
mod shared;
mod simulate;

use crate::Done;
use crate::args::{LlcPart, LlcTask};
use crate::failure::Failure;

pub fn run(task: &LlcTask) -> Result<Done, Failure> {
    match &task.task {
        LlcPart::Shared(task) => shared::run(task),
        LlcPart::Plan(task) => plan::run(task),
        LlcPart::Run(task) => run::run(task),
        LlcPart::Simulate(task) => simulate::run(task),
    }
}
