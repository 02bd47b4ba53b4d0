//! Getting Debian's kernels: with `apt-get download` and `dpkg -x`, into the target folder, nothing installed.
//!
//! The host's own package index is asked first. When that does not know the kernel (another release of Debian, no
//! `apt-get update` yet, an index that is out of date), a private index below the target folder is filled from the
//! mirrors that the host itself uses, so nothing of the host's configuration changes.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{create_folder, output, program, require};
use crate::workspace;

/// A kernel series that Debian serves.
#[derive(Debug)]
pub struct Kernel {
    /// `6.1`
    pub series: &'static str,
    /// Levels of the page tables with which all tests run. With the other number of levels only the tests of the
    /// page-table walks run (`LIVE_TESTS=page-tables`).
    pub all_tests_with_levels: u8,
}

/// Series that masu is tested on, oldest first.
pub const ALL: &[Kernel] =
    &[Kernel { series: "6.1", all_tests_with_levels: 4 }, Kernel { series: "6.12", all_tests_with_levels: 5 }];

/// Suites of a mirror that serve one of them, today or later: a mirror without one of them is no error.
const SUITES: &[&str] = &["bookworm", "bookworm-backports", "trixie"];
const SECURITY_SUITES: &[&str] = &["bookworm-security", "trixie-security"];
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The series' names, for the command line.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|kernel| kernel.series).collect()
}

/// The boot image of a kernel, from an earlier download or a new one.
pub fn obtain(kernel: &Kernel, fresh_index: bool) -> Result<PathBuf> {
    let folder = workspace::target().join("kernels").join(kernel.series);
    if let Some(image) = boot_image(&folder) {
        return Ok(image);
    }
    require("apt-get", "apt")?;
    require("dpkg", "dpkg")?;
    create_folder(&folder)?;
    let host = Index { options: Vec::new() };
    let downloaded = if fresh_index { Err(anyhow::anyhow!("not asked")) } else { host.download(kernel, &folder) };
    let package = match downloaded {
        Ok(package) => package,
        Err(first) => private_index()?.download(kernel, &folder).with_context(|| {
            format!("cannot get Debian's kernel {} (with the host's index: {first:#})", kernel.series)
        })?,
    };
    unpack(&package, &folder)?;
    boot_image(&folder).with_context(|| format!("no boot image in the package of kernel {}", kernel.series))
}

/// Folder of the kernel headers that Debian's newest of these releases compiles with: newer than the host's, mostly.
pub fn newest_headers() -> Result<PathBuf> {
    let folder = workspace::target().join("kernels/headers");
    let headers = folder.join("usr/include");
    if !headers.is_dir() {
        require("dpkg", "dpkg")?;
        create_folder(&folder)?;
        let index = private_index()?;
        output(index.apt("apt-get").args(["download", "linux-libc-dev"]).current_dir(&folder))?;
        unpack(&downloaded_file(&folder, "linux-libc-dev")?, &folder)?;
    }
    Ok(headers)
}

/// Downloads what later steps need. A failure is reported by the step, which tries again.
pub fn fetch() {
    drop(newest_headers());
    ALL.iter().for_each(|kernel| drop(obtain(kernel, false)));
}

fn unpack(package: &Path, folder: &Path) -> Result<()> {
    output(program("dpkg").arg("-x").arg(package).arg(folder))?;
    // Megabytes, of no use after unpacking.
    fs::remove_file(package).with_context(|| format!("cannot remove {}", package.display()))
}

fn boot_image(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder.join("boot")).ok()?;
    entries.flatten().map(|entry| entry.path()).find(|path| name_of(path).starts_with("vmlinuz-"))
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A package index, by the options that make apt use it.
struct Index {
    options: Vec<String>,
}

impl Index {
    fn apt(&self, tool: &str) -> Command {
        let mut command = program(tool);
        command.args(&self.options).env("LC_ALL", "C");
        command
    }

    /// The newest of the kernel's packages that can be downloaded.
    fn download(&self, kernel: &Kernel, folder: &Path) -> Result<PathBuf> {
        let known = output(self.apt("apt-cache").args(["pkgnames", "linux-image-"]))?;
        let mut refusals = Vec::new();
        for name in newest_first(known.lines(), kernel.series).into_iter().take(4) {
            match output(self.apt("apt-get").args(["download", name]).current_dir(folder)) {
                Ok(_) => return downloaded_file(folder, name),
                Err(error) => refusals.push(format!("{error:#}")),
            }
        }
        if refusals.is_empty() {
            bail!("the index knows no linux-image-{}…-cloud-amd64", kernel.series);
        }
        bail!("{}", refusals.join("\n"));
    }
}

fn downloaded_file(folder: &Path, name: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let mut files = entries.filter(|path| name_of(path).starts_with(name) && name_of(path).ends_with(".deb"));
    files.next().with_context(|| format!("apt-get downloaded {name}, but left no file"))
}

