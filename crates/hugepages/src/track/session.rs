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
pub enum ClientRequest {
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
    Incomplete,
    /// To be refused.
    Refuse(Refused),
    /// Malformed: the connection is closed.
    Malformed,
}

/// A client and its verdicts.
#[derive(Clone, Debug, Default)]
pub struct Session {
    registered: bool,
    given: Option<GivenList>,
    generation: u64,
}

/// The last list given to it, and the verdicts on it.
#[derive(Clone, Debug)]
struct GivenList {
    generation: u64,
    windows: Vec<Window>,
    preferences: BTreeMap<Window, Preference>,
}

impl Session {
    /// Decodes a message.
    pub fn decode(&mut self, message: &[u8]) -> ClientRequest {
        let Ok(request) = Request::read(message) else {
            let other = wire::wants_another_version(message);
            return if other { ClientRequest::Refuse(Refused::Version) } else { ClientRequest::Malformed };
        };
        match request {
            Request::Register(terms) if terms.are_sound() => ClientRequest::Register(terms),
            Request::Register(_) => ClientRequest::Refuse(Refused::Terms),
            Request::Verdicts { .. } | Request::Decided { .. } if !self.registered => ClientRequest::Malformed,
            _ if !self.registered => ClientRequest::Refuse(Refused::Unregistered),
            Request::Unregister => ClientRequest::Unregister,
            Request::Fetch => ClientRequest::Fetch,
            Request::Arena { windows } => ClientRequest::Arena(windows),
            Request::Progress => ClientRequest::Progress,
            Request::Verdicts { generation, first, verdicts } => self.add_verdicts(generation, first, verdicts),
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
    pub fn set_list(&mut self, windows: Vec<Window>) {
        self.generation += 1;
        self.given = Some(GivenList { generation: self.generation, windows, preferences: BTreeMap::new() });
    }

    fn add_verdicts(&mut self, generation: u64, first: u64, verdicts: &[u8]) -> ClientRequest {
        use contract::track::list::Verdict;
        if generation == 0 || generation > self.generation {
            return ClientRequest::Malformed;
        }
        let Some(given) = self.given.as_mut().filter(|given| given.generation == generation) else {
            return ClientRequest::Incomplete;
        };
        let Some(windows) = usize::try_from(first).ok().and_then(|first| given.windows.get(first..)) else {
            return ClientRequest::Malformed;
        };
        if verdicts.len() > windows.len() {
            return ClientRequest::Malformed;
        }
        given.preferences.extend(windows.iter().zip(verdicts).map(|(window, verdict)| {
            let wish = if Verdict::of(u32::from(*verdict)) == Verdict::Promote {
                Preference::Promote
            } else {
                Preference::Leave
            };
            (*window, wish)
        }));
        ClientRequest::Incomplete
    }

    fn decided(&mut self, generation: u64) -> ClientRequest {
        if generation == 0 || generation > self.generation {
            return ClientRequest::Malformed;
        }
        match self.given.take_if(|given| given.generation == generation) {
            Some(given) => ClientRequest::Decided(given.preferences),
            None => ClientRequest::Incomplete,
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

    fn decoded(session: &mut Session, request: &Request<'_>) -> ClientRequest {
        let mut space = [0; MOST_BYTES];
        let bytes = request.write(&mut space);
        session.decode(&space[..bytes])
    }

    fn registered() -> Session {
        let mut session = Session::default();
        session.set_registered(true);
        session
    }

    #[test]
    fn verdicts_come_in_parts_and_hold_when_all_are_there() {
        let mut session = registered();
        session.set_list(vec![Window(5), Window(7), Window(9)]);
        let verdicts = |first, verdicts| Request::Verdicts { generation: 1, first, verdicts };
        assert_eq!(decoded(&mut session, &verdicts(0, &[2])), ClientRequest::Incomplete);
        assert_eq!(decoded(&mut session, &verdicts(2, &[1])), ClientRequest::Incomplete);
        let preferences = BTreeMap::from([(Window(5), Preference::Promote), (Window(9), Preference::Leave)]);
        assert_eq!(decoded(&mut session, &Request::Decided { generation: 1 }), ClientRequest::Decided(preferences));
        assert_eq!(decoded(&mut session, &Request::Decided { generation: 1 }), ClientRequest::Incomplete, "once");
    }

    #[test]
    fn what_comes_late_is_passed_over_and_what_never_was_is_nonsense() {
        let mut session = registered();
        session.set_list(vec![Window(5)]);
        session.set_list(vec![Window(6)]);
        let verdicts = |generation, first, verdicts| Request::Verdicts { generation, first, verdicts };
        assert_eq!(decoded(&mut session, &verdicts(1, 0, &[2])), ClientRequest::Incomplete);
        assert_eq!(decoded(&mut session, &verdicts(3, 0, &[2])), ClientRequest::Malformed);
        assert_eq!(decoded(&mut session, &verdicts(2, 0, &[2, 2])), ClientRequest::Malformed);
        assert_eq!(decoded(&mut session, &verdicts(2, u64::MAX, &[2])), ClientRequest::Malformed);
        assert_eq!(decoded(&mut session, &Request::Decided { generation: 0 }), ClientRequest::Malformed);
        assert_eq!(decoded(&mut session, &Request::Decided { generation: 2 }), ClientRequest::Decided(BTreeMap::new()));
    }

    #[test]
    fn a_request_of_an_unregistered_client_is_refused() {
        let mut session = Session::default();
        assert_eq!(decoded(&mut session, &Request::Fetch), ClientRequest::Refuse(Refused::Unregistered));
        assert_eq!(decoded(&mut session, &Request::Decided { generation: 1 }), ClientRequest::Malformed);
        assert_eq!(decoded(&mut session, &Request::Register(USUAL)), ClientRequest::Register(USUAL));
        let bad = Request::Register(Terms { period_ms: 1, ..USUAL });
        assert_eq!(decoded(&mut session, &bad), ClientRequest::Refuse(Refused::Terms));
        assert_eq!(session.decode(b"GET / HTTP/1.1\r\n"), ClientRequest::Malformed);
        assert_eq!(session.decode(b""), ClientRequest::Malformed);
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
                    session.set_list(vec![Window(1), Window(2), Window(3)]);
                }
                if let ClientRequest::Decided(preferences) = session.decode(message) {
                    prop_assert!(preferences.keys().all(|window| (1..=3).contains(&window.0)));
                }
            }
        }
    }
}
