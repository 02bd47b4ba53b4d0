//! HTTP of the service: the page, its JSON and the metrics, in a process of its own without privileges.
//!
//! The service writes one [`Frame`] per line into a pipe. The process reads the pipe, answers on the socket that the
//! service gave it, and can change nothing. It ends with the pipe. A client may send anything and read as slowly as it
//! likes: a connection has one request, a time limit, and one of 64 places.

pub mod routes;

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, BufReader};
use tokio::net::unix::pipe;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use crate::series::Sample;
use crate::snapshot::Snapshot;
use routes::{Answer, Question, State};

/// Most clients at a time.
const CLIENTS: usize = 64;
/// Longest time from a connection to the end of its answer.
const CLIENT_WITHIN: Duration = Duration::from_secs(20);
/// Longest time until a request is complete.
const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// Longest head of a request.
const HEAD_MOST: usize = 16 << 10;
/// Wait after a connection that could not be accepted.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// A line from the service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Frame {
    /// Samples of the time before, the oldest first.
    Past(Vec<Sample>),
    /// State now.
    Now(Box<Now>),
}

/// State of the service, as the page has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Now {
    /// Version of masu.
    pub version: String,
    /// Seconds since 1970.
    pub at: u64,
    /// Most series of the metrics.
    pub max_series: usize,
    /// State.
    #[serde(flatten)]
    pub snapshot: Snapshot,
}

/// Socket for clients.
#[derive(Debug)]
pub enum Listener {
    /// Of a network.
    Tcp(std::net::TcpListener),
    /// Of this host.
    Unix(std::os::unix::net::UnixListener),
}

/// Answers until the pipe of frames ends. `ready` is called once, before the first client, to give up privileges.
///
/// # Errors
/// When the system has no descriptors left, or `ready` refuses.
pub fn answer_until_end(listener: Listener, frames: OwnedFd, ready: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let state = Rc::new(RefCell::new(State::default()));
    let local = LocalSet::new();
    local.block_on(&runtime, async move {
        let frames = pipe::Receiver::from_owned_fd(frames)?;
        let accepting: LocalFuture = match listener {
            Listener::Tcp(tcp) => {
                tcp.set_nonblocking(true)?;
                let tcp = TcpListener::from_std(tcp)?;
                Box::pin(accept_all(async move || Ok(tcp.accept().await?.0), true, Rc::clone(&state)))
            }
            Listener::Unix(unix) => {
                unix.set_nonblocking(true)?;
                let unix = UnixListener::from_std(unix)?;
                Box::pin(accept_all(async move || Ok(unix.accept().await?.0), false, Rc::clone(&state)))
            }
        };
        ready()?;
        tokio::select! {
            read = read_all(frames, &state) => read,
            () = accepting => Ok(()),
        }
    })
}

type LocalFuture = std::pin::Pin<Box<dyn Future<Output = ()>>>;

async fn read_all(frames: pipe::Receiver, state: &RefCell<State>) -> io::Result<()> {
    let mut lines = BufReader::new(frames).lines();
    while let Some(line) = lines.next_line().await? {
        let frame: Frame = serde_json::from_str(&line)?;
        state.borrow_mut().take(frame);
    }
    Ok(())
}

async fn accept_all<Client>(
    accept: impl AsyncFn() -> io::Result<Client>,
    is_of_network: bool,
    state: Rc<RefCell<State>>,
) where
    Client: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let places = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok(client) = accept().await else {
            sleep(AGAIN_AFTER).await;
            continue;
        };
        let state = Rc::clone(&state);
        tokio::task::spawn_local(async move {
            // A client that sends no HTTP, goes, or is too slow loses its answer.
            let _ = timeout(CLIENT_WITHIN, serve_one(client, is_of_network, state)).await;
            drop(place);
        });
    }
}

async fn serve_one<Client>(client: Client, is_of_network: bool, state: Rc<RefCell<State>>)
where
    Client: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        let (method, path, query) = (request.method().as_str(), request.uri().path(), request.uri().query());
        let question = Question { method, path, query, host, is_of_network };
        let answer = routes::answer(&state.borrow(), &question);
        async move { Ok::<_, std::convert::Infallible>(response(answer)) }
    });
    // The outcome is the client's alone.
    let _ = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_WITHIN)
        .max_buf_size(HEAD_MOST)
        .serve_connection(TokioIo::new(client), service)
        .await;
}

fn response(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(answer.body));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, answer.kind),
        (header::CONTENT_SECURITY_POLICY, routes::POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
