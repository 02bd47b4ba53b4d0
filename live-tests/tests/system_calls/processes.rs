//! Processes, signals, scheduling, memory, messages between processes, and the machine.

use std::process::{Command, Stdio};

use farmem_engine::calls::number as n;

use crate::arena::{Good, Trial, make, six};

const INVALID: Good = Good::Errno(libc::EINVAL);

/// All of them.
pub fn trial(trial: &mut Trial, folder: &str) {
    processes(trial, folder);
    signals(trial);
    scheduling(trial);
    memory(trial);
    controls(trial);
    system_v(trial);
    machine(trial);
}

fn child() -> u64 {
    u64::from(Command::new("true").stdin(Stdio::null()).spawn().unwrap().id())
}

fn processes(trial: &mut Trial, folder: &str) {
    let rusage = size_of::<libc::rusage>();
    // Children whose end is asked for in vain are asked for again, so that none is left.
    let mut children = Vec::new();
    trial.call(n::WAIT4, Good::Yes, |attempt| {
        children.push(child());
        six(&[*children.last().unwrap(), attempt.buffer(4), 0, attempt.buffer(rusage)])
    });
    trial.call(n::WAITID, Good::Yes, |attempt| {
        children.push(child());
        // The kernel fills only the first 28 bytes of the signal's record.
        [1, *children.last().unwrap(), attempt.loose(&[0; 128]), 4, attempt.buffer(rusage), 0]
    });
    trial.call(n::WAITID, Good::Yes, |attempt| {
        children.push(child());
        [1, *children.last().unwrap(), attempt.put(&[0; 28]), 4, 0, 0]
    });
    for child in children {
        make(n::WAIT4, six(&[child, 0, 0, 0]));
    }
    trial.call(n::GETRESUID, Good::Yes, |attempt| six(&[attempt.buffer(4), attempt.buffer(4), attempt.buffer(4)]));
    trial.call(n::GETRESGID, Good::Yes, |attempt| six(&[attempt.buffer(4), attempt.buffer(4), attempt.buffer(4)]));
    let groups = make(n::GETGROUPS, six(&[0, 0]));
    if groups > 0 {
        trial.call(n::GETGROUPS, Good::Count(groups), |attempt| {
            six(&[groups as u64, attempt.buffer(4 * groups as usize)])
        });
    }
    // A version of 2 and of none.
    trial.call(n::CAPGET, Good::Yes, |attempt| six(&[attempt.words(&[0x2008_0522]), attempt.buffer(24)]));
    trial.call(n::CAPGET, INVALID, |attempt| six(&[attempt.aligned(1), attempt.loose(&[0; 24])]));
    trial.call(n::GETRUSAGE, Good::Yes, |attempt| six(&[0, attempt.buffer(rusage)]));
    trial.call(n::GETRLIMIT, Good::Yes, |attempt| six(&[7, attempt.buffer(16)]));
    let mut limit = [0_u64; 2];
    make(n::GETRLIMIT, six(&[7, limit.as_mut_ptr() as u64]));
    trial.call(n::SETRLIMIT, Good::Yes, |attempt| six(&[7, attempt.words(&limit)]));
    trial.call(n::PRLIMIT64, Good::Yes, |attempt| six(&[0, 7, attempt.words(&limit), attempt.buffer(16)]));
    trial.call(n::GET_ROBUST_LIST, Good::Yes, |attempt| six(&[0, attempt.buffer(8), attempt.buffer(8)]));
    // A flag that is none: the struct is read first.
    trial.call(n::CLONE3, INVALID, |attempt| six(&[attempt.words(&[1 << 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), 88]));
    // A file that is no program is found out last, after its arguments were copied.
    let file = format!("{folder}/no-program");
    std::fs::write(&file, [1; 600]).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&file, mode).unwrap();
    for number in [n::EXECVE, n::EXECVEAT] {
        trial.call(number, Good::Errno(libc::ENOEXEC), |attempt| {
            let (first, long) = (attempt.text("an argument"), attempt.text(&"x".repeat(10_000)));
            let (arguments, variables) = (attempt.words(&[first, long, 0]), attempt.text("A=variable"));
            let variables = attempt.words(&[variables, 0]);
            let name = attempt.text(&file);
            match number {
                n::EXECVE => six(&[name, arguments, variables]),
                _ => six(&[libc::AT_FDCWD as u64, name, arguments, variables]),
            }
        });
    }
    trial.call(n::PROCESS_VM_READV, Good::Count(5000), |attempt| {
        let (to, from) = (attempt.buffer(5000), attempt.put(&[3; 5000]));
        [u64::from(std::process::id()), attempt.words(&[to, 5000]), 1, attempt.words(&[from, 5000]), 1, 0]
    });
    trial.call(n::PROCESS_VM_WRITEV, Good::Count(5000), |attempt| {
        let (from, to) = (attempt.put(&[3; 5000]), attempt.buffer(5000));
        [u64::from(std::process::id()), attempt.words(&[from, 5000]), 1, attempt.words(&[to, 5000]), 1, 0]
    });
}

