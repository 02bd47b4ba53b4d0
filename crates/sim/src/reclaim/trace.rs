//! Trace of page accesses, as text written by people and scripts. Pure.
//!
//! One statement per line; words are separated by spaces; a `#` begins a comment. Numbers are decimal.
//!
//! | line | meaning |
//! |---|---|
//! | `file NAME CLASS PAGES` | memory of a class: `code`, `rodata`, `data`, `shared` or `cache`; before its first use |
//! | `read NAME FIRST COUNT` | `read(2)`, page by page, from page FIRST on; of all classes but data |
//! | `write NAME FIRST COUNT` | `write(2)` of whole pages; of all classes but data |
//! | `touch NAME FIRST COUNT` | by a mapping that stays, one touch a page; of all classes but the page cache |
//! | `wait SECONDS` | idle time in seconds, with up to six decimals |
//! | `levels` | levels apply from here on; without this line, from the beginning; `dials` in 0.1.0 |
//! | `phase NAME` | events are counted under this name from here on; a repeated name adds to the same sums |
//! | `repeat N` … `end` | the lines between, N times; may be nested |
//!
//! A service that is idle while a stream passes, for memory of 16,384 pages:
//!
//! ```text
//! file service rodata 6400
//! file stream cache 65536
//! touch service 0 6400
//! repeat 3
//!   read stream 0 65536
//! end
//! phase wake-up
//! touch service 0 6400
//! ```
//!
//! A repetition is stored as written, so that a trace of billions of accesses is as small as its text.

use std::fmt;

use units::Pages;

use aging::class::Class;

/// Limit of the pages of all files (8 TiB): page numbers have 32 bits.
pub const PAGES_MAX: u64 = 1 << 31;
/// Limit of the nesting of repetitions.
pub const DEPTH_MAX: usize = 16;
/// Name of the phase before the first `phase` line.
pub const FIRST_PHASE: &str = "start";

/// Named memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Name in the trace.
    pub name: String,
    /// Class.
    pub class: Class,
    /// Length in pages.
    pub pages: Pages,
}

/// Kind of page access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// By `read(2)`: the kernel knows it at once.
    Read,
    /// By `write(2)`: does not predict another use.
    Write,
    /// Through a mapping: the kernel sees it at its next scan of the page.
    Touch,
}

/// Next step of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Pages of a file are used, in order.
    Use {
        /// Kind of access.
        access: Access,
        /// Index in [`Trace::files`].
        file: usize,
        /// First page, from the beginning of the file.
        first: u32,
        /// Number of pages.
        count: u32,
    },
    /// Time passes.
    Wait {
        /// Microseconds.
        us: u64,
    },
    /// Levels apply from here on.
    Levels,
    /// Events are counted from here on under this index of [`Trace::phases`].
    Phase(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Step(Step),
    /// Repeats the steps up to the end with this number: at least once, and at least one line.
    Repeat {
        times: u64,
        end: usize,
    },
    /// End of the repetition that begins at this line.
    End {
        begin: usize,
    },
}

/// Trace: files and steps in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    files: Vec<File>,
    phases: Vec<String>,
    lines: Vec<Line>,
}

/// Invalid line of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTrace {
    /// Line number, from 1.
    pub line: usize,
    /// The line without its comment, cut if it is long.
    pub text: String,
    /// Expected form.
    pub expected: String,
}

impl fmt::Display for BadTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}: expected {}", self.line, self.text, self.expected)
    }
}

impl std::error::Error for BadTrace {}

/// Expected form of an invalid line, or of a word of it.
struct Expected(String);

/// Classes, as named by traces and by the command's arguments.
const CLASSES: [(&str, Class); 5] = [
    ("code", Class::Code),
    ("rodata", Class::ReadOnly),
    ("data", Class::Data),
    ("shared", Class::Shared),
    ("cache", Class::Cache),
];

