//! Headroom of the host and of control groups, the clock of memory pressure, and the share of time stalled on memory.

use std::collections::BTreeSet;
use std::time::Duration;

use linux::cgroup::group::Group;
use linux::cgroup::limited::{self, Limited};
use linux::meminfo::meminfo;
use linux::pressure::{self, Pressure};
use linux::{Error, KernelFiles, vmstat};
use units::{Bytes, Fraction};

use crate::policy::Headroom;

/// Headroom of a domain: the host, or a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// `the host`, or the group's directory.
    pub name: String,
    /// Control groups, by inode, whose pages count; `None`: all.
    pub groups: Option<BTreeSet<u64>>,
    /// Limit and headroom.
    pub headroom: Headroom,
}

/// Name of the host's domain.
pub const THE_HOST: &str = "the host";

/// Domains that bound the pages charged to some control groups: first the host, then each group with a limit at or
/// above them.
///
/// # Errors
/// `Malformed`.
pub fn domains(files: &impl KernelFiles, limits: &[Limited], charged: &BTreeSet<u64>) -> Result<Vec<Domain>, Error> {
    let memory = meminfo(files)?;
    let of_host = Headroom { limit: memory.total, left: memory.available };
    let mut found = vec![Domain { name: THE_HOST.to_owned(), groups: None, headroom: of_host }];
    for group in limits.iter().filter(|group| !group.inodes.is_disjoint(charged)) {
        if let Some(charge) = group.charge(files)? {
            let headroom = Headroom { limit: charge.limit, left: charge.left() };
            found.push(Domain { name: format!("/{}", group.directory), groups: Some(group.inodes.clone()), headroom });
        }
    }
    Ok(found)
}

/// Control groups that may have limits; none without a memory controller.
///
/// # Errors
/// `Malformed`.
pub fn limits(files: &impl KernelFiles) -> Result<Vec<Limited>, Error> {
    limited::groups(files)
}

/// Clock that runs while memory is reclaimed.
#[derive(Debug)]
pub struct Clock {
    source: Source,
    last: Option<(Duration, u64)>,
    reclaim_time: Duration,
}

/// Share of time with all tasks stalled on memory.
#[derive(Debug)]
pub struct Stall {
    source: Source,
    last: Option<(Duration, Duration)>,
}

/// Counter that rises while memory is reclaimed.
#[derive(Debug)]
enum Source {
    /// Pages scanned on the whole host, for any requester.
    Host,
    /// Pages scanned for a group (`memory.stat`, version 2), or number of times that it met its limit (version 1).
    Group(String),
}

/// Longest interval between two ticks of a caller that is not delayed.
const TICKS_AT_LEAST_EVERY: Duration = Duration::from_secs(5);

/// Interval of the stall share: older kernels do not tell users since when PSI counts. Without PSI the share is 0.
const STALL_OVER: Duration = Duration::from_secs(1);

impl Clock {
    /// Clock of the host, or of a group.
    pub fn of(group: Option<&Group>) -> Clock {
        Clock { source: Source::of(group), last: None, reclaim_time: Duration::ZERO }
    }

    /// Reason that the clock never runs: the group shows no counter of its reclaim.
    pub fn stands_still(&self, files: &impl KernelFiles) -> Option<String> {
        let Source::Group(directory) = &self.source else { return None };
        let has_counter = files.read(&format!("{directory}/memory.failcnt")).is_ok()
            || files
                .read(&format!("{directory}/memory.stat"))
                .is_ok_and(|text| text.lines().any(|line| line.starts_with("pgscan ")));
        (!has_counter).then(|| {
            format!("/{directory} has neither memory.failcnt nor pgscan in memory.stat, so its reclaim cannot be seen")
        })
    }

    /// Reads the counter, and returns the time under reclaim up to now.
    ///
    /// # Errors
    /// `Malformed`; a group that is gone reclaims nothing.
    pub fn tick(&mut self, files: &impl KernelFiles, now: Duration) -> Result<Duration, Error> {
        let counted = self.source.read(files)?;
        if let Some((at, before)) = self.last
            && counted > before
        {
            // Of a longer interval, the part under reclaim is unknown: masu may have been stopped.
            self.reclaim_time += now.saturating_sub(at).min(TICKS_AT_LEAST_EVERY);
        }
        self.last = Some((now, counted));
        Ok(self.reclaim_time)
    }
}

impl Stall {
    /// Stall share of the host, or of a group.
    pub fn of(group: Option<&Group>) -> Stall {
        Stall { source: Source::of(group), last: None }
    }

    /// Reads PSI, and returns the share of about the last second with all tasks stalled. 0 on a kernel without PSI.
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
        // A short interval has no meaning: one page fault would fill all of it.
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
                // A limit may be set above the group: meeting it reclaims from the group, too.
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
            // Version 1 has no PSI of its own, and the host's PSI says nothing about the group: the host is busy with
            // others.
            Source::Group(directory) => pressure::of_group(files, directory),
        }
    }
}

/// Smallest headroom of all domains: the domain to check soonest.
pub fn minimum(domains: &[Domain]) -> Bytes {
    domains.iter().map(|domain| domain.headroom.left).min().unwrap_or(Bytes(0))
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
    fn a_group_without_a_counter_of_its_reclaim_is_named() {
        let clock = Clock { source: Source::Group("web".to_owned()), last: None, reclaim_time: Duration::ZERO };
        let why = clock.stands_still(&FakeKernel::new().file("web/memory.stat", "anon 1\npgscan_kswapd 3\n")).unwrap();
        assert_eq!(why, "/web has neither memory.failcnt nor pgscan in memory.stat, so its reclaim cannot be seen");
        assert_eq!(clock.stands_still(&FakeKernel::new().file("web/memory.stat", "pgscan 3\n")), None);
        assert_eq!(clock.stands_still(&FakeKernel::new().file("web/memory.failcnt", "0\n")), None);
    }

    #[test]
    fn the_clock_runs_while_pages_are_scanned_and_stops_otherwise() {
        let scanned =
            |pages: u64| FakeKernel::new().file("proc/vmstat", &format!("pgscan_anon 1\npgscan_file {pages}\n"));
        let mut clock = Clock::of(None);
        let mut tick = |pages, at| clock.tick(&scanned(pages), at).unwrap();
        assert_eq!(tick(10, SECOND), Duration::ZERO, "the time before is unknown");
        assert_eq!(tick(20, SECOND * 2), SECOND);
        assert_eq!(tick(20, SECOND * 100), SECOND, "a night without pressure");
        assert_eq!(tick(21, SECOND * 101), SECOND * 2);
        assert_eq!(tick(22, SECOND * 1000), SECOND * 7, "a quarter of an hour without a tick");
    }

    #[test]
    fn the_clock_of_a_version_1_group_runs_when_it_meets_its_limit_and_ignores_the_hosts_stalls() {
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
        let reclaim_time = clock.tick(&FakeKernel::new(), SECOND * 3).unwrap();
        assert_eq!(reclaim_time, SECOND, "a group that is gone reclaims nothing");
    }

    #[test]
    fn a_stall_share_needs_an_interval_of_some_length() {
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
        let found = domains(&kernel, &limits, &ours).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].headroom, Headroom { limit: Bytes(1000), left: Bytes(200) });
        assert_eq!(minimum(&found), Bytes(200));
        assert_eq!(domains(&kernel, &limits, &BTreeSet::new()).unwrap().len(), 1);
    }
}
