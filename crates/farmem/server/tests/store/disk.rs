//! File store, with disks that are full, missing or memory.

use std::process::Command;

use farmem::store::{Error, PAGE_BYTES, PutRun};

use super::{conformance, contents, failure, get, location, open, put, skip};

#[test]
fn a_file_does_all_that_is_demanded() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(&format!("file:{}", directory.path().display())).unwrap();
    conformance::demand_all(&*store);
    store.close().unwrap();
    store.close().unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_waits_for_its_device_does_all_that_is_demanded() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(&format!("file:{}?sync", directory.path().display())).unwrap();
    conformance::run_against_a_map(&*store, 0, 0, 100, 50);
}

#[test]
fn memory_is_said_to_be_memory() {
    if !std::path::Path::new("/dev/shm").is_dir() {
        return skip("tmpfs", "no /dev/shm");
    }
    let (store, said) = open("file:/dev/shm").unwrap();
    put(&*store, location(0), 1).unwrap();
    assert!(said.lines().iter().any(|line| line.contains("/dev/shm is memory (tmpfs)")), "{:?}", said.lines());
}

#[test]
fn a_directory_that_cannot_be_used_is_said_in_words() {
    assert!(matches!(failure("file:/nowhere"), Error::Unfit(_)));
    assert!(matches!(failure("file:/dev/null"), Error::Unfit(_)));
    let proc = failure("file:/proc/self/fdinfo");
    assert!(matches!(proc, Error::Refused(_) | Error::Unfit(_)), "{proc}");
    // A folder that exists, on a file system that takes no files.
    let proc = failure("file:/proc");
    assert_eq!(proc.to_string(), "cannot make a file in file:/proc: no such file or directory (ENOENT)");
    assert!(proc.remedy().contains("takes no files"), "{}", proc.remedy());
}

/// File system of 1 MiB, removed when dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn mounted() -> Option<Small> {
        let directory = tempfile::tempdir().unwrap();
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "masu-test"]).arg(directory.path()).output();
        match mount {
            Ok(done) if done.status.success() => Some(Small(directory)),
            Ok(done) => {
                skip(
                    "root",
                    &format!("cannot mount a tmpfs of 1 MiB: {}", String::from_utf8_lossy(&done.stderr).trim()),
                );
                None
            }
            Err(error) => {
                skip("root", &format!("cannot mount: {error}"));
                None
            }
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_is_said_with_what_is_free_and_what_was_put_stays() {
    let Some(small) = Small::mounted() else { return };
    let (store, _) = open(&format!("file:{}", small.0.path().display())).unwrap();
    let mut page = 0;
    let full = loop {
        match put(&*store, location(page), 1) {
            Ok(()) => page += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Full(_)), "{full}");
    assert!(full.to_string().contains("no space left on device (ENOSPC), 0 B free"), "{full}");
    assert!(full.remedy().contains("--store file:DIR"), "{}", full.remedy());
    assert!((200..=256).contains(&page), "{page} pages fitted");
    for page in 0..page {
        assert!(get(&*store, location(page)).unwrap() == contents(location(page), 1));
    }
    // Released space can be reused.
    store.forget(&[farmem::store::Span { location: location(0), pages: 8 }]).unwrap();
    put(&*store, location(page), 2).unwrap();
    let large = vec![1; 64 * PAGE_BYTES];
    let full = store.put(&[PutRun { location: location(1000), bytes: &large }]).unwrap_err();
    assert!(full.to_string().starts_with("cannot put 64 pages (from page 1000 of layer 0) into file:"), "{full}");
}
