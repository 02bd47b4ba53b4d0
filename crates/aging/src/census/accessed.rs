//! Memory that page tables show as accessed since the kernel last looked: it is not idle, on whatever list it is.
//!
//! `Referenced:` in `smaps` has the amount. An object that many processes map counts once, by the largest amount.

use std::collections::BTreeMap;

use linux::mounts::Table;
use linux::smaps::kinds::is_shared_memory;
use linux::{KernelFiles, smaps};
use units::Bytes;

use super::{Class, OfClass, OfProcess};

/// Accessed memory by class, a lower bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accessed {
    by_class: BTreeMap<Class, Bytes>,
    /// Processes that were not read.
    pub too_large: u64,
}

impl Accessed {
    /// Size from which on a process is not read: `smaps` takes some 10 ms a GiB under the mmap lock.
    const LARGE: Bytes = Bytes::gib(8);

    /// Reads the processes. One that cannot be read has nothing accessed.
    pub fn of(files: &impl KernelFiles, processes: &[OfProcess]) -> Accessed {
        let mut found = Accessed::default();
        let mounts = Table::read(files, "self").unwrap_or_default();

        let mut objects = BTreeMap::<(Class, (u32, u32), u64), Bytes>::new();
        for process in processes.iter().filter(|process| process.resident() > Bytes(0)) {
            if process.resident() > Accessed::LARGE {
                found.too_large += 1;
                continue;
            }
            let mut own = BTreeMap::<(Class, (u32, u32), u64), Bytes>::new();
            for detail in smaps::details(files, process.pid).unwrap_or_default() {
                let mapping = &detail.mapping;
                if mapping.inode == 0 {
                    *found.by_class.entry(Class::Data).or_default() += detail.referenced.min(detail.anonymous);
                    continue;
                }
                // Written pages of a private mapping are data, and may be the accessed ones.
                let object = detail.referenced.saturating_sub(detail.anonymous);
                let class = if is_shared_memory(mapping) || mapping.is_secret() || mounts.is_in_memory(mapping.device) {
                    Class::Shared
                } else if mapping.permissions.execute {
                    Class::Code
                } else {
                    Class::ReadOnly
                };
                *own.entry((class, mapping.device, mapping.inode)).or_default() += object;
            }
            for (object, bytes) in own {
                let most = objects.entry(object).or_default();
                *most = bytes.max(*most);
            }
        }
        for ((class, ..), bytes) in objects {
            *found.by_class.entry(class).or_default() += bytes;
        }
        found
    }

    /// Leaves the accessed memory out of the idle one.
    pub fn leave_out(&self, classes: Vec<OfClass>) -> Vec<OfClass> {
        let of = |of: OfClass| match self.by_class.get(&of.class) {
            Some(accessed) => of.without_accessed(*accessed),
            None => of,
        };
        classes.into_iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use linux::Pid;
    use linux::fake::FakeKernel;
    use linux::probe::Known;

    use super::*;

    fn of(pid: i32, data_bytes: Bytes) -> OfProcess {
        OfProcess {
            pid: Pid(pid),
            name: "x".into(),
            code_bytes: Bytes(0),
            read_only_bytes: Bytes(0),
            data_bytes,
            shared_bytes: Bytes(0),
            major_faults: 0,
        }
    }

    fn mapping(head: &str, [rss, referenced, anonymous]: [u64; 3]) -> String {
        format!(
            "{head}\nRss: {rss} kB\nPss: {rss} kB\nReferenced: {referenced} kB\nAnonymous: {anonymous} kB\n\
             AnonHugePages: 0 kB\nSwap: 0 kB\nLocked: 0 kB\n"
        )
    }

    #[test]
    fn accessed_memory_is_idle_in_no_class_and_shared_objects_count_once() {
        let [data, shared] =
            ["10000000-20000000 rw-p 0 00:00 0 ", "50000000-60000000 rw-s 0 00:01 9 /dev/zero (deleted)"];
        let first = [
            mapping(data, [300, 200, 300]),
            mapping(shared, [120, 110, 0]),
            mapping("30000000-40000000 r--p 0 08:01 7 /data", [90, 80, 0]),
            mapping("60000000-70000000 r-xp 0 08:01 8 /bin/x", [50, 40, 0]),
            mapping("70000000-80000000 rw-p 0 08:01 8 /bin/x", [30, 30, 20]),
        ];
        let second = [mapping(data, [10, 10, 10]), mapping(shared, [100, 60, 0])];
        let kernel = FakeKernel::new().file("proc/7/smaps", &first.concat()).file("proc/10/smaps", &second.concat());
        let processes = [of(7, Bytes::kib(300)), of(8, Bytes::gib(9)), of(9, Bytes::kib(4)), of(10, Bytes::kib(10))];
        let accessed = Accessed::of(&kernel, &processes);
        let wanted = [(Class::Code, 40), (Class::ReadOnly, 90), (Class::Data, 210), (Class::Shared, 110)];
        let wanted = wanted.into_iter().map(|(class, kib)| (class, Bytes::kib(kib))).collect();
        assert_eq!(accessed, Accessed { by_class: wanted, too_large: 1 });

        let class = |class| OfClass {
            class,
            bytes: Bytes::kib(300),
            active_bytes: Known::Value(Bytes(0)),
            inactive_bytes: Known::Value(Bytes::kib(300)),
            idle_bytes: Known::Value(Bytes::kib(300)),
            locked_bytes: Bytes(0),
            lazily_freed_bytes: Bytes(0),
            error_bound_bytes: Bytes(0),
            refaults: Known::Value(0),
        };
        let left = accessed.leave_out(vec![class(Class::Data), class(Class::Shared), class(Class::Cache)]);
        let idle: Vec<_> = left.iter().map(|of| of.idle_bytes.value().copied()).collect();
        assert_eq!(idle, [90, 190, 300].map(|kib| Some(Bytes::kib(kib))));
    }
}
