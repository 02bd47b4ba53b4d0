//! Written text as the kernel parses it: lines and numbers.
//!
//! One sign, digits, at most one newline behind them, nothing else. Truth: Documentation/core-api/kernel-api.rst,
//! kstrtox.

use rustix::io::Errno;

/// The written text, without the newline that it must end in. Like the kernel, which takes it for a string of C, it
/// ends at a zero byte.
///
/// # Errors
/// EINVAL without that newline; `info/last_cmd_status` stays as it was.
pub(crate) fn line(text: &str) -> Result<&str, Errno> {
    let text = text.strip_suffix('\n').ok_or(Errno::INVAL)?;
    Ok(text.split('\0').next().unwrap_or_default())
}

/// Parses an unsigned number of 64 bits, in base 10, 16 (with or without `0x`) or, for base 0, in the base of its
/// prefix.
pub fn unsigned(text: &str, base: u32) -> Option<u64> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    magnitude(text.strip_prefix('+').unwrap_or(text), base).ok()
}

/// The same with 32 bits, and its errno.
///
/// # Errors
/// EINVAL for no number, ERANGE for one that is too large.
pub fn unsigned_32(text: &str, base: u32) -> Result<u32, Errno> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let number = magnitude(text.strip_prefix('+').unwrap_or(text), base)?;
    u32::try_from(number).map_err(|_| Errno::RANGE)
}

/// The same with 32 bits and perhaps a minus.
pub fn signed(text: &str, base: u32) -> Option<i32> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    match text.strip_prefix('-') {
        Some(digits) => i32::try_from(-i64::try_from(magnitude(digits, base).ok()?).ok()?).ok(),
        None => i32::try_from(magnitude(text.strip_prefix('+').unwrap_or(text), base).ok()?).ok(),
    }
}

/// Parses `1`, `y`, `on`, `0`, `n`, `off`: only the first letters count.
pub fn truth(text: &str) -> Option<bool> {
    let mut letters = text.chars();
    match (letters.next()?.to_ascii_lowercase(), letters.next().map(|letter| letter.to_ascii_lowercase())) {
        ('1' | 'y' | 't', _) | ('o', Some('n')) => Some(true),
        ('0' | 'n' | 'f', _) | ('o', Some('f')) => Some(false),
        _ => None,
    }
}

fn magnitude(text: &str, base: u32) -> Result<u64, Errno> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, base) = match (base, hexadecimal) {
        (0 | 16, Some(digits)) => (digits, 16),
        (0, None) if text.len() > 1 && text.starts_with('0') => (text, 8),
        (0, None) => (text, 10),
        (base, _) => (text, base),
    };
    let plain = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(base));
    if !plain {
        return Err(Errno::INVAL);
    }
    u64::from_str_radix(digits, base).map_err(|_| Errno::RANGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_a_sign_digits_and_a_newline_and_nothing_else() {
        assert_eq!(unsigned("ff\n", 16), Some(255));
        assert_eq!(unsigned("0xff", 16), Some(255));
        assert_eq!(unsigned("+12", 10), Some(12));
        for bad in ["", " 1", "1 ", "1\n\n", "-1", "0x", "++1", "1_0", "99999999999999999999"] {
            assert_eq!(unsigned(bad, 10), None, "{bad:?}");
        }
        assert_eq!([signed("0x10", 0), signed("010", 0), signed("-7", 0)], [Some(16), Some(8), Some(-7)]);
        assert_eq!((signed("2147483648", 0), signed("-2147483648", 0)), (None, Some(i32::MIN)));
    }

    #[test]
    fn what_is_too_large_is_a_number_all_the_same() {
        assert_eq!(unsigned_32("0xffffffff\n", 0), Ok(u32::MAX));
        for (bad, errno) in [("4294967296", Errno::RANGE), ("99999999999999999999", Errno::RANGE), ("-1", Errno::INVAL)]
        {
            assert_eq!(unsigned_32(bad, 0), Err(errno), "{bad}");
        }
    }

    #[test]
    fn yes_and_no_are_said_in_many_ways() {
        assert_eq!(["1\n", "on", "Y"].map(truth), [Some(true); 3]);
        assert_eq!(["0\n", "off", "No"].map(truth), [Some(false); 3]);
        assert_eq!(["", "2", "o"].map(truth), [None; 3]);
    }
}
