//! `/proc/pressure/memory` and `memory.pressure` of a control group: time lost waiting for memory (PSI).
//!
//! Time counts during direct reclaim, refaults of pages evicted too early, swap-in, and throttling by `memory.high`.
//! `vmstat.rs` counts the pages, this counts the time. Groups of version 1 have no such file.
//!
//! Cost: a read of the host's about 10 µs, of a group as much; the averages are renewed every 2 s by the kernel and
//! at a read.
//! Side effect: none. `total` is exact to the microsecond and only grows: the difference of two readings over the
//! time between them says more, and sooner, than `avg10`.
//!
//! Since: the host Linux 4.20, groups of version 2 as well; needs CONFIG_PSI, and `psi=1` at boot with
//! CONFIG_PSI_DEFAULT_DISABLED. With PSI off there is no `/proc/pressure`, and a group's file answers EOPNOTSUPP. A
//! group may switch its own off (`cgroup.pressure`, 6.1), and its file is gone then.
//!
//! Truth: Documentation/accounting/psi.rst; Documentation/admin-guide/cgroup-v2.rst; `psi_show` in
//! kernel/sched/psi.c.

use std::time::Duration;

use rustix::io::Errno;
use units::Fraction;

use crate::{Error, KernelFiles};

/// File of the host.
const HOST: &str = "proc/pressure/memory";

/// File of a group, in its directory.
pub const FILE_OF_GROUP: &str = "memory.pressure";

/// Time lost to memory stalls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// At least one task waited for memory.
    pub some: Stall,
    /// All tasks that were not idle waited, so no work was done at all.
    pub full: Stall,
}

/// Duration of a state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stall {
    /// Fraction of the time, as an average that fades over ten seconds.
    pub avg10: Fraction,
    /// Total, since the host or the group began.
    pub total: Duration,
}

/// Pressure of the host.
///
/// # Errors
/// `Unsupported` if the kernel does not count it, `Malformed` for other text.
pub fn of_host(files: &impl KernelFiles) -> Result<Pressure, Error> {
    let object = format!("/{HOST}");
    let text = files.read(HOST).map_err(|errno| Error::of_host("read", &object, errno))?;
    of_text(&object, &text)
}

/// Pressure of a group, with all groups below it. `group_path` is its directory, as `cgroup::group::find` returns it
/// or relative to the root.
///
/// # Errors
/// `Gone` if there is no such group (any more), `Unsupported` if groups do not count it, `Malformed` for other text.
pub fn of_group(files: &impl KernelFiles, group_path: &str) -> Result<Pressure, Error> {
    let directory = group_path.trim_matches('/');
    let path = format!("{directory}/{FILE_OF_GROUP}");
    let object = format!("/{path}");
    let text = files.read(&path).map_err(|errno| match errno {
        // Read from a file that was open when the group was removed.
        Errno::NODEV => Error::of_process("read", &object, Errno::NOENT),
        Errno::NOENT if files.list(directory).is_err() => Error::of_process("read", &object, errno),
        _ => Error::of_host("read", &object, errno),
    })?;
    of_text(&object, &text)
}

/// Parses `some avg10=0.12 avg60=0.00 avg300=0.00 total=532467455`, and a line for `full`; averages in percent,
/// totals in µs.
fn of_text(object: &str, text: &str) -> Result<Pressure, Error> {
    let stall = |word: &str| {
        let fields = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
        let fields = fields.ok_or_else(|| Error::malformed(object, format_args!("no line {word:?}")))?;
        stall(fields).ok_or_else(|| {
            let found = format!("{fields:?}, expected avg10= in percent and total= in microseconds");
            Error::malformed(format_args!("{object}, {word}"), found)
        })
    };
    Ok(Pressure { some: stall("some")?, full: stall("full")? })
}

