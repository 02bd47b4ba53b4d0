//! Stores that fail in the middle of a call, wrapped in `Patient` as in masu.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farmem::store::retry::{Patience, Patient};
use farmem::store::{Error, PutRun, Store};
use units::spread::Random;

use super::proxy::{Fate, Gate, Proxy};
use super::servers::Server;
use super::{Said, conformance, contents, get, location, open, put};

fn patient(store: Arc<dyn Store>, limit: Option<Duration>) -> (Patient, Said) {
    let said = Said::default();
    let patience = Patience { limit, quiet: Duration::from_millis(200), ..Patience::USUAL };
    (Patient::new(store, patience, said.say()), said)
}

#[test]
fn connections_that_are_cut_anywhere_change_no_byte() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::start(server.port, |_| Fate::default());
    let (store, _) = open(&format!("{}?timeout=2s", proxy.url())).unwrap();
    let mut random = Random::seeded(77);
    proxy.choose(move |_| {
        let after = Some(usize::try_from(random.number() % 150_000).unwrap());
        if random.number().is_multiple_of(2) {
            Fate { cut_up: after, ..Fate::default() }
        } else {
            Fate { cut_down: after, ..Fate::default() }
        }
    });
    let (store, _) = patient(store, Some(Duration::from_secs(20)));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || conformance::run_against_a_map(store, 3, thread * 100, 100, 120));
        }
    });
    let connections = proxy.count.load(std::sync::atomic::Ordering::SeqCst);
    assert!(connections > 30, "only {connections} connections: hardly anything was cut");
}

#[test]
fn an_answer_that_is_garbled_is_a_failure_or_another_page_and_never_the_end() {
    let Some(server) = Server::start(&[]) else { return };
    let (good, _) = open(&server.url()).unwrap();
    let mut random = Random::seeded(5);
    // Most of an answer is pages, whose checksums are the caller's; most of the rest is in the first bytes.
    let proxy = Proxy::start(server.port, |_| Fate::default());
    let (store, _) = open(&format!("{}?timeout=100ms", proxy.url())).unwrap();
    proxy
        .choose(move |_| Fate { garbled_at: Some(usize::try_from(random.number() % 400).unwrap()), ..Fate::default() });
    let (mut failed, mut answered) = (0, 0);
    for version in 0..150 {
        // Each on a connection of its own.
        server.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
        let result = put(&*store, location(0), version).and_then(|()| get(&*store, location(0)).map(drop));
        match result {
            Ok(()) => answered += 1,
            Err(_) => failed += 1,
        }
    }
    println!("{failed} failed, {answered} answered");
    assert!(failed > 0 && answered > 0, "{failed} failed, {answered} answered");
    put(&*good, location(0), 1).unwrap();
    assert!(get(&*good, location(0)).unwrap() == contents(location(0), 1));
}

#[test]
fn a_server_that_does_not_answer_is_given_up_in_time() {
    let Some(server) = Server::start(&[]) else { return };
    let (store, _) = open(&format!("{}?timeout=150ms", server.url())).unwrap();
    put(&*store, location(0), 1).unwrap();
    server.signal("STOP");
    let begun = Instant::now();
    let silent = get(&*store, location(0)).unwrap_err();
    let took = begun.elapsed();
    server.signal("CONT");
    assert!(silent.is_passing(), "{silent}");
    assert!(silent.to_string().ends_with("no answer in time"), "{silent}");
    assert!((150..1500).contains(&took.as_millis()), "{took:?}");
    assert!(get(&*store, location(0)).unwrap() == contents(location(0), 1));
}

#[test]
fn a_store_that_is_away_for_a_while_is_waited_for_and_said_once() {
    let Some(server) = Server::start(&[]) else { return };
    let (store, _) = open(&format!("{}?timeout=100ms", server.url())).unwrap();
    put(&*store, location(0), 1).unwrap();
    let (store, said) = patient(store, None);
    server.signal("STOP");
    std::thread::scope(|scope| {
        for page in 0..4 {
            let store = &store;
            scope.spawn(move || put(store, location(page), 2).unwrap());
        }
        std::thread::sleep(Duration::from_millis(1200));
        server.signal("CONT");
    });
    (0..4).for_each(|page| assert!(get(&store, location(page)).unwrap() == contents(location(page), 2)));
    let lines = said.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].contains("has not served for 0.") && lines[0].contains("no answer in time; the program waits"),
        "{lines:?}"
    );
    assert!(lines[1].contains("is back after "), "{lines:?}");
}

