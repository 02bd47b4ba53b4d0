//! `masu.toml`: parser of the rules.
//!
//! ```toml
//! [[rule]]
//! name   = "redis"
//! select = { unit = "redis*.service" }
//! huge   = { mode = "hot", max-extra-rss = "1%" }
//!
//! [[rule]]
//! name   = "database"
//! select = { executable = "/usr/sbin/mariadbd", user = "mysql" }
//! huge   = { mode = "leave" }   # measured, and not changed
//!
//! [[rule]]
//! name   = "backup"
//! select = { unit = "backup.service" }
//! aging  = { cache = 0 }        # drops what it reads and writes behind it
//! ```
//!
//! The configuration is one file, and the files of a folder beside it (`masu.d`), in the order of their names. An
//! unknown key, a value of another type and two rules of one name are errors, each with its file and line.

pub mod service;

use std::fmt;
use std::path::{Path, PathBuf};

use glob::Pattern;
use linux::named_file;
use serde::Deserialize;
use toml::Spanned;
use units::{Bytes, Fraction, NonZeroFraction};

use service::{RawService, Service};

/// Largest file.
const FILE_MOST: Bytes = Bytes::mib(1);
/// Most rules: each is compared with each new process.
const RULES_MOST: usize = 1000;
/// Most `*` in one name of a pattern.
const STARS_MOST: usize = 2;
/// Longest message of the parser; it may quote a key of any length.
const MESSAGE_MOST: usize = 300;
/// Longest name of a rule: it is a label of messages.
const NAME_MOST: usize = 48;

/// All rules, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Rules of the file, then those of the folder.
    pub rules: Vec<Rule>,
    /// Settings of the service itself.
    pub service: Service,
    /// Position of these settings.
    service_place: Option<Place>,
}

/// Selector of processes, with settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Name, unique.
    pub name: String,
    /// File and line.
    pub place: Place,
    /// Matched processes.
    pub select: Select,
    /// Huge pages; `None` leaves them to a later rule.
    pub huge: Option<Huge>,
    /// Page cache; `None` leaves it to a later rule.
    pub cache: Option<Cache>,
}

/// Position in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Path of the file.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
}

/// Selector: a process must match each given part. At least one is given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Select {
    /// Name of its system unit.
    pub unit: Option<Pattern>,
    /// Path of its control group, or of one above it, from the top of a hierarchy.
    pub cgroup: Option<Pattern>,
    /// Its program's file.
    pub executable: Option<PathBuf>,
    /// Its user, for all of its user ids.
    pub user: Option<u32>,
    /// Its command name. Each process chooses its own, so this part never stands alone.
    pub command: Option<Pattern>,
}

/// Huge pages of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Huge {
    /// Hot windows become huge, idle ones small, as by `masu attach`.
    Hot(Hot),
    /// Nothing is changed.
    Leave,
}

/// Settings of [`Huge::Hot`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hot {
    /// Memory that promotion may add, as a part of the resident memory.
    pub max_extra_rss: Fraction,
    /// Part of a window's pages that must be hot.
    pub hot_fraction: NonZeroFraction,
}

impl Default for Hot {
    fn default() -> Hot {
        Hot { max_extra_rss: Fraction::clamped(0.01), hot_fraction: NonZeroFraction::ratio(1, 4) }
    }
}

/// Pages that a process brings into the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Dropped behind its streams, as by `masu aging --cache 0`.
    Drop,
    /// Left to the kernel.
    Leave,
}

/// Reason against a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadConfig {
    /// A file or a folder cannot be read.
    #[error("cannot read {}: {why}", file.display())]
    Unread {
        /// Its path.
        file: PathBuf,
        /// The system's answer.
        why: String,
    },
    /// A value is wrong.
    #[error("{}, line {}: {what}", place.file.display(), place.line)]
    Wrong {
        /// Its position.
        place: Place,
        /// Text found and text expected.
        what: String,
    },
}

