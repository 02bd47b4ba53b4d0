//! `llc.toml`: programs, policy and limits.
//!
//! ```toml
//! policy = "sharing"            # none, equal, dunn, lfoc, kpart, ucp or sharing
//! partition = "on"              # "off": no partitions, shared pages are only kept in the cache
//! rest_ways = 2                 # for all programs not named below
//! interval_s = 1.0              # seconds between steps of the control loop
//! duty_fraction = 0.01          # the most of one CPU that warming may take
//! domain = "cgroup"             # trust within one control group ("cgroup") or one user ("uid")
//!
//! [region]
//! on = true                     # shared pages get ways of their own; as a rule with policy = "sharing" alone
//! ways_max = 4                  # the most for each region
//!
//! [[program]]
//! name = "web"                  # its group is masu-web
//! cgroup = "web"                # or pids = [4121, 4122], or user = "redis" and executable = "/usr/bin/redis-server"
//! domain = "shop"               # a label instead of the group or user
//! l3 = [0]                      # the caches on whose CPUs it runs; without it, all
//! mpki = [40.0, 22.0, 9.5]      # misses per thousand instructions with 0, 1, 2 … ways, where they are known
//! private_mpki = [30.0, 18.0]   # of its own pages alone
//! shared_mpki = [10.0, 6.0]     # of its shared pages, by the ways of a region
//! base_cycles = 500.0           # cycles per thousand instructions without a miss
//! miss_cycles = 180.0           # cycles that each miss adds
//!
//! [[program]]
//! name = "voice"
//! user = "asterisk"
//! command = "asterisk"          # that user's processes with this name
//! mask = "3"                    # these ways, under every policy
//! exclusive = true              # and in no other group
//! ```
//!
//! Values that depend on the hardware (the number of ways) are checked when it is known, in `arrange`; the line is
//! kept for that.

mod whom;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use linux::{Pid, named_file};
use serde::Deserialize;
use toml::Spanned;
use units::{Bytes, Fraction, WayMask, Ways};

use crate::policy::Policy;
pub use whom::{Like, User, Whom};
use whom::{RawUser, RawWhom};

/// Largest configuration.
const CONFIG_MOST: Bytes = Bytes::mib(16);

/// Parsed configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Name of the file, for messages.
    pub file: String,
    /// Policy.
    pub policy: Policy,
    /// Whether to make partitions.
    pub partition: bool,
    /// Ways of the default group; `None` leaves them to the hardware ([`super::allocatable_ways`]).
    pub rest_ways: Option<Ways>,
    /// Line of `rest_ways`.
    pub rest_line: usize,
    /// Interval of the control loop.
    pub interval: Duration,
    /// Greatest part of one CPU that warming may take.
    pub duty: Fraction,
    /// Limits of the shared partitions.
    pub partitions: PartitionLimits,
    /// Criterion for trust domains, for programs without a label.
    pub domain_by: DomainBy,
    /// Programs, at least one.
    pub programs: Vec<Named>,
}

/// Limits of the shared partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionLimits {
    /// Shared pages get ways of their own; `None` leaves that to the policy.
    pub on: Option<bool>,
    /// Greatest number of ways for each partition; `None` leaves it to the policy.
    pub ways_max: Option<Ways>,
    /// Line of `ways_max`.
    pub line: usize,
}

/// Criterion for trust domains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DomainBy {
    /// Processes of one control group trust each other.
    #[default]
    Cgroup,
    /// Processes of one user trust each other.
    Uid,
}

/// A program of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// Name of its group, after the prefix.
    pub name: String,
    /// Line in the file.
    pub line: usize,
    /// Selection of its processes.
    pub whom: Whom,
    /// Label of its trust domain.
    pub domain: Option<String>,
    /// The caches on whose CPUs it runs; `None` for all.
    pub l3: Option<Vec<u32>>,
    /// Figures measured beforehand.
    pub measured: Option<Measured>,
    /// Fixed ways, under every policy.
    pub fixed: Option<Fixed>,
}

/// Figures of a program measured beforehand, for example by `masu llc simulate` from a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Misses per thousand instructions with 0, 1, 2 … ways.
    pub misses: Vec<f64>,
    /// Misses on private pages only, if measured.
    pub private_misses: Option<Vec<f64>>,
    /// Misses on shared pages, by the ways of a shared partition, if measured.
    pub shared_misses: Option<Vec<f64>>,
    /// Cycles per thousand instructions without a miss.
    pub base_cycles: f64,
    /// Cycles that each miss adds.
    pub miss_cycles: f64,
}

