//! History on disk: a sample of all groups per minute, in SQLite.
//!
//! One writer. Each sample is one transaction, written through to the disk: a crash loses at most the last minute. The
//! oldest samples go when they are older than `keep`, or the file has reached `size`. A damaged file is set aside.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OpenFlags, params};
use units::Bytes;

use crate::config::service::History as Settings;
use crate::series::{AMOUNTS, Point, Range, Sample};

/// Time between two samples.
pub const EVERY: Duration = Duration::from_secs(60);
/// Version of the tables.
const VERSION: i64 = 1;
/// Pages of SQLite's log until they are written into the file.
const LOG_PAGES: u32 = 250;
/// Part of the samples that goes at once, when the file is full.
const PART: u64 = 20;

/// Failure of the history.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The folder cannot be made.
    #[error("{}: {}", folder.display(), linux::describe_io(error))]
    Folder {
        /// Its path.
        folder: PathBuf,
        /// The system's answer.
        error: std::io::Error,
    },
    /// The file cannot be read or written.
    #[error("{}: {error}", file.display())]
    File {
        /// Its path.
        file: PathBuf,
        /// SQLite's answer.
        error: rusqlite::Error,
    },
    /// The file is of a newer masu.
    #[error("{}: written by a newer masu (version {version} of its tables)", file.display())]
    Newer {
        /// Its path.
        file: PathBuf,
        /// Version found.
        version: i64,
    },
}

/// The history, open for writing.
#[derive(Debug)]
pub struct History {
    file: PathBuf,
    connection: Connection,
    settings: Settings,
}

impl History {
    /// Opens the file in the folder of these settings, or makes both. Returns the path of a damaged file that was set
    /// aside, too.
    ///
    /// # Errors
    /// When the folder or the file cannot be made, or the file is of a newer masu.
    pub fn open(settings: &Settings) -> Result<(History, Option<PathBuf>), Failure> {
        let folder = &settings.dir;
        std::fs::create_dir_all(folder).map_err(|error| Failure::Folder { folder: folder.clone(), error })?;
        let file = folder.join("history.db");
        match History::open_file(&file, settings) {
            Err(Failure::File { error, .. }) if is_damage(&error) => {
                let aside = folder.join("history.db.damaged");
                let moved = std::fs::rename(&file, &aside);
                moved.map_err(|error| Failure::Folder { folder: folder.clone(), error })?;
                // The log of the damaged file belongs to no other.
                for end in ["-wal", "-shm"] {
                    let _ = std::fs::remove_file(folder.join(format!("history.db{end}")));
                }
                Ok((History::open_file(&file, settings)?, Some(aside)))
            }
            opened => Ok((opened?, None)),
        }
    }

    fn open_file(file: &Path, settings: &Settings) -> Result<History, Failure> {
        let failed = |error| Failure::File { file: file.to_owned(), error };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let connection = Connection::open_with_flags(file, flags).map_err(failed)?;
        let version = prepare(&connection, settings.size).map_err(failed)?;
        if version > VERSION {
            return Err(Failure::Newer { file: file.to_owned(), version });
        }
        Ok(History { file: file.to_owned(), connection, settings: settings.clone() })
    }

    /// Adds a sample, and drops the ones that are too old or do not fit.
    ///
    /// # Errors
    /// When the file cannot be written. The next sample tries again.
    pub fn add(&mut self, sample: &Sample) -> Result<(), Failure> {
        self.drop_old(sample.at).and_then(|()| self.write(sample)).map_err(|error| self.failed(error))
    }

