use clap::CommandFactory;

use super::*;

#[test]
fn the_definition_holds_together() {
    Args::command().debug_assert();
}

#[test]
fn times_are_written_as_people_write_them() {
    assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
    assert!(duration("0s").is_err());
    assert!(duration("5").unwrap_err().contains("500ms"));
}

fn stat(words: &[&str]) -> StatTask {
    let words = ["masu", "stat"].iter().chain(words);
    match Args::try_parse_from(words).unwrap().task {
        Task::Stat(task) => task,
        other => panic!("{other:?}"),
    }
}

#[test]
fn watching_takes_a_time_or_none_or_goes_before_the_process() {
    let two_seconds = Some(Watch::Every(Duration::from_secs(2)));
    assert_eq!((stat(&["--watch"]).watch, stat(&["7"]).watch), (two_seconds, None));
    assert_eq!(stat(&["7", "--watch"]).watch, two_seconds);
    assert_eq!(stat(&["--watch", "500ms", "7"]).watch, Some(Watch::Every(Duration::from_millis(500))));
    assert_eq!(stat(&["--watch", "7"]).watch, Some(Watch::Process(Pid(7))));
    let bad = Args::try_parse_from(["masu", "stat", "--watch", "often"]).unwrap_err().to_string();
    assert!(bad.contains("often: expected a time above zero"), "{bad}");
}

#[test]
fn a_word_is_a_process_or_a_setting() {
    assert_eq!("7".parse(), Ok(Word::Process(Pid(7))));
    assert_eq!("huge=off".parse(), Ok(Word::Huge(false)));
    assert_eq!("align=on".parse(), Ok(Word::Align(true)));
    for bad in ["huge", "huge=", "huge=maybe", "size=2M", "0", "-1", ""] {
        let said = bad.parse::<Word>().unwrap_err();
        assert_eq!(said, format!("{bad}: expected a process id, huge=on, huge=off, align=on or align=off"));
    }
}

/// Command lines of masu in a document: `$ masu …` and `# masu …` in code blocks, with or without sudo.
fn command_lines(text: &str) -> Vec<String> {
    let mut in_code = false;
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            continue;
        }
        let prompt = ["$ ", "# "].iter().find_map(|prompt| line.trim_start().strip_prefix(prompt));
        let Some(typed) = prompt.filter(|_| in_code) else { continue };
        let mut whole = typed.to_owned();
        while whole.ends_with('\\') {
            whole.pop();
            whole.push_str(lines.next().unwrap_or_default().trim());
        }
        let whole = whole.strip_prefix("sudo ").unwrap_or(&whole).trim();
        if whole == "masu" || whole.starts_with("masu ") {
            found.push(whole.to_owned());
        }
    }
    found
}

/// Words of a command line, up to a pipe, a redirection or a comment; `PID` and `$(…)` are process 1.
fn words_of(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut word, mut quote, mut depth, mut in_word) = (String::new(), None, 0_u32, false);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '$' if quote != Some('\'') && letters.peek() == Some(&'(') => {
                depth += 1;
                letters.next();
                word.push('1');
                in_word = true;
            }
            ')' if depth > 0 => depth -= 1,
            _ if depth > 0 => (),
            '"' | '\'' if quote == Some(letter) => quote = None,
            '"' | '\'' if quote.is_none() => (quote, in_word) = (Some(letter), true),
            ' ' if quote.is_none() => {
                if std::mem::take(&mut in_word) {
                    words.push(std::mem::take(&mut word));
                }
            }
            '|' | '>' | '<' | '#' | '&' | ';' if quote.is_none() && !in_word => break,
            _ => {
                word.push(letter);
                in_word = true;
            }
        }
    }
    if in_word {
        words.push(word);
    }
    words.into_iter().map(|word| if word == "PID" { "1".to_owned() } else { word }).collect()
}

#[test]
fn command_lines_of_documents_are_understood() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut documents = vec![root.join("README.md"), root.join("docs/security.md")];
    let folder = |name: &str| std::fs::read_dir(root.join(name)).unwrap().map(|entry| entry.unwrap().path());
    documents.extend(folder("docs/guide"));
    documents.extend(folder("crates").map(|path| path.join("README.md")).filter(|path| path.exists()));
    let mut count = 0;
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        for line in command_lines(&text) {
            count += 1;
            if let Err(error) = Args::try_parse_from(words_of(&line)) {
                assert!(!error.use_stderr(), "{}: {line}\n{error}", document.display());
            }
        }
    }
    assert!(count > 30, "{count} command lines");
}

#[test]
fn a_command_line_ends_at_a_pipe_and_a_substitution_is_a_process() {
    let line = "masu attach $(pidof -s redis-server) \"$(cat a b)\" --for '1 s' --json | jq .";
    assert_eq!(words_of(line), ["masu", "attach", "1", "1", "--for", "1 s", "--json"]);
    let text = "$ masu no\n```console\n$ sudo masu stat \\\n    PID   # its superpages\nmasu: output\n```\n";
    assert_eq!(command_lines(text), ["masu stat PID   # its superpages"]);
    assert_eq!(words_of("masu stat PID   # its superpages"), ["masu", "stat", "1"]);
}