impl Config {
    /// Reads the file at `path`, and the files `*.toml` in `folder`; a missing folder is an empty one.
    ///
    /// # Errors
    /// The first unreadable file, or the first wrong value.
    pub fn read(path: &Path, folder: &Path) -> Result<Config, BadConfig> {
        let mut files = vec![path.to_owned()];
        let unread = |file: &Path, error: &std::io::Error| BadConfig::Unread {
            file: file.to_owned(),
            why: linux::describe_io(error),
        };
        match std::fs::read_dir(folder) {
            Ok(entries) => {
                let mut names = Vec::new();
                for entry in entries {
                    names.push(entry.map_err(|error| unread(folder, &error))?.path());
                }
                let is_hidden =
                    |name: &Path| name.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
                names.retain(|name| name.extension().is_some_and(|ends| ends == "toml") && !is_hidden(name));
                names.sort();
                files.extend(names);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(unread(folder, &error)),
        }
        let passwd = std::fs::read("/etc/passwd").unwrap_or_default();
        let passwd = String::from_utf8_lossy(&passwd);
        let mut config = Config::default();
        for file in files {
            let text = named_file::read_text(&file, FILE_MOST).map_err(|error| unread(&file, &error))?;
            config.add(&file, &text, &passwd)?;
        }
        Ok(config)
    }

    /// Adds the rules of one file; `passwd` is the text of `/etc/passwd`.
    ///
    /// # Errors
    /// The first wrong value.
    pub fn add(&mut self, file: &Path, text: &str, passwd: &str) -> Result<(), BadConfig> {
        let source = Source { file, text, passwd };
        let raw: RawConfig = toml::from_str(text)
            .map_err(|error| source.wrong(error.span().map_or(0, |span| span.start), in_our_words(error.message())))?;
        if let Some(raw) = raw.serve {
            let place = source.place(raw.span().start);
            if let Some(Place { file, line }) = &self.service_place {
                let what = format!("[serve] is in {}, line {line} already", file.display());
                return Err(BadConfig::Wrong { place, what });
            }
            self.service = source.service(raw.into_inner())?;
            self.service_place = Some(place);
        }
        for rule in raw.rule {
            let rule = source.rule(rule)?;
            let is_twin = |other: &&Rule| other.name == rule.name;
            if let Some(twin) = self.rules.iter().find(is_twin) {
                let Place { file, line } = &twin.place;
                let what = format!("name = \"{}\": {} has it in line {line} already", rule.name, file.display());
                return Err(BadConfig::Wrong { place: rule.place, what });
            }
            if self.rules.len() == RULES_MOST {
                return Err(BadConfig::Wrong { place: rule.place, what: format!("more than {RULES_MOST} rules") });
            }
            self.rules.push(rule);
        }
        Ok(())
    }

    /// Rules without effect, each with an earlier rule of the same selector and features.
    pub fn shadowed(&self) -> Vec<(&Rule, &Rule)> {
        let covers = |before: &Rule, rule: &Rule| {
            before.select == rule.select
                && (rule.huge.is_none() || before.huge.is_some())
                && (rule.cache.is_none() || before.cache.is_some())
        };
        let mut found = Vec::new();
        for (number, rule) in self.rules.iter().enumerate() {
            found.extend(self.rules[..number].iter().find(|before| covers(before, rule)).map(|before| (rule, before)));
        }
        found
    }
}

impl fmt::Display for Select {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |key: &str, pattern: &Option<Pattern>| pattern.as_ref().map(|value| format!("{key} {value}"));
        let parts = [
            text("unit", &self.unit),
            text("cgroup", &self.cgroup),
            self.executable.as_ref().map(|path| format!("executable {}", path.display())),
            self.user.map(|user| format!("user {user}")),
            text("command", &self.command),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(&parts.join(", "))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "tables [[rule]] and [serve]")]
struct RawConfig {
    serve: Option<Spanned<RawService>>,
    #[serde(default)]
    rule: Vec<RawRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[rule]] with name, select, huge and aging")]
struct RawRule {
    name: Spanned<String>,
    select: Spanned<RawSelect>,
    huge: Option<Spanned<RawHuge>>,
    aging: Option<RawAging>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table { cache }")]
struct RawAging {
    cache: Spanned<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table { unit, cgroup, executable, user, command }")]
struct RawSelect {
    unit: Option<Spanned<String>>,
    cgroup: Option<Spanned<String>>,
    executable: Option<Spanned<String>>,
    user: Option<Spanned<RawUser>>,
    command: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a user's name or number")]
enum RawUser {
    Id(u32),
    Name(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table { mode, max-extra-rss, hot-fraction }")]
struct RawHuge {
    mode: Mode,
    max_extra_rss: Option<Spanned<String>>,
    hot_fraction: Option<Spanned<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Hot,
    Leave,
}

/// Text of a file, for positions.
struct Source<'t> {
    file: &'t Path,
    text: &'t str,
    passwd: &'t str,
}

impl Source<'_> {
    fn place(&self, offset: usize) -> Place {
        let line = self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1;
        Place { file: self.file.to_owned(), line }
    }

    fn wrong(&self, offset: usize, what: impl Into<String>) -> BadConfig {
        BadConfig::Wrong { place: self.place(offset), what: what.into() }
    }

