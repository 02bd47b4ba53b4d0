//! The harness's own guarantee: every setting is restored.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Outcome;
use crate::host::{Host, LiveTest, tests};
use crate::setting::Setting;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    setting requires [Root, HugePageModes];
    a_changed_setting_is_restored_also_after_a_kill;
};

const DEFRAG: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan";

/// Restored by `Drop`, and by the second process when there was no time for that: here that process is told of a
/// setting, and then its pipe is closed without a message.
fn a_changed_setting_is_restored_also_after_a_kill(_: &Host) -> Outcome {
    let before = fs::read_to_string(DEFRAG)?;
    let setting = Setting::set(DEFRAG, "4097")?;
    assert_eq!(fs::read_to_string(DEFRAG)?.trim(), "4097");
    drop(setting);
    assert_eq!(fs::read_to_string(DEFRAG)?, before);

    let _restore = Setting::set(DEFRAG, "4098")?;
    let mut restorer = Command::new("/proc/self/exe").arg(crate::setting::FLAG).stdin(Stdio::piped()).spawn()?;
    let note = serde_json::json!({ "Changed": { "path": DEFRAG, "before": before.trim() } });
    let mut pipe = restorer.stdin.take().ok_or("no pipe")?;
    std::io::Write::write_all(&mut pipe, format!("{note}\n").as_bytes())?;
    drop(pipe);
    let deadline = Instant::now() + Duration::from_secs(60);
    while restorer.try_wait()?.is_none() {
        if Instant::now() > deadline {
            restorer.kill()?;
            return Err("the restoring process did not end with its pipe".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(fs::read_to_string(DEFRAG)?, before);
    Ok(())
}
