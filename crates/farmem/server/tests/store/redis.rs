//! One Redis server: the conformance tests, and every refusal.

use std::time::{Duration, Instant};

use farmem::store::{Error, GetRun, PAGE_BYTES, PutRun};
use units::Bytes;

use super::proxy::{Fate, Proxy};
use super::servers::{Server, certificate, wait_until};
use super::{conformance, contents, failure, get, location, open, open_expecting, open_with, put, skip};

#[test]
fn one_server_does_all_that_is_demanded_and_is_left_empty() {
    let Some(server) = Server::start(&[]) else { return };
    let (store, said) = open(&server.url()).unwrap();
    conformance::demand_all(&*store);
    let lines = said.lines();
    assert_eq!(lines.len(), 1, "said once: {lines:?}");
    assert!(lines[0].starts_with("one server without replica: what it loses is lost (redis://127.0.0.1:"), "{lines:?}");
    assert!(server.ask(&["DBSIZE"]).parse::<u32>().unwrap() > 100);
    store.close().unwrap();
    store.close().unwrap();
    assert_eq!(server.ask(&["DBSIZE"]), "0");
}

#[test]
fn a_server_behind_a_slow_network_does_all_that_is_demanded() {
    let Some(server) = Server::start(&[]) else { return };
    let proxy = Proxy::start(server.port, |_| Fate { delay: Duration::from_millis(1), ..Fate::default() });
    let (store, _) = open(&proxy.url()).unwrap();
    conformance::demand_all(&*store);
}

#[test]
fn two_programs_share_a_server_and_a_database_of_its_own_is_used() {
    let Some(server) = Server::start(&[]) else { return };
    let (one, _) = open(&format!("{}/3", server.url())).unwrap();
    let (two, _) = open(&format!("{}/3", server.url())).unwrap();
    put(&*one, location(0), 1).unwrap();
    put(&*two, location(0), 2).unwrap();
    assert!(get(&*one, location(0)).unwrap() == contents(location(0), 1));
    assert_eq!(server.ask(&["DBSIZE"]), "0");
    assert_eq!(server.ask(&["-n", "3", "DBSIZE"]), "2");
    one.close().unwrap();
    assert!(get(&*two, location(0)).unwrap() == contents(location(0), 2));
    let nowhere = failure(&format!("{}/999", server.url()));
    assert!(nowhere.to_string().contains("out of range"), "{nowhere}");
}

#[test]
fn a_page_is_stored_when_a_replica_has_it() {
    let Some(server) = Server::start(&[]) else { return };
    let replica = server.replica();
    let (store, said) = open(&format!("{}?timeout=600ms", server.url())).unwrap();
    assert!(said.lines().is_empty(), "{:?}", said.lines());
    put(&*store, location(7), 1).unwrap();
    assert_ne!(replica.ask(&["DBSIZE"]), "0");
    // A replica that sleeps does not acknowledge: the page is not stored.
    replica.signal("STOP");
    let not_acknowledged = put(&*store, location(8), 1).unwrap_err();
    assert!(not_acknowledged.is_passing(), "{not_acknowledged}");
    assert!(not_acknowledged.to_string().contains("0 of 1 replicas acknowledged in time"), "{not_acknowledged}");
    replica.signal("CONT");
    wait_until("the replica acknowledges again", || put(&*store, location(8), 1).is_ok());
    drop(replica);
    wait_until("the server notices that its replica is gone", || put(&*store, location(9), 1).is_ok());
    assert!(said.lines().iter().any(|line| line.contains("without replica")), "{:?}", said.lines());
}

#[test]
fn replicas_that_were_asked_for_are_insisted_on() {
    let Some(server) = Server::start(&[]) else { return };
    let too_few = failure(&format!("{}?replicas=1", server.url()));
    assert!(matches!(too_few, Error::Unfit(_)));
    assert!(too_few.to_string().ends_with("has 0 replicas, and 1 were asked for"), "{too_few}");
    let replica = server.replica();
    let (store, _) = open(&format!("{}?replicas=1&timeout=400ms", server.url())).unwrap();
    put(&*store, location(0), 1).unwrap();
    let of_replica = failure(&replica.url());
    assert!(of_replica.to_string().contains("is a replica of 127.0.0.1"), "{of_replica}");
    assert_eq!(of_replica.remedy(), "Name its master.");
    drop(replica);
    std::thread::sleep(Duration::from_millis(200));
    let alone = put(&*store, location(0), 2).unwrap_err();
    assert!(alone.is_passing() && alone.to_string().contains("0 of 1 replicas"), "{alone}");
}

