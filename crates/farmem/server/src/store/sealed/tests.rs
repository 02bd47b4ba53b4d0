//! A store that lies in every possible way, and is detected each time.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Place of a page in the store.
type Key = (u32, u64);

/// Store in memory that keeps all contents that it ever had, and lies on request.
#[derive(Default)]
struct Liar {
    now: Mutex<BTreeMap<Key, Vec<u8>>>,
    /// All contents ever put, with their places.
    ever: Mutex<Vec<(Key, Vec<u8>)>>,
    /// Puts that are dropped, and acknowledged; puts that are carried out, and fail.
    deaf: Mutex<bool>,
    failing: Mutex<bool>,
}

impl Liar {
    fn trouble(cause: &str) -> Trouble {
        Trouble { operation: "get".into(), store: "liar".into(), cause: cause.into(), remedy: String::new() }
    }

    fn change(&self, key: Key, change: impl FnOnce(&mut Vec<u8>)) {
        change(locked(&self.now).get_mut(&key).unwrap());
    }
}

impl Store for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }

    fn put(&self, runs: &[PutRun<'_>]) -> Result<(), Error> {
        for run in runs {
            for (page, bytes) in (run.location.page..).zip(run.bytes.chunks_exact(PAGE_BYTES_SEALED)) {
                locked(&self.ever).push(((run.location.layer, page), bytes.to_vec()));
                if !*locked(&self.deaf) {
                    locked(&self.now).insert((run.location.layer, page), bytes.to_vec());
                }
            }
        }
        if *locked(&self.failing) { Err(Error::Full(Liar::trouble("full"))) } else { Ok(()) }
    }

    fn get(&self, runs: &mut [GetRun<'_>]) -> Result<(), Error> {
        for run in runs {
            for (page, place) in (run.location.page..).zip(run.bytes.chunks_exact_mut(PAGE_BYTES_SEALED)) {
                match locked(&self.now).get(&(run.location.layer, page)) {
                    Some(bytes) if bytes.len() == place.len() => place.copy_from_slice(bytes),
                    // As with Redis: a value of another length is lost.
                    _ => return Err(Error::Lost(Liar::trouble("not there, or not whole"))),
                }
            }
        }
        Ok(())
    }

    // Keeps pages that it is told to forget.
    fn forget(&self, _: &[Span]) -> Result<(), Error> {
        Ok(())
    }

    fn forget_layer(&self, _: u32) -> Result<(), Error> {
        Ok(())
    }

    fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}

const CIPHERS: [Cipher; 2] = [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

fn at((layer, page): Key) -> Location {
    Location { layer, page }
}

fn put(store: &Sealed, key: Key, what: u8) -> Result<(), Error> {
    store.put(&[PutRun { location: at(key), bytes: &[what; PAGE_BYTES] }])
}

fn get(store: &Sealed, key: Key) -> Result<u8, Error> {
    let mut page = [0xee; PAGE_BYTES];
    store.get(&mut [GetRun { location: at(key), bytes: &mut page }])?;
    assert!(page.iter().all(|byte| *byte == page[0]));
    Ok(page[0])
}

fn sealed(cipher: Cipher) -> (Sealed, Arc<Liar>) {
    let liar = Arc::new(Liar::default());
    (Sealed::around(Arc::<Liar>::clone(&liar), cipher).unwrap(), liar)
}

fn found_out(store: &Sealed, key: Key) {
    let error = get(store, key).unwrap_err();
    assert!(matches!(&error, Error::Lost(_)), "{error}");
}

#[test]
fn each_lie_is_found_out_and_named() {
    for cipher in CIPHERS {
        let (store, liar) = sealed(cipher);
        let (one, two, other_layer) = ((3, 7), (3, 8), (4, 7));
        for key in [one, two, other_layer] {
            put(&store, key, 1).unwrap();
        }
        let old = locked(&liar.now)[&one].clone();
        put(&store, one, 2).unwrap();
        let new = locked(&liar.now)[&one].clone();
        let neighbours = [two, other_layer].map(|key| locked(&liar.now)[&key].clone());
        assert_eq!(get(&store, one), Ok(2));
        let byte = |at: usize| {
            let mut changed = new.clone();
            changed[at] ^= 1;
            changed
        };
        let lies = [
            old,
            neighbours[0].clone(),
            neighbours[1].clone(),
            byte(0),
            byte(4095),
            byte(PAGE_BYTES),
            byte(PAGE_BYTES_SEALED - 1),
            vec![0; PAGE_BYTES_SEALED],
            new[..PAGE_BYTES].to_vec(),
            new[..1].to_vec(),
            [&new[..], &[0]].concat(),
            Vec::new(),
        ];
        for lie in lies {
            liar.change(one, |page| *page = lie);
            found_out(&store, one);
        }
        liar.change(one, |page| *page = byte(9));
        let error = get(&store, one).unwrap_err();
        assert!(error.to_string().contains("the store changed or replayed page 7 of layer 3"), "{error}");
        liar.change(one, |page| *page = new.clone());
        assert_eq!(get(&store, one), Ok(2), "{cipher}");
    }
}

#[test]
fn what_is_forgotten_does_not_come_back_and_what_was_not_acknowledged_is_not_believed() {
    let (store, liar) = sealed(Cipher::of_processor());
    for page in 0..200 {
        put(&store, (1, page), 1).unwrap();
    }
    store.forget(&[Span { location: at((1, 50)), pages: 100 }]).unwrap();
    found_out(&store, (1, 50));
    found_out(&store, (1, 149));
    assert_eq!((get(&store, (1, 49)), get(&store, (1, 150))), (Ok(1), Ok(1)));
    put(&store, (1, 50), 2).unwrap();
    assert_eq!(get(&store, (1, 50)), Ok(2));
    store.forget_layer(1).unwrap();
    found_out(&store, (1, 0));
    assert!(locked(&store.versions).0.is_empty());
    put(&store, (2, 0), 1).unwrap();
    // Acknowledges the page, and keeps the old one.
    *locked(&liar.deaf) = true;
    put(&store, (2, 0), 2).unwrap();
    found_out(&store, (2, 0));
    *locked(&liar.deaf) = false;
    // Reports a failure, and has the page.
    put(&store, (2, 1), 1).unwrap();
    *locked(&liar.failing) = true;
    assert!(put(&store, (2, 1), 2).is_err());
    found_out(&store, (2, 1));
}

#[test]
fn the_store_sees_nothing_of_a_page_and_equal_pages_look_different() {
    for cipher in CIPHERS {
        let (store, liar) = sealed(cipher);
        for key in [(0, 0), (0, 1), (0, 0)] {
            put(&store, key, 0).unwrap();
        }
        let ever = locked(&liar.ever);
        for (_, bytes) in ever.iter() {
            // 16 bytes of zeros would stand there by chance once in 2^128.
            assert!(bytes.windows(16).all(|bytes| bytes != [0; 16]));
        }
        assert!(ever[0].1 != ever[1].1 && ever[0].1 != ever[2].1);
        let (another, liar) = sealed(cipher);
        put(&another, (0, 0), 0).unwrap();
        assert!(locked(&liar.ever)[0].1 != ever[0].1, "a key of its own");
    }
}

#[test]
fn no_program_writes_there_by_itself() {
    assert!(sealed(Cipher::of_processor()).0.direct(0).unwrap().is_none());
}

/// Event of a page.
#[derive(Clone, Debug)]
enum Event {
    Put(Key, u8),
    Get(Key),
    Forget(Key),
    /// The store returns the n-th of all contents that it ever had for this page.
    Replay(Key, prop::sample::Index),
    /// The store changes a byte.
    Change(Key, prop::sample::Index),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let key = || (0_u32..2, 0_u64..3);
    let index = any::<prop::sample::Index>;
    let event = prop_oneof![
        3 => (key(), any::<u8>()).prop_map(|(key, what)| Event::Put(key, what)),
        4 => key().prop_map(Event::Get),
        1 => key().prop_map(Event::Forget),
        2 => (key(), index()).prop_map(|(key, index)| Event::Replay(key, index)),
        1 => (key(), index()).prop_map(|(key, index)| Event::Change(key, index)),
    ];
    prop::collection::vec(event, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A get returns the last put, or nothing at all; and it returns the page if the store has it.
    #[test]
    fn what_is_got_is_what_was_put_last_whatever_the_store_does(events in events()) {
        let (store, liar) = sealed(Cipher::of_processor());
        let (mut model, mut truth) = (BTreeMap::<Key, u8>::new(), BTreeMap::<Key, Vec<u8>>::new());
        for event in events {
            match event {
                Event::Put(key, what) => {
                    put(&store, key, what).unwrap();
                    model.insert(key, what);
                    truth.insert(key, locked(&liar.now)[&key].clone());
                }
                Event::Forget(key) => {
                    store.forget(&[Span { location: at(key), pages: 1 }]).unwrap();
                    model.remove(&key);
                    truth.remove(&key);
                }
                Event::Get(key) => {
                    let honest = truth.contains_key(&key) && locked(&liar.now).get(&key) == truth.get(&key);
                    match get(&store, key) {
                        Ok(what) => prop_assert!(honest && model.get(&key) == Some(&what)),
                        Err(_) => prop_assert!(!honest),
                    }
                }
                Event::Replay(key, index) => {
                    let ever = locked(&liar.ever);
                    if !ever.is_empty() {
                        locked(&liar.now).insert(key, index.get(&ever).1.clone());
                    }
                }
                Event::Change(key, index) => {
                    if let Some(page) = locked(&liar.now).get_mut(&key) {
                        let at = index.index(page.len());
                        page[at] ^= 0x40;
                    }
                }
            }
        }
    }
}
