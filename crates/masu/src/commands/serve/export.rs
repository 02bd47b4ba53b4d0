//! Measurements of the service beside its members: groups, each some seconds, on a thread of its own. They go to the page
//! and into the history.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use serve::config::service::{History as Settings, Keep, Listen, Service};
use serve::groups::{Groups, measure, pause_after};
use serve::history::{self, History};
use serve::page::{Frame, Now};
use serve::series::Sample;
use serve::snapshot::Snapshot;

use super::page::{self, Page};
use crate::HOST;

/// Time between two tries to write the history, after a failure.
const AGAIN_AFTER: Duration = Duration::from_secs(600);

/// A line of the service.
pub struct Line {
    /// Kind of the event.
    pub event: &'static str,
    /// Words.
    pub text: String,
    /// Fields of the event.
    pub fields: Value,
}

/// The threads.
pub struct Export {
    service: Service,
    measured: Receiver<Result<Groups, linux::Error>>,
    /// Dropped at the end, which ends the thread of the groups.
    _measuring: Sender<()>,
    page: Option<Page>,
    record: Option<Record>,
    /// Reason for which groups are not measured, once said.
    failed: Option<String>,
}

impl Export {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn begin(service: &Service) -> std::io::Result<Export> {
        let ((tell, measured), (measuring, stop)) = (mpsc::channel(), mpsc::channel());
        let thread = std::thread::Builder::new().name("masu-groups".to_owned());
        thread.spawn(move || measure_until_end(&stop, &tell))?;
        let mut export = Export {
            service: Service { listen: Listen::Off, history: Keep::Off, ..service.clone() },
            measured,
            _measuring: measuring,
            page: None,
            record: None,
            failed: None,
        };
        export.change(service)?;
        Ok(export)
    }

    /// Takes other settings. Only what changed starts anew.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn change(&mut self, service: &Service) -> std::io::Result<()> {
        let history_changed = self.service.history != service.history;
        if history_changed {
            self.record = settings_of(&service.history).map(Record::begin).transpose()?;
        }
        if self.service.listen != service.listen {
            self.page.take().into_iter().for_each(Page::end);
            let listens = service.listen != Listen::Off;
            self.page = listens.then(|| Page::begin(service.listen.clone())).transpose()?;
        }
        self.service = service.clone();
        Ok(())
    }

    /// The latest measurement, if there is a new one.
    pub fn measured(&mut self, lines: &mut Vec<Line>) -> Option<Groups> {
        match self.measured.try_iter().last()? {
            Ok(groups) => Some(groups),
            Err(error) => {
                let why = error.to_string();
                if self.failed.as_ref() != Some(&why) {
                    let text = format!("control groups are not measured: {why}");
                    lines.push(Line { event: "groups-failed", text, fields: json!({ "reason": why }) });
                }
                self.failed = Some(why);
                Some(Groups::default())
            }
        }
    }

    /// Shows a snapshot on the page, and keeps a sample of it.
    pub fn publish(&mut self, snapshot: Snapshot) {
        let at = history::now();
        if let Some(record) = &self.record {
            record.keep(Sample::of(&snapshot.groups, at));
        }
        if let Some(page) = &self.page {
            let version = env!("CARGO_PKG_VERSION").to_owned();
            let max_series = self.service.max_series.0;
            page.show(Frame::Now(Box::new(Now { version, at, max_series, snapshot })));
        }
    }

    /// News of the page and of the history.
    pub fn news(&mut self, lines: &mut Vec<Line>) {
        for news in self.page.iter().flat_map(Page::news) {
            lines.push(match news {
                page::News::Answers(address) => {
                    let text = format!("the page is at {address}");
                    Line { event: "page", text, fields: json!({ "address": address }) }
                }
                page::News::Failed(why) => {
                    let text = format!("the page is not served: {why}");
                    Line { event: "page-failed", text, fields: json!({ "reason": why }) }
                }
            });
        }
        for news in self.record.iter().flat_map(|record| record.news.try_iter()) {
            match news {
                Recorded::Past(samples) => {
                    if let Some(page) = &self.page {
                        page.show(Frame::Past(samples));
                    }
                }
                Recorded::SetAside(path) => {
                    let text = format!("the history was damaged: it is {} now, and a new one begins", path.display());
                    lines.push(Line { event: "history-damaged", text, fields: json!({ "file": path }) });
                }
                Recorded::Failed(why) => {
                    let text = format!("no history is kept: {why}");
                    lines.push(Line { event: "history-failed", text, fields: json!({ "reason": why }) });
                }
            }
        }
    }

    /// Ends the page, and writes the last sample.
    pub fn end(self) {
        self.page.into_iter().for_each(Page::end);
        self.record.into_iter().for_each(Record::end);
    }
}

