//! Many processes that write files of 100 KB to 5 MB, as in the LRU-split paper, and read some of them again. Between
//! two files each touches pages of a large mapped file, shared by all as programs share their code.
//!
//! The command `start` starts them and answers when each is ready; `run MS` lets them work at the same time, and
//! answers with the sum of their work.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Lines, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bench::file_mapping::FileMapping;
use bench::process::page_faults;
use bench::workload::{self, Reply};
use clap::Parser;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::time::{ClockId, clock_gettime};
use units::spread::Random;

#[derive(Parser, Clone)]
struct Arguments {
    /// How many processes.
    #[arg(long, default_value_t = 64)]
    processes: u32,
    /// Where their files lie.
    #[arg(long)]
    folder: PathBuf,
    /// The file that all of them map.
    #[arg(long)]
    code: PathBuf,
    /// Files of each process; when it has written as many, it writes them anew.
    #[arg(long)]
    files: usize,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Be one of the processes: its number.
    #[arg(long, hide = true)]
    one: Option<u64>,
}

const FILE_BYTES_MIN: usize = 100_000;
const FILE_BYTES_MAX: usize = 5_000_000;
const BUFFER_BYTES: usize = 64 << 10;

/// One file in four is read again.
const READ_ONE_OF: usize = 4;

/// Pages of the mapped file touched after each file.
const TOUCHES: usize = 64;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    workload::run("workload-writers", || match arguments.one {
        None => lead(&arguments),
        Some(number) => work(&arguments, number),
    })
}

fn lead(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.processes > 0 && arguments.files > 0, "expected --processes and --files of 1 or more");
    let mut started = None;
    workload::serve("", |command| match (command.split_once(' '), started.take()) {
        (None, None) if command == "start" => {
            started = Some(Writers::start(arguments)?);
            Ok("started".to_owned())
        }
        (Some(("run", time)), Some(writers)) => Ok(writers.run(workload::milliseconds(time)?)?.to_string()),
        _ => bail!("`{command}`: expected `start`, and then `run MS`"),
    })
}

/// Sum of the processes' work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Done {
    written: u64,
    read: u64,
    files: u64,
    major: u64,
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Done { written, read, files, major } = self;
        write!(f, "written={written} read={read} files={files} major={major}")
    }
}

impl Done {
    fn of(line: &str) -> Result<Done> {
        let reply = Reply::of(line);
        let [written, read, files, major] = ["written", "read", "files", "major"].map(|name| reply.whole(name));
        Ok(Done { written: written?, read: read?, files: files?, major: major? })
    }

    fn and(self, other: Done) -> Done {
        Done {
            written: self.written + other.written,
            read: self.read + other.read,
            files: self.files + other.files,
            major: self.major + other.major,
        }
    }
}

/// All processes. They share one input pipe, which carries the end time: each begins when it has read from it, and
/// prints one line into another pipe. A process that lacked memory at the start has less time, and counts no less than
/// others.
struct Writers {
    children: Vec<OwnedChild>,
    gate: PipeWriter,
    answers: Lines<BufReader<PipeReader>>,
}

impl Writers {
    fn start(arguments: &Arguments) -> Result<Writers> {
        let (go, gate) = io::pipe()?;
        let (answers, said) = io::pipe()?;
        let program = std::env::current_exe()?;
        let mut children = Vec::new();
        for number in 0..arguments.processes {
            let mut command = Command::new(&program);
            command.arg("--folder").arg(&arguments.folder).arg("--code").arg(&arguments.code);
            command.args(["--files", &arguments.files.to_string(), "--seed", &arguments.seed.to_string()]);
            command.args(["--one", &number.to_string()]);
            command.stdin(Stdio::from(go.try_clone()?)).stdout(Stdio::from(said.try_clone()?));
            children.push(OwnedChild(command.spawn().context("cannot start a writer")?));
        }
        drop(said);
        let mut answers = BufReader::new(answers).lines();
        for _ in 0..children.len() {
            let line = answers.next().context("a writer has ended")??;
            ensure!(line == "ready", "a writer said `{line}` instead of `ready`");
        }
        Ok(Writers { children, gate, answers })
    }

    fn run(mut self, time: Duration) -> Result<Done> {
        let until = now_ns()?.saturating_add(u64::try_from(time.as_nanos())?);
        // Little enough for a pipe to take at once.
        self.gate.write_all(&until.to_ne_bytes().repeat(self.children.len()))?;
        let mut done = Done::default();
        for _ in 0..self.children.len() {
            done = done.and(Done::of(&self.answers.next().context("a writer has ended without a word")??)?);
        }
        Ok(done)
    }
}

/// Time of a clock that is the same for all processes.
fn now_ns() -> Result<u64> {
    let now = clock_gettime(ClockId::Monotonic);
    Ok(u64::try_from(now.tv_sec)? * 1_000_000_000 + u64::try_from(now.tv_nsec)?)
}

