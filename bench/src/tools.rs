//! Third-party programs, used where they are installed: found on the PATH, told to compile, and named when missing.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Name of a program that is not installed, with its package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing(pub &'static str);

impl std::error::Error for Missing {}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Path of the program `name`, by the PATH.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Whether the program at `path` ends well when told `arguments`.
pub fn succeeds(path: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new(path);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Compiles `files` (name, text; the first is a program in C) in `folder`, and returns the program, called `name`.
/// `flags` come after its file, where libraries are named.
///
/// # Errors
/// When it does not compile.
pub fn compile_c(
    folder: &Path,
    name: &str,
    files: &[(&str, &str)],
    flags: &[OsString],
) -> Result<Result<PathBuf, Missing>> {
    let Some(compiler) = on_path("gcc") else {
        return Ok(Err(Missing("gcc is not installed (Debian: gcc libc6-dev)")));
    };
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (file, text) in files {
        fs::write(folder.join(file), text).with_context(|| format!("cannot write {file}"))?;
    }
    let program = folder.join(name);
    let mut command = Command::new(compiler);
    command.args(["-std=c11", "-O2", "-g1", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-o"]).arg(&program);
    finished(command.args(files.iter().take(1).map(|(file, _)| folder.join(file))).args(flags))?;
    Ok(Ok(program))
}

/// Compiles the Java class `name` into `folder`; the `java` that runs it.
///
/// # Errors
/// When it does not compile.
pub fn compile_java(folder: &Path, name: &str, source: &str) -> Result<Result<PathBuf, Missing>> {
    let (Some(java), Some(compiler)) = (on_path("java"), on_path("javac")) else {
        return Ok(Err(Missing("java and javac are not installed (Debian: default-jdk-headless)")));
    };
    let file = folder.join(name).with_extension("java");
    fs::write(&file, source).with_context(|| format!("cannot write {}", file.display()))?;
    finished(Command::new(compiler).arg("-d").arg(folder).arg(&file))?;
    Ok(Ok(java))
}

/// Builds a Go program of the given files (name, text) in `folder`; the program.
///
/// # Errors
/// When it does not build.
pub fn build_go(folder: &Path, name: &str, files: &[(&str, &str)]) -> Result<Result<PathBuf, Missing>> {
    let usual = PathBuf::from("/usr/local/go/bin/go");
    let Some(go) = on_path("go").or_else(|| usual.is_file().then_some(usual)) else {
        return Ok(Err(Missing("go is not installed (Debian: golang-go)")));
    };
    let sources = folder.join(format!("{name}-source"));
    fs::create_dir_all(&sources).with_context(|| format!("cannot create {}", sources.display()))?;
    for (file, text) in files {
        fs::write(sources.join(file), text).with_context(|| format!("cannot write {file}"))?;
    }
    let program = folder.join(name);
    let mut command = Command::new(go);
    command.current_dir(&sources).args(["build", "-o"]).arg(&program);
    // Nothing is fetched, and nothing of C is linked in: the program is static.
    command.envs([("CGO_ENABLED", "0"), ("GOTOOLCHAIN", "local"), ("GOFLAGS", "-mod=mod"), ("GOPROXY", "off")]);
    if std::env::var_os("HOME").is_none() {
        command.env("GOCACHE", folder.join("go-cache"));
    }
    finished(&mut command)?;
    Ok(Ok(program))
}

/// Runs a command to its end.
///
/// # Errors
/// When it cannot be started, or fails; with its output.
pub fn finished(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}"))?;
    ensure!(output.status.success(), "{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_the_path_is_found_and_what_is_not_is_not() {
        assert!(on_path("sh").is_some_and(|path| path.is_absolute() && succeeds(&path, &["-c", "exit 0"])));
        assert_eq!(on_path("no-such-program-anywhere"), None);
        assert!(!succeeds(Path::new("/nowhere"), &[]));
    }

    #[test]
    fn a_program_that_fails_says_why() {
        let said = finished(Command::new("sh").args(["-c", "echo no >&2; exit 1"])).unwrap_err().to_string();
        assert_eq!(said, "sh failed: no");
    }
}
