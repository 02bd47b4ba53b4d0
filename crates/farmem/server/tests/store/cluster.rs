//! A Redis Cluster of three masters with a replica each, on loopback.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use farmem::store::Store;
use farmem::store::retry::{Patience, Patient};

use super::servers::{Server, wait_until};
use super::{Said, conformance, contents, failure, get, location, open, put};

struct Cluster {
    servers: Vec<Server>,
}

impl Cluster {
    /// Masters notice after a second that one of them is gone.
    fn start() -> Option<Cluster> {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0"];
        let servers = (0..6).map(|_| Server::start(&options)).collect::<Option<Vec<_>>>()?;
        let mut command = Command::new("redis-cli");
        command.args(["--cluster", "create"]).args(servers.iter().map(|server| format!("127.0.0.1:{}", server.port)));
        let made = command.args(["--cluster-replicas", "1", "--cluster-yes"]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        let cluster = Cluster { servers };
        wait_until("every master has its replica", || {
            let ready = |server: &Server| {
                let info = server.ask(&["INFO", "replication"]);
                let whole = server.ask(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
                let acknowledges = info.contains("state=online") && !info.contains("offset=0,");
                whole && (info.contains("role:slave") || acknowledges)
            };
            cluster.servers.iter().all(ready) && cluster.masters().count() == 3
        });
        Some(cluster)
    }

    fn masters(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().filter(|server| server.ask(&["ROLE"]).starts_with("master"))
    }

    fn url(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().take(2).map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("redis://{}?timeout=1s", hosts.join(","))
    }

    fn kill_a_master(&mut self) -> u16 {
        let port = self.masters().next().unwrap().port;
        self.servers.iter_mut().find(|server| server.port == port).unwrap().kill();
        port
    }
}

fn patient(cluster: &Cluster) -> (Patient, Said) {
    let (store, said) = open(&cluster.url()).unwrap();
    assert!(said.lines().is_empty(), "{:?}", said.lines());
    let patience = Patience { limit: Some(Duration::from_secs(30)), ..Patience::USUAL };
    (Patient::new(store, patience, said.say()), said)
}

#[test]
fn a_cluster_does_all_that_is_demanded_and_survives_its_masters_and_a_move() {
    let Some(mut cluster) = Cluster::start() else { return };
    let begun = Instant::now();
    let (store, said) = patient(&cluster);
    conformance::demand_all(&store);
    println!("demands: {:?}", begun.elapsed());
    keys_lie_on_every_master(&cluster);
    pages_on_the_move_are_found(&cluster, &store);
    println!("moved: {:?}", begun.elapsed());
    a_master_sleeps_and_wakes(&cluster, &store);
    println!("woken: {:?}", begun.elapsed());
    a_master_is_killed_in_the_middle(&mut cluster, &store);
    println!("killed: {:?} {:?}", begun.elapsed(), said.lines());
    who_comes_later_finds_the_living(&cluster);
    store.close().unwrap();
    let left: u32 = cluster.masters().map(|server| server.ask(&["DBSIZE"]).parse::<u32>().unwrap()).sum();
    assert_eq!(left, 0);
    let other = failure(&format!("redis://127.0.0.1:{}/1", cluster.masters().next().unwrap().port));
    assert!(other.to_string().contains("not allowed in cluster mode"), "{other}");
    assert!(other.remedy().starts_with("Leave the /DATABASE"), "{}", other.remedy());
}

fn keys_lie_on_every_master(cluster: &Cluster) {
    let sizes: Vec<u32> = cluster.masters().map(|server| server.ask(&["DBSIZE"]).parse().unwrap()).collect();
    assert!(sizes.len() == 3 && sizes.iter().all(|&size| size > 20), "{sizes:?}");
}

/// Moves a slot from one master to another by hand, and reads and writes it at each step.
fn pages_on_the_move_are_found(cluster: &Cluster, store: &dyn Store) {
    (0..64).for_each(|page| put(store, location(page * 16), 1).unwrap());
    let masters: Vec<_> = cluster.masters().collect();
    let (from, to) = (masters[0], masters[1]);
    // A slot goes as a whole; one of some thousand may have two keys by chance.
    let keys = from.ask(&["--scan", "--pattern", "masu:*:0:*"]);
    let with_slot = keys.lines().map(|key| (key, from.ask(&["CLUSTER", "KEYSLOT", key])));
    let is_alone = |slot: &str| from.ask(&["CLUSTER", "COUNTKEYSINSLOT", slot]) == "1";
    let (key, slot) = with_slot.into_iter().find(|(_, slot)| is_alone(slot)).unwrap();
    let block: u64 = key.rsplit(':').next().unwrap().parse().unwrap();
    let (from_id, to_id) = (from.ask(&["CLUSTER", "MYID"]), to.ask(&["CLUSTER", "MYID"]));
    let there = location(block * 16);
    assert_eq!(to.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]), "OK");
    assert_eq!(from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]), "OK");
    assert!(get(store, there).unwrap() == contents(there, 1), "not moved yet");
    assert_eq!(from.ask(&["MIGRATE", "127.0.0.1", &to.port.to_string(), key, "0", "5000"]), "OK");
    assert!(get(store, there).unwrap() == contents(there, 1), "moved, the slot not");
    put(store, there, 2).unwrap();
    assert!(get(store, there).unwrap() == contents(there, 2), "written on the move");
    for server in cluster.masters() {
        assert_eq!(server.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]), "OK");
    }
    assert!(get(store, there).unwrap() == contents(there, 2), "moved");
}

