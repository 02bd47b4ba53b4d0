//! Proxy between a store and its server with the faults of networks: delays, cuts, withheld bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Faults of one connection.
#[derive(Clone, Default)]
pub struct Fate {
    /// Delay of each piece.
    pub delay: Duration,
    /// Number of bytes from the client after which the connection is cut.
    pub cut_up: Option<usize>,
    /// Number of bytes from the server after which the connection is cut, in the middle of an answer.
    pub cut_down: Option<usize>,
    /// Offset of a changed byte in the server's answers.
    pub garbled_at: Option<usize>,
    /// Number of bytes from the client after which the rest is withheld until the gate is opened; answers, too.
    pub withheld_after: Option<(usize, Gate)>,
}

/// Gate that is closed until a test opens it.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let opened = self.0.0.lock().unwrap();
        drop(self.0.1.wait_timeout_while(opened, Duration::from_secs(30), |open| !*open).unwrap());
    }
}

type Chooser = Box<dyn FnMut(u64) -> Fate + Send>;

/// Proxy on a port of its own until the test's process ends.
pub struct Proxy {
    pub port: u16,
    chooser: Arc<Mutex<Chooser>>,
    /// Number of connections.
    pub count: Arc<AtomicU64>,
    /// Number of bytes that were withheld, then sent on.
    pub late_bytes: Arc<AtomicU64>,
}

impl Proxy {
    /// Starts a proxy in front of a port; `chooser` gives the fate of each connection, counted from 0.
    pub fn start(target: u16, chooser: impl FnMut(u64) -> Fate + Send + 'static) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let chooser: Arc<Mutex<Chooser>> = Arc::new(Mutex::new(Box::new(chooser)));
        let (count, late_bytes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let proxy = Proxy {
            port,
            chooser: Arc::clone(&chooser),
            count: Arc::clone(&count),
            late_bytes: Arc::clone(&late_bytes),
        };
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let fate = (chooser.lock().unwrap())(count.fetch_add(1, Ordering::SeqCst));
                // A missing server: the client's connection ends at once.
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                serve(client, server, fate, &late_bytes);
            }
        });
        proxy
    }

    /// Changes the fates of later connections.
    pub fn choose(&self, chooser: impl FnMut(u64) -> Fate + Send + 'static) {
        *self.chooser.lock().unwrap() = Box::new(chooser);
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

fn serve(client: TcpStream, server: TcpStream, fate: Fate, late: &Arc<AtomicU64>) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (client_in, server_in) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let (up, down) = (fate.clone(), fate);
    let late = Arc::clone(late);
    std::thread::spawn(move || pump(client_in, server, Fate { cut_down: up.cut_up, garbled_at: None, ..up }, &late));
    std::thread::spawn(move || pump(server_in, client, Fate { withheld_after: None, ..down }, &AtomicU64::new(0)));
}

/// One direction: the fate's `cut_down` is its own.
fn pump(mut from: TcpStream, mut to: TcpStream, fate: Fate, late: &AtomicU64) {
    let Fate { delay, cut_down: cut, garbled_at, mut withheld_after, .. } = fate;
    let mut piece = vec![0; 16 << 10];
    let mut passed = 0;
    while let Ok(length @ 1..) = from.read(&mut piece) {
        std::thread::sleep(delay);
        let mut length = length;
        let cut_now = cut.is_some_and(|cut| passed + length >= cut);
        if cut_now {
            length = cut.unwrap_or(0).saturating_sub(passed);
        }
        if let Some((_, gate)) = withheld_after.take_if(|(after, _)| passed + length > *after) {
            // All bytes until then are kept, also beyond the client's end of the connection.
            let mut kept = piece[..length].to_vec();
            let reader = std::thread::spawn(move || {
                let mut rest = Vec::new();
                let _ = from.read_to_end(&mut rest);
                rest
            });
            gate.wait();
            kept.extend(reader.join().unwrap());
            late.fetch_add(kept.len() as u64, Ordering::SeqCst);
            let _ = to.write_all(&kept);
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
        if let Some(at) = garbled_at.filter(|at| (passed..passed + length).contains(at)) {
            piece[at - passed] ^= 0x15;
        }
        if to.write_all(&piece[..length]).is_err() || cut_now {
            break;
        }
        passed += length;
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