/// Of all these package names, the ones that hold a kernel of the series for virtual machines. Signed and unsigned
/// kernels are the same code.
fn newest_first<'a>(names: impl Iterator<Item = &'a str>, series: &str) -> Vec<&'a str> {
    let prefix = format!("linux-image-{series}.");
    let version = |name: &str| name.strip_suffix("-unsigned").unwrap_or(name).to_owned();
    let mut found: Vec<&str> =
        names.filter(|name| name.starts_with(&prefix) && version(name).ends_with("-cloud-amd64")).collect();
    found.sort_by(|a, b| natural(&version(b), &version(a)).then(a.len().cmp(&b.len())));
    found
}

/// Compares with runs of digits taken as numbers: `6.1.0-9` comes before `6.1.0-56`.
fn natural(a: &str, b: &str) -> Ordering {
    let numbers = |text: &str| -> Vec<u64> {
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
    };
    numbers(a).cmp(&numbers(b)).then_with(|| a.cmp(b))
}

/// An index of our own, filled from the mirrors that the host uses.
fn private_index() -> Result<Index> {
    let folder = workspace::target().join("kernels/apt");
    for part in ["lists/partial", "cache/archives/partial"] {
        create_folder(&folder.join(part))?;
    }
    let targets = output(program("apt-get").args([
        "indextargets",
        "--format",
        "$(REPO_URI) $(RELEASE) $(COMPONENT)",
        "Created-By: Packages",
    ]))?;
    let sources = private_sources(&targets, Path::new(KEYRING).exists());
    if sources.is_empty() {
        bail!("this host's package sources name no mirror of Debian to download kernels from");
    }
    let list = folder.join("sources.list");
    fs::write(&list, sources).with_context(|| format!("cannot write {}", list.display()))?;
    let option = |name: &str, value: &Path| [format!("--option={name}={}", value.display())];
    let options = [
        option("Dir::Etc::SourceList", &list),
        option("Dir::Etc::SourceParts", Path::new("/dev/null")),
        option("Dir::State::Lists", &folder.join("lists")),
        option("Dir::Cache", &folder.join("cache")),
    ];
    let index = Index { options: options.concat() };
    // A suite that the mirror does not have makes this fail although the others were fetched. It matters only whether
    // the kernel is known afterwards.
    if let Err(error) = output(index.apt("apt-get").args(["update", "--option=APT::Sandbox::User=root"])) {
        println!("apt-get update of the private index: {error:#}");
    }
    Ok(index)
}

/// Lines of a sources.list: the suites that have our kernels, at the mirrors in apt's list of `URI SUITE COMPONENT`.
fn private_sources(targets: &str, with_keyring: bool) -> String {
    let mut lines = Vec::new();
    let signed = if with_keyring { format!("[signed-by={KEYRING}] ") } else { String::new() };
    for target in targets.lines() {
        let [uri, suite, "main"] = target.split(' ').collect::<Vec<_>>()[..] else { continue };
        let suites = match suite.split_once('-') {
            None if is_release(suite) => SUITES,
            Some((release, "security")) if is_release(release) => SECURITY_SUITES,
            _ => continue,
        };
        lines.extend(suites.iter().map(|suite| format!("deb {signed}{uri} {suite} main\n")));
    }
    lines.sort();
    lines.dedup();
    lines.concat()
}

fn is_release(name: &str) -> bool {
    ["bookworm", "trixie", "forky", "sid", "oldstable", "stable", "testing", "unstable"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_of_the_series_comes_first_and_the_signed_one_before_the_unsigned() {
        let names = [
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-56-cloud-amd64-unsigned",
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.1.0-56-cloud-amd64-dbg",
            "linux-image-6.1.0-56-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64",
            "linux-image-6.12-cloud-amd64",
        ];
        assert_eq!(
            newest_first(names.into_iter(), "6.1"),
            [
                "linux-image-6.1.0-56-cloud-amd64",
                "linux-image-6.1.0-56-cloud-amd64-unsigned",
                "linux-image-6.1.0-9-cloud-amd64",
            ]
        );
        assert_eq!(newest_first(names.into_iter(), "6.12"), ["linux-image-6.12.117+deb12-cloud-amd64"]);
    }

    #[test]
    fn private_sources_use_the_hosts_mirrors_and_no_other() {
        let targets = "http://mirror.example/debian/ bookworm main\n\
                       http://mirror.example/debian/ bookworm-updates main\n\
                       http://mirror.example/debian-security/ bookworm-security main\n\
                       http://elsewhere.example/ nodistro main\n\
                       http://mirror.example/debian/ bookworm contrib\n";
        let sources = private_sources(targets, false);
        assert!(sources.contains("deb http://mirror.example/debian/ bookworm-backports main\n"));
        assert!(sources.contains("deb http://mirror.example/debian-security/ bookworm-security main\n"));
        assert!(!sources.contains("elsewhere"));
        assert_eq!(sources.lines().count(), SUITES.len() + SECURITY_SUITES.len());
        assert!(private_sources(targets, true).lines().all(|line| line.starts_with("deb [signed-by=/")));
        assert_eq!(private_sources("", true), "");
    }
}
