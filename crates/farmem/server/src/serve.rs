//! masu's side of paged programs: the handshake, and store requests that programs cannot carry out themselves.
//!
//! Each program with the library connects here, also the ones that the first program starts. It gets its session
//! parameters and the memory for its tables; from then on a thread waits for its requests. Its counters are
//! kept until the end; its layer of the store is released when it ends.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farmem_engine::backend::Backend;
use farmem_engine::budget::Budget;
use farmem_engine::counters::{COUNTER_WORDS, Counters};
use farmem_engine::handshake::{self, Aside, Message, Secret, Sections, SessionParameters};
use farmem_engine::left_out::LeftOut;
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

use crate::at_once::{self, AtOnce, Peak};
use crate::background::{BatchError, Worker};
use crate::copies::{Peaks, Segment};
use crate::observation::Observation;
use crate::profile::{Folder, Profile};
use crate::report::Counted;
use crate::store::{GetRun, Location, PAGE_BYTES, PutRun, Say, Store};
use crate::thrash::Thrash;

mod fitting;
mod look;
mod not_begun;
mod notices;
mod start;
mod unproven;

pub use not_begun::{NotBegun, lines as not_begun_lines};
use notices::Notices;
use unproven::Entrance;

/// Time for a program's last message once the run is over; later messages are dropped.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Interval of the checks whether the run is over.
const LOOK: Duration = Duration::from_millis(100);

/// Failing handshakes, and programs without a file for their pages, are reported after this time.
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
    copies: Mutex<Peaks>,
    /// Notices of programs that thrash, of programs with much memory that is not paged, and of forked copies.
    thrashing: Notices,
    unpaged: Notices,
    copying: Notices,
    /// Memory that all programs together may have: of the control group, or of the machine.
    room: Option<Bytes>,
    /// Folder of profiles; `None` for none.
    profiles: Option<Folder>,
    over: AtomicBool,
    served: Mutex<Served>,
    /// Number of store layers: one for each program.
    layers: AtomicU32,
    /// Whether the first program has connected: it is refused where others are left out.
    first_has_come: AtomicBool,
}

/// Results of the programs.
#[derive(Default)]
struct Served {
    counted: Vec<Counted>,
    not_begun: Vec<NotBegun>,
    left_out: BTreeMap<LeftOut, u64>,
    first: Option<First>,
    trouble: Vec<String>,
}

/// Reason why the first program is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum First {
    /// It was not allowed to begin.
    Refused(LeftOut),
    /// The library could not begin in it.
    NotBegun(NotBegun),
    /// It runs unserved.
    LeftOut(LeftOut),
}

impl Served {
    /// Counts programs that run unserved.
    fn count(&mut self, reason: LeftOut, programs: u64) {
        let count = self.left_out.entry(reason).or_default();
        *count = count.saturating_add(programs);
    }

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
    copies: JoinHandle<()>,
}

