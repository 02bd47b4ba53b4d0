//! `[serve]`: settings of the service itself.
//!
//! ```toml
//! [serve]
//! listen     = "127.0.0.1:9716"   # or "unix:/run/masu/http.sock", or "off"
//! max-series = 5000
//! history    = { dir = "/var/lib/masu", size = "200MiB", keep = "7d" }   # or "off"
//! ```

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use units::Bytes;

use super::{BadConfig, Source};
use crate::metrics;

/// Bounds of `max-series`.
const SERIES: std::ops::RangeInclusive<usize> = 100..=1_000_000;
/// Smallest history: a day of some groups.
const HISTORY_LEAST: Bytes = Bytes::mib(4);

/// Settings of the service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Address of the page, of its JSON and of the metrics.
    pub listen: Listen,
    /// Most series of the metrics.
    pub max_series: MaxSeries,
    /// History on disk.
    pub history: Keep,
}

/// Most series of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxSeries(pub usize);

/// Address of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// No page.
    Off,
    /// Address and port.
    Tcp(SocketAddr),
    /// Path of a socket.
    Unix(PathBuf),
}

/// History on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// In the service manager's folder for state, if there is one.
    #[default]
    Usual,
    /// None.
    Off,
    /// In a folder.
    In(History),
}

/// Settings of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Its folder.
    pub dir: PathBuf,
    /// Largest size on disk.
    pub size: Bytes,
    /// Longest time.
    pub keep: Duration,
}

impl Default for Listen {
    fn default() -> Listen {
        Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 9716)))
    }
}

impl Default for MaxSeries {
    fn default() -> MaxSeries {
        MaxSeries(metrics::SERIES)
    }
}

impl History {
    /// Usual bounds, in a folder.
    pub fn within(dir: PathBuf) -> History {
        History { dir, size: Bytes::mib(200), keep: Duration::from_secs(7 * 24 * 3600) }
    }
}

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "a table [serve] with listen, max-series and history"
)]
pub(super) struct RawService {
    listen: Option<Spanned<String>>,
    max_series: Option<Spanned<usize>>,
    history: Option<Spanned<RawKeep>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "\"off\", or a table { dir, size, keep }")]
enum RawKeep {
    Word(String),
    Table(RawHistory),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table { dir, size, keep }")]
struct RawHistory {
    dir: String,
    size: Option<String>,
    keep: Option<String>,
}

impl Source<'_> {
    /// The settings of a `[serve]` table.
    pub(super) fn service(&self, raw: RawService) -> Result<Service, BadConfig> {
        let mut service = Service::default();
        if let Some(listen) = raw.listen {
            service.listen = self.listen(&listen)?;
        }
        if let Some(series) = raw.max_series {
            let number = *series.get_ref();
            if !SERIES.contains(&number) {
                let what = format!("max-series = {number}: expected {} to {}", SERIES.start(), SERIES.end());
                return Err(self.wrong(series.span().start, what));
            }
            service.max_series = MaxSeries(number);
        }
        if let Some(history) = raw.history {
            service.history = self.history(history)?;
        }
        Ok(service)
    }

    fn listen(&self, value: &Spanned<String>) -> Result<Listen, BadConfig> {
        let text = value.get_ref();
        if text == "off" {
            return Ok(Listen::Off);
        }
        if let Some(path) = text.strip_prefix("unix:").map(Path::new).filter(|path| path.is_absolute()) {
            return Ok(Listen::Unix(path.to_owned()));
        }
        text.parse().map(Listen::Tcp).map_err(|_| {
            let expected = "expected an address and a port (127.0.0.1:9716, [::1]:9716), unix:/PATH, or off";
            self.wrong(value.span().start, format!("listen = {text:?}: {expected}"))
        })
    }

