//! Lines of the form `Key:   value`, shared by `status`, `smaps` and `meminfo`, and the amounts in them.
//!
//! The kernel writes `kB` and means KiB; that ends here.

use units::Bytes;

use crate::Error;

/// Lines of a file, without their ends.
pub(crate) fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    bytes.split_inclusive(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\n").unwrap_or(line))
}

/// Splits `Key: value`, the value without the padding around it; `None` for a line of another form.
pub(crate) fn split(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(':')?;
    let one_word = !key.is_empty() && !key.contains([' ', '\t']);
    one_word.then(|| (key, value.trim()))
}

/// Parses `1624 kB` as an amount of memory.
///
/// # Errors
/// `Malformed`, naming `object` and the key.
pub(crate) fn amount(object: &str, key: &str, value: &str) -> Result<Bytes, Error> {
    let kib = value.strip_suffix("kB").map(str::trim_end).and_then(|n| n.parse::<u64>().ok());
    kib.and_then(|kib| kib.checked_mul(1 << 10)).map(Bytes).ok_or_else(|| {
        Error::malformed(format_args!("{object}, {key}"), format_args!("{value:?}, expected a number of kB"))
    })
}

/// Parses a plain decimal number.
///
/// # Errors
/// `Malformed`, naming `object` and the key.
pub(crate) fn number<N: std::str::FromStr>(object: &str, key: &str, value: &str) -> Result<N, Error> {
    value
        .parse()
        .map_err(|_| Error::malformed(format_args!("{object}, {key}"), format_args!("{value:?}, expected a number")))
}

/// Value of a line that every kernel prints.
///
/// # Errors
/// `Malformed` if there was no such line.
pub(crate) fn required<T>(object: &str, key: &str, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| Error::malformed(object, format_args!("no line {key:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kb_is_kib() {
        assert_eq!(amount("x", "Rss", "1624 kB"), Ok(Bytes::kib(1624)));
    }

    #[test]
    fn an_amount_without_its_unit_or_beyond_64_bits_is_malformed() {
        let error = amount("/proc/1/smaps", "Rss", "12").unwrap_err();
        assert_eq!(error.to_string(), "cannot understand /proc/1/smaps, Rss: \"12\", expected a number of kB");
        assert!(amount("x", "Rss", "18446744073709551615 kB").is_err());
    }

    #[test]
    fn a_line_ends_at_a_newline_alone() {
        let of = |text: &'static [u8]| lines(text).collect::<Vec<_>>();
        assert_eq!(of(b"a\r\n\n\xffb"), [b"a\r".as_slice(), b"", b"\xffb"]);
        assert_eq!((of(b""), of(b"\n")), (vec![], vec![b"".as_slice()]));
    }

    #[test]
    fn a_key_is_one_word() {
        assert_eq!(split("Rss:   12 kB"), Some(("Rss", "12 kB")));
        assert_eq!(split("1-2 r--p 00000000 00:00 0"), None);
        assert_eq!(split(""), None);
    }
}