/// Ways assigned by the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Ways, contiguous.
    pub mask: WayMask,
    /// No other group may allocate in them.
    pub exclusive: bool,
}

/// Invalid configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file} line {line}: {what}")]
pub struct BadConfig {
    /// Name of the file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Text found and text expected.
    pub what: String,
}

/// Reason why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum NoConfig {
    /// The file cannot be read.
    #[error("cannot read {file}: {why}")]
    Unread {
        /// Name of the file.
        file: String,
        /// The system's answer.
        why: String,
    },
    /// The file is readable, and something in it is wrong.
    #[error(transparent)]
    Bad(#[from] BadConfig),
}

impl Config {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read, or has an invalid value.
    pub fn read(path: &Path) -> Result<Config, NoConfig> {
        let file = path.display().to_string();
        let text = named_file::read_text(path, CONFIG_MOST)
            .map_err(|error| NoConfig::Unread { file: file.clone(), why: linux::describe_io(&error) })?;
        let mut config = Config::parse(&file, &text)?;
        config.look_up_users(&std::fs::read("/etc/passwd").unwrap_or_default())?;
        Ok(config)
    }

    /// Finds the numbers of the named users, in the content of `/etc/passwd`.
    ///
    /// # Errors
    /// The first unknown user, with its line.
    fn look_up_users(&mut self, passwd: &[u8]) -> Result<(), BadConfig> {
        // A user's full name may be no text.
        let passwd = String::from_utf8_lossy(passwd);
        let users = self.programs.iter_mut().filter_map(|program| match &mut program.whom {
            Whom::Like(like) => like.user.as_mut(),
            Whom::Cgroup(_) | Whom::Pids(_) => None,
        });
        let file = &self.file;
        for user in users {
            if !user.look_up(&passwd) {
                let what =
                    format!("user = \"{}\": not in /etc/passwd: expected its number, as `id -u` says it", user.shown);
                return Err(BadConfig { file: file.clone(), line: user.line, what });
            }
        }
        Ok(())
    }

    /// Parses `text`; `file` is its name.
    ///
    /// # Errors
    /// The first fault, with its line.
    pub fn parse(file: &str, text: &str) -> Result<Config, BadConfig> {
        let place = Place { file, text };
        let raw: RawConfig = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            place.bad(start, crate::unparsed(text, error.span(), error.message()))
        })?;
        raw.checked(&place)
    }

    /// Error about `line`.
    pub fn bad(&self, line: usize, what: impl Into<String>) -> BadConfig {
        BadConfig { file: self.file.clone(), line, what: what.into() }
    }
}

/// Position of a value.
struct Place<'t> {
    file: &'t str,
    text: &'t str,
}