/// A process of ours, ended when dropped.
struct OwnedChild(Child);

impl Drop for OwnedChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Work of one process.
fn work(arguments: &Arguments, number: u64) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let code = FileMapping::of(&File::open(&arguments.code).context("cannot open what is mapped")?)?;
    let folder = arguments.folder.join(format!("{number:04}"));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut writer = Writer {
        folder: &folder,
        sizes: vec![0; arguments.files],
        random: Random::seeded(arguments.seed ^ (number << 32)),
        buffer: vec![0x5a; BUFFER_BYTES],
        until: Instant::now(),
        done: Done::default(),
    };
    println!("ready");
    let mut until_ns = [0; 8];
    // Unbuffered: a buffer would take the other processes' input.
    File::from(io::stdin().as_fd().try_clone_to_owned()?).read_exact(&mut until_ns)?;
    writer.until = Instant::now() + Duration::from_nanos(u64::from_ne_bytes(until_ns).saturating_sub(now_ns()?));
    let (before, mut sum) = (page_faults(std::process::id())?, 0);
    while Instant::now() < writer.until {
        writer.one_file().with_context(|| format!("cannot write below {}", folder.display()))?;
        for _ in 0..TOUCHES {
            sum += u64::from(code.touch(skewed(code.pages(), &mut writer.random)));
        }
    }
    // Only the work done in this time is counted. One process in a thousand may wait much longer for its last file to
    // be truncated.
    let done = Done { major: page_faults(std::process::id())?.major - before.major, ..writer.done };
    println!("{done} sum={sum}");
    Ok(())
}

/// A page, the first ones more likely: three of five touches go to the first quarter.
fn skewed(pages: usize, random: &mut Random) -> usize {
    let below = random.below(pages) + 1;
    random.below(below)
}

struct Writer<'a> {
    folder: &'a Path,
    /// Written size of each file.
    sizes: Vec<usize>,
    random: Random,
    buffer: Vec<u8>,
    until: Instant,
    done: Done,
}

impl Writer<'_> {
    fn one_file(&mut self) -> io::Result<()> {
        let nth = self.random.below(self.sizes.len());
        let path = self.folder.join(format!("{nth:05}"));
        if self.sizes[nth] > 0 && self.random.below(READ_ONE_OF) == 0 {
            self.read(&path)?;
        } else {
            let bytes = FILE_BYTES_MIN + self.random.below(FILE_BYTES_MAX - FILE_BYTES_MIN + 1);
            self.sizes[nth] = self.write(&path, bytes)?;
        }
        self.done.files += 1;
        Ok(())
    }

    /// Work done by the end of the time counts; the rest is left out.
    fn write(&mut self, path: &Path, bytes: usize) -> io::Result<usize> {
        let (mut file, mut at) = (File::create(path)?, 0);
        while at < bytes && Instant::now() < self.until {
            let part = (bytes - at).min(self.buffer.len());
            file.write_all(&self.buffer[..part])?;
            at += part;
            self.done.written += part as u64;
        }
        Ok(at)
    }

    fn read(&mut self, path: &Path) -> io::Result<()> {
        let mut file = File::open(path)?;
        while Instant::now() < self.until {
            match file.read(&mut self.buffer)? {
                0 => break,
                read => self.done.read += read as u64,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_says_adds_up() {
        let one = Done { written: 1, read: 2, files: 3, major: 4 };
        assert_eq!(Done::of(&format!("{one} sum=7")).unwrap(), one);
        assert_eq!(one.and(one), Done { written: 2, read: 4, files: 6, major: 8 });
        assert!(Done::of("ready").is_err());
    }

    #[test]
    fn files_have_the_papers_sizes_and_some_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer {
            folder: folder.path(),
            sizes: vec![0; 2],
            random: Random::seeded(1),
            buffer: vec![1; BUFFER_BYTES],
            until: Instant::now() + Duration::from_secs(600),
            done: Done::default(),
        };
        for _ in 0..20 {
            writer.one_file().unwrap();
        }
        assert!(writer.done.read > 0 && writer.done.written > 0 && writer.done.files == 20, "{:?}", writer.done);
        assert!(
            writer.sizes.iter().all(|bytes| (FILE_BYTES_MIN..=FILE_BYTES_MAX).contains(bytes)),
            "{:?}",
            writer.sizes
        );
    }

    #[test]
    fn early_pages_are_touched_more_often() {
        let mut random = Random::seeded(1);
        let early = (0..10_000).filter(|_| skewed(1000, &mut random) < 250).count();
        // 0.25 · (1 + ln 4) = 0.597 of them.
        assert!((5700..6200).contains(&early), "{early}");
    }
}
