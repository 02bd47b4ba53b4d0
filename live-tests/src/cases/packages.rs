//! The packages of `make package`: installed, upgraded, removed and purged in a clean root of Debian.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::Outcome;
use super::programs::{Said, masu};
use super::run::{Folder, Result, said};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    packages requires [MasuCommand];
    every_example_of_the_configuration_is_right;
    the_package_starts_nothing_keeps_changes_and_leaves_nothing_when_purged [Root, CleanRoot];
    a_killed_installation_can_be_repeated_and_purged [Root, CleanRoot];
    a_program_under_masu_outlives_the_package [Root, CleanRoot];
    files_of_an_administrator_outlive_the_package [Root, CleanRoot];
    the_rpm_has_the_files_of_the_deb_and_the_dependencies_of_fedora [Root, CleanRoot, Rpm];
    an_rpm_is_installed_upgraded_and_erased [Root, CleanRoot, Rpm];
};

const CONFIGURATION: &str = include_str!("../../../integrations/package/masu.toml");
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The clean root, kept from run to run, as the test that copies it finds it.
fn clean() -> PathBuf {
    sources().join("target/packages-live/clean")
}

/// `integrations/package/clean-root` with the place where these tests have theirs; `None` where there are no sources.
pub(crate) fn clean_root() -> Option<Command> {
    let mut command = Command::new(sources().join("integrations/package/clean-root").canonicalize().ok()?);
    command.arg(clean()).stdin(Stdio::null());
    Some(command)
}

/// Folder of the packages, built once a run from the programs that are tested: `deb` and `rpm` are of release 1, and one
/// of release 2 is beside each.
fn built(kind: &'static str) -> Result<PathBuf> {
    static BUILT: [OnceLock<()>; 2] = [const { OnceLock::new() }; 2];
    let folder = sources().join("target/packages-live/built");
    let once = &BUILT[usize::from(kind == "rpm")];
    if once.get().is_none() {
        let masu = masu().ok_or("no masu")?;
        for release in ["1", "2"] {
            let mut build = Command::new(sources().join("integrations/package/build"));
            build.arg("--programs").arg(masu.parent().ok_or("no folder")?).arg("--to").arg(&folder);
            // Tests compress for speed.
            build.args(["--release", release, kind]).env("DPKG_DEB_COMPRESSOR_TYPE", "gzip");
            let built = said(build.env("DPKG_DEB_COMPRESSOR_LEVEL", "1"))?;
            assert_eq!(built.code(), 0, "{built:?}");
        }
        let _ = once.set(());
    }
    Ok(folder)
}

/// A copy of the clean root, until dropped. Beside `target/` for its devices: temporary folders may allow none.
struct Root(PathBuf);

