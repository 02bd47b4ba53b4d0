//! Checks of a client's messages, and the verdicts received on its current list.
//!
//! Any process may connect. Malformed requests and impossible ones (verdicts on a list that never existed) close the
//! connection. Late messages (verdicts on an older list) are ignored.
//!
//! Pure: messages come in, decoded requests go out.

use std::collections::BTreeMap;

use contract::track::terms::Terms;
use contract::track::wire::{self, Refused, Request};
use linux::Pid;
use linux::message_socket::Peer;
use units::Window;

use crate::policy::Preference;

/// Decoded request of a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Wanted {
    /// Register with these session parameters.
    Register(Terms),
    /// Unregister.
    Unregister,
    /// Fetch the latest list.
    Fetch,
    /// Number of windows for an arena.
    Arena(u64),
    /// Read the totals.
    Progress,
    /// The complete preferences.
    Decided(BTreeMap<Window, Preference>),
    /// Incomplete: more messages follow.
    More,
    /// To be refused.
    No(Refused),
    /// Malformed: the connection is closed.
    Nonsense,
}

/// A client and its verdicts.
#[derive(Clone, Debug, Default)]
pub struct Session {
    registered: bool,
    given: Option<Given>,
    generation: u64,
}

/// The last list given to it, and the verdicts on it.
#[derive(Clone, Debug)]
struct Given {
    generation: u64,
    windows: Vec<Window>,
    preferences: BTreeMap<Window, Preference>,
}

impl Session {
    /// Decodes a message.
    pub fn understand(&mut self, message: &[u8]) -> Wanted {
        let Ok(request) = Request::read(message) else {
            let other = wire::wants_another_version(message);
            return if other { Wanted::No(Refused::Version) } else { Wanted::Nonsense };
        };
        match request {
            Request::Register(terms) if terms.are_sound() => Wanted::Register(terms),
            Request::Register(_) => Wanted::No(Refused::Terms),
            Request::Verdicts { .. } | Request::Decided { .. } if !self.registered => Wanted::Nonsense,
            _ if !self.registered => Wanted::No(Refused::Unregistered),
            Request::Unregister => Wanted::Unregister,
            Request::Fetch => Wanted::Fetch,
            Request::Arena { windows } => Wanted::Arena(windows),
            Request::Progress => Wanted::Progress,
            Request::Verdicts { generation, first, verdicts } => self.hear(generation, first, verdicts),
            Request::Decided { generation } => self.decided(generation),
        }
    }

    /// Sets whether it is registered.
    pub fn set_registered(&mut self, registered: bool) {
        self.registered = registered;
        self.given = None;
    }

    /// The number of the next list.
    pub fn next_generation(&self) -> u64 {
        self.generation + 1
    }

    /// Records that it was given the next list, with these windows.
    pub fn give(&mut self, windows: Vec<Window>) {
        self.generation += 1;
        self.given = Some(Given { generation: self.generation, windows, preferences: BTreeMap::new() });
    }

    fn hear(&mut self, generation: u64, first: u64, verdicts: &[u8]) -> Wanted {
        use contract::track::list::Verdict;
        if generation == 0 || generation > self.generation {
            return Wanted::Nonsense;
        }
        let Some(given) = self.given.as_mut().filter(|given| given.generation == generation) else {
            return Wanted::More;
        };
        let Some(windows) = usize::try_from(first).ok().and_then(|first| given.windows.get(first..)) else {
            return Wanted::Nonsense;
        };
        if verdicts.len() > windows.len() {
            return Wanted::Nonsense;
        }
        given.preferences.extend(windows.iter().zip(verdicts).map(|(window, verdict)| {
            let wish = if Verdict::of(u32::from(*verdict)) == Verdict::Promote {
                Preference::Promote
            } else {
                Preference::Leave
            };
            (*window, wish)
        }));
        Wanted::More
    }

    fn decided(&mut self, generation: u64) -> Wanted {
        if generation == 0 || generation > self.generation {
            return Wanted::Nonsense;
        }
        match self.given.take_if(|given| given.generation == generation) {
            Some(given) => Wanted::Decided(given.preferences),
            None => Wanted::More,
        }
    }
}

/// Process that `peer` may have watched.
///
/// # Errors
/// Reason for the refusal.
///
/// Only root may name another process than its own; opening that process checks whether the kernel allows its
/// inspection.
pub fn may_register(peer: Peer, terms: Terms, has_room: bool) -> Result<Pid, Refused> {
    let own = peer.pid.ok_or(Refused::NoProcess)?;
    let pid = if terms.pid == 0 { own } else { Pid(terms.pid) };
    if pid != own && peer.user != 0 {
        return Err(Refused::NotYours);
    }
    if has_room { Ok(pid) } else { Err(Refused::TooMany) }
}

#[cfg(test)]
mod tests {
    use contract::track::terms::USUAL;
    use contract::track::wire::MOST_BYTES;
    use proptest::prelude::*;

