//! `masu serve`.

pub mod board;
mod cache;
pub mod discovery;
mod events;
mod export;
mod huge;
mod page;
mod shown;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use board::Board;
use linux::{KernelFiles, Pid, open_files, status};
use serde_json::json;
use serve::config::{BadConfig, Cache, Config, Huge};
use serve::members::{Members, Turn};

use crate::args::ServeTask;
use crate::failure::Failure;
use crate::only_one::{Sole, only_one};
use crate::open::{Observers, can_promote};
use crate::prohibition::{self, Inherited};
use crate::terminal::clock::Stop;
use crate::terminal::print;
use crate::{Done, HOST};

const SOLE: Sole = Sole {
    file: "serve.lock",
    cannot: "serve",
    command: "masu serve",
    remedy: "One service per host: add your rules to its configuration, and reload it (SIGHUP).",
};

pub use page::answer as answer_http;

pub fn run(task: &ServeTask) -> Result<Done, Failure> {
    let folder = folder_of(&task.config);
    let config = Config::read(&task.config, &folder).map_err(|error| refused(&error))?;
    for (late, early) in config.shadowed() {
        print::note(format_args!(
            "{}, line {}: rule {} never holds: rule {} before it selects the same processes",
            late.place.file.display(),
            late.place.line,
            late.name,
            early.name
        ));
    }
    for rule in &config.rules {
        let missing = rule.select.executable.as_ref().filter(|path| !path.is_file());
        if let Some(path) = missing {
            print::note(format_args!("rule {}: {} is no file now; it is looked for again", rule.name, path.display()));
        }
    }
    if task.check {
        return check(&config, task);
    }
    if task.dry_run {
        return foresee(config, task);
    }
    // Before the first change: a SIGHUP meanwhile must not end masu.
    let reload = Reload::on_signal()?;
    let stop = Stop::on_signals_but_hangup()?;
    // For masu's own probe and preallocated pages.
    if let Inherited::Stays(why) = prohibition::lift_own() {
        print::note(format_args!("{why}"));
    }
    open_files::raise();
    let _lock = only_one(&SOLE)?;
    check_host(&config)?;
    let observers = Observers::find(None)?;
    let board = Board::begin().map_err(|error| {
        let at = board::path();
        Failure::new(format!("cannot listen at {}: {}", at.display(), linux::describe_io(&error)))
            .remedy("`masu status` asks there: the folder must be root's, and on a file system that takes sockets.")
    })?;
    let source = Source { file: task.config.clone(), folder, reload };
    let done = huge::serve(Members::new(config), source, &observers, stop, &board, task.json)?;
    board.end();
    Ok(done)
}

/// Position of the rules, and the request to read them again.
struct Source {
    file: PathBuf,
    folder: PathBuf,
    reload: Reload,
}

impl Source {
    /// The rules anew, once for each request.
    fn reloaded(&self) -> Option<Result<Config, BadConfig>> {
        self.reload.0.swap(false, Relaxed).then(|| Config::read(&self.file, &self.folder))
    }
}

/// Flag set by SIGHUP.
struct Reload(Arc<AtomicBool>);

impl Reload {
    fn on_signal() -> std::io::Result<Reload> {
        let flag = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::clone(&flag))?;
        Ok(Reload(flag))
    }
}

/// Whether the host has what the rules ask for.
fn check_host(config: &Config) -> Result<(), Failure> {
    let asks_for_huge_pages = config.rules.iter().any(|rule| matches!(rule.huge, Some(Huge::Hot(_))));
    if asks_for_huge_pages { can_promote(&linux::probe::collapse(&*HOST)) } else { Ok(()) }
}

/// `masu.d` beside `masu.toml`.
fn folder_of(file: &Path) -> PathBuf {
    file.with_extension("d")
}

fn refused(error: &BadConfig) -> Failure {
    let failure = Failure::new(format!("cannot serve: {error}"));
    match error {
        BadConfig::Unread { .. } => {
            failure.remedy("Name the file of your rules by --config; `masu serve --help` has some.")
        }
        BadConfig::Wrong { .. } => {
            failure.remedy("`masu serve --help` has the keys; `masu serve --check` says when it is right.")
        }
    }
}

fn check(config: &Config, task: &ServeTask) -> Result<Done, Failure> {
    let mut out = print::out();
    let number = config.rules.len();
    if task.json {
        writeln!(out, "{}", json!({ "rules": number }))?;
    } else {
        writeln!(out, "{}: {number} {}, no fault", task.config.display(), if number == 1 { "rule" } else { "rules" })?;
    }
    Ok(Done::Whole)
}

/// Prints the processes for which a rule holds now.
fn foresee(config: Config, task: &ServeTask) -> Result<Done, Failure> {
    let mut members = Members::new(config);
    let found = members.look(&*HOST, Turn { looks: 1, most: u64::MAX }).map_err(|error| Failure::new(&error))?;
    let mut out = print::out();
    if !task.json {
        writeln!(out, "{:>8}  {:<16}  {:<16}  effect", "process", "command", "rule")?;
    }
    let mut number = 0;
    for change in found {
        let huge = change.now.huge.map(|huge| ("huge", huge.rule, in_words(&huge.settings)));
        let cache = change.now.cache.map(|cache| ("cache", cache.rule, cache_in_words(cache.settings).to_owned()));
        let Some(name) = name_of(&*HOST, change.pid) else { continue };
        for (feature, rule, what) in huge.into_iter().chain(cache) {
            number += 1;
            if task.json {
                writeln!(out, "{}", json!({ "pid": change.pid, "name": name.text(), "rule": rule, feature: what }))?;
            } else {
                let of = if feature == "huge" { "huge pages" } else { "page cache" };
                writeln!(out, "{:>8}  {:<16}  {rule:<16}  {of} {what}", change.pid, name.to_string())?;
            }
        }
    }
    if number == 0 && !task.json {
        writeln!(out, "no running process has a rule")?;
    }
    Ok(Done::Whole)
}

fn name_of(files: &impl KernelFiles, pid: Pid) -> Option<linux::Untrusted> {
    status::status(files, pid).ok().map(|status| status.name)
}

/// Command name, made visible; empty for a process that has ended.
fn shown_name(pid: Pid) -> String {
    name_of(&*HOST, pid).map(|name| name.to_string()).unwrap_or_default()
}

/// Settings of a rule, for people.
fn in_words(huge: &Huge) -> String {
    match huge {
        Huge::Hot(hot) => format!("hot, memory grows by {} at most", hot.max_extra_rss),
        Huge::Leave => "left as they are".to_owned(),
    }
}

fn cache_in_words(cache: Cache) -> &'static str {
    match cache {
        Cache::Drop => "dropped behind streams",
        Cache::Leave => "left to the kernel",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_stands_beside_the_file() {
        assert_eq!(folder_of(Path::new("/etc/masu/masu.toml")), Path::new("/etc/masu/masu.d"));
    }
}