impl Root {
    /// Copies it, with a systemd that only notes its orders, and the packages.
    fn with_packages_of(kind: &'static str) -> Result<Root> {
        let root = Root(sources().join(format!("target/packages-live/root-{}", std::process::id())));
        let copied = said(Command::new("cp").args(["--archive", "--reflink=auto"]).arg(clean()).arg(&root.0))?;
        assert_eq!(copied.code(), 0, "{copied:?}");
        fs::create_dir_all(root.path("run/systemd/system"))?;
        fs::create_dir_all(root.path("etc/systemd/system/multi-user.target.wants"))?;
        fs::write(root.path("etc/systemd/system/multi-user.target.wants/other.service"), "")?;
        let systemctl = root.path("usr/bin/systemctl");
        fs::write(&systemctl, "#!/bin/sh\necho \"$@\" >>/var/log/systemctl\n")?;
        fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755))?;
        for package in fs::read_dir(built(kind)?)? {
            let package = package?;
            fs::copy(package.path(), root.path("var/cache").join(package.file_name()))?;
        }
        Ok(root)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// Runs lines of a shell in it, with `/proc`, and until the first that fails.
    fn says(&self, lines: &str) -> Result<Said> {
        const ENTER: &str = "mount -t proc proc \"$0/proc\" && exec chroot \"$0\" sh -ec \"$1\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", ENTER]).arg(&self.0).arg(lines).env_clear();
        command.envs([
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            ("LC_ALL", "C"),
            ("DEBIAN_FRONTEND", "noninteractive"),
        ]);
        said(&mut command)
    }

    /// The same for lines that must not fail. Returns their output.
    fn run(&self, lines: &str) -> Result<String> {
        let said = self.says(lines)?;
        assert_eq!(said.code(), 0, "{lines}: {said:?}");
        Ok(said.out)
    }

    /// Orders to systemd since the last call.
    fn orders(&self) -> Result<Vec<String>> {
        let log = self.path("var/log/systemctl");
        let orders = fs::read_to_string(&log).unwrap_or_default();
        fs::write(&log, "")?;
        Ok(orders.lines().map(str::to_owned).collect())
    }

    /// Every path, with its kind, mode, owner, and length or target; of a file of `/etc` also the content. Without the
    /// data of dpkg, apt and rpm, caches and logs, and without the copies that tools for users make of their files.
    fn listing(&self) -> Result<BTreeMap<String, String>> {
        const LEFT_OUT: [&str; 8] = [
            "proc",
            "run/adduser",
            "var/cache",
            "var/log",
            "var/lib/apt",
            "var/lib/dpkg",
            "var/lib/rpm",
            "var/lib/systemd",
        ];
        const COPIES: [&str; 6] =
            ["etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-"];
        let mut found = BTreeMap::new();
        let mut folders = vec![self.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let entry = entry?.path();
                let path = entry.strip_prefix(&self.0)?.to_string_lossy().into_owned();
                if LEFT_OUT.contains(&path.as_str()) || COPIES.contains(&path.as_str()) {
                    continue;
                }
                let about = fs::symlink_metadata(&entry)?;
                let mut line = format!("{:o} {}:{}", about.mode(), about.uid(), about.gid());
                if about.is_dir() {
                    folders.push(entry);
                } else if about.is_symlink() {
                    line += &format!(" {}", fs::read_link(&entry)?.display());
                } else if path.starts_with("etc/") {
                    line += &format!(" {}", String::from_utf8_lossy(&fs::read(&entry)?));
                } else {
                    line += &format!(" {}", about.len());
                }
                found.insert(path, line);
            }
        }
        assert!(found.len() > 5000, "a root of {} paths", found.len());
        Ok(found)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Paths that came, went or changed.
fn differences(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let paths: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    paths.into_iter().filter(|path| before.get(*path) != after.get(*path)).cloned().collect()
}

/// dpkg with the package of this release.
fn install(release: u32) -> String {
    format!("dpkg --install /var/cache/masu_{VERSION}-{release}_*.deb")
}

fn every_example_of_the_configuration_is_right(_: &Host) -> Outcome {
    let folder = Folder::make("examples")?;
    // Prose has a space behind the sign.
    let without_sign =
        |line: &str| line.strip_prefix('#').filter(|rest| !rest.starts_with([' ', '#'])).map(str::to_owned);
    let examples: Vec<String> = CONFIGURATION.lines().filter_map(without_sign).collect();
    let rules = examples.iter().filter(|line| *line == "[[rule]]").count();
    assert!(rules >= 5, "{examples:?}");
    let plain = CONFIGURATION.lines().find(|line| !line.is_empty() && !line.starts_with('#'));
    assert_eq!(plain, None, "everything is a comment");
    let file = folder.0.join("masu.toml");
    for (text, rules) in [(CONFIGURATION.to_owned(), 0), (examples.join("\n"), rules)] {
        fs::write(&file, text)?;
        let checked = said(Command::new(masu().ok_or("no masu")?).args(["serve", "--check", "--config"]).arg(&file))?;
        let expected = format!("{}: {rules} rules, no fault\n", file.display());
        assert_eq!((checked.code(), checked.out.as_str()), (0, expected.as_str()), "{checked:?}");
    }
    Ok(())
}

