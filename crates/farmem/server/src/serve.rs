//! masu's side of paged programs: the handshake, and store requests that programs cannot carry out themselves.
//!
//! Each program with the library connects here, also the ones that the first program starts. It gets its session
//! parameters and passes the memory with its tables; from then on a thread waits for its requests. Its counters are
//! kept until the end; its layer of the store is released when it ends.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farmem_engine::backend::Backend;
use farmem_engine::budget::Budget;
use farmem_engine::counters::{COUNTER_WORDS, Counter, Counters};
use farmem_engine::handshake::{self, Go, Message, Ready, Secret, Sections, SessionParameters};
use farmem_engine::policy::site::{INITIAL_PROFILE_WORDS, InitialProfile};
use farmem_engine::segment::{self, ANSWERED, ASKED, Ask, DOORBELL, Doorbell, Layout, STORE_REQUEST, StoreRequest};
use farmem_engine::space::Page;
use farmem_engine::units::Learned;
use linux::describe;
use linux::message_socket::{Connection, Peer};
use linux::shared_memory::{self, SharedMemory};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};
use units::Bytes;
use units::cast::{fits, saturated};

use crate::at_once::{self, AtOnce, Crowd, Peak};
use crate::background::{BatchError, WORKERS, Worker};
use crate::observation::Observation;
use crate::profile::{Folder, Profile};
use crate::report::Counted;
use crate::store::{GetRun, Location, PAGE_BYTES, PutRun, Say, Store};

mod not_begun;
mod unproven;

pub use not_begun::NotBegun;
use unproven::{Entrance, Proven};

/// Time for a program's last message once the run is over; later messages are dropped.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Interval of the checks whether the run is over.
const LOOK: Duration = Duration::from_millis(100);

/// Failing handshakes are reported after this time.
const QUIET: Duration = Duration::from_secs(2);

/// State shared by all programs.
struct Common {
    parameters: SessionParameters,
    /// Secret of the handshake.
    secret: Secret,
    store: Arc<dyn Store>,
    complain: Complain,
    /// Sink of notices that are no failures.
    say: Say,
    /// Whether several programs at once are a notice; otherwise only too many are.
    says_all: bool,
    at_once: Mutex<AtOnce>,
    /// Memory that all programs together may have: of the control group, or of the machine.
    room: Option<Bytes>,
    /// Folder of profiles; `None` for none.
    profiles: Option<Folder>,
    over: AtomicBool,
    served: Mutex<Served>,
    /// Number of store layers: one for each program.
    layers: AtomicU32,
}

/// Results of the programs.
#[derive(Default)]
struct Served {
    counted: Vec<Counted>,
    not_begun: Vec<NotBegun>,
    trouble: Vec<String>,
}

impl Served {
    /// Adds a problem once, even if several programs and threads meet it. Returns whether it is new.
    fn say(&mut self, trouble: String) -> bool {
        let new = !self.trouble.contains(&trouble);
        if new {
            self.trouble.push(trouble);
        }
        new
    }
}

/// Reports a problem at once, with the remedy.
pub type Complain = fn(&str, &str);

/// Serves programs until it is ended.
pub struct Server {
    common: Arc<Common>,
    name: String,
    path: Option<String>,
    thread: JoinHandle<()>,
}

/// Results of all programs.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Counters, one set for each program.
    pub counted: Vec<Counted>,
    /// Programs that could not begin.
    pub not_begun: Vec<NotBegun>,
    /// Store failures, and invalid messages.
    pub trouble: Vec<String>,
    /// Programs that ran at the same time.
    pub at_once: Peak,
}

impl Seen {
    /// Reason why the program that masu started did not begin: it failed itself, which does not cover a program that it
    /// became by exec, or started.
    pub fn not_begun_as_started(&self, process: u32) -> Option<&NotBegun> {
        let begun = self.counted.iter().any(|counted| counted.process == process);
        self.not_begun.iter().find(|not_begun| not_begun.process == process && !begun)
    }
}

