//! Programs with one task and a result: started by `masu run` in the tests.
//!
//! `live-tests --program NAME ARGUMENTS…` prints lines `key=value`, and ends with status 0 if all its checks passed, 1
//! if one failed. They allocate through the C library, as programs do, so that the preloaded library sees it.

mod accesses;
mod connections;
mod dangers;
mod ends;
mod held;

mod kinds;
mod memory;
pub(crate) mod names;
mod other_users;
mod own_run;
pub(crate) mod partition;
mod takers;
mod threads;

use std::process::ExitCode;
use std::time::Duration;

/// The argument that makes the test program one of these.
pub(crate) const FLAG: &str = "--program";

/// Something that was not as it should be.
type Wrong = Box<dyn std::error::Error>;

/// Runs the program that the second argument names.
pub(crate) fn run() -> ExitCode {
    let arguments = std::env::args_os().skip(2).map(|word| word.to_string_lossy().into_owned());
    let arguments: Vec<String> = arguments.collect();
    let name = arguments.first().map_or("", String::as_str);
    let number = |index: usize| arguments.get(index).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let word = |index: usize| arguments.get(index).map_or("", String::as_str);
    let done = match name {
        "accesses" => accesses::replay(&arguments),
        "connections" => connections::connects(word(1), Duration::from_millis(number(2))),
        "kinds" => kinds::all(),
        "allocation" => kinds::allocation(number(1)),
        "stack" => kinds::stacks(),
        "limited" => kinds::limited(),
        "half" => kinds::half_a_window(),
        "short" => kinds::short(),
        "thin" => kinds::thin(number(1)),
        "churn" => threads::churn(number(1), number(2)),
        "many" => threads::many_children(number(1)),
        "refused-growth" => dangers::refused_growth(),
        "small-grows" => dangers::small_grows(),
        "detached" => dangers::detached(),
        "boxed" => dangers::boxed(),
        "held" => held::code(word(1)),
        "last-page" => held::last_page(word(1)),
        "word-of" => held::word_of(number(1), number(2)),
        "signals" => ends::signals(),
        "ends" => ends::by(arguments.get(1).map_or("", String::as_str)),
        "names" => names::names(word(1), arguments.last().map_or("", |last| last)),
        "partition" => partition::partition(word(1), word(2)),
        "maps" => takers::maps(number(1), number(2)),
        "called" => takers::called(word(1)),
        "comers" => partition::comers(number(1)),
        "own-run" => own_run::run(word(1), word(2), word(3), arguments.get(4..).unwrap_or_default()),
        "register" => other_users::register(word(1), word(2), word(3)),
        "track-clients" => other_users::clients(word(1), word(2), number(3)),
        "target" => other_users::target(word(1), word(2) == "closed"),
        "inherit" => other_users::inherit(word(1), word(2), word(3)),
        "speak" => other_users::speak(number(1)),
        _ => Err(format!("no program {name:?}").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            println!("wrong={wrong}");
            ExitCode::FAILURE
        }
    }
}
