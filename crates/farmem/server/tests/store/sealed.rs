//! Real stores with sealed pages: the conformance tests, and changes in the server without masu's knowledge.

use std::sync::Arc;

use farmem::store::sealed::{Cipher, PAGE_BYTES_SEALED, Sealed};
use farmem::store::{self, Error, Opening, Store};

use super::servers::Server;
use super::{Said, conformance, contents, get, location, put};

fn open(url: &str) -> Sealed {
    let opening = Opening { page_bytes: PAGE_BYTES_SEALED, expected: None, password: None, say: Said::default().say() };
    Sealed::around(store::open(&url.parse().unwrap(), &opening).unwrap(), Cipher::of_processor()).unwrap()
}

#[test]
fn a_sealed_file_does_all_that_is_demanded() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&format!("file:{}", folder.path().display()));
    conformance::demand_all(&store);
    assert!(store.direct(0).unwrap().is_none());
    store.close().unwrap();
}

#[test]
fn a_sealed_server_does_all_that_is_demanded_and_is_left_empty() {
    let Some(server) = Server::start(&[]) else { return };
    let store = open(&server.url());
    conformance::demand_all(&store);
    store.close().unwrap();
    assert_eq!(server.ask(&["DBSIZE"]), "0");
}

#[test]
fn what_somebody_does_in_the_server_is_found_out() {
    let Some(server) = Server::start(&[]) else { return };
    let store = open(&server.url());
    let eval = |script: &str| {
        let key = server.ask(&["KEYS", "masu:*:0:0"]);
        assert_eq!(server.ask(&["EVAL", script, "1", &key]), "1", "{script}");
    };
    let again = || (0..4).for_each(|page| put(&store, location(page), 1).unwrap());
    again();
    // An old value is kept in another key, and comes back.
    eval("redis.call('SET', 'old', redis.call('HGET', KEYS[1], '0')) return 1");
    again();
    for (lie, cause) in [
        (
            "redis.call('HSET', KEYS[1], '0', redis.call('GET', 'old')) return 1",
            "changed or replayed page 0 of layer 0",
        ),
        ("redis.call('HSET', KEYS[1], '0', redis.call('HGET', KEYS[1], '1')) return 1", "changed or replayed page 0 "),
        ("redis.call('HSET', KEYS[1], '0', string.rep('x', 4112)) return 1", "changed or replayed page 0 of layer 0"),
        ("redis.call('HSET', KEYS[1], '0', string.rep('x', 4096)) return 1", "has 4096 bytes and not 4112"),
        ("redis.call('HSET', KEYS[1], '0', string.rep('x', 9000)) return 1", "has 9000 bytes and not 4112"),
        ("redis.call('HDEL', KEYS[1], '0') return 1", "is not there"),
    ] {
        eval(lie);
        let error = get(&store, location(0)).unwrap_err();
        assert!(matches!(error, Error::Lost(_)) && error.to_string().contains(cause), "{lie}: {error}");
        assert!(get(&store, location(2)).unwrap() == contents(location(2), 1));
        again();
        assert!(get(&store, location(0)).unwrap() == contents(location(0), 1));
    }
}

#[test]
fn a_server_sees_no_page() {
    let Some(server) = Server::start(&[]) else { return };
    let (plain, _) = super::open(&server.url()).unwrap();
    let sealed = open(&server.url());
    let secret = b"a secret of the program".repeat(200);
    let seen = |store: &Arc<dyn Store>| {
        store.put(&[store::PutRun { location: location(0), bytes: &secret[..4096] }]).unwrap();
        let keys = server.ask(&["KEYS", "masu:*:0:0"]);
        let found = keys.lines().any(|key| server.ask(&["HGET", key, "0"]).contains("a secret of"));
        store.close().unwrap();
        found
    };
    let sealed: Arc<dyn Store> = Arc::new(sealed);
    assert_eq!((seen(&plain), seen(&sealed)), (true, false));
}
