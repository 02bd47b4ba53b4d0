use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use proptest::prelude::*;

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn both_are_made_with_their_modes_whoever_comes_first() {
    for private_first in [true, false] {
        let run = tempfile::tempdir().unwrap();
        let directory = run.path().join("run/masu");
        if private_first {
            private(&directory).unwrap();
        }
        public(&directory).unwrap();
        private(&directory).unwrap();
        assert_eq!((mode(&directory), mode(&private_path(&directory))), (0o755, 0o700));
    }
}

#[test]
fn what_is_no_directory_is_refused_and_left_alone() {
    let run = tempfile::tempdir().unwrap();
    let (target, link, file) = (run.path().join("target"), run.path().join("link"), run.path().join("file"));
    fs::create_dir(&target).unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o711)).unwrap();
    symlink(&target, &link).unwrap();
    fs::write(&file, "mine").unwrap();
    for path in [&link, &file] {
        let said = private(path).unwrap_err();
        assert!(matches!(said, Error::Denied(_)), "{said}");
        let object = path.display();
        assert_eq!(
            said.to_string(),
            format!("cannot trust {object}, which is not a directory: not a directory (ENOTDIR)")
        );
    }
    assert_eq!((mode(&target), fs::read_dir(&target).unwrap().count()), (0o711, 0));
    // Also in the place of the private directory.
    let directory = run.path().join("masu");
    public(&directory).unwrap();
    symlink(&target, private_path(&directory)).unwrap();
    assert!(private(&directory).is_err());
}

#[test]
fn a_directory_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let run = tempfile::tempdir().unwrap();
    let directory = run.path().join("masu");
    fs::create_dir(&directory).unwrap();
    std::os::unix::fs::chown(&directory, Some(4001), None).unwrap();
    let said = public(&directory).unwrap_err().to_string();
    assert!(said.ends_with("/masu, which belongs to user 4001: operation not permitted (EPERM)"), "{said}");
}

proptest! {
    #[test]
    fn any_mode_is_repaired(mode_of_public in 0o700u32..0o10000, mode_of_private in 0o700u32..0o10000) {
        let run = tempfile::tempdir().unwrap();
        let directory = run.path().join("masu");
        let set = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o700)).unwrap();
        fs::create_dir_all(private_path(&directory)).unwrap();
        set(&private_path(&directory), mode_of_private);
        set(&directory, mode_of_public);
        private(&directory).unwrap();
        prop_assert_eq!((mode(&directory), mode(&private_path(&directory))), (0o755, 0o700));
    }
}

const HOST: &str = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
    30 27 0:25 / /run rw,nosuid - tmpfs tmpfs rw\n31 30 0:26 / /run/user rw - tmpfs tmpfs rw\n";

#[test]
fn a_directory_lies_in_the_mount_that_was_put_there_last() {
    let at = |device: &str, path: &str| Some((device.to_owned(), path.to_owned()));
    assert_eq!(place(HOST, DIRECTORY), at("0:25", "/masu"));
    assert_eq!(place("27 1 254:0 / / rw - ext4 /dev/vda rw\n", DIRECTORY), at("254:0", "/run/masu"));
    let covered = format!("{HOST}40 30 0:40 / /run rw - tmpfs none rw\n");
    assert_eq!(place(&covered, DIRECTORY), at("0:40", "/masu"));
    let bound = format!("{covered}41 40 0:25 /masu /run/masu rw - tmpfs tmpfs rw\n");
    assert_eq!(place(&bound, DIRECTORY), at("0:25", "/masu"), "the host's, by a bind mount");
    let neighbour = format!("{HOST}41 30 0:44 / /run/mas rw - tmpfs tmpfs rw\n");
    assert_eq!(place(&neighbour, DIRECTORY), at("0:25", "/masu"));
    assert_eq!(place("30 27 0:22 / /proc rw - proc proc rw\n", DIRECTORY), None, "a chroot");
}

#[test]
fn this_process_sees_the_hosts_or_is_told_why_that_is_not_known() {
    assert_ne!(seen(&crate::Rooted::host(), "/"), Seen::Another);
}

proptest! {
    #[test]
    fn no_text_of_mounts_makes_it_panic(text in "\\PC{0,200}", path in "/[a-z/]{0,20}") {
        let _ = place(&text, &path);
    }
}