impl Place<'_> {
    fn line(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
    }

    fn bad(&self, offset: usize, what: impl Into<String>) -> BadConfig {
        BadConfig { file: self.file.to_owned(), line: self.line(offset), what: what.into() }
    }

    /// Returns `value` unchanged, if `holds`.
    fn check<T: Clone + fmt::Display>(
        &self,
        name: &str,
        value: &Spanned<T>,
        holds: impl Fn(&T) -> bool,
        expected: &str,
    ) -> Result<T, BadConfig> {
        let found = value.get_ref();
        if holds(found) {
            return Ok(found.clone());
        }
        Err(self.bad(value.span().start, format!("{name} = {found}: expected {expected}")))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    policy: Policy,
    partition: Option<Switch>,
    rest_ways: Option<Spanned<u32>>,
    interval_s: Option<Spanned<f64>>,
    duty_fraction: Option<Spanned<f64>>,
    #[serde(default)]
    domain: DomainBy,
    region: Option<RawLimits>,
    #[serde(default)]
    program: Vec<Spanned<RawProgram>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Switch {
    On,
    Off,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLimits {
    on: Option<bool>,
    ways_max: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProgram {
    name: Spanned<String>,
    cgroup: Option<String>,
    pids: Option<Vec<Spanned<i32>>>,
    executable: Option<Spanned<PathBuf>>,
    user: Option<Spanned<RawUser>>,
    command: Option<Spanned<String>>,
    domain: Option<Spanned<String>>,
    l3: Option<Vec<u32>>,
    mpki: Option<Spanned<Vec<f64>>>,
    private_mpki: Option<Spanned<Vec<f64>>>,
    shared_mpki: Option<Spanned<Vec<f64>>>,
    base_cycles: Option<Spanned<f64>>,
    miss_cycles: Option<Spanned<f64>>,
    mask: Option<Spanned<String>>,
    exclusive: Option<Spanned<bool>>,
}

/// Defaults of the interval and of the part of a CPU for warming.
const INTERVAL_S: f64 = 1.0;
const DUTY: f64 = 0.01;
/// Greatest length: names of groups are names of directories, and appear in messages.
const NAME_MAX: usize = 48;
/// Prefix of the labels of shared partitions, which no program's name has.
pub const SHARED_LABEL: &str = "shared.";

impl RawConfig {
    fn checked(self, place: &Place<'_>) -> Result<Config, BadConfig> {
        let ways_of = |name: &str, ways: Option<&Spanned<u32>>| {
            let checked =
                ways.map(|ways| place.check(name, ways, |ways| (1..64).contains(ways), "1 to 63 ways").map(Ways));
            checked.transpose()
        };
        let interval_s = self.interval_s.as_ref().map_or(Ok(INTERVAL_S), |time| {
            place.check("interval_s", time, |time| (0.05..=3600.0).contains(time), "0.05 to 3600 seconds")
        })?;
        let duty = self.duty_fraction.as_ref().map_or(Ok(DUTY), |duty| {
            let expected = "a part of one CPU above 0 and up to 1, such as 0.01";
            place.check("duty_fraction", duty, |duty| *duty > 0.0 && *duty <= 1.0, expected)
        })?;
        let line = |offset: Option<usize>| offset.map_or(1, |offset| place.line(offset));
        let region = self.region.as_ref();
        let ways_max = region.and_then(|region| region.ways_max.as_ref());
        let partitions = PartitionLimits {
            on: region.and_then(|region| region.on),
            ways_max: ways_of("ways_max", ways_max)?,
            line: line(ways_max.map(|ways| ways.span().start)),
        };
        let programs: Vec<Named> =
            self.program.into_iter().map(|program| program_of(program, place)).collect::<Result<_, _>>()?;
        if programs.is_empty() {
            return Err(place.bad(place.text.len(), "no [[program]]: expected at least one"));
        }
        let config = Config {
            file: place.file.to_owned(),
            policy: self.policy,
            partition: self.partition != Some(Switch::Off),
            rest_ways: ways_of("rest_ways", self.rest_ways.as_ref())?,
            rest_line: line(self.rest_ways.as_ref().map(|ways| ways.span().start)),
            interval: Duration::from_secs_f64(interval_s),
            duty: Fraction::clamped(duty),
            partitions,
            domain_by: self.domain,
            programs,
        };
        config.is_consistent()?;
        Ok(config)
    }
}

impl Config {
    /// Checks the programs against each other.
    fn is_consistent(&self) -> Result<(), BadConfig> {
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        let mut pids: BTreeMap<Pid, &str> = BTreeMap::new();
        for (nth, program) in self.programs.iter().enumerate() {
            if let Some(line) = names.insert(&program.name, program.line) {
                let what = format!("name = \"{}\" stands in line {line} already: expected another", program.name);
                return Err(self.bad(program.line, what));
            }
            if let Whom::Pids(own) = &program.whom {
                for pid in own {
                    if let Some(other) = pids.insert(*pid, &program.name) {
                        let what = format!("process {pid} is {other}'s already: expected each in one program");
                        return Err(self.bad(program.line, what));
                    }
                }
            }
            let twin = self.programs[..nth]
                .iter()
                .find(|other| other.whom == program.whom && matches!(program.whom, Whom::Cgroup(_) | Whom::Like(_)));
            if let Some(twin) = twin {
                let what = format!("{} is {}'s already: expected each in one program", program.whom, twin.name);
                return Err(self.bad(program.line, what));
            }
            for other in &self.programs[..nth] {
                let (Some(a), Some(b)) = (other.fixed, program.fixed) else { continue };
                if (a.exclusive || b.exclusive) && a.mask.overlaps(b.mask) {
                    let what = format!(
                        "mask {} of {} overlaps mask {} of {}: expected none where one is exclusive",
                        b.mask, program.name, a.mask, other.name
                    );
                    return Err(self.bad(program.line, what));
                }
            }
        }
        Ok(())
    }
}

fn program_of(program: Spanned<RawProgram>, place: &Place<'_>) -> Result<Named, BadConfig> {
    let start = program.span().start;
    let raw = program.into_inner();
    let fits = |name: &String| {
        (1..=NAME_MAX).contains(&name.len())
            && !name.starts_with(SHARED_LABEL)
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    let expected =
        "1 to 48 letters, digits, dashes, dots or underlines, and not shared. in front: its group is called so";
    let name = place.check("name", &raw.name, fits, expected)?;
    let line = place.line(raw.name.span().start);
    let fixed = fixed_of(&raw, place)?;
    let measured = measured_of(&raw, place)?;
    let domain = raw.domain.as_ref().map(|domain| domain.span().start);
    let keys = RawWhom {
        cgroup: raw.cgroup,
        pids: raw.pids,
        executable: raw.executable,
        user: raw.user,
        command: raw.command,
    };
    let whom = keys.checked(&name, start, domain, place)?;
    let domain = raw.domain.map(Spanned::into_inner);
    Ok(Named { name, line, whom, domain, l3: raw.l3, measured, fixed })
}

fn fixed_of(raw: &RawProgram, place: &Place<'_>) -> Result<Option<Fixed>, BadConfig> {
    let exclusive = raw.exclusive.as_ref();
    let Some(text) = &raw.mask else {
        return match exclusive {
            Some(exclusive) => {
                Err(place.bad(exclusive.span().start, "exclusive without a mask: expected mask = \"f0\""))
            }
            None => Ok(None),
        };
    };
    let mask: WayMask =
        text.get_ref().parse().map_err(|error| place.bad(text.span().start, format!("mask = {error}")))?;
    if mask.is_empty() || !mask.is_contiguous() {
        let what = format!("mask = {mask}: expected at least one way, and ways in a row");
        return Err(place.bad(text.span().start, what));
    }
    Ok(Some(Fixed { mask, exclusive: exclusive.is_some_and(|exclusive| *exclusive.get_ref()) }))
}

fn measured_of(raw: &RawProgram, place: &Place<'_>) -> Result<Option<Measured>, BadConfig> {
    let curve = |name: &str, values: &Spanned<Vec<f64>>| {
        let good = !values.get_ref().is_empty() && values.get_ref().iter().all(|value| (0.0..1e6).contains(value));
        let expected = "misses per thousand instructions with 0, 1, 2 … ways, none below 0";
        let shown = || values.get_ref().iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
        if good {
            return Ok(values.get_ref().clone());
        }
        Err(place.bad(values.span().start, format!("{name} = [{}]: expected {expected}", shown())))
    };
    let cycles = |name: &str, value: &Option<Spanned<f64>>, why: &Spanned<Vec<f64>>| match value {
        None => Err(place.bad(why.span().start, format!("mpki without {name}: expected both"))),
        Some(value) => place.check(name, value, |value| (0.0..1e9).contains(value), "cycles, not below 0"),
    };
    let Some(mpki) = &raw.mpki else {
        let lonely = raw.private_mpki.as_ref().or(raw.shared_mpki.as_ref()).map(|value| value.span().start);
        let lonely = lonely.or(raw.base_cycles.as_ref().or(raw.miss_cycles.as_ref()).map(|value| value.span().start));
        return match lonely {
            None => Ok(None),
            Some(start) => Err(place.bad(start, "what was measured without mpki: expected both")),
        };
    };
    let base_cycles = cycles("base_cycles", &raw.base_cycles, mpki)?;
    if base_cycles <= 0.0 {
        return Err(place.bad(mpki.span().start, "base_cycles = 0: expected cycles above 0"));
    }
    Ok(Some(Measured {
        misses: curve("mpki", mpki)?,
        private_misses: raw.private_mpki.as_ref().map(|values| curve("private_mpki", values)).transpose()?,
        shared_misses: raw.shared_mpki.as_ref().map(|values| curve("shared_mpki", values)).transpose()?,
        base_cycles,
        miss_cycles: cycles("miss_cycles", &raw.miss_cycles, mpki)?,
    }))
}

#[cfg(test)]
mod tests;