impl Trace {
    /// Parses a text.
    ///
    /// # Errors
    /// The first invalid line, with the expected form.
    pub fn parse(text: &str) -> Result<Trace, BadTrace> {
        let mut trace = Trace { files: Vec::new(), phases: vec![FIRST_PHASE.to_owned()], lines: Vec::new() };
        let mut open = Vec::new();
        let mut number = 0;
        for line in text.lines() {
            number += 1;
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                trace.add(line, &mut open).map_err(|Expected(expected)| bad(number, line, expected))?;
            }
        }
        match open.pop() {
            Some(_) => Err(bad(number + 1, "end of the text", "end, of a repetition".to_owned())),
            None => Ok(trace),
        }
    }

    /// Adds a line; `open` are the repetitions without an end yet, each with the number of phases before it.
    fn add(&mut self, line: &str, open: &mut Vec<(usize, usize)>) -> Result<(), Expected> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let line = match words[..] {
            ["file", name, class, pages] => return self.add_file(name, class, pages),
            ["read", name, first, count] => self.use_of(Access::Read, name, first, count)?,
            ["write", name, first, count] => self.use_of(Access::Write, name, first, count)?,
            ["touch", name, first, count] => self.use_of(Access::Touch, name, first, count)?,
            ["wait", seconds] => Line::Step(Step::Wait { us: us_of(seconds)? }),
            ["levels" | "dials"] => Line::Step(Step::Levels),
            ["phase", name] => {
                let known = self.phases.iter().position(|phase| phase == name);
                let phase = known.unwrap_or(self.phases.len());
                if known.is_none() {
                    self.phases.push(name.to_owned());
                }
                Line::Step(Step::Phase(phase))
            }
            ["repeat", times] => {
                if open.len() == DEPTH_MAX {
                    return Err(Expected(format!("at most {DEPTH_MAX} repetitions in each other")));
                }
                open.push((self.lines.len(), self.phases.len()));
                Line::Repeat { times: whole(times, "how many times")?, end: 0 }
            }
            ["end"] => {
                let (begin, phases) = open.pop().ok_or_else(|| Expected("a repeat before it".to_owned()))?;
                let here = self.lines.len();
                match self.lines.get_mut(begin) {
                    Some(Line::Repeat { times, end }) if *times > 0 && begin + 1 < here => *end = here,
                    // No accesses: it is left out, to avoid empty loops.
                    _ => {
                        self.lines.truncate(begin);
                        self.phases.truncate(phases);
                        return Ok(());
                    }
                }
                Line::End { begin }
            }
            [word, ..] => return Err(Expected(form_of(word).to_owned())),
            [] => return Ok(()),
        };
        self.lines.push(line);
        Ok(())
    }

    fn add_file(&mut self, name: &str, class: &str, pages: &str) -> Result<(), Expected> {
        if self.position(name).is_some() {
            return Err(Expected(format!("a name other than {name}, which there is already")));
        }
        let known = CLASSES.into_iter().find(|(word, _)| *word == class);
        let class = known.ok_or_else(|| Expected("a class: code, rodata, data, shared or cache".to_owned()))?.1;
        let pages = whole(pages, "how many pages")?;
        let all: u64 = self.files.iter().map(|file| file.pages.0).sum();
        if pages == 0 || pages > PAGES_MAX - all {
            return Err(Expected(format!("1 to {} pages, for all files have at most {PAGES_MAX}", PAGES_MAX - all)));
        }
        self.files.push(File { name: name.to_owned(), class, pages: Pages(pages) });
        Ok(())
    }

    fn use_of(&self, access: Access, name: &str, first: &str, count: &str) -> Result<Line, Expected> {
        let file = self.position(name).ok_or_else(|| Expected(format!("a file line for {name} before it")))?;
        let Some(File { class, pages, .. }) = self.files.get(file) else { return Err(Expected("a file".to_owned())) };
        match (access, class) {
            (Access::Touch, Class::Cache) => {
                return Err(Expected(format!("read or write, for {name} is page cache, which nobody maps")));
            }
            (Access::Read | Access::Write, Class::Data) => {
                return Err(Expected(format!("touch, for {name} is data, which is no file")));
            }
            _ => (),
        }
        let (first, count) = (whole(first, "the first page")?, whole(count, "how many pages")?);
        if count == 0 || first >= pages.0 || count > pages.0 - first {
            return Err(Expected(format!("pages of {name}, which has {}: from 0 to {}", pages.0, pages.0 - 1)));
        }
        let narrow = |wide: u64| u32::try_from(wide).map_err(|_| Expected("a smaller number".to_owned()));
        Ok(Line::Step(Step::Use { access, file, first: narrow(first)?, count: narrow(count)? }))
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.files.iter().position(|file| file.name == name)
    }

    /// Files, in the order of the text.
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// Names of the phases: [`FIRST_PHASE`], and the others in the order of the text.
    pub fn phases(&self) -> &[String] {
        &self.phases
    }

    /// True if the trace has a `levels` line.
    pub fn sets_levels(&self) -> bool {
        self.lines.contains(&Line::Step(Step::Levels))
    }

    /// Steps in order, with repetitions expanded.
    pub fn steps(&self) -> Steps<'_> {
        Steps { lines: &self.lines, next: 0, left: Vec::new() }
    }

    /// Number of page uses, repeated uses included; saturates.
    pub fn accesses(&self) -> u64 {
        let mut sums = vec![0_u64];
        for line in &self.lines {
            let inner = match *line {
                Line::Step(Step::Use { count, .. }) => u64::from(count),
                Line::Step(_) => 0,
                Line::Repeat { .. } => {
                    sums.push(0);
                    continue;
                }
                Line::End { begin } => match (sums.pop(), self.lines.get(begin)) {
                    (Some(sum), Some(Line::Repeat { times, .. })) => sum.saturating_mul(*times),
                    _ => 0,
                },
            };
            if let Some(sum) = sums.last_mut() {
                *sum = sum.saturating_add(inner);
            }
        }
        sums.first().copied().unwrap_or(0)
    }
}

