//! How much room there is, whether memory is being taken back, and who stands still for want of it.

use std::collections::BTreeSet;
use std::time::Duration;

use linux::cgroup::group::Group;
use linux::cgroup::limited::{self, Limited};
use linux::meminfo::meminfo;
use linux::pressure::{self, Pressure};
use linux::{Error, KernelFiles, vmstat};
use units::{Bytes, Fraction};

use crate::policy::Room;

/// A room with a name: the host, or a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// `the host`, or the group's directory.
    pub name: String,
    /// Whose pages count; `None`: everybody's.
    pub groups: Option<BTreeSet<u64>>,
    /// How much.
    pub room: Room,
}

/// The name of the host's room.
pub const THE_HOST: &str = "the host";

/// The rooms that bound what is charged to some control groups: first the host's, and that of each group with a limit above them.
///
/// # Errors
/// `Malformed`.
pub fn rooms(files: &impl KernelFiles, limits: &[Limited], charged: &BTreeSet<u64>) -> Result<Vec<Named>, Error> {
    let memory = meminfo(files)?;
    let of_host = Room { limit: memory.total, left: memory.available };
    let mut found = vec![Named { name: THE_HOST.to_owned(), groups: None, room: of_host }];
    for group in limits.iter().filter(|group| !group.inodes.is_disjoint(charged)) {
        if let Some(charge) = group.charge(files)? {
            let room = Room { limit: charge.limit, left: charge.left() };
            found.push(Named { name: format!("/{}", group.directory), groups: Some(group.inodes.clone()), room });
        }
    }
    Ok(found)
}

/// The groups, which may have limits; none where there is no memory controller.
///
/// # Errors
/// `Malformed`.
pub fn limits(files: &impl KernelFiles) -> Result<Vec<Limited>, Error> {
    limited::groups(files)
}

/// The clock that runs while memory is taken back.
#[derive(Debug)]
pub struct Clock {
    source: Source,
    last: Option<(Duration, u64)>,
    pressed: Duration,
}

/// What share of the time everybody stands still for want of memory.
#[derive(Debug)]
pub struct Stall {
    source: Source,
    last: Option<(Duration, Duration)>,
}

/// A number that rises while memory is taken back.
#[derive(Debug)]
enum Source {
    /// Pages looked at, of the whole host, whoever asked for it.
    Host,
    /// The same of a group (`memory.stat`, version 2), or how often it met its limit (version 1).
    Group(String),
}

/// So often the clock is looked at by whoever is not held up.
const LOOKS_AT_LEAST_EVERY: Duration = Duration::from_secs(5);

/// Since when PSI counts is unknown to users of older kernels: without it the share is 0.
const STALL_OVER: Duration = Duration::from_secs(1);

impl Clock {
    /// Of the host, or of a group.
    pub fn of(group: Option<&Group>) -> Clock {
        Clock { source: Source::of(group), last: None, pressed: Duration::ZERO }
    }

    /// Looks, and says for how long memory has been taken back up to now.
    ///
    /// # Errors
    /// `Malformed`; a group that is gone takes nothing back.
    pub fn tick(&mut self, files: &impl KernelFiles, now: Duration) -> Result<Duration, Error> {
        let looked_at = self.source.read(files)?;
        if let Some((at, before)) = self.last
            && looked_at > before
        {
            // Of a longer time nobody knows how much of it was so: we may have been stopped.
            self.pressed += now.saturating_sub(at).min(LOOKS_AT_LEAST_EVERY);
        }
        self.last = Some((now, looked_at));
        Ok(self.pressed)
    }
}

impl Stall {
    /// Of the host, or of a group.
    pub fn of(group: Option<&Group>) -> Stall {
        Stall { source: Source::of(group), last: None }
    }

    /// Looks, and says what share of the last second or so everybody stood still. None where the kernel has no PSI.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn tick(&mut self, files: &impl KernelFiles, now: Duration) -> Result<Fraction, Error> {
        let total = match self.source.pressure(files) {
            Ok(pressure) => pressure.full.total,
            Err(Error::Unsupported(_) | Error::Gone(_)) => return Ok(Fraction::ZERO),
            Err(error) => return Err(error),
        };
        let Some((at, before)) = self.last else {
            self.last = Some((now, total));
            return Ok(Fraction::ZERO);
        };
        let time = now.saturating_sub(at);
        let share = if time.is_zero() { 0.0 } else { total.saturating_sub(before).as_secs_f64() / time.as_secs_f64() };
        if time >= STALL_OVER {
            self.last = Some((now, total));
        }
        // Too short a time says nothing: one page fault would be all of it.
        Ok(if time >= STALL_OVER / 4 { Fraction::clamped(share) } else { Fraction::ZERO })
    }
}

impl Source {
    fn of(group: Option<&Group>) -> Source {
        group.map_or(Source::Host, |group| Source::Group(group.path.trim_start_matches('/').to_owned()))
    }

