//! Form of several files below `/sys`: the words that may be written, the present one in brackets, as in `always
//! [madvise] never`.

use crate::Error;

/// Bracketed word of such a list; `None` for text of another form.
pub(crate) fn chosen(text: &str) -> Option<&str> {
    let mut bracketed = text.split_ascii_whitespace().filter_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    let only = bracketed.next()?;
    bracketed.next().is_none().then_some(only)
}

/// Parses the bracketed word as one of `known`.
///
/// # Errors
/// `Malformed`, naming `object`, if no word is bracketed, or the word is unknown to this version of masu.
pub(crate) fn parse<T: Copy>(object: &str, text: &str, known: &[(&str, T)]) -> Result<T, Error> {
    let word = chosen(text);
    known.iter().find(|(name, _)| Some(*name) == word).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        Error::malformed(object, format_args!("{:?}, expected one in brackets of {}", text.trim(), names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_in_brackets_is_chosen() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen("[none] integrity confidentiality\n"), Some("none"));
    }

    #[test]
    fn without_exactly_one_word_in_brackets_nothing_is() {
        for text in ["", "1\n", "always madvise", "[a] [b]", "[a", "[a b]"] {
            assert_eq!(chosen(text), None, "{text}");
        }
    }

    #[test]
    fn an_unknown_word_is_named_with_those_expected() {
        let error = parse("/x", "[often] never\n", &[("always", 1), ("never", 0)]).unwrap_err();
        let expected = "cannot understand /x: \"[often] never\", expected one in brackets of always, never";
        assert_eq!(error.to_string(), expected);
    }
}
