use clap::CommandFactory;

use super::*;

#[test]
fn the_definition_holds_together() {
    Args::command().debug_assert();
}

#[test]
fn times_are_written_as_people_write_them() {
    assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
    assert!(duration("0s").is_err());
    assert!(duration("5").unwrap_err().contains("500ms"));
}

fn stat(words: &[&str]) -> StatTask {
    let words = ["masu", "stat"].iter().chain(words);
    match Args::try_parse_from(words).unwrap().task {
        Task::Stat(task) => task,
        other => panic!("{other:?}"),
    }
}

#[test]
fn watching_takes_a_time_or_none_or_goes_before_the_process() {
    let two_seconds = Some(Watch::Every(Duration::from_secs(2)));
    assert_eq!((stat(&["--watch"]).watch, stat(&["7"]).watch), (two_seconds, None));
    assert_eq!(stat(&["7", "--watch"]).watch, two_seconds);
    assert_eq!(stat(&["--watch", "500ms", "7"]).watch, Some(Watch::Every(Duration::from_millis(500))));
    assert_eq!(stat(&["--watch", "7"]).watch, Some(Watch::Process(Pid(7))));
    let bad = Args::try_parse_from(["masu", "stat", "--watch", "often"]).unwrap_err().to_string();
    assert!(bad.contains("often: expected a time above zero"), "{bad}");
}

#[test]
fn a_word_is_a_process_or_a_setting() {
    assert_eq!("7".parse(), Ok(Word::Process(Pid(7))));
    assert_eq!("huge=off".parse(), Ok(Word::Huge(false)));
    assert_eq!("align=on".parse(), Ok(Word::Align(true)));
    for bad in ["huge", "huge=", "huge=maybe", "size=2M", "0", "-1", ""] {
        let said = bad.parse::<Word>().unwrap_err();
        assert_eq!(said, format!("{bad}: expected a process id, huge=on, huge=off, align=on or align=off"));
    }
}