/// Results of all programs.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Counters, one set for each program.
    pub counted: Vec<Counted>,
    /// Programs that the first one started and in which the library could not begin: they ran unserved.
    pub not_begun: Vec<NotBegun>,
    /// Programs that ran unserved, by reason.
    pub left_out: BTreeMap<LeftOut, u64>,
    /// Set if the first program is not served.
    pub first: Option<First>,
    /// Store failures, and invalid messages.
    pub trouble: Vec<String>,
    /// Programs that ran at the same time.
    pub at_once: Peak,
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
            copies: Mutex::default(),
            thrashing: Notices::default(),
            unpaged: Notices::default(),
            copying: Notices::default(),
            room: at_once::room(),
            profiles,
            over: AtomicBool::new(false),
            served: Mutex::default(),
            layers: AtomicU32::new(0),
            first_has_come: AtomicBool::new(false),
        });
        let same = Arc::clone(&common);
        let thread = std::thread::Builder::new()
            .name("masu-handshake".to_owned())
            .spawn(move || accept_programs(entrance, &same))?;
        let same = Arc::clone(&common);
        let copies =
            std::thread::Builder::new().name("masu-copies".to_owned()).spawn(move || look::count_copies(&same));
        let copies = copies.inspect_err(|_| common.over.store(true, Relaxed))?;
        Ok(Server { common, name, path, thread, copies })
    }

    /// Environment variables of programs that are to be served: names, and values, or `None` for variables that are
    /// removed.
    pub fn variables(&self) -> [(&'static str, Option<String>); 4] {
        let filters = own_filters();
        [
            (handshake::FILTERS_VARIABLE, (filters > 0).then(|| filters.to_string())),
            (handshake::VARIABLE, Some(self.name.clone())),
            (handshake::PATH_VARIABLE, self.path.clone()),
            (handshake::SECRET_VARIABLE, Some(self.common.secret.to_string())),
        ]
    }

    /// Value of [`handshake::SECRET_VARIABLE`] in the environment of the run's programs.
    pub fn secret(&self) -> String {
        self.common.secret.to_string()
    }

    /// Start of the path of the shared segment in a process's mappings. A copy by fork has it, too.
    pub fn segment_path() -> String {
        format!("/memfd:{} ", start::segment_name())
    }

    /// Ends the server, once the programs have ended: programs that still run get no more service from masu.
    pub fn end(self) -> Seen {
        self.common.over.store(true, Relaxed);
        self.copies.thread().unpark();
        // A thread that panicked has reported it.
        let _ = self.thread.join();
        let _ = self.copies.join();
        let served = std::mem::take(&mut *self.common.served.lock().unwrap_or_else(PoisonError::into_inner));
        let at_once = locked(&self.common.at_once).peak();
        let Served { counted, not_begun, left_out, first, trouble } = served;
        Seen { counted, not_begun, left_out, first, trouble, at_once }
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

    /// Counts a program that is not paged, and returns masu's answer to it. `not_begun` is the failed step, if it was
    /// one.
    fn leave_out(&self, is_first: bool, reason: LeftOut, not_begun: Option<NotBegun>) -> Message {
        let mut served = locked(&self.served);
        if is_first && reason.refuses_the_first() {
            served.first = Some(not_begun.map_or(First::Refused(reason), First::NotBegun));
            return handshake::REFUSED;
        }
        if is_first {
            served.first = Some(First::LeftOut(reason));
        }
        served.count(reason, 1);
        served.not_begun.extend(not_begun);
        handshake::LEFT_OUT
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
            let is_first = !common.first_has_come.swap(true, Relaxed);
            let (same, program) = (Arc::clone(common), Arc::new(program));
            let served = Arc::clone(&program);
            let thread = std::thread::Builder::new().name("masu-serve".to_owned());
            match thread.spawn(move || start::serve(&served, &same, is_first)) {
                Ok(thread) => threads.push(thread),
                Err(error) => start::no_thread(&program, common, is_first, &error),
            }
        }
        let filtered = entrance.filtered();
        if filtered > 0 {
            common.note(|served| served.count(LeftOut::Filtered, filtered));
        }
        match waited {
            Ok(()) => failing = None,
            // Programs wait until others have ended and freed descriptors.
            Err(errno) => {
                if failing.get_or_insert_with(Instant::now).elapsed() > QUIET {
                    let said = format!("cannot accept programs, which wait for their handshake: {}", describe(errno));
                    common.say_at_once(said, "Raise the limit of open files: `ulimit -n 4096`.");
                    if entrance.leave_one_out() {
                        common.note(|served| served.count(LeftOut::NoService, 1));
                    }
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

/// Number of seccomp filters on masu itself, which its programs inherit.
fn own_filters() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    if value("Seccomp:").unwrap_or(0) == 0 { 0 } else { value("Seccomp_filters:").unwrap_or(0).max(1) }
}

/// Marks the run as over, at the latest when dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
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
    /// Segment in the mappings of its copies.
    mapped: Option<Segment>,
    observation: Observation,
    thrash: Mutex<Thrash>,
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

/// Counts the programs that a served one has become by exec, and that load no library; and a program that is served no
/// more.
fn hear_of_others(connection: &Connection, common: &Common) {
    let mut bytes = [0; size_of::<Message>()];
    while let Ok(Some(_)) = connection.receive_at_once(&mut bytes) {
        if let Some(Aside { reason }) = Aside::of(&message_of(&bytes)) {
            common.note(|served| served.count(reason, 1));
        }
    }
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

    /// Serves its requests until it ends.
    fn work(&self, connection: &Connection, common: &Common) {
        let Some(request) = self.segment.words()[STORE_REQUEST..].first_chunk().map(StoreRequest) else { return };
        let mut data = vec![0; farmem_engine::MAX_UNIT_PAGES as usize * 4096];
        while !connection.is_over() && !common.is_over() {
            self.look(common);
            hear_of_others(connection, common);
            let Some((ask, page, pages)) = request.asked() else {
                if self.has_file {
                    // Its end, and the descriptors that it takes here, are waited for only as long as necessary.
                    connection.is_readable_within(LOOK);
                    continue;
                }
                for now in [0, ANSWERED] {
                    if request.state().load(Relaxed) == now {
                        shared_memory::wait(request.state(), now, LOOK);
                    }
                }
                if request.state().load(Relaxed) == ASKED && request.asked().is_none() {
                    // No answer would be valid.
                    let process = self.process;
                    let said =
                        format!("process {process} made an invalid request of its store, and is not served any more");
                    common.say_at_once(said, "This should not happen; please report it.");
                    break;
                }
                continue;
            };
            let done = self.run(ask, page, pages, &mut data, common);
            request.answer(done);
            shared_memory::wake(request.state());
        }
        hear_of_others(connection, common);
        if let Some(mapped) = self.mapped {
            self.observation.copies(locked(&common.copies).end(mapped));
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
