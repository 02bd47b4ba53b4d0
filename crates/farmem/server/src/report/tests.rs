use std::array;
use std::sync::atomic::AtomicU64;

use farmem_engine::counters::COUNTER_WORDS;

use super::*;
use crate::history::Since;

fn counted(refused: &[Refusal]) -> Counted {
    let words: [AtomicU64; COUNTER_WORDS] = array::from_fn(|_| AtomicU64::new(0));
    let counters = Counters(&words);
    refused.iter().for_each(|refusal| counters.refuse(*refusal));
    Counted::of(1, &counters, &Box::<Learned>::default(), Observed::default())
}

#[test]
fn what_was_refused_is_named_with_the_times_in_all_programs_and_the_reason() {
    use Refusal::{IoUring, LargeMessage, Seccomp};
    assert_eq!(Report::of(1.0, &[counted(&[])]).notes, Vec::<String>::new());
    let report = Report::of(1.0, &[counted(&[IoUring, Seccomp]), counted(&[IoUring, LargeMessage])]);
    assert_eq!(
        report.notes,
        [
            "io_uring was refused 2 times: it uses memory after its call; most programs have another way and take it",
            "a seccomp filter was refused once: it would stop the pager's own calls; switch the program's sandbox off",
            "a message larger than an eighth of local memory was refused once: it must be in memory as a whole; a \
             larger --local lets it through",
        ]
    );
}

/// Found by fuzzing: the counters lie in memory that the program can write to.
#[test]
fn counters_that_a_program_has_set_to_anything_are_reported_without_a_panic() {
    let words: [AtomicU64; COUNTER_WORDS] = array::from_fn(|_| AtomicU64::new(u64::MAX));
    let counted = Counted::of(1, &Counters(&words), &Box::<Learned>::default(), Observed::default());
    let report = Report::of(1.0, &[counted.clone(), counted]);
    assert_eq!((report.faults, report.bytes_in), (u64::MAX, Bytes(u64::MAX)));
    assert_eq!(report.victim_queue_hit_rate, Some(1.0));
}

#[test]
fn each_refusal_is_counted_for_itself() {
    for (number, refusal) in Refusal::ALL.into_iter().enumerate() {
        let mut wanted = [0; Refusal::ALL.len()];
        wanted[number] = 2;
        assert_eq!(counted(&[refusal, refusal]).calls_refused, wanted, "{refusal:?}");
    }
}

#[test]
fn renamed_fields_are_written_under_both_names() {
    let report = Report { faults_in_victim_queue: 3, victim_queue_hit_rate: Some(0.5), ..Report::of(1.0, &[]) };
    let report = Report { faults_in_flight: 4, transfer_bytes_median: Some(Bytes::kib(64)), ..report };
    let json = serde_json::to_value(&report).unwrap();
    for (new, old, value) in [
        ("faults_in_victim_queue", "faults_staged", 3.0),
        ("victim_queue_hit_rate", "staging_hit_rate", 0.5),
        ("faults_in_flight", "faults_arriving", 4.0),
        ("transfer_bytes_median", "unit_bytes_median", 65536.0),
    ] {
        assert_eq!((json[new].as_f64(), json[old].as_f64()), (Some(value), Some(value)), "{new}");
    }
}

#[test]
fn a_report_is_read_back_as_it_was_written() {
    let since = Since { since_s: 0.5, unit_bytes: Bytes::kib(4) };
    let (faults, unit_bytes, units) = (3, Bytes::kib(64), vec![since]);
    let site = Site {
        program: "p".into(),
        process: 9,
        function: "main".into(),
        file: Some("a.c".into()),
        line: Some(7),
        faults,
        unit_bytes,
        units: units.clone(),
    };
    let report = Report {
        backend: Some(Backend::Copy.name().to_owned()),
        sealed: Some("AES".to_owned()),
        victim_queue_hit_rate: Some(0.5),
        prefetch_hit_rate: Some(0.25),
        transfer_bytes_median: Some(unit_bytes),
        sites: vec![site],
        sections: vec![Section { section: 1, faults, unit_bytes, units }],
        profile: Some(Profiled { path: "/p".into(), sites_loaded: 1, sites_saved: 2 }),
        notes: vec!["n".to_owned()],
        ..Report::of(1.5, &[counted(&[]), counted(&[Refusal::IoUring])])
    };
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    let nothing = Report::of(0.0, &[]);
    let text = serde_json::to_string(&nothing).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), nothing);
}
