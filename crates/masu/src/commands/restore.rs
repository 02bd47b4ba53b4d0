//! `masu restore`.

use std::io::Write;

use crate::Done;
use crate::args::RestoreTask;
use crate::failure::Failure;
use crate::restoring::Restored;
use crate::terminal::print;

pub fn run(task: &RestoreTask, found: Result<Restored, linux::Error>) -> Result<Done, Failure> {
    let found = found.map_err(|error| {
        let failure = Failure::new(format!("cannot read the journals of changed settings: {error}"));
        if matches!(error, linux::Error::Denied(_)) { failure.remedy("Run it as root.") } else { failure }
    })?;
    let mut out = print::out();
    if task.json {
        serde_json::to_writer(&mut out, &found)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{}", in_words(&found))?;
    }
    Ok(if found.failed + found.newer_journals == 0 { Done::Whole } else { Done::InPart })
}

fn in_words(found: &Restored) -> String {
    if *found == Restored::default() {
        return "nothing to restore".to_owned();
    }
    let Restored { restored, failed, left_alone, newer_journals } = found;
    format!(
        "restored {restored}, failed {failed}, left to other programs {left_alone}, left to a newer masu {newer_journals}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_tells_whether_something_is_left_changed() {
        let json = RestoreTask { json: false };
        let is_whole = |found| matches!(run(&json, Ok(found)), Ok(Done::Whole));
        assert!(
            is_whole(Restored::default()) && is_whole(Restored { restored: 2, left_alone: 1, ..Restored::default() })
        );
        assert!(!is_whole(Restored { failed: 1, ..Restored::default() }));
        assert!(!is_whole(Restored { newer_journals: 1, ..Restored::default() }));
    }

    #[test]
    fn all_kinds_are_counted() {
        let found = Restored { restored: 2, failed: 1, left_alone: 3, newer_journals: 4 };
        assert_eq!(in_words(&found), "restored 2, failed 1, left to other programs 3, left to a newer masu 4");
        assert_eq!(in_words(&Restored::default()), "nothing to restore");
    }
}