/// The first host of the URL is the killed one.
fn who_comes_later_finds_the_living(cluster: &Cluster) {
    let dead = cluster.servers.iter().find(|server| !server.runs()).unwrap().port;
    let living = cluster.masters().next().unwrap().port;
    let (store, _) = open(&format!("redis://127.0.0.1:{dead},127.0.0.1:{living}")).unwrap();
    (0..100).for_each(|page| put(&*store, location(page * 16), 1).unwrap());
    store.close().unwrap();
}

/// Longer than the others take to promote its replica; then it wakes up, and knows nothing of that.
fn a_master_sleeps_and_wakes(cluster: &Cluster, store: &dyn Store) {
    let sleeper = cluster.masters().last().unwrap();
    while_programs_run(store, 31, || {
        sleeper.signal("STOP");
        let others = || cluster.servers.iter().filter(|server| server.port != sleeper.port);
        let masters = || others().filter(|server| server.ask(&["ROLE"]).starts_with("master")).count();
        wait_until("a replica is master in its place", || masters() == 3);
        std::thread::sleep(Duration::from_millis(300));
        sleeper.signal("CONT");
        wait_until("it is a replica", || sleeper.ask(&["ROLE"]).starts_with("slave"));
        format!("127.0.0.1:{} slept", sleeper.port)
    });
    wait_until("it is in step", || sleeper.ask(&["INFO", "replication"]).contains("master_link_status:up"));
}

fn a_master_is_killed_in_the_middle(cluster: &mut Cluster, store: &dyn Store) {
    while_programs_run(store, 30, || {
        let port = cluster.kill_a_master();
        wait_until("a replica is master in its place", || cluster.masters().count() == 3);
        format!("127.0.0.1:{port} was killed")
    });
}

fn while_programs_run(store: &dyn Store, layer: u32, happening: impl FnOnce() -> String) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for thread in 0..4 {
            let done = &done;
            running.push(scope.spawn(move || {
                let (mut slowest, mut first) = (Duration::ZERO, 100_000 * thread);
                while !done.load(Ordering::SeqCst) {
                    let begun = Instant::now();
                    conformance::run_against_a_map(store, layer, first, 200, 20);
                    slowest = slowest.max(begun.elapsed());
                    first += 200;
                }
                slowest
            }));
        }
        std::thread::sleep(Duration::from_millis(500));
        let what = happening();
        std::thread::sleep(Duration::from_millis(1000));
        done.store(true, Ordering::SeqCst);
        let slowest = running.into_iter().map(|thread| thread.join().unwrap()).max().unwrap();
        println!("{what}; the longest 20 calls took {slowest:?}");
    });
}