    fn write(&mut self, sample: &Sample) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        {
            let mut name = transaction.prepare_cached("INSERT OR IGNORE INTO groups (path) VALUES (?1)")?;
            let mut number = transaction.prepare_cached("SELECT id FROM groups WHERE path = ?1")?;
            let text = "INSERT OR REPLACE INTO samples VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
            let mut add = transaction.prepare_cached(text)?;
            for (group, Point(amounts)) in &sample.groups {
                name.execute([group])?;
                let id: i64 = number.query_row([group], |row| row.get(0))?;
                let [a, b, c, d, e, f, g, h, i] = amounts;
                add.execute(params![sample.at, id, a, b, c, d, e, f, g, h, i])?;
            }
        }
        transaction.commit()
    }

    fn drop_old(&self, now: u64) -> rusqlite::Result<()> {
        let first = now.saturating_sub(self.settings.keep.as_secs());
        let mut dropped = self.connection.execute("DELETE FROM samples WHERE at < ?1", [first])?;
        if self.used()? > self.settings.size.0 / 100 * 90 {
            let span: Option<(u64, u64)> =
                self.connection.query_row("SELECT min(at), max(at) FROM samples", [], |row| {
                    Ok(row.get::<_, Option<u64>>(0)?.zip(row.get::<_, Option<u64>>(1)?))
                })?;
            if let Some((first, last)) = span {
                let until = first + (last - first) / PART;
                dropped += self.connection.execute("DELETE FROM samples WHERE at <= ?1", [until])?;
            }
        }
        if dropped > 0 {
            let text = "DELETE FROM groups WHERE id NOT IN (SELECT DISTINCT group_id FROM samples)";
            self.connection.execute(text, [])?;
        }
        Ok(())
    }

    /// Bytes in use within the file.
    fn used(&self) -> rusqlite::Result<u64> {
        let number = |name: &str| self.connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, u64>(0));
        Ok((number("page_count")? - number("freelist_count")?) * number("page_size")?)
    }

    /// Samples for each range, the first of each of its intervals, in the order of time.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn past(&self, now: u64) -> Result<Vec<Sample>, Failure> {
        self.read(now).map_err(|error| self.failed(error))
    }

    fn read(&self, now: u64) -> rusqlite::Result<Vec<Sample>> {
        let mut found = std::collections::BTreeMap::<u64, Sample>::new();
        let text = "SELECT at, path, usage, anonymous, file, shared, kernel, swap, huge, kubelet_working_set, unmapped \
            FROM samples JOIN groups ON id = group_id \
            WHERE at >= ?1 AND at <= ?2 AND at IN (SELECT min(at) FROM samples WHERE at >= ?1 AND at <= ?2 GROUP BY at / ?3) \
            ORDER BY at";
        let mut query = self.connection.prepare(text)?;
        for range in Range::ALL {
            let mut rows = query.query(params![now.saturating_sub(range.length_s()), now, range.every_s()])?;
            let mut last = None;
            while let Some(row) = rows.next()? {
                let at: u64 = row.get(0)?;
                if last != Some(at) && found.contains_key(&at) {
                    continue; // a shorter range has it
                }
                last = Some(at);
                let mut amounts = [None; AMOUNTS.len()];
                for (number, amount) in amounts.iter_mut().enumerate() {
                    *amount = row.get(2 + number)?;
                }
                let sample = found.entry(at).or_insert_with(|| Sample { at, groups: Vec::new() });
                sample.groups.push((row.get(1)?, Point(amounts)));
            }
        }
        Ok(found.into_values().collect())
    }

    fn failed(&self, error: rusqlite::Error) -> Failure {
        Failure::File { file: self.file.clone(), error }
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Makes the tables of a new file. Returns the version of its tables.
fn prepare(connection: &Connection, size: Bytes) -> rusqlite::Result<i64> {
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version > VERSION {
        return Ok(version);
    }
    // Shared memory beside the file would need a second file: one process alone has it open.
    connection.execute_batch(&format!(
        "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
         PRAGMA wal_autocheckpoint = {LOG_PAGES}; PRAGMA journal_size_limit = 1048576; PRAGMA cache_size = -1024; \
         BEGIN; \
         CREATE TABLE IF NOT EXISTS groups (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE); \
         CREATE TABLE IF NOT EXISTS samples (at INTEGER, group_id INTEGER, usage INTEGER, anonymous INTEGER, \
           file INTEGER, shared INTEGER, kernel INTEGER, swap INTEGER, huge INTEGER, kubelet_working_set INTEGER, \
           unmapped INTEGER, PRIMARY KEY (at, group_id)) WITHOUT ROWID; \
         PRAGMA user_version = {VERSION}; COMMIT;",
    ))?;
    let page: u64 = connection.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    connection.query_row(&format!("PRAGMA max_page_count = {}", size.0 / page.max(512)), [], |_| Ok(()))?;
    let check: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if check == "ok" { Ok(VERSION) } else { Err(rusqlite::Error::SqliteFailure(corrupt(), Some(check))) }
}

fn corrupt() -> rusqlite::ffi::Error {
    rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT)
}