fn measure_until_end(stop: &Receiver<()>, tell: &Sender<Result<Groups, linux::Error>>) {
    loop {
        let begin = Instant::now();
        let measured = measure(&*HOST);
        if tell.send(measured).is_err() {
            return;
        }
        if stop.recv_timeout(pause_after(begin.elapsed())) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// The folder of the rules, or of the service manager (`StateDirectory=`).
fn settings_of(keep: &Keep) -> Option<Settings> {
    match keep {
        Keep::Off => None,
        Keep::In(settings) => Some(settings.clone()),
        Keep::Usual => {
            let folder = std::env::var_os("STATE_DIRECTORY").filter(|folder| !folder.is_empty())?;
            Some(Settings::within(PathBuf::from(folder)))
        }
    }
}

enum Recorded {
    Past(Vec<Sample>),
    SetAside(PathBuf),
    Failed(String),
}

/// The thread that writes the history: a slow or full disk holds up nothing else.
struct Record {
    samples: Sender<Sample>,
    news: Receiver<Recorded>,
}

impl Record {
    fn begin(settings: Settings) -> std::io::Result<Record> {
        let ((samples, sampled), (tell, news)) = (mpsc::channel(), mpsc::channel());
        let thread = std::thread::Builder::new().name("masu-history".to_owned());
        thread.spawn(move || write_until_end(&settings, &sampled, &tell))?;
        Ok(Record { samples, news })
    }

    fn keep(&self, sample: Sample) {
        // The thread lives as long as this.
        let _ = self.samples.send(sample);
    }

    fn end(self) {
        drop(self.samples);
        while self.news.recv_timeout(Duration::from_secs(5)).is_ok() {}
    }
}

fn write_until_end(settings: &Settings, samples: &Receiver<Sample>, tell: &Sender<Recorded>) {
    let mut said = None;
    let mut is_first = true;
    let mut last = 0;
    loop {
        let failed = match History::open(settings) {
            Ok((mut history, aside)) => {
                if let Some(path) = aside {
                    let _ = tell.send(Recorded::SetAside(path));
                }
                if std::mem::take(&mut is_first) {
                    let past = history.past(history::now()).unwrap_or_default();
                    let _ = tell.send(Recorded::Past(past));
                }
                match write(&mut history, samples, &mut last) {
                    None => return,
                    Some(failure) => failure.to_string(),
                }
            }
            Err(failure) => failure.to_string(),
        };
        if said.as_ref() != Some(&failed) {
            let _ = tell.send(Recorded::Failed(failed.clone()));
            said = Some(failed);
        }
        // Samples meanwhile are lost: the queue must not grow.
        let end = Instant::now() + AGAIN_AFTER;
        loop {
            match samples.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

/// Writes one sample a minute, until the service ends (`None`) or a write fails.
fn write(history: &mut History, samples: &Receiver<Sample>, last: &mut u64) -> Option<history::Failure> {
    let every = history::EVERY.as_secs();
    while let Ok(sample) = samples.recv() {
        if sample.at / every > *last / every {
            *last = sample.at;
            if let Err(failure) = history.add(&sample) {
                return Some(failure);
            }
        }
    }
    None
}