fn signals(trial: &mut Trial) {
    // A signal without effect if another thread takes it.
    const WINCH: u64 = libc::SIGWINCH as u64;
    let (me, thread) = (u64::from(std::process::id()), make(n::GETTID, six(&[])) as u64);
    let set = 1_u64 << (WINCH - 1);
    make(n::RT_SIGPROCMASK, six(&[0, &raw const set as u64, 0, 8]));
    let taken = || {
        let now = [0_u64; 2];
        while make(n::RT_SIGTIMEDWAIT, six(&[&raw const set as u64, 0, now.as_ptr() as u64, 8])) > 0 {}
    };
    trial.call(n::RT_SIGACTION, Good::Yes, |attempt| {
        six(&[libc::SIGUSR2 as u64, attempt.words(&[1, 0x0400_0000, 0, 0]), attempt.buffer(32), 8])
    });
    trial.call(n::RT_SIGPROCMASK, Good::Yes, |attempt| six(&[0, attempt.words(&[set]), attempt.buffer(8), 8]));
    trial.call(n::RT_SIGPENDING, Good::Yes, |attempt| six(&[attempt.buffer(8), 8]));
    trial.call(n::RT_SIGTIMEDWAIT, Good::Count(WINCH as i64), |attempt| {
        taken();
        make(n::TGKILL, six(&[me, thread, WINCH]));
        six(&[attempt.words(&[set]), attempt.buffer(128), attempt.words(&[0, 0]), 8])
    });
    for number in [n::RT_SIGQUEUEINFO, n::RT_TGSIGQUEUEINFO, n::PIDFD_SEND_SIGNAL] {
        trial.call(number, Good::Yes, |attempt| {
            taken();
            // Of the 128 bytes the kernel reads 48 if it knows the code, here SI_QUEUE.
            let mut info = [0; 6];
            (info[0], info[1]) = (WINCH, 0xffff_ffff);
            let info = attempt.words(&info);
            match number {
                n::RT_SIGQUEUEINFO => six(&[me, WINCH, info]),
                n::RT_TGSIGQUEUEINFO => six(&[me, thread, WINCH, info]),
                _ => six(&[attempt.made(make(n::PIDFD_OPEN, six(&[me, 0]))), WINCH, info, 0]),
            }
        });
    }
    taken();
    for number in [n::SIGNALFD, n::SIGNALFD4] {
        trial.call(number, Good::Yes, |attempt| six(&[u64::from(u32::MAX), attempt.words(&[set]), 8, 0]));
    }
    // The old stack of this thread, which is the runtime's, is given back as the new one.
    let mut stack = [0_u64; 3];
    make(n::SIGALTSTACK, six(&[0, stack.as_mut_ptr() as u64]));
    trial.call(n::SIGALTSTACK, Good::Yes, |attempt| six(&[attempt.words(&stack), attempt.buffer(24)]));
}

