//! Calls on files: by name, by descriptor, their attributes.

use std::fs::{self, File, OpenOptions};

use farmem_engine::calls::number as n;

use crate::arena::{Attempt, Good, Trial, make, six};

const AT: u64 = libc::AT_FDCWD as u64;
const OPEN: u64 = (libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC) as u64;

/// All of them, in an empty folder.
pub fn trial(trial: &mut Trial, folder: &str) {
    let file = format!("{folder}/a-file-with-a-name");
    fs::write(&file, vec![7; 20_000]).unwrap();
    by_name(trial, folder, &file);
    made_and_removed(trial, folder);
    attributes(trial, &file);
    data(trial, &file);
    asked(trial, folder, &file);
}

fn opened(attempt: &mut Attempt, file: &str) -> u64 {
    attempt.keep(OpenOptions::new().read(true).write(true).open(file).unwrap())
}

fn by_name(trial: &mut Trial, folder: &str, file: &str) {
    let close = |result: i64| assert!(result >= 0 && make(n::CLOSE, six(&[result as u64])) == 0);
    // A descriptor that an attempt leaves open is closed by the next one.
    let mut last = make(n::DUP, six(&[1]));
    for (number, at) in [(n::OPEN, 0), (n::OPENAT, 1), (n::CREAT, 0), (n::OPENAT2, 1)] {
        trial.call(number, Good::Yes, |attempt| {
            close(last);
            last = make(n::DUP, six(&[1]));
            let name = attempt.text(file);
            // A file that is emptied is filled again.
            fs::write(file, vec![7; 20_000]).unwrap();
            match (number, at) {
                (n::OPENAT2, _) => [AT, name, attempt.words(&[OPEN, 0o600, 0]), 24, 0, 0],
                (n::CREAT, _) => six(&[name, 0o600]),
                (_, 0) => six(&[name, OPEN, 0o600]),
                _ => six(&[AT, name, OPEN, 0o600]),
            }
        });
    }
    close(last);
    fs::write(file, vec![7; 20_000]).unwrap();
    for number in [n::ACCESS, n::CHMOD, n::TRUNCATE, n::CHDIR] {
        let (name, value) = match number {
            n::ACCESS => (file, 0),
            n::CHMOD => (file, 0o600),
            n::TRUNCATE => (file, 20_000),
            _ => (folder, 0),
        };
        trial.call(number, Good::Yes, |attempt| six(&[attempt.text(name), value]));
    }
    let me = u64::from(u32::MAX);
    for number in [n::CHOWN, n::LCHOWN] {
        trial.call(number, Good::Yes, |attempt| six(&[attempt.text(file), me, me]));
    }
    trial.call(n::FCHOWNAT, Good::Yes, |attempt| six(&[AT, attempt.text(file), me, me, 0]));
    trial.call(n::FACCESSAT, Good::Yes, |attempt| six(&[AT, attempt.text(file), 4]));
    trial.call(n::FACCESSAT2, Good::Yes, |attempt| six(&[AT, attempt.text(file), 4, 0x200]));
    trial.call(n::FCHMODAT, Good::Yes, |attempt| six(&[AT, attempt.text(file), 0o600]));
    trial.call(n::FCHMODAT2, Good::Yes, |attempt| six(&[AT, attempt.text(file), 0o600, 0]));
    trial.call(n::STAT, Good::Yes, |attempt| six(&[attempt.text(file), attempt.buffer(size_of::<libc::stat>())]));
    trial.call(n::LSTAT, Good::Yes, |attempt| six(&[attempt.text(file), attempt.buffer(size_of::<libc::stat>())]));
    trial.call(n::FSTAT, Good::Yes, |attempt| six(&[opened(attempt, file), attempt.buffer(size_of::<libc::stat>())]));
    trial.call(n::NEWFSTATAT, Good::Yes, |attempt| {
        six(&[AT, attempt.text(file), attempt.buffer(size_of::<libc::stat>()), 0])
    });
    trial.call(n::STATX, Good::Yes, |attempt| {
        six(&[AT, attempt.text(file), 0, 0xfff, attempt.buffer(size_of::<libc::statx>())])
    });
    trial.call(n::STATFS, Good::Yes, |attempt| six(&[attempt.text(file), attempt.buffer(size_of::<libc::statfs>())]));
    trial.call(n::FSTATFS, Good::Yes, |attempt| {
        six(&[opened(attempt, file), attempt.buffer(size_of::<libc::statfs>())])
    });
    trial.call(n::UTIME, Good::Yes, |attempt| six(&[attempt.text(file), attempt.words(&[1, 2])]));
    trial.call(n::UTIMES, Good::Yes, |attempt| six(&[attempt.text(file), attempt.words(&[1, 2, 3, 4])]));
    trial.call(n::FUTIMESAT, Good::Yes, |attempt| six(&[AT, attempt.text(file), attempt.words(&[1, 2, 3, 4])]));
    trial.call(n::UTIMENSAT, Good::Yes, |attempt| six(&[AT, attempt.text(file), attempt.words(&[1, 2, 3, 4]), 0]));
    trial.call(n::INOTIFY_ADD_WATCH, Good::Yes, |attempt| {
        let watch = attempt.made(make(n::INOTIFY_INIT1, six(&[0])));
        six(&[watch, attempt.text(file), 2])
    });
    trial.call(n::NAME_TO_HANDLE_AT, Good::Yes, |attempt| {
        // Space for a handle of 8 bytes, which ext4 and tmpfs fill; the rest is not written.
        let mut handle = [0; 136];
        handle[0] = 128;
        [AT, attempt.text(file), attempt.loose(&handle), attempt.aligned(0), 0, 0]
    });
    trial.call(n::OPEN_TREE, Good::Errno(libc::ENOENT), |attempt| six(&[AT, attempt.text("/no/such/file"), 0]));
    trial.call(n::FANOTIFY_MARK, Good::Yes, |attempt| {
        let group = attempt.made(make(n::FANOTIFY_INIT, six(&[0x200, 0])));
        six(&[group, 1, 2, AT, attempt.text(file)])
    });
}

