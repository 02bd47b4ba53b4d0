//! Admission of connections and programs, where clients may ask for more than there is.
//!
//! Connections and programs are bounded in all, below the limit on descriptors, and for each account. An account is a
//! user; subordinate users (subuid(5)) and user namespaces count as the owner's. A part of the total bound is kept
//! for root with CAP_SYS_PTRACE. A connection that is not registered yet may be closed for a new one: the oldest one
//! of the account with most connections, as long as that has more than the account of the new one. So an account with many
//! connections yields to one with none, and a registered program is never closed.
//!
//! Processor time: each account has its part of one processor, and all together have that of [`ACCOUNTS_AT_ONCE`].
//!
//! No I/O, no clock, no randomness.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use units::NonZeroFraction;
use units::cast::index;

/// Account that a connection counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Account {
    /// Root, with the capability to inspect every process: it could do everything that the tracker does.
    Privileged,
    /// A user, including root without that capability.
    User(u32),
}

/// Upper bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Connections in all.
    pub connections: usize,
    /// Registered programs in all.
    pub programs: usize,
}

/// Divisor: an account may have this part of all connections, and as much is kept for root.
pub const PARTS: usize = 8;

/// Accounts that can use up their part of a processor at a time.
pub const ACCOUNTS_AT_ONCE: usize = 4;

/// Descriptors of the tracker itself.
const OWN_DESCRIPTORS: u64 = 64;
/// Descriptors of a connection: the socket and its process.
const DESCRIPTORS_OF_CONNECTION: u64 = 2;
/// Descriptors of a registered program, beside its connection: its end, its locks, its source.
const DESCRIPTORS_OF_PROGRAM: u64 = 16;

impl Bounds {
    /// Bounds for a limit on descriptors: half of them for connections, half for programs.
    pub fn of_descriptors(limit: u64) -> Bounds {
        let half = limit.saturating_sub(OWN_DESCRIPTORS) / 2;
        let part = |each: u64, most: u64| index((half / each).clamp(1, most));
        Bounds { connections: part(DESCRIPTORS_OF_CONNECTION, 8192), programs: part(DESCRIPTORS_OF_PROGRAM, 4096) }
    }

    /// Connections of one account.
    fn of_account(&self, account: Account) -> usize {
        match account {
            Account::Privileged => self.connections,
            Account::User(_) => (self.connections / PARTS).max(1),
        }
    }

    /// Number of existing ones, of `all`, up to which `account` may get one more.
    fn for_account(all: usize, account: Account) -> usize {
        match account {
            Account::Privileged => all,
            Account::User(_) => all - all / PARTS,
        }
    }

    /// Whether a program of `account` may register, with `registered` programs present.
    pub fn has_room_for_program(&self, account: Account, registered: usize) -> bool {
        registered < Bounds::for_account(self.programs, account)
    }
}

/// Result for a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Admitted.
    Admitted,
    /// Admitted in place of this connection, which is closed.
    InsteadOf(usize),
    /// No space.
    Refused,
}

/// All connections, by account.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    accounts: BTreeMap<Account, AccountConnections>,
    all: usize,
}

#[derive(Clone, Debug, Default)]
struct AccountConnections {
    all: usize,
    /// Unregistered connections: time of connecting, and key.
    waiting: BTreeSet<(Duration, usize)>,
}

impl Connections {
    /// Adds a connection; `waiting` is the time since which it is not registered.
    pub fn add(&mut self, account: Account, key: usize, waiting: Option<Duration>) {
        let of_account = self.accounts.entry(account).or_default();
        of_account.all += 1;
        of_account.waiting.extend(waiting.map(|since| (since, key)));
        self.all += 1;
    }

    /// Whether a connection of `account` may be added. A connection closed for it is removed here.
    pub fn admit(&mut self, account: Account, bounds: &Bounds) -> Verdict {
        let own = self.accounts.get(&account).map_or(0, |of_account| of_account.all);
        if own >= bounds.of_account(account) {
            return self.close_oldest(account);
        }
        if self.all < Bounds::for_account(bounds.connections, account) {
            return Verdict::Admitted;
        }
        let may_lose = |(other, of_other): &(&Account, &AccountConnections)| {
            !of_other.waiting.is_empty() && **other != Account::Privileged && **other != account
        };
        let most = self.accounts.iter().filter(may_lose).max_by_key(|(_, of_other)| of_other.all);
        match most {
            Some((other, of_other)) if account == Account::Privileged || of_other.all > own + 1 => {
                self.close_oldest(*other)
            }
            _ => self.close_oldest(account),
        }
    }

    fn close_oldest(&mut self, account: Account) -> Verdict {
        let Some(of_account) = self.accounts.get_mut(&account) else { return Verdict::Refused };
        let Some((_, key)) = of_account.waiting.pop_first() else { return Verdict::Refused };
        of_account.all -= 1;
        self.all -= 1;
        Verdict::InsteadOf(key)
    }
}