fn scheduling(trial: &mut Trial) {
    trial.call(n::SCHED_GETPARAM, Good::Yes, |attempt| six(&[0, attempt.buffer(4)]));
    trial.call(n::SCHED_SETPARAM, Good::Yes, |attempt| six(&[0, attempt.buffer(4)]));
    trial.call(n::SCHED_SETSCHEDULER, Good::Yes, |attempt| six(&[0, 0, attempt.buffer(4)]));
    trial.call(n::SCHED_RR_GET_INTERVAL, Good::Yes, |attempt| six(&[0, attempt.buffer(16)]));
    let bytes = make(n::SCHED_GETAFFINITY, six(&[0, 128, [0_u64; 16].as_mut_ptr() as u64]));
    trial.call(n::SCHED_GETAFFINITY, Good::Count(bytes), |attempt| {
        six(&[0, bytes as u64, attempt.buffer(bytes as usize)])
    });
    trial.call(n::SCHED_SETAFFINITY, Good::Yes, |attempt| six(&[0, 8, attempt.words(&[u64::MAX])]));
    trial.call(n::SCHED_GETATTR, Good::Yes, |attempt| six(&[0, attempt.buffer(48), 48, 0]));
    trial.call(n::SCHED_SETATTR, Good::Yes, |attempt| six(&[0, attempt.words(&[48, 0, 0, 0, 0, 0]), 0]));
    // A struct of 56 bytes, as newer programs have it.
    trial.call(n::SCHED_SETATTR, Good::Yes, |attempt| six(&[0, attempt.words(&[56, 0, 0, 0, 0, 0, 0]), 0]));
    trial.call(n::GETCPU, Good::Yes, |attempt| six(&[attempt.buffer(4), attempt.buffer(4), 0]));
}

fn memory(trial: &mut Trial) {
    let here = scratch();
    trial.call(n::MINCORE, Good::Yes, |attempt| six(&[here, 3 * 4096 - 5, attempt.buffer(3)]));
    trial.call(n::MOVE_PAGES, Good::Yes, |attempt| {
        let pages = attempt.words(&[here, here]);
        [0, 2, pages, 0, attempt.buffer(8), 0]
    });
    trial.call(n::MOVE_PAGES, Good::Yes, |attempt| {
        let (pages, nodes) = (attempt.words(&[here, here]), attempt.buffer(8));
        [0, 2, pages, nodes, attempt.buffer(8), 2]
    });
    trial.call(n::MBIND, Good::Yes, |attempt| [here, 4096, 2, attempt.words(&[1]), 2, 0]);
    trial.call(n::SET_MEMPOLICY, Good::Yes, |attempt| six(&[1, attempt.words(&[1]), 2]));
    make(n::SET_MEMPOLICY, six(&[0, 0, 0]));
    trial.call(n::GET_MEMPOLICY, Good::Yes, |attempt| six(&[attempt.buffer(4), attempt.buffer(128), 1024, 0, 0]));
    trial.call(n::GET_MEMPOLICY, Good::Yes, |attempt| six(&[attempt.buffer(4), 0, 0, attempt.put(&[1]), 3]));
    trial.call(n::MIGRATE_PAGES, Good::Yes, |attempt| six(&[0, 2, attempt.words(&[1]), attempt.words(&[1])]));
    trial.call(n::PROCESS_MADVISE, Good::Count(4096), |attempt| {
        let me = attempt.made(make(n::PIDFD_OPEN, six(&[u64::from(std::process::id()), 0])));
        six(&[me, attempt.words(&[here, 4096]), 1, libc::MADV_COLD as u64, 0])
    });
}

/// Three pages that are there.
fn scratch() -> u64 {
    (Box::leak(vec![1_u8; 5 * 4096].into_boxed_slice()).as_ptr().addr() as u64).next_multiple_of(4096)
}