#[test]
fn patience_ends_after_the_time_limit() {
    let Some(mut server) = Server::start(&[]) else { return };
    let (store, _) = open(&server.url()).unwrap();
    put(&*store, location(0), 1).unwrap();
    let (store, _) = patient(store, Some(Duration::from_millis(500)));
    server.kill();
    let begun = Instant::now();
    let gone = get(&store, location(0)).unwrap_err();
    assert!((500..1500).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    assert!(gone.to_string().contains("(--store-timeout): connection refused"), "{gone}");
    assert!(gone.to_string().contains(store.name()), "{gone}");
}

#[test]
fn a_server_that_was_killed_and_kept_its_data_goes_on_where_it_was() {
    let Some(mut server) = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]) else { return };
    let (store, _) = open(&server.url()).unwrap();
    let (store, said) = patient(store, None);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| conformance::run_against_a_map(&store, 1, 0, 200, 400));
        std::thread::sleep(Duration::from_millis(150));
        server.kill();
        std::thread::sleep(Duration::from_millis(400));
        server.run();
        running.join().unwrap();
    });
    println!("{:?}", said.lines());
}

#[test]
fn a_server_that_was_killed_and_lost_its_data_loses_pages_by_name() {
    let Some(mut server) = Server::start(&[]) else { return };
    let (store, _) = open(&server.url()).unwrap();
    put(&*store, location(3), 1).unwrap();
    let (store, _) = patient(store, None);
    server.kill();
    server.run();
    let lost = get(&store, location(3)).unwrap_err();
    assert!(matches!(lost, Error::Lost(_)), "{lost}");
    assert!(lost.remedy().contains("started again without its data"), "{}", lost.remedy());
    put(&store, location(3), 2).unwrap();
    assert!(get(&store, location(3)).unwrap() == contents(location(3), 2));
}

#[test]
fn what_was_asked_on_a_lost_connection_is_not_carried_out_late() {
    let Some(server) = Server::start(&[]) else { return };
    let gate = Gate::default();
    let proxy = Proxy::start(server.port, |_| Fate::default());
    let (store, said) = open(&format!("{}?timeout=200ms", proxy.url())).unwrap();
    // Ends the good connection; the next one swallows the page and keeps it.
    server.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    let (swallower, first) = (gate.clone(), proxy.count.load(std::sync::atomic::Ordering::SeqCst));
    proxy.choose(move |number| match number == first {
        true => Fate { withheld_after: Some((2000, swallower.clone())), ..Fate::default() },
        false => Fate::default(),
    });
    // The old connection is found closed, the new one is silent; a third call gets through.
    while put(&*store, location(0), 1).is_err() {}
    put(&*store, location(0), 2).unwrap();
    gate.open();
    let begun = Instant::now();
    while proxy.late_bytes.load(std::sync::atomic::Ordering::SeqCst) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "nothing was withheld");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(100));
    assert!(get(&*store, location(0)).unwrap() == contents(location(0), 2), "the late page came through");
    assert!(!said.lines().iter().any(|line| line.contains("carrying out late")), "{:?}", said.lines());
}

#[test]
fn a_server_that_allows_no_fence_is_told_apart() {
    let Some(server) = Server::start(&[]) else { return };
    let commands = ["+@all", "-client|kill"];
    assert_eq!(
        server.ask(&[&["ACL", "SETUSER", "pager", "reset", "on", ">secret", "~masu:*"][..], &commands].concat()),
        "OK"
    );
    let (store, said) = open(&format!("redis://pager:secret@127.0.0.1:{}?timeout=100ms", server.port)).unwrap();
    server.signal("STOP");
    assert!(put(&*store, location(0), 1).unwrap_err().is_passing());
    server.signal("CONT");
    put(&*store, location(0), 2).unwrap();
    assert!(said.lines().iter().any(|line| line.contains("carrying out late")), "{:?}", said.lines());
}

#[test]
fn what_is_left_behind_at_the_end_is_said() {
    let Some(mut server) = Server::start(&[]) else { return };
    let (store, _) = open(&format!("{}?ttl=2h", server.url())).unwrap();
    put(&*store, location(0), 1).unwrap();
    server.kill();
    let left = store.close().unwrap_err();
    assert!(left.to_string().starts_with("cannot delete what is left in redis://"), "{left}");
    assert_eq!(left.remedy(), "It goes away by itself within 2h.");
}

#[test]
fn a_large_batch_waits_no_longer_than_a_small_one() {
    let Some(server) = Server::start(&[]) else { return };
    let (store, _) = open(&format!("{}?timeout=200ms", server.url())).unwrap();
    let bytes = vec![3; 40 << 20];
    server.signal("STOP");
    let begun = Instant::now();
    let silent = store.put(&[PutRun { location: location(0), bytes: &bytes }]).unwrap_err();
    let took = begun.elapsed();
    server.signal("CONT");
    assert!(silent.is_passing(), "{silent}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    store.put(&[PutRun { location: location(0), bytes: &bytes }]).unwrap();
}