fn bad(line: usize, text: &str, expected: String) -> BadTrace {
    BadTrace { line, text: text.chars().take(60).collect(), expected }
}

/// Form of a line with this first word.
fn form_of(word: &str) -> &'static str {
    match word {
        "file" => "file NAME CLASS PAGES",
        "read" => "read NAME FIRST COUNT",
        "write" => "write NAME FIRST COUNT",
        "touch" => "touch NAME FIRST COUNT",
        "wait" => "wait SECONDS",
        "levels" | "dials" => "levels, and nothing more on the line",
        "phase" => "phase NAME",
        "repeat" => "repeat N",
        "end" => "end, and nothing more on the line",
        _ => "file, read, write, touch, wait, levels, phase, repeat or end",
    }
}

/// Parses a number from digits only: no sign, no letters.
fn whole(word: &str, what: &str) -> Result<u64, Expected> {
    let is_plain = word.bytes().all(|byte| byte.is_ascii_digit());
    word.parse()
        .ok()
        .filter(|_| is_plain)
        .ok_or_else(|| Expected(format!("{what}, a whole number, in place of {word}")))
}

fn us_of(word: &str) -> Result<u64, Expected> {
    let wrong = || Expected(format!("seconds with up to six digits after the point, such as 1.5, in place of {word}"));
    let (seconds, part) = word.split_once('.').unwrap_or((word, "0"));
    let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_plain(seconds) || !is_plain(part) || part.len() > 6 {
        return Err(wrong());
    }
    let part: u64 = format!("{part:0<6}").parse().map_err(|_| wrong())?;
    let seconds: u64 = seconds.parse().map_err(|_| wrong())?;
    seconds.checked_mul(1_000_000).and_then(|us| us.checked_add(part)).ok_or_else(wrong)
}

