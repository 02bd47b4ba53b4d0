//! Commands to the emulator of resctrl. Each is accepted or refused, a refusal changes nothing, and the invariants of
//! groups hold.

use resctrl_emulator::fake::Rig;
use resctrl_emulator::hardware::{Bandwidth, Hardware, MONITORING, Monitoring, models};

/// Groups: few, so that commands often hit the same one.
const GROUPS: [&str; 8] =
    ["", "a/", "b/", "c/", "mon_groups/m/", "a/mon_groups/m/", "a/mon_groups/n/", "b/mon_groups/m/"];
const FILES: [&str; 6] = ["schemata", "mode", "tasks", "cpus", "cpus_list", "mba_MBps_event"];
const INFO: [&str; 3] = ["info/L3/io_alloc", "info/L3/io_alloc_cbm", "info/L3_MON/max_threshold_occupancy"];

/// Hardware with few classes and counters, so that they run out. The lower bits of `byte` select the model, the upper
/// ones its options.
fn machine(byte: u8) -> Hardware {
    let models = models();
    let (_, _, model) = &models[usize::from(byte & 0x1f) % models.len()];
    let limbo_ms = if byte & 0x80 == 0 { 0 } else { 5000 };
    let in_mib = Bandwidth { min_percent: 10, step_percent: 10, in_mib: true };
    Hardware {
        classes: 5,
        monitoring: Some(Monitoring { rmids: 6, limbo_ms, ..MONITORING }),
        bandwidth: if byte & 0x40 == 0 { model.bandwidth } else { Some(in_mib) },
        debug: byte & 0x20 != 0,
        ..model.clone()
    }
}

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let Some((first, rest)) = bytes.split_first() else { return false };
    let hardware = machine(*first);
    // Values that the kernel keeps itself change while a write is parsed, even if the write is then refused.
    let is_taken_at_once = hardware.bandwidth.is_some_and(|bandwidth| bandwidth.in_mib);
    let mut rig = Rig::new(hardware);
    let (mut now, mut understood) = (0, false);
    // Not separated by zero bytes, which end a command.
    for command in rest.split(|byte| *byte == 0xff).take(64) {
        let [what, on, text @ ..] = command else { continue };
        let group = GROUPS[usize::from(*on) % GROUPS.len()];
        let text = String::from_utf8_lossy(text);
        let before = rig.everything();
        let (outcome, in_part) = match what % 12 {
            0 => (rig.mkdir(group.trim_end_matches('/')).map(drop), false),
            1 if group.is_empty() => continue,
            1 => (rig.rmdir(group.trim_end_matches('/')), false),
            2 => (rig.rename(group.trim_end_matches('/'), text.trim_end_matches('/')), false),
            3 => {
                now += u64::from(*on) * 16;
                rig.machine.pass_time(now);
                continue;
            }
            4 => (rig.write(INFO[usize::from(*on) % INFO.len()], &text), false),
            5 => {
                // Setting counter values is no command.
                let _ = rig.machine.tell(&text);
                continue;
            }
            file => {
                let file = FILES[usize::from(file - 6)];
                // A group that leaves pseudo-lock setup keeps its mask, even if another group was given its ways in
                // between.
                let mode = rig.read(&format!("{group}mode")).unwrap_or_default();
                if file == "mode" && mode == "pseudo-locksetup\n" {
                    continue;
                }
                let in_part = file == "tasks" || file == "schemata" && is_taken_at_once;
                (rig.write(&format!("{group}{file}"), &text), in_part)
            }
        };
        understood |= outcome.is_ok();
        if outcome.is_err() && !in_part {
            assert_eq!(rig.everything(), before, "{command:?}");
        }
        if let Err(why) = rig.check() {
            panic!("{why}, after {what} on {group:?}: {text:?}");
        }
    }
    understood
}
