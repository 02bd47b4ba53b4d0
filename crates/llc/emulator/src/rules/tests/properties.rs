use proptest::prelude::*;

use crate::fake::Rig;
use crate::group::Mode;
use crate::hardware::{Bandwidth, Hardware, MONITORING, Monitoring, models};
use crate::node::Node;

/// Operation of a program.
#[derive(Clone, Debug)]
enum Step {
    Make(String),
    Remove(String),
    Move(String, String),
    Write(String, String),
    Start(u32, u32),
    End(u32),
    Wait(u64),
}

/// Few group names, so that operations meet often.
fn group() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "a", "b", "c", "mon_groups/m", "a/mon_groups/m", "a/mon_groups/n", "b/mon_groups/m"])
        .prop_map(str::to_owned)
}

fn mask() -> impl Strategy<Value = String> {
    let run = (0_u32..21, 1_u32..9).prop_map(|(first, ways)| ((1_u64 << ways) - 1) << first);
    prop_oneof![8 => run, 1 => any::<u16>().prop_map(u64::from)].prop_map(|mask| format!("{mask:x}"))
}

fn line() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["L3", "L3", "L3", "L3CODE", "L3DATA", "MB"]);
    let value = (0_u32..3, mask()).prop_map(|(cache, mask)| format!("{cache}={mask}"));
    (name, prop::collection::vec(value, 1..3)).prop_map(|(name, values)| format!("{name}:{}\n", values.join(";")))
}

fn step() -> impl Strategy<Value = Step> {
    let write = |file: &'static str| (group(), Just(file)).prop_map(|(group, file)| format!("{group}/{file}"));
    let modes = vec!["shareable\n", "exclusive\n", "exclusive\n", "pseudo-locksetup\n"];
    let lines = prop::collection::vec(line(), 1..3).prop_map(|lines| lines.concat());
    let switch = prop::sample::select(vec!["0\n", "1\n"]);
    let parents = prop::sample::select(vec![1_u32, 100, 200]);
    let threads = prop::collection::vec(prop::sample::select(vec!["1", "100", "101", "200", "5", "0"]), 1..3);
    prop_oneof![
        4 => group().prop_map(Step::Make),
        2 => group().prop_map(Step::Remove),
        1 => (group(), group()).prop_map(|(from, to)| Step::Move(from, to)),
        6 => (write("schemata"), lines).prop_map(|(path, lines)| Step::Write(path, lines)),
        4 => (write("mode"), prop::sample::select(modes)).prop_map(|(path, mode)| Step::Write(path, mode.to_owned())),
        3 => (write("tasks"), threads).prop_map(|(path, threads)| Step::Write(path, threads.join(","))),
        2 => (write("cpus"), 0_u32..5).prop_map(|(path, cpus)| Step::Write(path, format!("{cpus:x}\n"))),
        1 => switch.prop_map(|text| Step::Write("info/L3/io_alloc".into(), text.into())),
        1 => mask().prop_map(|mask| Step::Write("info/L3/io_alloc_cbm".into(), format!("0={mask}\n"))),
        1 => (300_u32..310, parents).prop_map(|(tid, parent)| Step::Start(tid, parent)),
        1 => prop::sample::select(vec![101_u32, 200, 301, 302]).prop_map(Step::End),
        1 => (0_u64..3000).prop_map(Step::Wait),
    ]
}

/// Few classes and counters, so that they are used up.
fn hardware() -> impl Strategy<Value = Hardware> {
    let all: Vec<Hardware> = models().into_iter().map(|(_, _, hardware)| hardware).collect();
    let switches = [prop::bool::ANY; 2];
    (prop::sample::select(all), 4_u32..10, 2_u32..8, switches).prop_map(|(model, classes, rmids, [limbo, in_mib])| {
        let monitoring = Monitoring { rmids, limbo_ms: if limbo { 5000 } else { 0 }, ..MONITORING };
        let bandwidth = model.bandwidth.map(|bandwidth| Bandwidth { in_mib, ..bandwidth });
        Hardware { classes, monitoring: Some(monitoring), bandwidth, ..model }
    })
}