fn made_and_removed(trial: &mut Trial, folder: &str) {
    let (one, two) = (format!("{folder}/one-name"), format!("{folder}/another-name"));
    let fresh = |with_one: bool| {
        for name in [&one, &two] {
            let _ = fs::remove_file(name);
            let _ = fs::remove_dir(name);
        }
        if with_one {
            fs::write(&one, b"x").unwrap();
        }
    };
    for (number, at) in [(n::RENAME, 0), (n::RENAMEAT, 1), (n::RENAMEAT2, 1), (n::LINK, 0), (n::LINKAT, 1)] {
        trial.call(number, Good::Yes, |attempt| {
            fresh(true);
            let (from, to) = (attempt.text(&one), attempt.text(&two));
            if at == 0 { six(&[from, to]) } else { six(&[AT, from, AT, to, 0]) }
        });
    }
    for (number, at) in [(n::MKDIR, 0), (n::MKDIRAT, 1)] {
        trial.call(number, Good::Yes, |attempt| {
            fresh(false);
            if at == 0 { six(&[attempt.text(&one), 0o700]) } else { six(&[AT, attempt.text(&one), 0o700]) }
        });
    }
    for (number, at) in [(n::MKNOD, 0), (n::MKNODAT, 1)] {
        let kind = u64::from(libc::S_IFIFO | 0o600);
        trial.call(number, Good::Yes, |attempt| {
            fresh(false);
            if at == 0 { six(&[attempt.text(&one), kind, 0]) } else { six(&[AT, attempt.text(&one), kind, 0]) }
        });
    }
    for (number, at) in [(n::UNLINK, 0), (n::UNLINKAT, 1)] {
        trial.call(number, Good::Yes, |attempt| {
            fresh(true);
            if at == 0 { six(&[attempt.text(&one)]) } else { six(&[AT, attempt.text(&one), 0]) }
        });
    }
    trial.call(n::RMDIR, Good::Yes, |attempt| {
        fresh(false);
        fs::create_dir(&one).unwrap();
        six(&[attempt.text(&one)])
    });
    for (number, at) in [(n::SYMLINK, 0), (n::SYMLINKAT, 1)] {
        trial.call(number, Good::Yes, |attempt| {
            fresh(false);
            let (to, name) = (attempt.text("where/it/leads"), attempt.text(&one));
            if at == 0 { six(&[to, name]) } else { six(&[to, AT, name]) }
        });
    }
    for (number, at) in [(n::READLINK, 0), (n::READLINKAT, 1)] {
        trial.call(number, Good::Count(14), |attempt| {
            fresh(false);
            std::os::unix::fs::symlink("where/it/leads", &one).unwrap();
            let (name, text) = (attempt.text(&one), attempt.buffer(14));
            if at == 0 { six(&[name, text, 14]) } else { six(&[AT, name, text, 14]) }
        });
    }
    fresh(false);
}