    fn rule(&self, raw: RawRule) -> Result<Rule, BadConfig> {
        let start = raw.name.span().start;
        let name = raw.name.into_inner();
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if name.is_empty() || name.len() > NAME_MOST || !name.bytes().all(fits) {
            let expected = format!("expected 1 to {NAME_MOST} letters, digits, dashes, dots or underlines");
            return Err(self.wrong(start, format!("name = {name:?}: {expected}")));
        }
        let select = self.select(raw.select)?;
        let huge = raw.huge.map(|huge| self.huge(huge)).transpose()?;
        let cache = raw.aging.map(|aging| self.cache(&aging.cache)).transpose()?;
        if huge.is_none() && cache.is_none() {
            let what = "expected huge = { mode = … } or aging = { cache = … }";
            return Err(self.wrong(start, format!("rule {name} names no feature: {what}")));
        }
        Ok(Rule { name, place: self.place(start), select, huge, cache })
    }

    fn cache(&self, level: &Spanned<u32>) -> Result<Cache, BadConfig> {
        match level.get_ref() {
            0 => Ok(Cache::Drop),
            100 => Ok(Cache::Leave),
            other => {
                let what = "expected 0 (dropped behind streams) or 100 (left to the kernel)";
                Err(self.wrong(level.span().start, format!("cache = {other}: {what}")))
            }
        }
    }

    fn select(&self, raw: Spanned<RawSelect>) -> Result<Select, BadConfig> {
        let start = raw.span().start;
        let raw = raw.into_inner();
        let pattern = |key: &str, value: Option<Spanned<String>>| {
            let parse = |value: Spanned<String>| {
                let text = value.get_ref().trim_matches('/');
                let wrong = |why: &str| self.wrong(value.span().start, format!("{key} = {:?}: {why}", value.get_ref()));
                if text.is_empty() {
                    return Err(wrong("expected a name or a pattern (*, ?, **)"));
                }
                if key == "unit" && text.contains('/') {
                    return Err(wrong("expected the name of a unit, without a path"));
                }
                // Matching takes time by the power of their number, on names that strangers choose.
                let stars = |name: &str| name.matches('*').count();
                let trees = text.split('/').filter(|name| *name == "**").count();
                if trees > 1 || text.split('/').any(|name| name != "**" && stars(name) > STARS_MOST) {
                    return Err(wrong("expected one ** at most, and two * in a name at most"));
                }
                Pattern::new(text).map_err(|error| wrong(error.msg))
            };
            value.map(parse).transpose()
        };
        let executable = raw.executable.map(|path| {
            let is_whole = Path::new(path.get_ref()).is_absolute();
            let what = || format!("executable = {:?}: expected a path from the root", path.get_ref());
            if is_whole { Ok(PathBuf::from(path.get_ref())) } else { Err(self.wrong(path.span().start, what())) }
        });
        let select = Select {
            unit: pattern("unit", raw.unit)?,
            cgroup: pattern("cgroup", raw.cgroup)?,
            executable: executable.transpose()?,
            user: raw.user.map(|user| self.user(&user)).transpose()?,
            command: pattern("command", raw.command)?,
        };
        if select == Select::default() {
            return Err(self.wrong(start, "select names nothing: expected unit, cgroup, executable or user"));
        }
        if select == (Select { command: select.command.clone(), ..Select::default() }) {
            let what =
                "command alone: any process may take this name; expected unit, cgroup, executable or user beside it";
            return Err(self.wrong(start, what));
        }
        Ok(select)
    }