#[test]
fn the_right_password_lets_in_and_no_other() {
    let Some(server) = Server::start(&["--requirepass", "hunter22"]) else { return };
    let with = |password: &str| format!("redis://:{password}@127.0.0.1:{}", server.port);
    let (store, said) = open(&with("hunter22")).unwrap();
    assert!(said.lines()[0].contains("stands in the list of processes; the variable MASU_STORE_PASSWORD hides it"));
    put(&*store, location(0), 1).unwrap();
    let (store, said) = open_with(&server.url(), Some("hunter22")).unwrap();
    assert_eq!(said.lines().len(), 1, "{:?}", said.lines());
    put(&*store, location(0), 1).unwrap();
    let remedies = ["Set MASU_STORE_PASSWORD to the right password", "It wants a password: set MASU_STORE_PASSWORD"];
    for (url, remedy) in [with("wrong"), server.url()].into_iter().zip(remedies) {
        let refused = failure(&url);
        assert!(matches!(refused, Error::Refused(_)), "{refused}");
        assert!(refused.remedy().starts_with(remedy), "{}", refused.remedy());
        assert!(!format!("{refused} {} {refused:?}", refused.remedy()).contains("wrong@"), "{refused:?}");
    }
}

#[test]
fn a_user_with_the_rights_of_the_manual_is_enough_and_one_with_fewer_is_told() {
    let Some(server) = Server::start(&[]) else { return };
    let commands =
        ["+hset", "+hmget", "+hdel", "+expire", "+unlink", "+wait", "+info", "+client|setname", "+client|info"];
    let rights = |commands: &[&str]| {
        let begin = ["ACL", "SETUSER", "pager", "reset", "on", ">secret", "~masu:*"];
        assert_eq!(server.ask(&[&begin, commands].concat()), "OK");
    };
    let url = format!("redis://pager:secret@127.0.0.1:{}", server.port);
    rights(&[&commands[..], &["+client|kill"]].concat());
    let (store, _) = open(&url).unwrap();
    conformance::run_against_a_map(&*store, 0, 0, 50, 50);
    store.close().unwrap();
    rights(&commands[1..]);
    let refused = failure(&url);
    assert!(matches!(refused, Error::Refused(_)), "{refused}");
    assert!(refused.to_string().contains("NOPERM") && refused.remedy().contains("masu:*"), "{refused}");
}

#[test]
fn a_server_that_is_full_says_so_and_keeps_what_it_has() {
    let Some(server) = Server::start(&["--maxmemory", "6mb"]) else { return };
    let (store, _) = open(&server.url()).unwrap();
    let mut page = 0;
    let full = loop {
        match put(&*store, location(page), 1) {
            Ok(()) => page += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Full(_)), "{full}");
    assert!(full.to_string().contains("OOM") && full.remedy().starts_with("Raise maxmemory"), "{full}");
    assert!(page > 100, "{page} pages fitted");
    (0..page).for_each(|page| assert!(get(&*store, location(page)).unwrap() == contents(location(page), 1)));
    store.close().unwrap();
    assert_eq!(server.ask(&["DBSIZE"]), "0");
}

#[test]
fn too_little_memory_is_said_at_the_start() {
    let Some(server) = Server::start(&["--maxmemory", "100mb"]) else { return };
    let said = |expected| open_expecting(&server.url(), None, Some(Bytes::mib(expected))).unwrap().1.lines();
    assert!(!said(60).iter().any(|line| line.contains("(maxmemory)")));
    let lines = said(90);
    assert!(lines.iter().any(|line| line.ends_with("and the program may need 112.5 MiB there")), "{lines:?}");
}

#[test]
fn a_server_that_throws_keys_away_is_refused_unless_it_was_accepted() {
    let Some(server) = Server::start(&["--maxmemory", "5mb", "--maxmemory-policy", "volatile-lru"]) else { return };
    let refused = failure(&server.url());
    assert!(matches!(refused, Error::Unfit(_)));
    assert!(
        refused.to_string().contains("throws keys away when it is full (maxmemory-policy volatile-lru)"),
        "{refused}"
    );
    let (store, _) = open(&format!("{}?eviction=accept", server.url())).unwrap();
    (0..2000).for_each(|page| put(&*store, location(page), 1).unwrap());
    let lost = (0..2000).find_map(|page| get(&*store, location(page)).err()).unwrap();
    assert!(matches!(lost, Error::Lost(_)), "{lost}");
    assert!(lost.to_string().ends_with("of layer 0 is not there"), "{lost}");
}

