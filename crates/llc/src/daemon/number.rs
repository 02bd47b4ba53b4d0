//! Numbers with their nouns. Pure.

/// `1 group`, `2 groups`, `3 processes`.
pub fn counted(count: usize, what: &str) -> String {
    let end = match (count, what.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{count} {what}{end}")
}
