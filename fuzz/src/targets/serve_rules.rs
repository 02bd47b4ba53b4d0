//! `masu.toml`, then a zero byte, then the files of a process: `status`, and behind another zero byte `cgroup`. The rules
//! are read or refused in one line with file and line; the choice of a rule for the process is one of them.

use std::path::Path;

use linux::Pid;

use serve::config::{BadConfig, Config};
use serve::facts::{self, Executables};
use serve::rules::assign;

use crate::memory_files::MemoryFiles;

/// A message quotes the line of the fault, or the parser's message about it.
const MESSAGE_CHARACTERS_MAX: usize = 4000;

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let mut parts = text.split('\0');
    let mut next = || parts.next().unwrap_or_default();
    let (rules, status, groups) = (next(), next(), next());
    let mut config = Config::default();
    if let Err(why) = config.add(Path::new("masu.toml"), rules, "root:x:0:0::/:/bin/sh\n") {
        let BadConfig::Wrong { place, .. } = &why else { panic!("nothing is read: {why}") };
        assert!(place.line >= 1 && place.line <= rules.matches('\n').count() + 1, "{why}");
        assert!(why.to_string().chars().count() <= MESSAGE_CHARACTERS_MAX, "{why}");
        return false;
    }
    let _ = config.shadowed();
    let kernel = MemoryFiles::default();
    kernel.put("proc/7/status", status);
    kernel.put("proc/7/cgroup", groups);
    let Ok(facts) = facts::read(&kernel, Pid(7), &Executables::default()) else { return false };
    let found = assign(&config, &facts);
    assert!(found.huge.as_ref().is_none_or(|huge| config.rules.iter().any(|rule| rule.name == huge.rule)));
    assert!(!facts.is_untouchable || found.huge.is_none());
    true
}