fn is_damage(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(dir: &Path) -> Settings {
        Settings { size: Bytes::mib(4), ..Settings::within(dir.join("masu")) }
    }

    fn sample(at: u64, groups: u64) -> Sample {
        let point = |usage| Point([Some(usage), None, None, None, None, None, None, None, Some(0)]);
        Sample { at, groups: (0..groups).map(|group| (format!("/group-{group}"), point(7))).collect() }
    }

    fn times(history: &History, now: u64) -> Vec<u64> {
        history.past(now).unwrap().iter().map(|sample| sample.at).collect()
    }

    #[test]
    fn what_was_written_is_read_after_a_start() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        let (mut history, aside) = History::open(&settings).unwrap();
        assert_eq!(aside, None);
        for at in [100_000, 100_060, 100_120] {
            history.add(&sample(at, 2)).unwrap();
        }
        drop(history);
        let (history, aside) = History::open(&settings).unwrap();
        assert_eq!((aside, times(&history, 100_200)), (None, vec![100_000, 100_060, 100_120]));
        assert_eq!(history.past(100_200).unwrap()[1], sample(100_060, 2));
    }

    #[test]
    fn older_times_have_fewer_samples() {
        let folder = tempfile::tempdir().unwrap();
        let (mut history, _) = History::open(&settings(folder.path())).unwrap();
        let day = 24 * 3600;
        let last_hour = 2 * day - 3600;
        for at in (0..last_hour).step_by(300).chain((last_hour..2 * day).step_by(60)) {
            history.add(&sample(at, 1)).unwrap();
        }
        let times = times(&history, 2 * day - 60);
        assert!(times.is_sorted());
        let within = |from: u64, to: u64| times.iter().filter(|at| (from..to).contains(at)).count();
        assert_eq!(within(2 * day - 3600, 2 * day), 60, "each minute of the last hour");
        assert_eq!((within(day, 2 * day - 3700), within(0, day - 60)), (276, 24));
    }

    #[test]
    fn the_oldest_samples_go() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        let (mut history, _) = History::open(&settings).unwrap();
        history.add(&sample(1000, 3)).unwrap();
        let week = 7 * 24 * 3600;
        history.add(&sample(1001 + week, 1)).unwrap();
        assert_eq!(times(&history, 1001 + week), [1001 + week]);
        let groups: u64 = history.connection.query_row("SELECT count(*) FROM groups", [], |row| row.get(0)).unwrap();
        assert_eq!(groups, 1);
        // 600 groups are some 20 KiB each minute.
        for minute in 0..250 {
            history.add(&sample(2000 + week + minute * 60, 600)).unwrap();
        }
        let size = std::fs::metadata(&history.file).unwrap().len();
        assert!(size <= settings.size.0, "{size}");
        let times = times(&history, 2000 + week + 250 * 60);
        assert!(times.len() > 60 && times.last() == Some(&(2000 + week + 249 * 60)), "{times:?}");
    }

    #[test]
    fn a_damaged_file_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        std::fs::create_dir(&settings.dir).unwrap();
        std::fs::write(settings.dir.join("history.db"), vec![0x5a; 8192]).unwrap();
        let (mut history, aside) = History::open(&settings).unwrap();
        assert_eq!(std::fs::metadata(aside.unwrap()).unwrap().len(), 8192);
        history.add(&sample(1000, 1)).unwrap();
        // Within a page of the tables.
        history.add(&sample(1060, 600)).unwrap();
        drop(history);
        let file = settings.dir.join("history.db");
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[4096..12288].fill(0xa5);
        std::fs::write(&file, bytes).unwrap();
        let (history, aside) = History::open(&settings).unwrap();
        assert!(aside.is_some());
        assert!(times(&history, 2000).is_empty());
    }

    #[test]
    fn what_cannot_be_opened_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        std::fs::write(&settings.dir, "a file").unwrap();
        let error = History::open(&settings).unwrap_err().to_string();
        assert!(error.ends_with("/masu: file exists (EEXIST)"), "{error}");
        std::fs::remove_file(&settings.dir).unwrap();
        let (history, _) = History::open(&settings).unwrap();
        history.connection.execute_batch("PRAGMA user_version = 7").unwrap();
        drop(history);
        let newer = History::open(&settings).unwrap_err().to_string();
        assert!(newer.contains("written by a newer masu (version 7"), "{newer}");
    }
}