/// Files of the package as it should be installed, of each kind one or two.
const FILES: [&str; 17] = [
    "/etc/masu/masu.d",
    "/etc/masu/masu.toml",
    "/usr/bin/masu",
    "/usr/include/masu.h",
    "/usr/lib/masu/libmasu-pager.so",
    "/usr/lib/masu/libmasu-preload.so",
    "/usr/lib/systemd/system/masu-aging.service",
    "/usr/lib/systemd/system/masu.service",
    "/usr/lib/systemd/system/masu@.service",
    "/usr/share/bash-completion/completions/masu",
    "/usr/share/doc/masu/changelog.gz",
    "/usr/share/doc/masu/copyright",
    "/usr/share/fish/vendor_completions.d/masu.fish",
    "/usr/share/man/man1/masu-serve.1.gz",
    "/usr/share/man/man3/masu.3.gz",
    "/usr/share/zsh/vendor-completions/_masu",
    "/var/lib/masu",
];

/// Checks an installation that nobody has changed.
fn check_installed(root: &Root) -> Outcome {
    assert_eq!(root.run("masu --version")?, format!("masu {VERSION}\n"));
    assert_eq!(root.run("masu serve --check")?, "/etc/masu/masu.toml: 0 rules, no fault\n");
    let files = root.run("dpkg --listfiles masu")?;
    let missing: Vec<_> = FILES.iter().filter(|file| !files.lines().any(|line| line == **file)).collect();
    assert!(missing.is_empty(), "{missing:?} in {files}");
    assert!(!files.contains("resctrl-emulator"), "{files}");
    assert_eq!(root.run("dpkg --verify masu; dpkg --audit")?, "");
    assert!(root.run("zcat /usr/share/man/man1/masu-serve.1.gz")?.contains(".TH masu-serve 1"));
    for (file, word) in [
        ("usr/share/bash-completion/completions/masu", "complete -F _masu"),
        ("usr/share/zsh/vendor-completions/_masu", "#compdef masu"),
        ("usr/share/fish/vendor_completions.d/masu.fish", "complete -c masu"),
    ] {
        assert!(fs::read_to_string(root.path(file))?.contains(word), "{file}");
    }
    for unit in ["masu.service", "masu-aging.service", "masu@.service"] {
        let text = fs::read_to_string(root.path("usr/lib/systemd/system").join(unit))?;
        assert!(text.contains("ExecStart=/usr/bin/masu ") && !text.contains("@PREFIX@"), "{unit}");
    }
    // The libraries are found: that for programs that link with it, and those that masu loads.
    assert!(root.run("ldconfig --print-cache")?.contains("libmasu.so.0 "));
    assert_eq!(root.run("masu run -- echo started")?.lines().next(), Some("started"));
    let user = root.run("getent passwd masu")?;
    assert!(user.ends_with(":/nonexistent:/usr/sbin/nologin\n"), "{user}");
    assert_eq!(root.run("stat --format '%a %U' /var/lib/masu /etc/masu/masu.toml")?, "750 root\n644 root\n");
    Ok(())
}

/// A link of `systemctl enable`, state, and a rule of the administrator's.
fn use_it(root: &Root) -> Outcome {
    symlink("/lib/systemd/system/masu.service", root.path("etc/systemd/system/multi-user.target.wants/masu.service"))?;
    fs::write(root.path("var/lib/masu/history.db"), "history")?;
    fs::create_dir_all(root.path("run/masu/private"))?;
    fs::write(root.path("run/masu/private/serve.lock"), "")?;
    let rule = "[[rule]]\nname = \"own\"\nselect = { unit = \"own.service\" }\naging = { cache = 0 }\n";
    fs::write(root.path("etc/masu/masu.toml"), rule)?;
    assert_eq!(root.run("masu serve --check")?, "/etc/masu/masu.toml: 1 rule, no fault\n");
    Ok(())
}