/// Whether the write ends a lock setup: such a group keeps its mask, even if its ways were assigned in between: the
/// kernel does not check.
fn leaves_setup(rig: &Rig, path: &str, text: &str) -> bool {
    let node = path.strip_suffix("/mode").map(|group| rig.machine.find(group));
    let Some(Ok(Node::Group(id))) = node else { return false };
    let mode = rig.machine.groups().find(|(other, _)| *other == id).map(|(_, group)| group.mode);
    mode == Some(Mode::PseudoLocksetup) && text != "pseudo-locksetup\n"
}

fn take(rig: &mut Rig, step: &Step, now: &mut u64) -> Result<(), TestCaseError> {
    let before = rig.everything();
    let outcome = match step {
        Step::Make(path) => rig.mkdir(path).map(drop),
        Step::Remove(path) if path.is_empty() => Ok(()),
        Step::Remove(path) => rig.rmdir(path),
        Step::Move(from, to) => rig.rename(from, to),
        Step::Write(path, text) if leaves_setup(rig, path, text) => Ok(()),
        Step::Write(path, text) => {
            let outcome = rig.write(path, text);
            if outcome.is_ok() {
                written_is_read(rig, path, text)?;
            }
            outcome
        }
        Step::Start(tid, parent) => {
            rig.tasks.start(*tid, *tid, *parent, 0);
            Ok(())
        }
        Step::End(tid) => {
            rig.tasks.end(*tid);
            Ok(())
        }
        Step::Wait(ms) => {
            *now += ms;
            rig.machine.pass_time(*now);
            Ok(())
        }
    };
    // A value that the kernel keeps itself is taken as it is read.
    let at_once = rig.machine.hardware().bandwidth.is_some_and(|bandwidth| bandwidth.in_mib);
    let in_part = matches!(
        step,
        Step::Write(path, _) if path.ends_with("tasks") || at_once && path.ends_with("schemata")
    );
    if outcome.is_err() && !in_part {
        prop_assert_eq!(rig.everything(), before, "refused, and yet something changed: {:?}", step);
    }
    rig.check().map_err(|why| TestCaseError::fail(format!("after {step:?}: {why}")))
}

/// Checks that every value of an accepted write to `schemata` is shown, with paired ways together.
fn written_is_read(rig: &mut Rig, path: &str, text: &str) -> Result<(), TestCaseError> {
    let mode = rig.read(&path.replace("schemata", "mode")).unwrap_or_default();
    if !path.ends_with("schemata") || mode.starts_with("pseudo") {
        return Ok(());
    }
    let shown = rig.read(path).unwrap_or_default();
    for line in text.lines() {
        let (name, values) = line.split_once(':').unwrap_or_default();
        let shown = shown.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}:"))).unwrap_or_default();
        for value in values.split(';').filter(|_| name != "MB") {
            let (cache, mask) = value.split_once('=').unwrap_or_default();
            let mask = rig.machine.hardware().read_back(mask.parse().unwrap_or_default());
            prop_assert!(shown.split(';').any(|other| other == format!("{cache}={mask}")), "{} shows {}", value, shown);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn whatever_is_done_nothing_leaks_overlaps_or_changes_by_a_refusal(
        hardware in hardware(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut rig = Rig::new(hardware);
        let mut now = 0;
        for step in &steps {
            take(&mut rig, step, &mut now)?;
        }
    }

    #[test]
    fn any_bytes_are_taken_or_refused(path in prop::sample::select(vec![
        "schemata", "mode", "tasks", "cpus", "cpus_list", "info/L3/io_alloc", "info/L3/io_alloc_cbm",
        "info/L3_MON/max_threshold_occupancy",
    ]), bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut rig = Rig::new(crate::hardware::amd_16());
        let node = rig.machine.find(path).expect("it is there");
        let _ = rig.machine.write(node, &bytes, rig.writer);
        prop_assert!(rig.check().is_ok());
    }
}
