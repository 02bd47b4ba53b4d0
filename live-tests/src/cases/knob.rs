//! The harness's own guarantee: every setting is restored.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Outcome;
use crate::knob::Knob;
use crate::live::Live;

const DEFRAG: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan";

/// Restored by `Drop`, and by the second process when there was no time for that: here that process is told of a
/// setting, and then its pipe is closed without a message.
pub fn a_turned_knob_is_turned_back_also_after_a_kill(_: &Live) -> Outcome {
    let before = fs::read_to_string(DEFRAG)?;
    let knob = Knob::turn(DEFRAG, "4097")?;
    assert_eq!(fs::read_to_string(DEFRAG)?.trim(), "4097");
    drop(knob);
    assert_eq!(fs::read_to_string(DEFRAG)?, before);

    let _restore = Knob::turn(DEFRAG, "4098")?;
    let mut keeper = Command::new("/proc/self/exe").arg(crate::knob::FLAG).stdin(Stdio::piped()).spawn()?;
    let note = serde_json::json!({ "Turned": { "path": DEFRAG, "before": before.trim() } });
    let mut pipe = keeper.stdin.take().ok_or("no pipe")?;
    std::io::Write::write_all(&mut pipe, format!("{note}\n").as_bytes())?;
    drop(pipe);
    let deadline = Instant::now() + Duration::from_secs(60);
    while keeper.try_wait()?.is_none() {
        if Instant::now() > deadline {
            keeper.kill()?;
            return Err("the keeper did not end with its pipe".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(fs::read_to_string(DEFRAG)?, before);
    Ok(())
}
