//! Running other programs by name, with their answer in the error.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{failures, workspace};

/// Variables by which a `make` tells a `make` below it what it is part of. Tests start some of their own.
const OF_MAKE: [&str; 3] = ["MAKEFLAGS", "MAKELEVEL", "MFLAGS"];

/// Program to run from the root of the workspace.
pub fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    for name in OF_MAKE {
        command.env_remove(name);
    }
    command.current_dir(workspace::root()).stdin(Stdio::null());
    command
}

/// The cargo that runs this.
pub fn cargo() -> Command {
    program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs it with its output shown.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} failed: {status}", shown(command));
    }
    Ok(())
}

/// Runs it and returns its standard output; its standard error is shown only when it failed.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed: {}\n{}", shown(command), output.status, complaint.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs it with its output shown and handed, line by line, to `look`. Says whether it succeeded.
pub fn watch(command: &mut Command, mut look: impl FnMut(&str)) -> Result<bool> {
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {}", shown(command)))?;
    if let Some(stdout) = child.stdout.take() {
        let mut lines = BufReader::new(stdout);
        let mut bytes = Vec::new();
        while lines.read_until(b'\n', &mut bytes).context("cannot read its output")? > 0 {
            let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            println!("{line}");
            failures::look("", &line);
            look(&line);
            bytes.clear();
        }
    }
    let status = child.wait().with_context(|| format!("cannot wait for {}", shown(command)))?;
    Ok(status.success())
}

/// The command as one would type it.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Path of a program on the search path, if it is there.
pub fn find(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Path of the program; the error names the package to install.
pub fn require(name: &str, package: &str) -> Result<PathBuf> {
    find(name).with_context(|| format!("{name} is missing; on Debian: apt-get install {package} (make deps does it)"))
}

/// Creates a folder with all above it.
pub fn create_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}