fn controls(trial: &mut Trial) {
    // PR_SET_NAME, PR_GET_NAME, PR_GET_PDEATHSIG, PR_GET_CHILD_SUBREAPER, PR_GET_TSC, PR_GET_TID_ADDRESS.
    trial.call(n::PRCTL, Good::Yes, |attempt| six(&[15, attempt.text("a name")]));
    for (option, bytes) in [(16, 16), (2, 4), (37, 4), (25, 4), (40, 8)] {
        trial.call(n::PRCTL, Good::Yes, |attempt| six(&[option, attempt.buffer(bytes)]));
    }
    // PR_SET_VMA_ANON_NAME; PR_GET_AUXV; PR_SCHED_CORE asks for the cookie of this thread.
    let here = scratch();
    trial.call(n::PRCTL, Good::Yes, |attempt| six(&[0x5356_4d41, 0, here, 4096, attempt.text("a name")]));
    trial.call(n::PRCTL, Good::Yes, |attempt| six(&[0x4155_5856, attempt.buffer(64), 64, 0, 0]));
    trial.call(n::PRCTL, Good::Yes, |attempt| six(&[62, 0, 0, 0, attempt.buffer(8)]));
    // ARCH_GET_FS, ARCH_GET_GS, ARCH_GET_XCOMP_SUPP, ARCH_GET_UNTAG_MASK.
    for code in [0x1003, 0x1004, 0x1021, 0x4001] {
        trial.call(n::ARCH_PRCTL, Good::Yes, |attempt| six(&[code, attempt.buffer(8)]));
    }
    // Its result is an int: minus EINVAL without the upper half.
    trial.call(n::MODIFY_LDT, Good::Count(0xffff_ffea), |attempt| six(&[1, attempt.words(&[0xffff_ffff, 0]), 16]));
    // SECCOMP_GET_ACTION_AVAIL of "allow", SECCOMP_GET_NOTIF_SIZES.
    trial.call(n::SECCOMP, Good::Yes, |attempt| six(&[2, 0, attempt.halves(&[0x7fff_0000])]));
    trial.call(n::SECCOMP, Good::Yes, |attempt| six(&[3, 0, attempt.buffer(6)]));
    trial.call(n::LANDLOCK_CREATE_RULESET, Good::Yes, |attempt| six(&[attempt.words(&[1]), 8, 0]));
    trial.call(n::LANDLOCK_ADD_RULE, Good::Yes, |attempt| {
        let set = [1_u64];
        let set = attempt.made(make(n::LANDLOCK_CREATE_RULESET, six(&[set.as_ptr() as u64, 8, 0])));
        let folder = attempt.keep(std::fs::File::open("/").unwrap());
        let mut rule = 1_u64.to_le_bytes().to_vec();
        rule.extend((folder as u32).to_le_bytes());
        six(&[set, 1, attempt.put(&rule), 0])
    });
    trial.call(n::LSM_LIST_MODULES, Good::Yes, |attempt| {
        let mut bytes = 0_u32;
        make(n::LSM_LIST_MODULES, six(&[0, &raw mut bytes as u64, 0]));
        let bytes = bytes.max(8);
        six(&[attempt.buffer(bytes as usize), attempt.halves(&[bytes]), 0])
    });
    // A software clock that does not count.
    trial.call(n::PERF_EVENT_OPEN, Good::Yes, |attempt| {
        let mut attributes = [0_u64; 14];
        (attributes[0], attributes[5]) = (1 | 112 << 32, 1 | 1 << 5 | 1 << 6);
        six(&[attempt.words(&attributes), 0, u64::MAX, u64::MAX, 8])
    });
    trial.call(n::BPF, Good::Yes, |attempt| six(&[0, attempt.words(&[4 << 32 | 2, 1 << 32 | 4]), 16]));
    let array = [4_u64 << 32 | 2, 1 << 32 | 4];
    let made = make(n::BPF, six(&[0, array.as_ptr() as u64, 16]));
    if made < 0 {
        return;
    }
    make(n::CLOSE, six(&[made as u64]));
    for (command, good) in [(1, Good::Yes), (2, Good::Yes), (4, Good::Errno(libc::ENOENT))] {
        // An array of one element: looked up, set, and the key after its last.
        trial.call(n::BPF, good, |attempt| {
            let map = attempt.made(make(n::BPF, six(&[0, array.as_ptr() as u64, 16])));
            let (key, value) = (attempt.buffer(4), attempt.loose(&[0; 4]));
            six(&[command, attempt.words(&[map, key, value, 0]), 32])
        });
    }
}