    fn user(&self, user: &Spanned<RawUser>) -> Result<u32, BadConfig> {
        let name = match user.get_ref() {
            RawUser::Id(id) => return Ok(*id),
            RawUser::Name(name) => name,
        };
        let of_line = |line: &str| {
            let mut fields = line.split(':');
            (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
        };
        let found = name.parse().ok().or_else(|| self.passwd.lines().find_map(of_line));
        found.ok_or_else(|| {
            let what = format!("user = {name:?}: not in /etc/passwd; expected its name there, or its number");
            self.wrong(user.span().start, what)
        })
    }

    fn huge(&self, raw: Spanned<RawHuge>) -> Result<Huge, BadConfig> {
        let RawHuge { mode, max_extra_rss, hot_fraction } = raw.into_inner();
        let given = [("max-extra-rss", &max_extra_rss), ("hot-fraction", &hot_fraction)];
        let surplus = given.iter().find_map(|(key, value)| value.as_ref().map(|value| (key, value.span().start)));
        match (mode, surplus) {
            (Mode::Leave, Some((key, start))) => {
                Err(self.wrong(start, format!("{key} has no meaning beside mode = \"leave\"")))
            }
            (Mode::Leave, None) => Ok(Huge::Leave),
            (Mode::Hot, _) => {
                let usual = Hot::default();
                Ok(Huge::Hot(Hot {
                    max_extra_rss: self.parsed("max-extra-rss", max_extra_rss, usual.max_extra_rss)?,
                    hot_fraction: self.parsed("hot-fraction", hot_fraction, usual.hot_fraction)?,
                }))
            }
        }
    }

    fn parsed<T>(&self, key: &str, value: Option<Spanned<String>>, usual: T) -> Result<T, BadConfig>
    where
        T: std::str::FromStr<Err: fmt::Display>,
    {
        let Some(value) = value else { return Ok(usual) };
        value.get_ref().parse().map_err(|error| self.wrong(value.span().start, format!("{key}: {error}")))
    }
}

/// The message of the parser on one line; of an unknown key with the nearest known one.
fn in_our_words(message: &str) -> String {
    let line: String = message.trim().replace('\n', ", ").chars().take(MESSAGE_MOST).collect();
    let named: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
    let is_unknown = ["unknown field", "unknown variant"].iter().any(|start| line.starts_with(start));
    let ([unknown, known @ ..], true) = (&*named, is_unknown) else { return line };
    let distance = |name: &&&str| strsim::damerau_levenshtein(unknown, name);
    match known.iter().min_by_key(distance) {
        Some(nearest) if distance(&nearest) <= nearest.len() / 2 => format!("{line}; did you mean `{nearest}`?"),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nmysql:x:106:112::/nonexistent:/bin/false\n";

    fn parse(text: &str) -> Result<Config, BadConfig> {
        let mut config = Config::default();
        config.add(Path::new("masu.toml"), text, PASSWD).map(|()| config)
    }

    fn said(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn rules_have_selectors_and_settings() {
        let config = parse(
            "[[rule]]\nname = \"redis\"\nselect = { unit = \"redis*.service\" }\n\
             huge = { mode = \"hot\", max-extra-rss = \"5%\" }\n\
             [[rule]]\nname = \"db\"\nselect = { executable = \"/usr/sbin/mariadbd\", user = \"mysql\" }\n\
             huge = { mode = \"leave\" }\n\
             [[rule]]\nname = \"backup\"\nselect = { unit = \"backup.service\" }\naging = { cache = 0 }\n",
        )
        .unwrap();
        let [redis, db, backup] = &*config.rules else { panic!("{config:?}") };
        assert_eq!((backup.huge, backup.cache), (None, Some(Cache::Drop)));
        assert_eq!((redis.cache, db.cache), (None, None));
        let hot = Hot { max_extra_rss: Fraction::clamped(0.05), ..Hot::default() };
        assert_eq!((redis.place.line, redis.huge), (2, Some(Huge::Hot(hot))));
        assert_eq!(redis.select.to_string(), "unit redis*.service");
        assert_eq!((db.place.line, db.huge), (6, Some(Huge::Leave)));
        assert_eq!(db.select.to_string(), "executable /usr/sbin/mariadbd, user 106");
    }

    #[test]
    fn each_fault_has_its_line_and_what_is_expected() {
        let rule = |select: &str, huge: &str| format!("[[rule]]\nname = \"a\"\nselect = {select}\nhuge = {huge}\n");
        let hot = "{ mode = \"hot\" }";
        for (text, expected) in [
            (rule("{ unt = \"a\" }", hot), "line 3: unknown field `unt`"),
            (rule("{ unt = \"a\" }", hot), "did you mean `unit`?"),
            (rule("{ unit = 7 }", hot), "line 3: invalid type"),
            (rule("{ unit = \"\" }", hot), "line 3: unit = \"\": expected a name"),
            (rule("{ unit = \"a**b\" }", hot), "line 3: unit = \"a**b\""),
            (rule("{ unit = \"a/b\" }", hot), "line 3: unit = \"a/b\": expected the name of a unit"),
            (rule("{ cgroup = \"a/*b*c*\" }", hot), "line 3: cgroup = \"a/*b*c*\": expected one ** at most"),
            (rule("{ cgroup = \"**/a/**\" }", hot), "line 3: cgroup = \"**/a/**\": expected one ** at most"),
            (rule("[\"a\"]", hot), "expected a table { unit"),
            (rule("{ user = true }", hot), "line 3: "),
            (rule("{}", hot), "line 3: select names nothing"),
            (rule("{ command = \"redis\" }", hot), "line 3: command alone"),
            (rule("{ user = \"mysq\" }", hot), "line 3: user = \"mysq\": not in /etc/passwd"),
            (rule("{ executable = \"mariadbd\" }", hot), "line 3: executable = \"mariadbd\": expected a path"),
            (rule("{ user = \"0\" }", "{ mode = \"warm\" }"), "line 4: unknown variant `warm`"),
            (rule("{ user = \"0\" }", "{ mode = \"leave\", hot-fraction = \"1/4\" }"), "line 4: hot-fraction has no"),
            (rule("{ user = \"0\" }", "{ mode = \"hot\", max-extra-rss = \"much\" }"), "line 4: max-extra-rss: "),
            (rule("{ user = \"0\" }", "{ mode = \"hot\" }\naging = { cash = 0 }"), "line 5: unknown field `cash`"),
            (rule("{ user = \"0\" }", "{ mode = \"hot\" }\naging = { cache = 7 }"), "line 5: cache = 7: expected 0"),
            (rule("{ user = \"0\" }", "{ mode = \"hot\" }\naging = {}"), "line 5: missing field `cache`"),
            ("[[rule]]\nname = \"a b\"\nselect = { user = \"0\" }\n".to_owned(), "line 2: name = \"a b\""),
            ("[[rule]]\nname = \"a\"\nselect = { user = \"0\" }\n".to_owned(), "line 2: rule a names no feature"),
            ("[[rules]]\nname = \"a\"\n".to_owned(), "did you mean `rule`?"),
            ("[[rule]\n".to_owned(), "line 1: "),
        ] {
            let found = said(&text);
            assert!(found.starts_with("masu.toml, line ") && found.contains(expected), "{found}\n{expected}");
        }
    }

    #[test]
    fn a_name_belongs_to_one_rule_of_all_files() {
        let text = "[[rule]]\nname = \"a\"\nselect = { user = \"0\" }\nhuge = { mode = \"leave\" }\n";
        let mut config = parse(text).unwrap();
        let twin = config.add(Path::new("masu.d/b.toml"), text, PASSWD).unwrap_err();
        assert_eq!(twin.to_string(), "masu.d/b.toml, line 2: name = \"a\": masu.toml has it in line 2 already");
    }

    #[test]
    fn a_rule_with_the_selector_of_another_never_holds() {
        let rule = |name: &str, user: &str| {
            format!("[[rule]]\nname = \"{name}\"\nselect = {{ user = \"{user}\" }}\nhuge = {{ mode = \"leave\" }}\n")
        };
        let cache = rule("d", "0").replace("huge = { mode = \"leave\" }", "aging = { cache = 0 }");
        let config = parse(&(rule("a", "0") + &rule("b", "106") + &cache + &rule("c", "root"))).unwrap();
        let shadowed: Vec<_> = config.shadowed().iter().map(|(late, early)| (&*late.name, &*early.name)).collect();
        assert_eq!(shadowed, [("c", "a")]);
    }

    #[test]
    fn the_folder_is_read_in_the_order_of_its_names_and_may_be_missing() {
        let folder = tempfile::tempdir().unwrap();
        let (file, parts) = (folder.path().join("masu.toml"), folder.path().join("masu.d"));
        std::fs::write(&file, "").unwrap();
        assert_eq!(Config::read(&file, &parts), Ok(Config::default()));
        std::fs::create_dir(&parts).unwrap();
        for name in ["20-b.toml", "10-a.toml", "30-c.toml.off"] {
            let text =
                format!("[[rule]]\nname = \"{name}\"\nselect = {{ user = \"0\" }}\nhuge = {{ mode = \"leave\" }}\n");
            std::fs::write(parts.join(name), text).unwrap();
        }
        let config = Config::read(&file, &parts).unwrap();
        assert_eq!(config.rules.iter().map(|rule| &*rule.name).collect::<Vec<_>>(), ["10-a.toml", "20-b.toml"]);
        let missing = Config::read(&folder.path().join("none.toml"), &parts).unwrap_err().to_string();
        assert!(missing.ends_with("none.toml: no such file or directory (ENOENT)"), "{missing}");
    }

    proptest! {
        #[test]
        fn any_text_is_a_configuration_or_an_error(text in "(\\[\\[rule\\]\\]\n|name = \"[a-z]\"\n|select = \\{ [a-z]{4,6} = \"[a-z*?/\\[]{0,6}\" \\}\n|huge = \\{ mode = \"(hot|leave)\" \\}\n|[\\[\\]={}\"a-z ]{0,8}\n){0,8}") {
            let _ = parse(&text);
        }
    }
}