fn attributes(trial: &mut Trial, file: &str) {
    for number in [n::SETXATTR, n::LSETXATTR, n::FSETXATTR, n::GETXATTR, n::LGETXATTR, n::FGETXATTR] {
        trial.call(number, Good::Yes, |attempt| {
            let of_descriptor = matches!(number, n::FSETXATTR | n::FGETXATTR);
            let target = if of_descriptor { opened(attempt, file) } else { attempt.text(file) };
            [target, attempt.text("user.note"), attempt.put(b"a value"), 7, 0, 0]
        });
    }
    for number in [n::SETXATTRAT, n::GETXATTRAT] {
        trial.call(number, Good::Yes, |attempt| {
            let value = attempt.put(b"a value");
            let arguments = attempt.words(&[value, 7]);
            [AT, attempt.text(file), 0, attempt.text("user.note"), arguments, 16]
        });
    }
    // The list holds the only attribute's name.
    for number in [n::LISTXATTR, n::LLISTXATTR, n::FLISTXATTR] {
        trial.call(number, Good::Yes, |attempt| {
            let target = if number == n::FLISTXATTR { opened(attempt, file) } else { attempt.text(file) };
            six(&[target, attempt.buffer(10), 10])
        });
    }
    trial.call(n::LISTXATTRAT, Good::Yes, |attempt| six(&[AT, attempt.text(file), 0, attempt.buffer(10), 10]));
    for number in [n::REMOVEXATTR, n::LREMOVEXATTR, n::FREMOVEXATTR, n::REMOVEXATTRAT] {
        trial.call(number, Good::Yes, |attempt| {
            // SAFETY: both strings and the value have their ends in the program.
            let set = unsafe {
                let file = std::ffi::CString::new(file).unwrap();
                libc::setxattr(file.as_ptr(), c"user.note".as_ptr(), c"x".as_ptr().cast(), 1, 0)
            };
            assert_eq!(set, 0);
            match number {
                n::FREMOVEXATTR => six(&[opened(attempt, file), attempt.text("user.note")]),
                n::REMOVEXATTRAT => six(&[AT, attempt.text(file), 0, attempt.text("user.note")]),
                _ => six(&[attempt.text(file), attempt.text("user.note")]),
            }
        });
    }
    trial.call(n::FILE_GETATTR, Good::Yes, |attempt| six(&[AT, attempt.text(file), attempt.buffer(24), 24, 0]));
    trial.call(n::FILE_SETATTR, Good::Yes, |attempt| six(&[AT, attempt.text(file), attempt.buffer(24), 24, 0]));
}

fn data(trial: &mut Trial, file: &str) {
    const MUCH: usize = 9_000;
    let count = Good::Count(MUCH as i64);
    trial.call(n::READ, count, |attempt| six(&[opened(attempt, file), attempt.buffer(MUCH), MUCH as u64]));
    trial.call(n::PREAD64, count, |attempt| six(&[opened(attempt, file), attempt.buffer(MUCH), MUCH as u64, 5]));
    trial.call(n::WRITE, count, |attempt| six(&[opened(attempt, file), attempt.put(&[7; MUCH]), MUCH as u64]));
    trial.call(n::PWRITE64, count, |attempt| six(&[opened(attempt, file), attempt.put(&[7; MUCH]), MUCH as u64, 5]));
    for number in [n::READV, n::WRITEV, n::PREADV, n::PWRITEV, n::PREADV2, n::PWRITEV2] {
        trial.call(number, Good::Count(MUCH as i64 + 3), |attempt| {
            let (large, small) = (attempt.put(&[7; MUCH]), attempt.put(&[7; 3]));
            let vectors = attempt.words(&[large, MUCH as u64, 0, 0, small, 3]);
            six(&[opened(attempt, file), vectors, 3])
        });
    }
    trial.call(n::SENDFILE, Good::Count(10), |attempt| {
        let out = attempt.keep(OpenOptions::new().write(true).open("/dev/null").unwrap());
        six(&[out, opened(attempt, file), attempt.words(&[3]), 10])
    });
    trial.call(n::COPY_FILE_RANGE, Good::Count(10), |attempt| {
        let (from, to) = (opened(attempt, file), opened(attempt, file));
        [from, attempt.words(&[0]), to, attempt.words(&[100]), 10, 0]
    });
    trial.call(n::CACHESTAT, Good::Yes, |attempt| {
        six(&[opened(attempt, file), attempt.words(&[0, 100]), attempt.buffer(40), 0])
    });
    trial.call(n::LOOKUP_DCOOKIE, Good::Yes, |attempt| six(&[1, attempt.buffer(10), 10]));
}

