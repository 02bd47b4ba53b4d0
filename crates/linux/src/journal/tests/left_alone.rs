//! Settings that are another's at the end.

use super::*;

#[test]
fn a_value_that_another_program_wrote_meanwhile_stays_and_is_named() {
    let (_run, directory) = run();
    let kernel = kernel();
    let mut settings = HostSettings::of_writer(&kernel, &directory, writer(7));
    settings.set(SCAN, "5000").unwrap();
    settings.set(THP, "always").unwrap();
    kernel.add(SCAN, "300\n");
    // The old value again is nothing to report.
    kernel.add(THP, "always [madvise] never\n");
    settings.restore().unwrap();
    assert_eq!((kernel.read(SCAN).unwrap().trim(), kernel.read(THP).unwrap().trim()), ("300", "madvise"));
    let left: Vec<String> = settings.left_alone().iter().map(ToString::to_string).collect();
    assert_eq!(left, [format!("/{SCAN} is 300, which another program has written (100 before)")]);
    assert!(!private(&directory).join("7-1007.journal").exists(), "nothing is left to restore");
    // A later change restores that value.
    settings.set(SCAN, "1").unwrap();
    settings.restore().unwrap();
    assert_eq!((kernel.read(SCAN).unwrap().trim(), settings.left_alone()), ("300", &[][..]));
}

#[test]
fn a_setting_that_another_living_masu_restores_is_named() {
    let (_run, directory) = run();
    let kernel = kernel();
    let mut first = HostSettings::of_writer(&kernel, &directory, writer(7));
    let mut second = HostSettings::of_writer(&kernel, &directory, writer(8));
    first.set(SCAN, "1").unwrap();
    second.set(SCAN, "2").unwrap();
    second.restore().unwrap();
    let expected = format!("/{SCAN} is 2, and process 7, another masu, will restore it (100 before)");
    assert_eq!(second.left_alone()[0].to_string(), expected);
    // The value of the second is no other program's.
    first.restore().unwrap();
    assert_eq!((kernel.read(SCAN).unwrap().as_str(), first.left_alone()), ("100", &[][..]));
    let left: Vec<_> = fs::read_dir(private(&directory)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"]);
}

/// A killed process has written these values, and the setting has `present` by now.
fn replay_after(written: &[&str], present: &str) -> (String, Vec<String>) {
    let (_run, directory) = run();
    let kernel = born(kernel(), writer(7));
    let mut settings = HostSettings::of_writer(&kernel, &directory, writer(7));
    written.iter().for_each(|value| settings.set(SCAN, value).unwrap());
    abandon(settings);
    dies(&kernel, writer(7));
    kernel.add(SCAN, present);
    let replay = super::super::replay(&kernel, &directory, &[]).unwrap();
    assert!(!private(&directory).join("7-1007.journal").exists(), "nothing is left to restore");
    (kernel.read(SCAN).unwrap(), replay.left_alone.iter().map(|(pid, left)| format!("{pid}: {left}")).collect())
}

#[test]
fn a_value_that_another_program_wrote_after_a_crash_stays_and_is_named() {
    let named = vec![format!("7: /{SCAN} is 300, which another program has written (100 before)")];
    assert_eq!(replay_after(&["5000"], "300"), ("300".into(), named.clone()));
    assert_eq!(replay_after(&["1", "2", "5000"], "300"), ("300".into(), named.clone()));
    // An earlier value of the dead process is another program's too: it was not the last one.
    assert_eq!(replay_after(&["300", "5000"], "300"), ("300".into(), named));
    assert_eq!(replay_after(&["1", "2", "5000"], "5000"), ("100".into(), vec![]));
    // As many changes as make the journal compact.
    assert_eq!(replay_after(&["1"; 200], "1"), ("100".into(), vec![]));
    assert_eq!(replay_after(&["1"; 200], "2").0, "2");
}

#[test]
fn a_setting_whose_last_write_may_not_have_ended_is_restored_whatever_its_value() {
    let (_run, directory) = run();
    let kernel = born(kernel(), writer(7));
    let mut settings = HostSettings::of_writer(&kernel, &directory, writer(7));
    settings.set(SCAN, "5000").unwrap();
    settings.append(&Line::Writing(SCAN.to_owned())).unwrap();
    kernel.add(SCAN, "rounded");
    abandon(settings);
    dies(&kernel, writer(7));
    assert_eq!(replay(&kernel, &directory).unwrap().len(), 1);
    assert_eq!(kernel.read(SCAN).unwrap(), "100");
}