    fn history(&self, raw: Spanned<RawKeep>) -> Result<Keep, BadConfig> {
        let start = raw.span().start;
        let wrong = |what: String| self.wrong(start, what);
        let table = match raw.into_inner() {
            RawKeep::Word(word) if word == "off" => return Ok(Keep::Off),
            RawKeep::Word(word) => {
                return Err(wrong(format!("history = {word:?}: expected \"off\", or a table {{ dir, size, keep }}")));
            }
            RawKeep::Table(table) => table,
        };
        let dir = PathBuf::from(&table.dir);
        if !dir.is_absolute() {
            return Err(wrong(format!("dir = {:?}: expected a path from the root", table.dir)));
        }
        let mut history = History::within(dir);
        if let Some(size) = table.size {
            history.size = size.parse().map_err(|error| wrong(format!("size: {error}")))?;
        }
        if history.size < HISTORY_LEAST {
            return Err(wrong(format!("size: expected {HISTORY_LEAST} or more")));
        }
        if let Some(keep) = table.keep {
            let parsed = humantime::parse_duration(&keep);
            history.keep = parsed.map_err(|error| wrong(format!("keep = {keep:?}: {error}; expected 12h, 7d")))?;
        }
        if history.keep < Duration::from_secs(3600) {
            return Err(wrong("keep: expected an hour or more".to_owned()));
        }
        Ok(Keep::In(history))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn parse(text: &str) -> Result<Service, String> {
        let mut config = Config::default();
        config.add(Path::new("masu.toml"), text, "").map_err(|error| error.to_string())?;
        Ok(config.service.clone())
    }

    #[test]
    fn the_service_has_settings_of_its_own() {
        assert_eq!(parse("").unwrap(), Service::default());
        let service = parse(
            "[serve]\nlisten = \"[::1]:80\"\nmax-series = 200\n\
             history = { dir = \"/var/lib/masu\", size = \"50MiB\", keep = \"2d\" }\n",
        )
        .unwrap();
        let keep = Duration::from_secs(2 * 24 * 3600);
        let history = History { dir: PathBuf::from("/var/lib/masu"), size: Bytes::mib(50), keep };
        assert_eq!(service.listen, Listen::Tcp("[::1]:80".parse().unwrap()));
        assert_eq!((service.max_series, service.history), (MaxSeries(200), Keep::In(history)));
        let off = parse("[serve]\nlisten = \"off\"\nhistory = \"off\"\n").unwrap();
        assert_eq!((off.listen, off.history), (Listen::Off, Keep::Off));
        let unix = parse("[serve]\nlisten = \"unix:/run/masu/http.sock\"\n").unwrap();
        assert_eq!(unix.listen, Listen::Unix(PathBuf::from("/run/masu/http.sock")));
    }

    #[test]
    fn each_fault_has_its_line_and_what_is_expected() {
        for (text, expected) in [
            ("listen = \"9716\"", "line 2: listen = \"9716\": expected an address and a port"),
            ("listen = \"localhost:9716\"", "line 2: listen = \"localhost:9716\": expected an address"),
            ("listen = \"unix:http.sock\"", "line 2: listen = "),
            ("listen = 9716", "line 2: invalid type"),
            ("lisen = \"off\"", "did you mean `listen`?"),
            ("max-series = 7", "line 2: max-series = 7: expected 100 to 1000000"),
            ("history = \"on\"", "line 2: history = \"on\": expected \"off\", or a table"),
            ("history = { dir = \"masu\" }", "line 2: dir = \"masu\": expected a path from the root"),
            ("history = { dir = \"/a\", size = \"1MiB\" }", "line 2: size: expected 4.0 MiB or more"),
            ("history = { dir = \"/a\", size = \"much\" }", "line 2: size: "),
            ("history = { dir = \"/a\", keep = \"long\" }", "line 2: keep = \"long\": "),
            ("history = { dir = \"/a\", keep = \"1m\" }", "line 2: keep: expected an hour or more"),
        ] {
            let found = parse(&format!("[serve]\n{text}\n")).unwrap_err();
            assert!(found.starts_with("masu.toml, line 2: ") && found.contains(expected), "{found}\n{expected}");
        }
    }

    #[test]
    fn the_service_has_one_table() {
        let mut config = Config::default();
        config.add(Path::new("masu.toml"), "[serve]\n", "").unwrap();
        let twice = config.add(Path::new("masu.d/a.toml"), "\n[serve]\nlisten = \"off\"\n", "").unwrap_err();
        assert_eq!(twice.to_string(), "masu.d/a.toml, line 2: [serve] is in masu.toml, line 1 already");
    }
}
