//! Trust domains, and frames shared across them.
//!
//! A sharer of a page can observe the other sharers: writes, by the duration of a write of its own (CVE-2015-2877), and
//! reads, by flushing the page and timing the next load (Flush+Reload, Yarom and Falkner, USENIX Security 2014). A shared
//! partition that is kept warm would sharpen such an attack, so none is made across domains.

use std::collections::BTreeMap;
use std::fmt;

use linux::{Pid, Untrusted};
use serde::{Deserialize, Serialize};

/// Criterion for trust domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Processes of one control group trust each other.
    Cgroup,
    /// Processes of one user trust each other.
    Uid,
}

impl By {
    /// The domain of a process in this group, with these real, effective, saved and file-system users. A process that
    /// runs a program with the rights of another user (setuid) is in the domain of neither user.
    pub fn domain(self, group: &Untrusted, users: [u32; 4]) -> Domain {
        let [real, effective, saved, files] = users;
        match self {
            By::Cgroup => Domain(group.clone()),
            By::Uid if users == [real; 4] => Domain(format!("uid {real}").into()),
            By::Uid => Domain(format!("uid {real}/{effective}/{saved}/{files}").into()),
        }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            By::Cgroup => "control groups",
            By::Uid => "users",
        })
    }
}

/// Trust domain, named by the control group, the user, or a label of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Domain(pub Untrusted);

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A process as the other sharers see it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Member {
    /// Name from `/proc/PID/status`.
    pub name: Untrusted,
    /// Effective user.
    pub uid: u32,
    /// Control group from `/proc/PID/cgroup`; empty on hosts without control groups.
    pub group: Untrusted,
    /// Domain that the process trusts.
    pub domain: Domain,
}

/// The domains of these processes, each once, by name.
pub fn domains_of(processes: impl IntoIterator<Item = Pid>, members: &BTreeMap<Pid, Member>) -> Vec<&Domain> {
    let mut domains: Vec<&Domain> =
        processes.into_iter().filter_map(|pid| members.get(&pid)).map(|member| &member.domain).collect();
    domains.sort_unstable();
    domains.dedup();
    domains
}

/// Whether these sharers do not all trust each other. An unknown process trusts no other.
pub fn crosses(processes: &[Pid], members: &BTreeMap<Pid, Member>) -> bool {
    let mut domains = processes.iter().map(|pid| members.get(pid).map(|member| &member.domain));
    let Some(first) = domains.next() else { return false };
    domains.any(|domain| domain.is_none() || domain != first)
}

/// Processes with their domains, for tests.
#[cfg(test)]
pub(crate) fn members_of(of: &[(i32, &str)]) -> BTreeMap<Pid, Member> {
    let member =
        |domain: &str| Member { name: "qemu".into(), uid: 0, group: domain.into(), domain: Domain(domain.into()) };
    of.iter().map(|(pid, domain)| (Pid(*pid), member(domain))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_a_group_or_a_user() {
        assert_eq!(By::Cgroup.domain(&"/vm/a".into(), [7; 4]), Domain("/vm/a".into()));
        assert_eq!(By::Uid.domain(&"/vm/a".into(), [7; 4]), Domain("uid 7".into()));
        let setuid = By::Uid.domain(&"/vm/a".into(), [7, 0, 0, 0]);
        assert_eq!(setuid, Domain("uid 7/0/0/0".into()), "a setuid program is not root's");
        let of = |group: &[u8]| By::Cgroup.domain(&Untrusted::new(group), [7; 4]);
        assert_ne!(of(b"/vm/\xff"), of(b"/vm/\xfe"), "names that no text can tell apart are two groups");
    }

    #[test]
    fn those_of_one_domain_may_share_and_those_of_two_or_of_none_known_may_not() {
        let members = members_of(&[(1, "a"), (2, "a"), (3, "b")]);
        assert!(!crosses(&[], &members) && !crosses(&[Pid(1)], &members) && !crosses(&[Pid(1), Pid(2)], &members));
        assert!(crosses(&[Pid(1), Pid(2), Pid(3)], &members));
        assert!(crosses(&[Pid(1), Pid(9)], &members) && crosses(&[Pid(8), Pid(9)], &members));
        // A single process crosses nothing, even an unknown one.
        assert!(!crosses(&[Pid(9)], &members));
        let names: Vec<String> =
            domains_of([Pid(3), Pid(1), Pid(2)], &members).into_iter().map(ToString::to_string).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