fn the_package_starts_nothing_keeps_changes_and_leaves_nothing_when_purged(_: &Host) -> Outcome {
    let root = Root::with_packages_of("deb")?;
    let before = root.listing()?;
    root.run(&install(1))?;
    assert_eq!(root.orders()?, ["--system daemon-reload"]);
    check_installed(&root)?;
    let wanted = root.path("etc/systemd/system/multi-user.target.wants");
    assert!(!wanted.join("masu.service").is_symlink(), "enabled");

    use_it(&root)?;
    root.run(&install(2))?;
    assert_eq!(root.orders()?, ["--system daemon-reload", "try-restart masu.service masu-aging.service"]);
    assert_eq!(root.run("dpkg-query --show --showformat '${Version}' masu")?, format!("{VERSION}-2"));
    assert_eq!(root.run("masu serve --check")?, "/etc/masu/masu.toml: 1 rule, no fault\n");
    assert_eq!(fs::read_to_string(root.path("var/lib/masu/history.db"))?, "history");
    assert!(wanted.join("masu.service").is_symlink(), "still enabled");

    root.run("dpkg --remove masu")?;
    assert_eq!(
        root.orders()?,
        ["stop masu.service masu-aging.service", "stop masu@*.service", "--system daemon-reload"]
    );
    assert!(!root.path("usr/bin/masu").exists() && !root.path("usr/lib/masu").exists());
    assert!(fs::read_to_string(root.path("etc/masu/masu.toml"))?.contains("own.service"));
    assert_eq!(fs::read_to_string(root.path("var/lib/masu/history.db"))?, "history");

    root.run("dpkg --purge masu")?;
    assert_eq!(differences(&before, &root.listing()?), [""; 0]);
    Ok(())
}

/// dpkg is killed while it unpacks: its files lie there under other names.
fn a_killed_installation_can_be_repeated_and_purged(_: &Host) -> Outcome {
    let root = Root::with_packages_of("deb")?;
    let before = root.listing()?;
    let killed = format!(
        "{} >/dev/null & until [ -e /usr/bin/masu.dpkg-new ]; do :; done; kill -9 $!; wait $! || echo $?",
        install(1)
    );
    assert_eq!(root.run(&killed)?, "137\n");
    assert!(root.path("usr/bin/masu.dpkg-new").exists() && !root.path("usr/bin/masu").exists());
    root.run(&install(1))?;
    check_installed(&root)?;
    root.run("dpkg --purge masu")?;
    assert_eq!(differences(&before, &root.listing()?), [""; 0]);

    // Unpacked, and configured by half: its user is there. Then purged, or configured once more.
    for end in ["", "dpkg --configure masu"] {
        root.run(&install(1).replace("--install", "--unpack"))?;
        root.run("/var/lib/dpkg/info/masu.postinst configure")?;
        root.run(&format!("{end}\ndpkg --purge masu"))?;
        assert_eq!(differences(&before, &root.listing()?), [""; 0], "{end}");
    }
    Ok(())
}

fn a_program_under_masu_outlives_the_package(_: &Host) -> Outcome {
    let root = Root::with_packages_of("deb")?;
    root.run(&install(1))?;
    let started = "masu run -- sh -c 'touch /run/started; until [ -e /run/purged ]; do sleep 0.1; done; echo ended' & \
                   until [ -e /run/started ]; do sleep 0.1; done; \
                   dpkg --purge masu >/dev/null; touch /run/purged; wait $!";
    assert_eq!(root.run(started)?.lines().next(), Some("ended"));
    assert!(!root.path("usr/bin/masu").exists());
    Ok(())
}

/// Files that dpkg does not know stay where they are, as Debian's policy has it. So does a user of the same name.
fn files_of_an_administrator_outlive_the_package(_: &Host) -> Outcome {
    let root = Root::with_packages_of("deb")?;
    let before = root.listing()?;
    root.run(&install(1))?;
    fs::write(root.path("etc/masu/masu.d/10-own.toml"), "")?;
    fs::write(root.path("etc/default/masu-redis"), "MASU_ARGS=track\n")?;
    root.run("dpkg --purge masu")?;
    let own = ["etc/default/masu-redis", "etc/masu", "etc/masu/masu.d", "etc/masu/masu.d/10-own.toml"];
    assert_eq!(differences(&before, &root.listing()?), own);

    root.run("useradd --uid 1234 masu")?;
    assert!(root.says(&install(1))?.err.contains("not a system user"));
    root.run("dpkg --purge masu")?;
    assert_eq!(root.run("id --user masu")?, "1234\n");
    Ok(())
}