/// Part of a processor for each of `accounts` accounts.
pub fn part_of_account(of_one: NonZeroFraction, accounts: usize) -> NonZeroFraction {
    let part = ACCOUNTS_AT_ONCE as f64 / accounts.max(ACCOUNTS_AT_ONCE) as f64;
    NonZeroFraction::new(of_one.get() * part).unwrap_or(of_one)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds { connections: 64, programs: 16 };

    fn seconds(number: usize) -> Duration {
        Duration::from_secs(number as u64)
    }

    #[test]
    fn bounds_stay_below_the_limit_on_descriptors() {
        assert_eq!(Bounds::of_descriptors(1024), Bounds { connections: 240, programs: 30 });
        assert_eq!(Bounds::of_descriptors(20_000), Bounds { connections: 4984, programs: 623 });
        assert_eq!(Bounds::of_descriptors(1 << 30), Bounds { connections: 8192, programs: 4096 });
        assert_eq!(Bounds::of_descriptors(0), Bounds { connections: 1, programs: 1 });
    }

    #[test]
    fn at_its_bound_an_account_replaces_its_own_connections_only() {
        let mut connections = Connections::default();
        (0..8).for_each(|key| connections.add(Account::User(7), key, (key != 0).then(|| seconds(key))));
        assert_eq!(connections.admit(Account::User(7), &BOUNDS), Verdict::InsteadOf(1), "0 is registered");
        assert_eq!(connections.admit(Account::User(8), &BOUNDS), Verdict::Admitted);
    }

    #[test]
    fn eight_users_at_the_bound_yield_to_a_ninth_and_to_root() {
        let mut connections = Connections::default();
        let fill = (0..1000).filter(|key| {
            let account = Account::User(key % 8);
            let verdict = connections.admit(account, &BOUNDS);
            if verdict != Verdict::Refused {
                connections.add(account, *key as usize, Some(seconds(*key as usize)));
            }
            verdict == Verdict::Admitted
        });
        assert_eq!(fill.count(), 56, "an eighth is kept for root");
        assert!(matches!(connections.admit(Account::User(9), &BOUNDS), Verdict::InsteadOf(_)));
        connections.add(Account::User(9), 2000, Some(seconds(2000)));
        for key in 0..8 {
            assert_eq!(connections.admit(Account::Privileged, &BOUNDS), Verdict::Admitted);
            connections.add(Account::Privileged, 3000 + key, None);
        }
        assert!(matches!(connections.admit(Account::Privileged, &BOUNDS), Verdict::InsteadOf(_)));
    }

    #[test]
    fn many_accounts_share_what_four_may_take() {
        let tenth = NonZeroFraction::new(0.1).unwrap();
        assert_eq!(part_of_account(tenth, 0), tenth);
        assert_eq!(part_of_account(tenth, 4), tenth);
        assert!((part_of_account(tenth, 1000).get() * 1000.0 - 0.4).abs() < 1e-9);
    }

    #[test]
    fn programs_leave_room_for_those_of_root() {
        assert!(BOUNDS.has_room_for_program(Account::User(7), 13));
        assert!(!BOUNDS.has_room_for_program(Account::User(7), 14));
        assert!(BOUNDS.has_room_for_program(Account::Privileged, 15));
        assert!(!BOUNDS.has_room_for_program(Account::Privileged, 16));
    }

    fn any_account() -> impl Strategy<Value = Account> {
        prop_oneof![1 => Just(Account::Privileged), 12 => (0u32..12).prop_map(Account::User)]
    }

    proptest! {
        #[test]
        fn no_bound_is_passed_no_registered_program_is_closed_and_an_account_without_connections_gets_one(
            most in 8usize..80,
            comes in prop::collection::vec((any_account(), any::<bool>()), 0..300),
        ) {
            let bounds = Bounds { connections: most, programs: 1 };
            let mut connections = Connections::default();
            let mut present: BTreeMap<usize, (Account, bool)> = BTreeMap::new();
            for (key, (account, registers)) in comes.into_iter().enumerate() {
                let of = |present: &BTreeMap<usize, (Account, bool)>, account| {
                    present.values().filter(|(of, _)| *of == account).count()
                };
                let has_nothing = of(&present, account) == 0;
                let can_lose = present.values().any(|(of_other, registered)| {
                    !registered && *of_other != Account::Privileged && of(&present, *of_other) > 1
                });
                let verdict = connections.admit(account, &bounds);
                if has_nothing && can_lose {
                    prop_assert_ne!(verdict, Verdict::Refused);
                }
                match verdict {
                    Verdict::Refused => continue,
                    Verdict::Admitted => {}
                    Verdict::InsteadOf(loser) => {
                        let (of_loser, was_registered) = present.remove(&loser).unwrap();
                        prop_assert!(!was_registered);
                        prop_assert!(of_loser == account || of_loser != Account::Privileged);
                    }
                }
                present.insert(key, (account, registers));
                connections.add(account, key, (!registers).then(|| seconds(key)));
                prop_assert!(present.len() <= most);
                prop_assert!(account == Account::Privileged || of(&present, account) <= (most / PARTS).max(1));
                let unprivileged = present.values().filter(|(of, _)| *of != Account::Privileged).count();
                prop_assert!(unprivileged <= most - most / PARTS);
            }
        }
    }
}