#[test]
fn a_page_that_is_missing_or_too_short_is_lost_by_name() {
    let Some(server) = Server::start(&[]) else { return };
    let (store, _) = open(&server.url()).unwrap();
    let bytes = vec![1; 40 * PAGE_BYTES];
    store.put(&[PutRun { location: location(0), bytes: &bytes }]).unwrap();
    let keys = server.ask(&["KEYS", "masu:*:0:1"]);
    assert_eq!(server.ask(&["HDEL", &keys, "5"]), "1");
    let mut back = vec![0; bytes.len()];
    let lost = store.get(&mut [GetRun { location: location(0), bytes: &mut back }]).unwrap_err();
    assert!(matches!(lost, Error::Lost(_)));
    assert!(lost.to_string().ends_with(": page 21 of layer 0 is not there"), "{lost}");
    assert_eq!(server.ask(&["HSET", &keys, "5", "short"]), "1");
    let lost = store.get(&mut [GetRun { location: location(0), bytes: &mut back }]).unwrap_err();
    assert!(lost.to_string().ends_with(": page 21 of layer 0 has 5 bytes and not 4096"), "{lost}");
    // The connection is still in sync.
    store.get(&mut [GetRun { location: location(0), bytes: &mut back[..16 * PAGE_BYTES] }]).unwrap();
}

#[test]
fn pages_have_a_lease_and_it_is_renewed() {
    let Some(server) = Server::start(&[]) else { return };
    let (store, _) = open(&format!("{}?ttl=1m", server.url())).unwrap();
    put(&*store, location(0), 1).unwrap();
    let key = server.ask(&["KEYS", "masu:*"]);
    let left: u64 = server.ask(&["TTL", &key]).parse().unwrap();
    assert!((55..=60).contains(&left), "{left}");
    // Renewed after a quarter of its time.
    assert_eq!(server.ask(&["EXPIRE", &key, "40"]), "1");
    wait_until("the lease is renewed", || server.ask(&["TTL", &key]).parse::<u64>().unwrap() > 40);
}

#[test]
fn who_is_no_redis_server_is_told() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        use std::io::{Read, Write};
        for mut client in listener.incoming().take(2).map_while(Result::ok) {
            let _ = client.read(&mut [0; 100]);
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let unfit = failure(&format!("redis://127.0.0.1:{port}"));
    assert!(matches!(unfit, Error::Unfit(_)), "{unfit}");
    assert!(unfit.to_string().contains("the answer is not understood"), "{unfit}");
    let unfit = failure(&format!("rediss://127.0.0.1:{port}"));
    assert!(matches!(unfit, Error::Unfit(_)), "{unfit}");
    server.join().unwrap();
    let begun = Instant::now();
    let nobody = failure(&format!("redis://127.0.0.1:{port}"));
    assert!(matches!(nobody, Error::Unreachable(_)), "{nobody}");
    assert!(nobody.to_string().ends_with(": connection refused"), "{nobody}");
    assert!(begun.elapsed() < Duration::from_secs(2));
    let unknown = failure("redis://no-such-host.invalid");
    assert!(matches!(unknown, Error::Unreachable(_)), "{unknown}");
}

#[test]
fn several_servers_that_are_no_cluster_are_refused() {
    let (Some(one), Some(two)) = (Server::start(&[]), Server::start(&[])) else { return };
    let refused = failure(&format!("{},127.0.0.1:{}", one.url(), two.port));
    assert!(matches!(refused, Error::Unfit(_)) && refused.to_string().contains("is no part of a Cluster"), "{refused}");
}

#[test]
fn an_encrypted_connection_does_all_that_is_demanded() {
    let directory = tempfile::tempdir().unwrap();
    let Some((certificate, key)) = certificate(directory.path()) else { return };
    let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
    let files = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate];
    let Some(server) = Server::start(&[&["--tls-port", "PORT", "--tls-auth-clients", "optional"][..], &files].concat())
    else {
        return;
    };
    if !server.log().contains("Ready to accept") && server.log().contains("tls") {
        return skip("redis-server with TLS", "this one was built without it");
    }
    let url = format!("rediss://127.0.0.1:{}", server.port);
    let (store, _) = open(&format!("{url}?ca={certificate}")).unwrap();
    conformance::demand_all(&*store);
    open(&format!("{url}?ca={certificate}&cert={certificate}&key={key}")).unwrap();
    let unknown_signer = failure(&url);
    assert!(matches!(unknown_signer, Error::Refused(_)), "{unknown_signer}");
    assert!(unknown_signer.remedy().contains("?ca=FILE"), "{unknown_signer} {}", unknown_signer.remedy());
    let plain = failure(&server.url());
    assert!(plain.remedy().contains("rediss://") || plain.is_passing(), "{plain}");
    let no_file = failure(&format!("{url}?ca=/nowhere.pem"));
    assert!(matches!(no_file, Error::Unfit(_)) && no_file.to_string().contains("/nowhere.pem"), "{no_file}");
}