impl Server {
    /// Waits for programs from now on; they get `parameters`. Their site profiles are kept in `profiles`, if given.
    /// `complain` reports problems to the waiting user, and `say` what is no failure; `says_all` includes
    /// several programs at once.
    ///
    /// # Errors
    /// The kernel's answer when there is no socket, or no thread.
    pub fn begin(
        parameters: SessionParameters,
        store: Arc<dyn Store>,
        profiles: Option<Folder>,
        complain: Complain,
        say: Say,
        says_all: bool,
    ) -> std::io::Result<Server> {
        let profiles = profiles.filter(|_| parameters.sections == Sections::Auto);
        let secret = new_secret()?;
        let entrance = Entrance::open(secret.library, |name| std::env::var_os(name))?;
        let (name, path) = (entrance.name().to_owned(), entrance.path().map(str::to_owned));
        let common = Arc::new(Common {
            parameters,
            secret,
            store,
            complain,
            say,
            says_all,
            at_once: Mutex::default(),
            room: at_once::room(),
            profiles,
            over: AtomicBool::new(false),
            served: Mutex::default(),
            layers: AtomicU32::new(0),
        });
        let same = Arc::clone(&common);
        let thread = std::thread::Builder::new()
            .name("masu-handshake".to_owned())
            .spawn(move || accept_programs(entrance, &same))?;
        Ok(Server { common, name, path, thread })
    }