    fn read(&self, files: &impl KernelFiles) -> Result<u64, Error> {
        match self {
            Source::Host => {
                let counted = vmstat::vmstat(files)?;
                Ok(["pgscan_anon", "pgscan_file"].into_iter().filter_map(|name| counted.get(name)).sum())
            }
            Source::Group(directory) => {
                // A limit may be above the group: whoever meets it takes from the group, too.
                let met = |directory: &str| {
                    files.read(&format!("{directory}/memory.failcnt")).ok()?.trim().parse::<u64>().ok()
                };
                let above = std::iter::successors(Some(directory.as_str()), |inner| Some(inner.rsplit_once('/')?.0));
                let met: Vec<u64> = above.map_while(met).collect();
                let scanned = || {
                    let text = files.read(&format!("{directory}/memory.stat")).ok()?;
                    text.lines().find_map(|line| line.strip_prefix("pgscan ")?.parse().ok())
                };
                if met.is_empty() { Ok(scanned().unwrap_or(0)) } else { Ok(met.iter().sum()) }
            }
        }
    }

    fn pressure(&self, files: &impl KernelFiles) -> Result<Pressure, Error> {
        match self {
            Source::Host => pressure::of_host(files),
            // Version 1 has none of its own, and that of the host says nothing about the group: it is busy with others.
            Source::Group(directory) => pressure::of_group(files, directory),
        }
    }
}

/// The least of what is left, of all rooms; what to look at soonest.
pub fn tightest(rooms: &[Named]) -> Bytes {
    rooms.iter().map(|named| named.room.left).min().unwrap_or(Bytes(0))
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn psi(full_us: u64) -> String {
        format!(
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={full_us}\n"
        )
    }

    #[test]
    fn the_clock_runs_while_pages_are_looked_at_and_stands_while_they_are_not() {
        let scanned =
            |pages: u64| FakeKernel::new().file("proc/vmstat", &format!("pgscan_anon 1\npgscan_file {pages}\n"));
        let mut clock = Clock::of(None);
        let mut pressed = |pages, at| clock.tick(&scanned(pages), at).unwrap();
        assert_eq!(pressed(10, SECOND), Duration::ZERO, "what was before is not known");
        assert_eq!(pressed(20, SECOND * 2), SECOND);
        assert_eq!(pressed(20, SECOND * 100), SECOND, "a night without pressure");
        assert_eq!(pressed(21, SECOND * 101), SECOND * 2);
        assert_eq!(pressed(22, SECOND * 1000), SECOND * 7, "a quarter of an hour in which nobody looked");
    }

    #[test]
    fn a_group_of_version_1_is_pressed_when_it_meets_its_limit_and_the_hosts_stalls_are_not_its_own() {
        let mounts = "30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let kernel = FakeKernel::new()
            .file("proc/self/mountinfo", mounts)
            .file("sys/fs/cgroup/memory/web/memory.failcnt", "0\n");
        let group = linux::cgroup::group::find(&kernel, "web").unwrap();
        let at = |met: u64, full_us: u64| {
            FakeKernel::new()
                .file("sys/fs/cgroup/memory/web/memory.failcnt", &format!("{met}\n"))
                .file("proc/pressure/memory", &psi(full_us))
        };
        let (mut clock, mut stall) = (Clock::of(Some(&group)), Stall::of(Some(&group)));
        clock.tick(&at(5, 0), SECOND).unwrap();
        stall.tick(&at(5, 0), SECOND).unwrap();
        assert_eq!(clock.tick(&at(6, 500_000), SECOND * 2).unwrap(), SECOND);
        assert_eq!(stall.tick(&at(6, 500_000), SECOND * 2).unwrap(), Fraction::ZERO);
        let pressed = clock.tick(&FakeKernel::new(), SECOND * 3).unwrap();
        assert_eq!(pressed, SECOND, "a group that is gone takes nothing back");
    }

    #[test]
    fn a_share_of_the_time_is_told_when_enough_of_it_has_gone_by() {
        let at = |full_us: u64| FakeKernel::new().file("proc/pressure/memory", &psi(full_us));
        let mut stall = Stall::of(None);
        assert_eq!(stall.tick(&at(0), SECOND).unwrap(), Fraction::ZERO);
        assert_eq!(stall.tick(&at(9_000), SECOND + SECOND / 100).unwrap(), Fraction::ZERO, "one page fault");
        assert_eq!(stall.tick(&at(500_000), SECOND * 2).unwrap(), Fraction::clamped(0.5));
        assert_eq!(stall.tick(&at(500_000), SECOND * 3).unwrap(), Fraction::ZERO);
        assert_eq!(stall.tick(&FakeKernel::new(), SECOND * 4).unwrap(), Fraction::ZERO, "no PSI");
    }

    #[test]
    fn a_group_counts_when_it_is_charged() {
        let kernel = FakeKernel::new()
            .file("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 500 kB\n")
            .file("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
            .file("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000\n")
            .file("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "900\n")
            .file("sys/fs/cgroup/memory/a/memory.stat", "total_inactive_file 100\n");
        let limits = limits(&kernel).unwrap();
        let ours = limits.iter().find(|group| group.directory.ends_with("/a")).unwrap().inodes.clone();
        let found = rooms(&kernel, &limits, &ours).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].room, Room { limit: Bytes(1000), left: Bytes(200) });
        assert_eq!(tightest(&found), Bytes(200));
        assert_eq!(rooms(&kernel, &limits, &BTreeSet::new()).unwrap().len(), 1);
    }
}
