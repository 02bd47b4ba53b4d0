//! `masu completions`: completions of a shell, from the definition of the arguments.

use std::io::Write;

use crate::args::CompletionsTask;
use crate::failure::Failure;
use crate::terminal::print;
use crate::{Done, command};

/// Prints the completions.
pub fn run(task: &CompletionsTask) -> Result<Done, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(task.shell, &mut command(), "masu", &mut script);
    print::out().write_all(&script)?;
    Ok(Done::Whole)
}

#[cfg(test)]
mod tests {
    use clap_complete::Shell;

    use super::*;

    #[test]
    fn each_shell_completes_commands_and_options() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command(), "masu", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(["attach", "until-settled", "census"].iter().all(|word| script.contains(word)), "{shell}");
            assert!(!script.contains("rung"), "{shell}: hidden aliases stay hidden");
        }
    }
}