    /// Environment variables of programs that are to be served: names, and values, or `None` for variables that are
    /// removed.
    pub fn variables(&self) -> [(&'static str, Option<String>); 3] {
        [
            (handshake::VARIABLE, Some(self.name.clone())),
            (handshake::PATH_VARIABLE, self.path.clone()),
            (handshake::SECRET_VARIABLE, Some(self.common.secret.to_string())),
        ]
    }

    /// Ends the server, once the programs have ended: programs that still run get no more service from masu.
    pub fn end(self) -> Seen {
        self.common.over.store(true, Relaxed);
        // A thread that panicked has reported it.
        let _ = self.thread.join();
        let served = std::mem::take(&mut *self.common.served.lock().unwrap_or_else(PoisonError::into_inner));
        let at_once = locked(&self.common.at_once).peak();
        Seen { counted: served.counted, not_begun: served.not_begun, trouble: served.trouble, at_once }
    }
}

impl Common {
    fn note(&self, note: impl FnOnce(&mut Served)) {
        note(&mut self.served.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Reports a failure of the store, which ends a program.
    fn say_of_store(&self, error: &crate::store::Error) {
        self.say_at_once(error.to_string(), error.remedy());
    }

    /// Reports to the waiting user at once, and in the final report.
    fn say_at_once(&self, said: String, remedy: &str) {
        // Several threads may meet the same problem.
        if locked(&self.served).say(said.clone()) {
            (self.complain)(&said, remedy);
        }
    }

    fn say(&self, trouble: String) {
        locked(&self.served).say(trouble);
    }

    fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// Releases the layer, whose pages are not needed any more. A store that fails to release them does so when it is
    /// closed.
    fn give_back(&self, layer: u32) {
        if !self.is_over() {
            let _ = self.store.forget_layer(layer);
        }
    }
}

fn accept_programs(mut entrance: Entrance, common: &Arc<Common>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let mut failing: Option<Instant> = None;
    let mut proven = Vec::new();
    while !common.is_over() {
        // A thread that has ended keeps its stack until then.
        threads.retain(|thread| !thread.is_finished());
        let waited = entrance.wait(LOOK, &mut proven);
        for program in proven.drain(..) {
            let same = Arc::clone(common);
            let thread = std::thread::Builder::new().name("masu-serve".to_owned());
            match thread.spawn(move || serve(&program, &same)) {
                Ok(thread) => threads.push(thread),
                // Without session parameters the program ends.
                Err(error) => common.say_at_once(
                    format!("cannot serve a program: {error}"),
                    "Allow more threads (`ulimit -u`, pids.max).",
                ),
            }
        }
        match waited {
            Ok(()) => failing = None,
            // Programs wait until others have ended and freed descriptors.
            Err(errno) => {
                if failing.get_or_insert_with(Instant::now).elapsed() > QUIET {
                    let said = format!("cannot accept programs, which wait for their handshake: {}", describe(errno));
                    common.say_at_once(said, "Raise the limit of open files (`ulimit -n`).");
                }
                std::thread::sleep(LOOK);
            }
        }
    }
    drop(entrance);
    for thread in threads {
        // As above.
        let _ = thread.join();
    }
}

/// Marks the run as over, at the latest when dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Serves one program, from its first message to its end.
fn serve(program: &Proven, common: &Common) {
    let connection = &program.connection;
    let layer = common.layers.fetch_add(1, Relaxed);
    match begin(program, common, layer) {
        Ok(Some(program)) => {
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let workers = if common.parameters.background && !program.has_file { WORKERS } else { 0 };
                let (program, over) = (&program, &over);
                // In all cases the other threads end.
                let ends = Ends(over);
                let mut begun = Vec::new();
                for which in 0..workers {
                    let worker = std::thread::Builder::new().name("masu-background".to_owned());
                    match worker.spawn_scoped(scope, move || program.run_batch(which, connection, common, over)) {
                        Ok(worker) => begun.push(worker),
                        Err(error) => {
                            // Submitted batches would never complete: the program learns it by the end of the
                            // connection.
                            let said = format!("cannot serve a program in the background: {error}");
                            let remedy = "Allow more threads (`ulimit -u`, pids.max), or say --no-background.";
                            return common.say_at_once(said, remedy);
                        }
                    }
                }
                let workers = begun;
                program.work(connection, common);
                drop(ends);
                while let Some(doorbell) = program.doorbell()
                    && workers.iter().any(|worker| !worker.is_finished())
                {
                    doorbell.submissions().fetch_add(1, Relaxed);
                    shared_memory::wake(doorbell.submissions());
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let counted = program.counted(common);
            common.note(|served| served.counted.push(counted));
            locked(&common.at_once).ended(layer);
            // All processes that could read there have ended, or are other programs now: each of them held the
            // connection.
            if connection.is_over() {
                common.give_back(layer);
            }
        }
        // A program without permission to begin has stored nothing there.
        Ok(None) => common.give_back(layer),
        Err(trouble) => {
            common.say(trouble.to_string());
            common.give_back(layer);
        }
    }
}

fn new_secret() -> Result<Secret, Errno> {
    let mut bytes = [[0; 8]; 2];
    // The kernel fills requests of up to 256 bytes whole.
    getrandom(bytes.as_flattened_mut(), GetRandomFlags::empty())?;
    let [library, masu] = bytes.map(u64::from_ne_bytes);
    Ok(Secret { library, masu })
}

/// Locks even after a panic of another thread: the content is only reported.
fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes_of(message: &Message) -> Vec<u8> {
    message.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn message_of(bytes: &[u8]) -> Message {
    let mut message = Message::default();
    for (word, bytes) in message.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    message
}

/// Program after its handshake.
struct Program {
    /// PID in the program's own PID namespace.
    process: u32,
    /// Peer process as masu sees it, if it does.
    peer: Peer,
    backend: Backend,
    layer: u32,
    /// Whether the program reads and writes its pages itself, and submits no requests.
    has_file: bool,
    segment: SharedMemory,
    layout: Layout,
    observation: Observation,
    profile: Option<Profile>,
}

/// Next message of a program; `None` when it has ended. It may be stopped meanwhile, for any time.
fn hear(connection: &Connection, bytes: &mut [u8], common: &Common) -> Result<Option<(usize, Vec<OwnedFd>)>, Errno> {
    let mut left = LAST_WORDS;
    loop {
        if let Some(said) = connection.receive(bytes, LOOK)? {
            return Ok(Some(said));
        }
        if connection.is_over() || left.is_zero() {
            return Ok(None);
        }
        if common.is_over() {
            left = left.saturating_sub(LOOK);
        }
    }
}

/// Failed handshake.
#[derive(Debug, thiserror::Error)]
enum NotServed {
    /// The store has no layer for the program.
    #[error(transparent)]
    Store(#[from] crate::store::Error),
    /// The socket failed.
    #[error("the handshake with a program failed: {}", describe(*.0))]
    Socket(#[from] Errno),
    /// A message is invalid.
    #[error("process {0} sent an invalid message at its start")]
    Invalid(u32),
}

fn begin(program: &Proven, common: &Common, layer: u32) -> Result<Option<Program>, NotServed> {
    let Proven { connection, peer, identity } = program;
    let mut bytes = [0; size_of::<Message>()];
    let direct = common.store.direct(layer)?;
    let fds: Vec<_> = direct.iter().map(|fd| fd.as_fd()).collect();
    connection.send(&bytes_of(&common.parameters.message(common.secret.masu)), &fds)?;
    let Some((_, mut fds)) = hear(connection, &mut bytes, common)? else { return Ok(None) };
    tracing::debug!(process = identity.process, "handshake");
    let invalid = || NotServed::Invalid(identity.process);
    let ready = Ready::of(&message_of(&bytes)).ok_or_else(invalid)?;
    let backend = match ready.begun {
        Ok(backend) => backend,
        Err((step, errno)) => {
            let errno = Errno::from_raw_os_error(errno.cast_signed());
            common.note(|served| served.not_begun.push(NotBegun { process: identity.process, step, errno }));
            return Ok(None);
        }
    };
    if fds.is_empty() {
        return Err(invalid());
    }
    let layout = Layout::new(common.parameters.most_pages as usize, common.parameters.budget_frames as usize);
    let segment = SharedMemory::of(fds.swap_remove(0), Bytes(layout.bytes as u64))?.ok_or_else(invalid)?;
    let mut program = Program {
        process: identity.process,
        peer: *peer,
        backend,
        layer,
        has_file: direct.is_some(),
        segment,
        layout,
        observation: Observation::begin(*peer),
        profile: None,
    };
    let profiles = program.known_sites(common);
    // A program that has died meanwhile is counted like any other.
    let _ = connection.send(&bytes_of(&Go { profiles }.message()), &[]);
    Ok(Some(program))
}

impl Program {
    fn doorbell(&self) -> Option<Doorbell<'_>> {
        self.segment.words().get(DOORBELL..)?.first_chunk().map(Doorbell)
    }

    /// Runs submitted batches, until the run is over.
    fn run_batch(&self, which: u64, connection: &Connection, common: &Common, over: &AtomicBool) {
        let words = self.segment.words_64();
        let pager = segment::pager(words, self.segment.words(), &self.layout);
        let Some((pager, doorbell)) = pager.zip(self.doorbell()) else { return };
        let says = |error: &BatchError| {
            // A program that has ended needs no more results of its batches.
            if !connection.is_over() {
                common.say_at_once(error.to_string(), error.remedy());
            }
        };
        let batch_data = &words[self.layout.batch_data / size_of::<u64>()..];
        let mut hands = Worker::new(&*common.store, self.layer, batch_data, &says);
        hands.work(which, &pager.batches, &doorbell, || over.load(Relaxed));
    }

    fn counters(&self) -> Option<Counters<'_>> {
        self.segment.words_64().first_chunk::<COUNTER_WORDS>().map(Counters)
    }

    fn counted(&self, common: &Common) -> Counted {
        let Some(counters) = self.counters() else { return Counted::default() };
        let learned = self.learned();
        let mut counted = Counted::of(self.process, &counters, &learned, self.observation.observed());
        counted.backend = Some(self.backend);
        let frames = saturated(counted.local.pages().0);
        let most = Budget::new(frames, 0).largest_unit_pages();
        let unit = common.parameters.plain_unit_pages().map(|pages| pages.min(most) as usize * PAGE_BYTES);
        counted.unit = unit.map(|bytes| Bytes(bytes as u64));
        if let (Some(folder), Some(profile)) = (&common.profiles, &self.profile) {
            counted.profile = Some(profile.end(folder, &learned, |why| common.say(why)));
        }
        counted
    }

    /// Writes the site profiles of an earlier run into the segment, and returns their number. The program waits
    /// meanwhile.
    fn known_sites(&mut self, common: &Common) -> u32 {
        let (Some(folder), Some(pid)) = (&common.profiles, self.peer.pid) else { return 0 };
        if self.peer.user != geteuid().as_raw() {
            return 0;
        }
        let exe = format!("/{}", pid.file("exe"));
        let begun = Profile::begin(folder, exe.as_ref(), &self.observation.observed().mappings, |why| common.say(why));
        let Some((profile, profiles)) = begun else { return 0 };
        self.profile = Some(profile);
        let places = self.segment.words_64()[self.layout.data / size_of::<u64>()..].chunks(INITIAL_PROFILE_WORDS);
        for (place, initial) in places.zip(&profiles) {
            place.iter().zip(InitialProfile::words(initial)).for_each(|(place, word)| place.store(word, Relaxed));
        }
        // As many as sites can be known, at most.
        fits(profiles.len())
    }

    /// Copy of the learned state: the program may still be writing to it.
    fn learned(&self) -> Box<Learned> {
        let mut learned = Box::<Learned>::default();
        let words = self.segment.words_64()[self.layout.learned / size_of::<u64>()..].iter();
        let place = (&raw mut *learned).cast::<u64>();
        for (index, word) in words.take(size_of::<Learned>() / size_of::<u64>()).enumerate() {
            // SAFETY: within the box; it consists of numbers, for which any value is valid, and is aligned as they are.
            unsafe { place.add(index).write(word.load(Relaxed)) };
        }
        learned
    }

    /// Takes the readings that are due, and says what the user should know at once.
    fn look(&self, common: &Common) {
        let Some(counters) = self.counters() else { return };
        let local = Counted::local(&counters);
        // The program can write any value there.
        let resident = Bytes(counters.get(Counter::ResidentPages).saturating_mul(PAGE_BYTES as u64)).min(local);
        let crowd = locked(&common.at_once).is(self.layer, local, resident, common.room);
        if let Some(crowd) = crowd.filter(|crowd| common.says_all || matches!(crowd, Crowd::TooMuch(_))) {
            (common.say)(&crowd.text());
        }
        let queue = Bytes(local.0 / 8);
        let unpaged = self.observation.look(|| self.learned(), queue).filter(|unpaged| unpaged.is_much(local));
        if let Some(unpaged) = unpaged
            && let Some(name) = self.observation.name_once()
        {
            let text = unpaged.text().unwrap_or_default();
            (common.say)(&format!(
                "{name} (process {}) has memory that is not paged, on top of --local {local}: {text}",
                self.process
            ));
        }
    }

    /// Serves its requests until it ends.
    fn work(&self, connection: &Connection, common: &Common) {
        let Some(request) = self.segment.words()[STORE_REQUEST..].first_chunk().map(StoreRequest) else { return };
        let mut data = vec![0; farmem_engine::MAX_UNIT_PAGES as usize * 4096];
        while !connection.is_over() && !common.is_over() {
            self.look(common);
            let Some((ask, page, pages)) = request.asked() else {
                if self.has_file {
                    // Its end, and the descriptors that it takes here, are waited for only as long as necessary.
                    connection.is_over_within(LOOK);
                    continue;
                }
                for now in [0, ANSWERED] {
                    if request.state().load(Relaxed) == now {
                        shared_memory::wait(request.state(), now, LOOK);
                    }
                }
                if request.state().load(Relaxed) == ASKED && request.asked().is_none() {
                    // Invalid: no answer would be valid.
                    return;
                }
                continue;
            };
            let done = self.run(ask, page, pages, &mut data, common);
            request.answer(done);
            shared_memory::wake(request.state());
        }
        self.observation.end(&self.learned());
    }

    fn location(&self, page: Page) -> Location {
        Location { layer: self.layer, page: page.0.into() }
    }

    fn run(&self, ask: Ask, page: Page, pages: u32, data: &mut [u8], common: &Common) -> bool {
        let words = &self.segment.words_64()[self.layout.data / 8..];
        let bytes = pages as usize * PAGE_BYTES;
        let store = &common.store;
        let done = match ask {
            Ask::Read => {
                store.get(&mut [GetRun { location: self.location(page), bytes: &mut data[..bytes] }]).map(|()| {
                    for (word, bytes) in words.iter().zip(data[..bytes].as_chunks::<8>().0) {
                        word.store(u64::from_ne_bytes(*bytes), Relaxed);
                    }
                })
            }
            Ask::Write => {
                for (word, bytes) in words.iter().zip(data[..bytes].as_chunks_mut::<8>().0) {
                    *bytes = word.load(Relaxed).to_ne_bytes();
                }
                store.put(&[PutRun { location: self.location(page), bytes: &data[..bytes] }])
            }
            Ask::Copy => {
                let one = &mut data[..PAGE_BYTES];
                store
                    .get(&mut [GetRun { location: self.location(page), bytes: one }])
                    .and_then(|()| store.put(&[PutRun { location: self.location(Page(pages)), bytes: one }]))
            }
        };
        if let Err(error) = &done {
            common.say_of_store(error);
        }
        done.is_ok()
    }
}

#[cfg(test)]
mod tests;