fn asked(trial: &mut Trial, folder: &str, file: &str) {
    for command in [libc::F_GETLK, libc::F_OFD_GETLK] {
        trial.call(n::FCNTL, Good::Yes, |attempt| {
            // A lock of another descriptor, so that there is one to report.
            let other = opened(attempt, file);
            assert_eq!(make(n::FLOCK, six(&[other, 8])), 0);
            six(&[opened(attempt, file), command as u64, attempt.words(&[1, 0, 10, 0])])
        });
    }
    for command in [libc::F_SETLK, libc::F_SETLKW, libc::F_OFD_SETLK, libc::F_OFD_SETLKW] {
        trial.call(n::FCNTL, Good::Yes, |attempt| {
            six(&[opened(attempt, file), command as u64, attempt.words(&[1, 0, 10, 0])])
        });
    }
    // F_SETOWN_EX, F_GETOWN_EX, F_GETOWNER_UIDS; F_GET_RW_HINT, F_SET_RW_HINT.
    for command in [15, 16, 17, 1035, 1036] {
        trial.call(n::FCNTL, Good::Yes, |attempt| six(&[opened(attempt, file), command, attempt.words(&[0])]));
    }
    // FS_IOC_FIEMAP with space for one extent, FS_IOC_GETFLAGS, FIONREAD.
    trial.call(n::IOCTL, Good::Yes, |attempt| {
        let map = attempt.words(&[0, u64::MAX, 1 << 32, 1, 0, 0, 0, 0, 0, 0, 0]);
        six(&[opened(attempt, file), 0xc020_660b, map])
    });
    trial.call(n::IOCTL, Good::Yes, |attempt| six(&[opened(attempt, file), 0x8008_6601, attempt.buffer(4)]));
    trial.call(n::IOCTL, Good::Yes, |attempt| six(&[opened(attempt, file), 0x541b, attempt.buffer(4)]));
    // FIDEDUPERANGE: one destination. Not many file systems can do it.
    trial.call(n::IOCTL, Good::NoFault, |attempt| {
        let other = opened(attempt, file);
        let ranges = attempt.words(&[0, 4096, 1, other, 4096, 0, 0]);
        six(&[opened(attempt, file), 0xc018_9436, ranges])
    });
    // PAGEMAP_SCAN of our stack: pages that are present.
    trial.call(n::IOCTL, Good::Yes, |attempt| {
        let here = &raw const attempt as u64 & !4095;
        let map = attempt.keep(File::open("/proc/self/pagemap").unwrap());
        let ranges = attempt.buffer(24);
        let scan = [96, 0, here, here + 4096, 0, ranges, 1, 0, 0, 0, 8, 8];
        six(&[map, 0xc060_6610, attempt.words(&scan)])
    });
    for number in [n::GETDENTS, n::GETDENTS64] {
        trial.call(number, Good::Yes, |attempt| {
            // A folder with one name and `.` first or second: the entries fill less than the space.
            let list = attempt.loose(&[0; 4000]);
            six(&[attempt.keep(File::open(folder).unwrap()), list, 4000])
        });
    }
    std::env::set_current_dir(folder).unwrap();
    let here = std::env::current_dir().unwrap().to_str().unwrap().len() + 1;
    trial.call(n::GETCWD, Good::Count(here as i64), |attempt| six(&[attempt.buffer(here), here as u64]));
    std::env::set_current_dir("/").unwrap();
    trial.call(n::MEMFD_CREATE, Good::Yes, |attempt| six(&[attempt.text("a name"), 1]));
    trial.call(n::FSOPEN, Good::Errno(libc::ENODEV), |attempt| six(&[attempt.text("no-such-file-system"), 0]));
    trial.call(n::MOUNT, Good::Errno(libc::ENOENT), |attempt| {
        let (from, to, kind) = (attempt.text("none"), attempt.text("/no/such/folder"), attempt.text("tmpfs"));
        six(&[from, to, kind, 0, attempt.loose(b"size=1")])
    });
    trial.call(n::UMOUNT2, Good::Errno(libc::ENOENT), |attempt| six(&[attempt.text("/no/such/folder"), 0]));
    trial.call(n::MOUNT_SETATTR, Good::Errno(libc::ENOENT), |attempt| {
        six(&[AT, attempt.text("/no/such/folder"), 0, attempt.words(&[1, 0, 0, 0]), 32])
    });
    trial.call(n::STATMOUNT, Good::Yes, |attempt| {
        let root = mount_id();
        // The request: size, mount, requested part (the superblock), namespace. The answer has a fixed part of 512
        // bytes.
        six(&[attempt.words(&[32, root, 1, 0]), attempt.loose(&[0; 600]), 600, 0])
    });
    trial.call(n::LISTMOUNT, Good::Yes, |attempt| {
        // All mounts below the root, at least one.
        six(&[attempt.words(&[32, u64::MAX, 0, 0]), attempt.buffer(8), 1, 0])
    });
}

/// The number of the root's mount, by statx.
fn mount_id() -> u64 {
    // SAFETY: all zeros is a valid `statx`, and the path has its end.
    unsafe {
        let mut found: libc::statx = std::mem::zeroed();
        libc::statx(libc::AT_FDCWD, c"/".as_ptr(), 0, 0x4000, &raw mut found);
        found.stx_mnt_id
    }
}