/// Text that parses to the same trace.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            let class = CLASSES.into_iter().find(|(_, class)| *class == file.class).map_or("", |(word, _)| word);
            writeln!(f, "file {} {class} {}", file.name, file.pages.0)?;
        }
        for line in &self.lines {
            match *line {
                Line::Repeat { times, .. } => writeln!(f, "repeat {times}")?,
                Line::End { .. } => writeln!(f, "end")?,
                Line::Step(Step::Levels) => writeln!(f, "levels")?,
                Line::Step(Step::Wait { us }) => writeln!(f, "wait {}.{:06}", us / 1_000_000, us % 1_000_000)?,
                Line::Step(Step::Phase(phase)) => {
                    writeln!(f, "phase {}", self.phases.get(phase).map_or("", String::as_str))?;
                }
                Line::Step(Step::Use { access, file, first, count }) => {
                    let name = self.files.get(file).map_or("", |file| &file.name);
                    let word = match access {
                        Access::Read => "read",
                        Access::Write => "write",
                        Access::Touch => "touch",
                    };
                    writeln!(f, "{word} {name} {first} {count}")?;
                }
            }
        }
        Ok(())
    }
}

/// Iterator of [`Trace::steps`].
#[derive(Clone, Debug)]
pub struct Steps<'a> {
    lines: &'a [Line],
    next: usize,
    /// Remaining rounds of each active repetition.
    left: Vec<u64>,
}