fn system_v(trial: &mut Trial) {
    const PRIVATE: u64 = 0o600;
    let semaphores = make(n::SEMGET, six(&[0, 3, PRIVATE]));
    let queue = make(n::MSGGET, six(&[0, PRIVATE]));
    let shared = make(n::SHMGET, six(&[0, 4096, PRIVATE]));
    if semaphores >= 0 {
        let id = semaphores as u64;
        // Semaphore 0 by 1, semaphore 2 by 0: 6 bytes each.
        let operations = [0, 0, 1, 0, 0, 0, 2, 0, 1, 0, 0, 0];
        trial.call(n::SEMOP, Good::Yes, |attempt| six(&[id, attempt.put(&operations), 2]));
        trial.call(n::SEMTIMEDOP, Good::Yes, |attempt| six(&[id, attempt.put(&operations), 2, attempt.words(&[0, 0])]));
        trial.call(n::SEMCTL, Good::Yes, |attempt| six(&[id, 0, 2, attempt.buffer(104)]));
        trial.call(n::SEMCTL, Good::Yes, |attempt| six(&[id, 0, 13, attempt.buffer(6)]));
        trial.call(n::SEMCTL, Good::Yes, |attempt| six(&[id, 0, 17, attempt.buffer(6)]));
        trial.call(n::SEMCTL, Good::Yes, |attempt| six(&[id, 0, 3, attempt.buffer(40)]));
        make(n::SEMCTL, six(&[id, 0, 0]));
    }
    if queue >= 0 {
        let id = queue as u64;
        let mut message = vec![1, 0, 0, 0, 0, 0, 0, 0];
        message.resize(5000, 9);
        let sent = |id| make(n::MSGSND, six(&[id, message.as_ptr() as u64, 4992, 0o4000]));
        let taken = |id| while make(n::MSGRCV, [id, [0_u8; 5000].as_mut_ptr() as u64, 4992, 0, 0o4000, 0]) >= 0 {};
        trial.call(n::MSGSND, Good::Yes, |attempt| {
            taken(id);
            six(&[id, attempt.put(&message), 4992, 0o4000])
        });
        trial.call(n::MSGRCV, Good::Count(4992), |attempt| {
            taken(id);
            assert_eq!(sent(id), 0);
            six(&[id, attempt.buffer(5000), 4992, 0, 0o4000])
        });
        trial.call(n::MSGCTL, Good::Yes, |attempt| six(&[id, 2, attempt.buffer(120)]));
        trial.call(n::MSGCTL, Good::Yes, |attempt| six(&[id, 3, attempt.buffer(32)]));
        make(n::MSGCTL, six(&[id, 0, 0]));
    }
    if shared >= 0 {
        let id = shared as u64;
        trial.call(n::SHMCTL, Good::Yes, |attempt| six(&[id, 2, attempt.buffer(112)]));
        trial.call(n::SHMCTL, Good::Yes, |attempt| six(&[id, 3, attempt.buffer(72)]));
        trial.call(n::SHMCTL, Good::Yes, |attempt| six(&[id, 14, attempt.buffer(48)]));
        make(n::SHMCTL, six(&[id, 0, 0]));
    }
    let name = format!("masu-calls-{}", std::process::id());
    let open = (libc::O_RDWR | libc::O_CREAT | libc::O_NONBLOCK) as u64;
    trial.call(n::MQ_OPEN, Good::Yes, |attempt| {
        six(&[attempt.text(&name), open, 0o600, attempt.put(&words(&[0, 4, 100, 0, 0, 0, 0, 0]))])
    });
    let path = std::ffi::CString::new(name.clone()).unwrap();
    let made = make(n::MQ_OPEN, six(&[path.as_ptr() as u64, open, 0o600, 0]));
    if made >= 0 {
        let id = made as u64;
        let mut old = [0_u64; 8];
        make(n::MQ_GETSETATTR, six(&[id, 0, old.as_mut_ptr() as u64]));
        let room = old[2];
        let all = Good::Count(50);
        let taken = |id| {
            let mut text = vec![0_u8; room as usize];
            while make(n::MQ_TIMEDRECEIVE, six(&[id, text.as_mut_ptr() as u64, room, 0, 0])) >= 0 {}
        };
        trial.call(n::MQ_TIMEDSEND, Good::Yes, |attempt| {
            taken(id);
            six(&[id, attempt.put(&[1; 50]), 50, 1, attempt.words(&[0, 0])])
        });
        trial.call(n::MQ_TIMEDRECEIVE, all, |attempt| {
            taken(id);
            assert_eq!(make(n::MQ_TIMEDSEND, six(&[id, [1_u8; 50].as_ptr() as u64, 50, 1, 0])), 0);
            six(&[id, attempt.loose(&vec![0; room as usize]), room, attempt.buffer(4), attempt.words(&[0, 0])])
        });
        trial.call(n::MQ_GETSETATTR, Good::Yes, |attempt| six(&[id, attempt.words(&[0; 8]), attempt.buffer(64)]));
        make(n::CLOSE, six(&[id]));
    }
    trial.call(n::MQ_UNLINK, Good::Yes, |attempt| {
        make(n::CLOSE, six(&[make(n::MQ_OPEN, six(&[path.as_ptr() as u64, open, 0o600, 0])) as u64]));
        six(&[attempt.text(&name)])
    });
    keys(trial);
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn keys(trial: &mut Trial) {
    // The process's own ring, which ends with it.
    const RING: u64 = -2_i64 as u64;
    trial.call(n::ADD_KEY, Good::Yes, |attempt| {
        six(&[attempt.text("user"), attempt.text("masu:calls"), attempt.put(b"payload"), 7, RING])
    });
    trial.call(n::REQUEST_KEY, Good::Yes, |attempt| six(&[attempt.text("user"), attempt.text("masu:calls"), 0, RING]));
    let key = make(n::REQUEST_KEY, six(&[c"user".as_ptr() as u64, c"masu:calls".as_ptr() as u64, 0, RING]));
    if key > 0 {
        let key = key as u64;
        let described = make(n::KEYCTL, six(&[6, key, 0, 0]));
        trial.call(n::KEYCTL, Good::Count(described), |attempt| {
            six(&[6, key, attempt.buffer(described as usize), described as u64])
        });
        trial.call(n::KEYCTL, Good::Count(7), |attempt| six(&[11, key, attempt.buffer(7), 7]));
        trial.call(n::KEYCTL, Good::Yes, |attempt| six(&[2, key, attempt.put(b"another"), 7]));
        trial.call(n::KEYCTL, Good::Yes, |attempt| {
            six(&[10, RING, attempt.text("user"), attempt.text("masu:calls"), 0])
        });
    }
}

fn machine(trial: &mut Trial) {
    trial.call(n::UNAME, Good::Yes, |attempt| six(&[attempt.buffer(size_of::<libc::utsname>())]));
    trial.call(n::SYSINFO, Good::Yes, |attempt| six(&[attempt.buffer(size_of::<libc::sysinfo>())]));
    trial.call(n::GETRANDOM, Good::Count(5000), |attempt| six(&[attempt.buffer(5000), 5000, 0]));
    trial.call(n::SYSLOG, Good::Yes, |attempt| six(&[3, attempt.loose(&[0; 1000]), 1000]));
    trial.call(n::USTAT, Good::Yes, |attempt| {
        use std::os::unix::fs::MetadataExt;
        let device = std::fs::metadata("/proc").unwrap().dev();
        six(&[device, attempt.loose(&[0; 32])])
    });
    trial.call(n::SYSFS, Good::Yes, |attempt| six(&[1, attempt.text("proc")]));
    // The name of the first file system.
    trial.call(n::SYSFS, Good::Yes, |attempt| six(&[2, 0, attempt.loose(&[0; 32])]));
    // Names that are too long, and modules that are none.
    trial.call(n::SETHOSTNAME, INVALID, |attempt| six(&[attempt.loose(&[0; 4]), 1000]));
    trial.call(n::DELETE_MODULE, Good::Errno(libc::ENOENT), |attempt| six(&[attempt.text("no_such_module"), 0o4000]));
    let special = "/no/such/device";
    trial.call(n::QUOTACTL, Good::Errno(libc::ENOENT), |attempt| {
        six(&[0x8000_0700, attempt.text(special), 0, attempt.loose(&[0; 72])])
    });
    trial.call(n::SWAPON, Good::Errno(libc::ENOENT), |attempt| six(&[attempt.text(special), 0]));
    trial.call(n::SWAPOFF, Good::Errno(libc::ENOENT), |attempt| six(&[attempt.text(special)]));
    trial.call(n::ACCT, Good::Errno(libc::ENOENT), |attempt| six(&[attempt.text(special)]));
    trial.call(n::CHROOT, Good::Errno(libc::ENOENT), |attempt| six(&[attempt.text(special)]));
}