fn the_rpm_has_the_files_of_the_deb_and_the_dependencies_of_fedora(_: &Host) -> Outcome {
    let rpm = built("rpm")?.join(format!("masu-{VERSION}-1.{}.rpm", std::env::consts::ARCH));
    let query = |options: &[&str]| -> Result<Vec<String>> {
        let said = said(Command::new("rpm").args(options).arg(&rpm))?;
        assert_eq!(said.code(), 0, "{said:?}");
        Ok(said.out.lines().map(str::to_owned).collect())
    };
    assert!(query(&["-K"])?[0].ends_with("digests OK"));
    let mut files = query(&["-qpl"])?;
    let deb = built("deb")?;
    let deb = fs::read_dir(deb)?.flatten().map(|entry| entry.path());
    let deb = deb.filter(|path| path.extension().is_some_and(|end| end == "deb")).min().ok_or("no package")?;
    let listed = said(Command::new("dpkg-deb").arg("--contents").arg(deb))?;
    // `-rw-r--r-- root/root 123 2026-01-01 00:00 ./usr/a -> b`.
    let paths = listed.out.lines().filter_map(|line| line.split_whitespace().nth(5)?.strip_prefix('.'));
    let mut expected: Vec<String> = paths
        .filter(|path| !path.ends_with('/') || ["masu/", "masu.d/"].iter().any(|end| path.ends_with(end)))
        .map(|path| path.trim_end_matches('/').replace("zsh/vendor-completions", "zsh/site-functions"))
        .map(|path| path.replace(&format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH), "/usr/lib64"))
        .collect();
    files.sort();
    expected.sort();
    assert_eq!(files, expected);
    let requires = query(&["-qp", "--requires"])?;
    for library in ["libc.so.6(GLIBC_", "libelf.so.1()(64bit)", "libz.so.1()(64bit)", "shadow-utils", "/bin/sh"] {
        assert!(requires.iter().any(|line| line.starts_with(library)), "{library}: {requires:?}");
    }
    Ok(())
}

fn an_rpm_is_installed_upgraded_and_erased(_: &Host) -> Outcome {
    let root = Root::with_packages_of("rpm")?;
    let rpm = |options: &[&str], package: &str| -> Outcome {
        // Dependencies are Fedora's, and not in this root.
        let mut rpm = Command::new("rpm");
        rpm.arg("--root").arg(root.0.canonicalize()?).arg("--force-debian").args(options).arg(package);
        let said = said(&mut rpm)?;
        assert_eq!(said.code(), 0, "{options:?}: {said:?}");
        Ok(())
    };
    let file = |release: u32| {
        let name = format!("masu-{VERSION}-{release}.{}.rpm", std::env::consts::ARCH);
        built("rpm").map(|folder| folder.join(name).to_string_lossy().into_owned())
    };
    rpm(&["--nodeps", "--install"], &file(1)?)?;
    assert_eq!(root.orders()?, ["daemon-reload"]);
    assert_eq!(root.run("masu --version; masu serve --check")?.lines().count(), 2);
    assert!(root.run("getent passwd masu")?.contains("nologin"));
    use_it(&root)?;
    rpm(&["--nodeps", "--upgrade"], &file(2)?)?;
    assert_eq!(root.orders()?, ["daemon-reload", "daemon-reload", "try-restart masu.service masu-aging.service"]);
    assert_eq!(root.run("masu serve --check")?, "/etc/masu/masu.toml: 1 rule, no fault\n");
    rpm(&["--erase"], "masu")?;
    let disabled = "--no-reload disable --now masu.service masu-aging.service";
    assert_eq!(root.orders()?, [disabled, "stop masu@*.service", "daemon-reload"]);
    assert!(!root.path("usr/bin/masu").exists());
    assert!(fs::read_to_string(root.path("etc/masu/masu.toml.rpmsave"))?.contains("own.service"));
    Ok(())
}