impl Iterator for Steps<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        loop {
            let line = *self.lines.get(self.next)?;
            self.next += 1;
            match line {
                Line::Step(step) => return Some(step),
                Line::Repeat { times, .. } => self.left.push(times.saturating_sub(1)),
                Line::End { begin } => match self.left.last_mut() {
                    Some(0) | None => {
                        self.left.pop();
                    }
                    Some(left) => {
                        *left -= 1;
                        self.next = begin + 1;
                    }
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expected(text: &str) -> String {
        Trace::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn the_word_of_0_1_0_for_levels_is_accepted() {
        let trace = |word: &str| Trace::parse(&format!("file a code 1\n{word}\ntouch a 0 1\n")).unwrap();
        assert_eq!(trace("dials"), trace("levels"));
    }

    #[test]
    fn repetitions_are_gone_through_as_often_as_they_say_also_in_each_other() {
        let text = "file a cache 9\nrepeat 2\n read a 0 1\n repeat 3\n  read a 1 2\n end\nend\nread a 8 1 # last\n";
        let trace = Trace::parse(text).unwrap();
        let firsts: Vec<u32> = trace
            .steps()
            .map(|step| match step {
                Step::Use { first, .. } => first,
                _ => 99,
            })
            .collect();
        assert_eq!(firsts, [0, 1, 1, 1, 0, 1, 1, 1, 8]);
        assert_eq!(trace.accesses(), 2 * (1 + 3 * 2) + 1);
    }

    #[test]
    fn nothing_many_times_is_soon_done() {
        let often = "repeat 18446744073709551615\n";
        let text = format!("{often}{often}end\nrepeat 0\nphase a\nwait 1\nend\nend");
        assert_eq!(Trace::parse(&text).unwrap(), Trace::parse("").unwrap());
    }

    #[test]
    fn a_wait_is_exact_to_the_microsecond() {
        let waits = |text: &str| Trace::parse(text).map(|trace| trace.steps().next());
        assert_eq!(waits("wait 1.5").unwrap(), Some(Step::Wait { us: 1_500_000 }));
        assert_eq!(waits("wait 0.000001").unwrap(), Some(Step::Wait { us: 1 }));
        for wrong in ["wait 1e3", "wait -1", "wait .5", "wait 1.", "wait 1.0000001", "wait 99999999999999999999"] {
            assert!(expected(wrong).contains("seconds with up to six digits"), "{wrong}");
        }
    }

    #[test]
    fn a_bad_line_is_named_with_what_was_expected() {
        assert_eq!(
            expected("file a cache 10\n\nread a 5 6"),
            "line 3: read a 5 6: expected pages of a, which has 10: from 0 to 9"
        );
        assert_eq!(
            expected("file a text 10"),
            "line 1: file a text 10: expected a class: code, rodata, data, shared or cache"
        );
        assert_eq!(expected("read a 0 1"), "line 1: read a 0 1: expected a file line for a before it");
        assert_eq!(
            expected("file a cache +1"),
            "line 1: file a cache +1: expected how many pages, a whole number, in place of +1"
        );
        assert_eq!(
            expected("touch a"),
            "line 1: touch a: expected touch NAME FIRST COUNT",
            "the form of what was begun"
        );
        assert!(expected("sleep 1").ends_with("expected file, read, write, touch, wait, levels, phase, repeat or end"));
        assert_eq!(
            expected("file a cache 1\ntouch a 0 1"),
            "line 2: touch a 0 1: expected read or write, for a is page cache, which nobody maps"
        );
        assert_eq!(
            expected("file a data 1\nread a 0 1"),
            "line 2: read a 0 1: expected touch, for a is data, which is no file"
        );
        assert_eq!(expected("end"), "line 1: end: expected a repeat before it");
        assert_eq!(expected("repeat 2\nwait 1"), "line 3: end of the text: expected end, of a repetition");
        assert!(expected("file a cache 1\nfile a cache 1").contains("a name other than a"));
        assert!(expected("file a cache 9999999999").contains("1 to 2147483648 pages"));
        assert!(expected(&"repeat 1\n".repeat(17)).contains("at most 16 repetitions"));
    }

    /// Texts close to a trace, so that not all of them fail at the first word.
    fn nearly() -> impl Strategy<Value = String> {
        let word = prop_oneof![
            4 => "(file|read|write|touch|wait|levels|dials|phase|repeat|end)",
            2 => "(a|b|code|rodata|data|shared|cache|#)",
            4 => "[0-9]{1,3}",
            1 => "[0-9.+-]{1,22}",
            1 => "\\PC{0,5}",
        ];
        let line = prop::collection::vec(word, 0..6).prop_map(|words| words.join(" "));
        prop::collection::vec(line, 0..20).prop_map(|lines| lines.join("\n"))
    }

    /// Valid lines, with the files `a`, `b` and `c` of 100 pages.
    fn right() -> impl Strategy<Value = String> {
        let use_of = |word: &'static str, names: &'static [&'static str]| {
            (prop::sample::select(names), 0..100_u32, 1..100_u32)
                .prop_map(move |(name, first, count)| format!("{word} {name} {first} {}", count.min(100 - first)))
        };
        let leaf = prop_oneof![
            use_of("read", &["a", "b"]),
            use_of("write", &["a", "b"]),
            use_of("touch", &["b", "c"]),
            (0..5000_u64, 0..1_000_000_u64).prop_map(|(seconds, us)| format!("wait {seconds}.{us:06}")),
            Just("levels".to_owned()),
            Just("dials".to_owned()),
            "[a-z]{1,3}".prop_map(|name| format!("phase {name}")),
        ];
        leaf.prop_recursive(3, 30, 5, |inner| {
            (0..4_u32, prop::collection::vec(inner, 0..5))
                .prop_map(|(times, lines)| format!("repeat {times}\n{}\nend", lines.join("\n")))
        })
    }

    proptest! {
        #[test]
        fn whatever_the_text_it_is_understood_or_refused_with_a_line_of_it(text in nearly()) {
            match Trace::parse(&text) {
                Ok(trace) => {
                    prop_assert_eq!(Trace::parse(&trace.to_string()), Ok(trace));
                }
                Err(bad) => prop_assert!((1..=text.lines().count() + 1).contains(&bad.line)),
            }
        }

        #[test]
        fn any_bytes_are_understood_or_refused(text: String) {
            let _ = Trace::parse(&text);
        }

        #[test]
        fn a_trace_comes_back_from_its_own_text(lines in prop::collection::vec(right(), 0..12)) {
            let files = "file a cache 100\nfile b rodata 100\nfile c data 100\n";
            let trace = Trace::parse(&format!("{files}{}", lines.join("\n"))).unwrap();
            prop_assert_eq!(Trace::parse(&trace.to_string()).unwrap(), trace.clone());
            let used: u64 = trace.steps().map(|step| match step {
                Step::Use { count, .. } => u64::from(count),
                _ => 0,
            }).sum();
            prop_assert_eq!(trace.accesses(), used);
        }
    }
}
