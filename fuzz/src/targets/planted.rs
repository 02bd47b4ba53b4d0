//! Bugs on purpose, to test that the driver finds them: each needs a number in a text that no seed has.

/// A number in `size=NUMBER`, with anything before and after.
fn size(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (_, rest) = text.split_once("size=")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Multiplies a number from the input.
pub fn panics(bytes: &[u8]) -> bool {
    let Some(size) = size(bytes) else { return false };
    assert!(size.checked_mul(4096).is_some(), "{size} pages have no number of bytes");
    true
}

/// Counts up to a number from the input.
pub fn hangs(bytes: &[u8]) -> bool {
    let Some(size) = size(bytes) else { return false };
    for number in 0..size {
        std::hint::black_box(number);
    }
    true
}

/// Recurses as deep as a number from the input.
pub fn overflows(bytes: &[u8]) -> bool {
    fn deeper(left: u64) -> u64 {
        let place = std::hint::black_box([left; 64]);
        if left == 0 { 0 } else { 1 + deeper(left - 1) + place[7] % 2 }
    }
    let Some(size) = size(bytes) else { return false };
    deeper(size) > 0
}