fn stall(fields: &str) -> Option<Stall> {
    let value = |name: &str| fields.split_ascii_whitespace().find_map(|field| field.strip_prefix(name));
    let percent: f64 = value("avg10=")?.parse().ok()?;
    let avg10 = Fraction::new(percent / 100.0).ok()?;
    Some(Stall { avg10, total: Duration::from_micros(value("total=")?.parse().ok()?) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Rooted;
    use crate::fake::FakeKernel;

    const GOOD: &str = "some avg10=1.50 avg60=0.20 avg300=0.00 total=532467455\n\
        full avg10=0.00 avg60=0.00 avg300=0.00 total=529922809\n";

    fn of(text: &str) -> Result<Pressure, Error> {
        of_host(&FakeKernel::new().file(HOST, text))
    }

    fn expected() -> Pressure {
        Pressure {
            some: Stall { avg10: Fraction::new(0.015).unwrap(), total: Duration::from_micros(532_467_455) },
            full: Stall { avg10: Fraction::ZERO, total: Duration::from_micros(529_922_809) },
        }
    }

    #[test]
    fn percent_become_fractions_and_totals_durations() {
        assert_eq!(of(GOOD), Ok(expected()));
    }

    #[test]
    fn a_group_has_its_own_by_either_form_of_its_path() {
        let kernel = FakeKernel::new().file("sys/fs/cgroup/web/memory.pressure", GOOD);
        for path in ["/sys/fs/cgroup/web", "sys/fs/cgroup/web"] {
            assert_eq!(of_group(&kernel, path), Ok(expected()), "{path}");
        }
    }

    #[test]
    fn where_nothing_is_counted_it_is_unsupported() {
        assert!(matches!(of_host(&FakeKernel::new()), Err(Error::Unsupported(_))));
        let file = "sys/fs/cgroup/web/memory.pressure";
        let off = FakeKernel::new().file(file, "").refusing(file, Errno::OPNOTSUPP);
        let error = of_group(&off, "sys/fs/cgroup/web").unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)));
        assert_eq!(error.errno(), Some(Errno::OPNOTSUPP));
        let version_1 = FakeKernel::new().file("sys/fs/cgroup/memory/web/memory.stat", "");
        assert!(matches!(of_group(&version_1, "sys/fs/cgroup/memory/web"), Err(Error::Unsupported(_))));
    }

    #[test]
    fn a_group_that_was_removed_is_gone() {
        assert!(of_group(&FakeKernel::new(), "sys/fs/cgroup/web").unwrap_err().is_gone());
        let file = "sys/fs/cgroup/web/memory.pressure";
        let meanwhile = FakeKernel::new().file(file, GOOD).refusing(file, Errno::NODEV);
        assert!(of_group(&meanwhile, "sys/fs/cgroup/web").unwrap_err().is_gone());
    }

    #[test]
    fn what_does_not_read_as_pressure_is_named() {
        let error = of(&GOOD.replace("1.50", "much")).unwrap_err();
        let expected = "cannot understand /proc/pressure/memory, some: \"avg10=much avg60=0.20 avg300=0.00 \
            total=532467455\", expected avg10= in percent and total= in microseconds";
        assert_eq!(error.to_string(), expected);
        let error = of("some avg10=0.00 total=1\n").unwrap_err();
        assert_eq!(error.to_string(), "cannot understand /proc/pressure/memory: no line \"full\"");
        for bad in ["avg10=101.00 total=1", "avg10=-1 total=1", "avg10=1.00", "total=1", "", "avg10=NaN total=1"] {
            assert!(of(&format!("some {bad}\nfull avg10=0.00 total=0\n")).is_err(), "{bad}");
        }
    }

    #[test]
    fn lines_and_fields_of_a_newer_kernel_are_left_out() {
        let newer = GOOD.replace("avg300", "avg10max=7 avg300");
        assert_eq!(of(&format!("most avg10=9.00 total=7\nsomehow x\n{newer}new\n")), Ok(expected()));
    }

    #[test]
    fn this_host_waits_longer_as_a_whole_never_than_in_part() {
        let Ok(pressure) = of_host(&Rooted::host()) else { return };
        assert!(pressure.full.total <= pressure.some.total, "{pressure:?}");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "(?s).{0,100}", fields in ".{0,40}") {
            let _ = of(&format!("{text}\nsome {fields}\nfull avg10=0.00 total=1\n"));
        }
    }
}
