//! Programs of a few messages: they carry out the handshake, and then they end.

use farmem_engine::backend::Backend;
use farmem_engine::handshake::{Go, Identity, LEFT_OUT, Limits, REFUSED, REJECTED, Ready, Step};

use super::*;
use crate::store::{Error, Span};

/// Time limit of each expected event.
const PROMPTLY: Duration = Duration::from_secs(10);

/// Store that keeps nothing, and records the released layers.
#[derive(Default)]
struct Noting(Mutex<Vec<u32>>);

impl Store for Noting {
    fn name(&self) -> &'static str {
        "noting"
    }

    fn put(&self, _: &[PutRun<'_>]) -> Result<(), Error> {
        Ok(())
    }

    fn get(&self, _: &mut [GetRun<'_>]) -> Result<(), Error> {
        Ok(())
    }

    fn forget(&self, _: &[Span]) -> Result<(), Error> {
        Ok(())
    }

    fn forget_layer(&self, layer: u32) -> Result<(), Error> {
        locked(&self.0).push(layer);
        Ok(())
    }

    fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}

impl Noting {
    /// Whether these layers come, each once. Each program has a thread: they come in any order.
    fn comes_to(&self, layers: &[u32]) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < PROMPTLY {
            let mut come = locked(&self.0).clone();
            come.sort_unstable();
            if come == layers {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

const PARAMETERS: SessionParameters = SessionParameters {
    budget_frames: 256,
    budget_share: 0,
    most_pages: 1 << 12,
    unit_pages: 0,
    base_pages: 1,
    least_bytes: 1 << 16,
    sections: Sections::Auto,
    background: true,
    has_file: false,
    segment: None,
    backend: None,
};

fn server() -> (Server, Arc<Noting>) {
    let store = Arc::new(Noting::default());
    (Server::begin(PARAMETERS, Arc::<Noting>::clone(&store), None, |_, _| {}, Arc::new(|_| {}), false).unwrap(), store)
}

/// Sends the first message and receives the session parameters.
fn connected(server: &Server) -> Connection {
    identified(server, Connection::to(&server.name).unwrap())
}

fn identity(secret: u64) -> Identity {
    Identity { process: std::process::id(), secret, limits: Limits::NONE, left_out: None }
}

fn identified(server: &Server, connection: Connection) -> Connection {
    let identity = identity(server.common.secret.library);
    connection.send(&bytes_of(&identity.message()), &[]).unwrap();
    assert_eq!(SessionParameters::of(&heard(&connection)), Some((PARAMETERS, server.common.secret.masu)));
    connection
}

fn heard(connection: &Connection) -> Message {
    let mut bytes = [0; size_of::<Message>()];
    connection.receive(&mut bytes, PROMPTLY).unwrap().unwrap();
    message_of(&bytes)
}

/// The same, then begins.
fn begun(server: &Server) -> Connection {
    let connection = connected(server);
    connection.send(&bytes_of(&Ready { begun: Ok(Backend::Copy) }.message()), &[]).unwrap();
    assert!(Go::of(&heard(&connection)).is_some());
    connection
}

#[test]
fn a_layer_is_given_back_when_its_program_has_ended_and_not_before() {
    let (server, store) = server();
    let first = begun(&server);
    let second = begun(&server);
    drop(second);
    assert!(store.comes_to(&[1]), "{:?}", store.0);
    drop(begun(&server));
    assert!(store.comes_to(&[1, 2]), "{:?}", store.0);
    // A program that outlives masu may go on with its file.
    let seen = server.end();
    drop(first);
    assert_eq!((seen.counted.len(), seen.trouble), (3, Vec::new()));
    assert_eq!(*locked(&store.0), [1, 2]);
}

#[test]
fn the_first_program_that_cannot_begin_is_refused_and_leaves_no_layer_and_its_reason() {
    let (server, store) = server();
    let connection = connected(&server);
    let errno = Errno::NOMEM.raw_os_error().unsigned_abs();
    let failed = bytes_of(&Ready { begun: Err((Step::Memory, errno)) }.message());
    connection.send(&failed, &[]).unwrap();
    assert_eq!(heard(&connection), REFUSED);
    assert!(store.comes_to(&[0]), "{:?}", store.0);
    let other = connected(&server);
    other.send(&failed, &[]).unwrap();
    assert_eq!(heard(&other), LEFT_OUT, "another program runs unserved");
    let seen = server.end();
    let Some(First::NotBegun(not_begun)) = &seen.first else { panic!("{seen:?}") };
    let (words, remedy) = not_begun.reason_and_remedy();
    assert_eq!(words, "there is no memory for its tables: cannot allocate memory (ENOMEM)");
    assert!(remedy.contains("ulimit -v"), "{remedy}");
    assert_eq!((seen.left_out[&LeftOut::NotBegun], seen.not_begun.len()), (1, 1));
}

#[test]
fn what_refuses_the_first_program_leaves_the_others_out_and_is_counted() {
    let (server, store) = server();
    let told = |reason| {
        let connection = Connection::to(&server.name).unwrap();
        let identity = Identity { left_out: Some(reason), ..identity(server.common.secret.library) };
        connection.send(&bytes_of(&identity.message()), &[]).unwrap();
        heard(&connection)
    };
    assert_eq!(told(LeftOut::Sanitizer), REFUSED);
    assert_eq!([LeftOut::Go, LeftOut::Sanitizer, LeftOut::Go].map(told), [LEFT_OUT; 3]);
    // Later a served program becomes one that loads no library.
    let served = begun(&server);
    served.send(&bytes_of(&Aside { reason: LeftOut::Static }.message()), &[]).unwrap();
    drop(served);
    assert!(store.comes_to(&[0, 1, 2, 3, 4]), "{:?}", store.0);
    let seen = server.end();
    assert_eq!(seen.first, Some(First::Refused(LeftOut::Sanitizer)));
    let counted = [(LeftOut::Static, 1), (LeftOut::Go, 2), (LeftOut::Sanitizer, 1)];
    assert_eq!(seen.left_out, BTreeMap::from(counted));
    assert_eq!(seen.counted.len(), 1);
}

#[test]
fn a_program_within_a_small_limit_of_memory_runs_and_one_within_a_limit_of_files_gets_no_file() {
    let (server, _) = server();
    let with = |limits| {
        let connection = Connection::to(&server.name).unwrap();
        let identity = Identity { limits, ..identity(server.common.secret.library) };
        connection.send(&bytes_of(&identity.message()), &[]).unwrap();
        heard(&connection)
    };
    assert_eq!(with(Limits { address_space: 100 << 20, ..Limits::NONE }), LEFT_OUT);
    let parameters = SessionParameters::of(&with(Limits { file_size: 4096, ..Limits::NONE }));
    assert_eq!(parameters.map(|(parameters, _)| parameters.has_file), Some(false));
    assert_eq!(server.end().first, Some(First::LeftOut(LeftOut::AddressSpace)), "it may be the first");
}

#[test]
fn a_peer_without_the_secret_is_rejected_and_another_user_cannot_send_it() {
    let (server, store) = server();
    let rejected = Connection::to(&server.name).unwrap();
    let identity = identity(server.common.secret.library ^ 1);
    rejected.send(&bytes_of(&identity.message()), &[]).unwrap();
    assert_eq!(heard(&rejected), REJECTED);
    drop(begun(&server));
    assert!(store.comes_to(&[0]), "it had no layer: {:?}", store.0);
    let [_, (_, name), (_, path), (_, digits)] = server.variables();
    let secret = Secret::of(digits.unwrap().as_bytes()).unwrap();
    assert_eq!((name, &path, secret), (Some(server.name.clone()), &server.path, server.common.secret));
    assert!(secret.library != secret.masu && secret != new_secret().unwrap());
}

#[test]
fn only_root_serves_other_users() {
    use super::unproven::is_served;
    assert!(is_served(1000, 1000) && is_served(0, 0) && is_served(1000, 0));
    assert!(!is_served(1001, 1000) && !is_served(0, 1000));
}

#[test]
fn the_same_trouble_of_many_programs_is_said_once() {
    let mut served = Served::default();
    let said = ["full", "lost", "full"].map(|trouble| served.say(trouble.to_owned()));
    assert_eq!((said, served.trouble), ([true, true, false], vec!["full".to_owned(), "lost".to_owned()]));
}

#[test]
fn a_program_that_is_stopped_at_its_start_is_waited_for_and_does_not_hold_up_the_end() {
    let server =
        Server::begin(PARAMETERS, Arc::new(Noting::default()), None, |_, _| {}, Arc::new(|_| {}), false).unwrap();
    let silent = Connection::to(&server.name).unwrap();
    std::thread::sleep(LOOK * 3);
    assert!(!silent.is_over(), "it may go on");
    let begun = Instant::now();
    server.end();
    assert!(begun.elapsed() < PROMPTLY);
}

#[test]
fn a_crowd_that_says_nothing_costs_no_thread_and_no_program_its_turn() {
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks.filter(|task| std::fs::read(task.path().join("comm")).is_ok_and(|name| name == b"masu-serve\n")).count()
    };
    let (server, _) = server();
    let before = threads();
    let mut crowd = Vec::new();
    for round in 0..4 {
        for _ in 0..150 {
            crowd.push(Connection::to(&server.name).unwrap());
        }
        // By both sockets.
        let by_path = server.path.as_ref().filter(|_| round % 2 == 0);
        let connection = match by_path {
            Some(path) => Connection::at(path.as_ref()),
            None => Connection::to(&server.name),
        };
        drop(identified(&server, connection.unwrap()));
    }
    assert!(threads() <= before + 4 + 2, "other tests have some");
    // The oldest was dropped: each of them was this user's.
    let comes = |what: &str, holds: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < PROMPTLY, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    comes("who is too many is told so", &|| crowd.iter().filter(|one| one.is_over()).count() >= 600 - 256);
    assert!(crowd.iter().rev().take(100).all(|one| !one.is_over()));
}

#[test]
fn a_program_that_masu_has_no_descriptor_for_gets_its_answer_whatever_it_has_sent() {
    let mut entrance = Entrance::open(1, |name| std::env::var_os(name)).unwrap();
    let path = entrance.path().expect("a folder takes a socket").to_owned();
    assert!(!entrance.leave_one_out(), "nobody waits");
    for has_sent in [false, true] {
        let connection = Connection::at(std::path::Path::new(&path)).unwrap();
        if has_sent {
            connection.send(&bytes_of(&identity(1).message()), &[]).unwrap();
        }
        assert!(entrance.leave_one_out());
        assert_eq!(heard(&connection), LEFT_OUT);
    }
}