    use super::*;

    fn said(session: &mut Session, request: &Request<'_>) -> Wanted {
        let mut space = [0; MOST_BYTES];
        let bytes = request.write(&mut space);
        session.understand(&space[..bytes])
    }

    fn registered() -> Session {
        let mut session = Session::default();
        session.set_registered(true);
        session
    }

    #[test]
    fn verdicts_come_in_parts_and_hold_when_all_are_there() {
        let mut session = registered();
        session.give(vec![Window(5), Window(7), Window(9)]);
        let verdicts = |first, verdicts| Request::Verdicts { generation: 1, first, verdicts };
        assert_eq!(said(&mut session, &verdicts(0, &[2])), Wanted::More);
        assert_eq!(said(&mut session, &verdicts(2, &[1])), Wanted::More);
        let preferences = BTreeMap::from([(Window(5), Preference::Promote), (Window(9), Preference::Leave)]);
        assert_eq!(said(&mut session, &Request::Decided { generation: 1 }), Wanted::Decided(preferences));
        assert_eq!(said(&mut session, &Request::Decided { generation: 1 }), Wanted::More, "once");
    }

    #[test]
    fn what_comes_late_is_passed_over_and_what_never_was_is_nonsense() {
        let mut session = registered();
        session.give(vec![Window(5)]);
        session.give(vec![Window(6)]);
        let verdicts = |generation, first, verdicts| Request::Verdicts { generation, first, verdicts };
        assert_eq!(said(&mut session, &verdicts(1, 0, &[2])), Wanted::More);
        assert_eq!(said(&mut session, &verdicts(3, 0, &[2])), Wanted::Nonsense);
        assert_eq!(said(&mut session, &verdicts(2, 0, &[2, 2])), Wanted::Nonsense);
        assert_eq!(said(&mut session, &verdicts(2, u64::MAX, &[2])), Wanted::Nonsense);
        assert_eq!(said(&mut session, &Request::Decided { generation: 0 }), Wanted::Nonsense);
        assert_eq!(said(&mut session, &Request::Decided { generation: 2 }), Wanted::Decided(BTreeMap::new()));
    }

    #[test]
    fn who_is_not_registered_is_told_so() {
        let mut session = Session::default();
        assert_eq!(said(&mut session, &Request::Fetch), Wanted::No(Refused::Unregistered));
        assert_eq!(said(&mut session, &Request::Decided { generation: 1 }), Wanted::Nonsense);
        assert_eq!(said(&mut session, &Request::Register(USUAL)), Wanted::Register(USUAL));
        let bad = Request::Register(Terms { period_ms: 1, ..USUAL });
        assert_eq!(said(&mut session, &bad), Wanted::No(Refused::Terms));
        assert_eq!(session.understand(b"GET / HTTP/1.1\r\n"), Wanted::Nonsense);
        assert_eq!(session.understand(b""), Wanted::Nonsense);
    }

    #[test]
    fn a_program_registers_itself_and_root_others() {
        let peer = |user| Peer { pid: Some(Pid(42)), user, group: user };
        assert_eq!(may_register(peer(1000), USUAL, true), Ok(Pid(42)));
        assert_eq!(may_register(peer(1000), Terms { pid: 42, ..USUAL }, true), Ok(Pid(42)));
        assert_eq!(may_register(peer(1000), Terms { pid: 43, ..USUAL }, true), Err(Refused::NotYours));
        assert_eq!(may_register(peer(0), Terms { pid: 43, ..USUAL }, true), Ok(Pid(43)));
        assert_eq!(may_register(peer(1000), USUAL, false), Err(Refused::TooMany));
        assert_eq!(may_register(Peer { pid: None, ..peer(0) }, USUAL, true), Err(Refused::NoProcess));
    }

    proptest! {
        #[test]
        fn no_messages_make_it_panic_or_name_a_window_that_was_not_given(
            messages in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..64),
                    (0u64..4, 0u64..6, prop::collection::vec(0u8..4, 0..6)).prop_map(|(generation, first, verdicts)| {
                        let mut space = [0; MOST_BYTES];
                        let bytes = Request::Verdicts { generation, first, verdicts: &verdicts }.write(&mut space);
                        space[..bytes].to_vec()
                    }),
                    (0u64..4).prop_map(|generation| {
                        let mut space = [0; MOST_BYTES];
                        let bytes = Request::Decided { generation }.write(&mut space);
                        space[..bytes].to_vec()
                    }),
                ],
                0..40,
            )
        ) {
            let mut session = registered();
            for (number, message) in messages.iter().enumerate() {
                if number % 7 == 0 {
                    session.give(vec![Window(1), Window(2), Window(3)]);
                }
                if let Wanted::Decided(preferences) = session.understand(message) {
                    prop_assert!(preferences.keys().all(|window| (1..=3).contains(&window.0)));
                }
            }
        }
    }
}
