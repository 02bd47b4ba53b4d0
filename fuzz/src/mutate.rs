//! Inputs from seeds: a seed unchanged, or with a few changes that parsers and scripts do not expect.
//!
//! Without coverage there is no feedback, so no input depends on another: the same seeds and numbers make the same
//! input.

use std::ops::Range;

use crate::corpus::Corpus;

/// Random numbers of one input.
pub struct Random(units::spread::Random);

impl Random {
    /// A generator for input `number` of run `run`.
    pub fn new(run: u64, number: u64) -> Random {
        let mut random = units::spread::Random::seeded(run.wrapping_mul(0xd134_2543_de82_ef95) ^ number);
        random.number();
        Random(random)
    }

    fn next(&mut self) -> u64 {
        self.0.number()
    }

    /// A number below `end`, which is not zero.
    fn below(&mut self, end: usize) -> usize {
        self.0.below(end)
    }

    fn byte(&mut self) -> u8 {
        self.next() as u8
    }

    /// A range of at most `most` bytes within `length`.
    fn range(&mut self, length: usize, most: usize) -> Range<usize> {
        let start = self.below(length + 1);
        let most = most.min(length - start);
        start..start + self.below(most + 1)
    }
}

/// Tokens that often break parsers.
const TOKENS: [&[u8]; 40] = [
    b"0",
    b"-1",
    b"1",
    b"255",
    b"256",
    b"4095",
    b"4096",
    b"65535",
    b"65536",
    b"2147483647",
    b"2147483648",
    b"4294967295",
    b"4294967296",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775808",
    b"18446744073709551615",
    b"18446744073709551616",
    b"0x",
    b"ffffffffffffffff",
    b"7fffffffffff",
    b"1e308",
    b"1e-320",
    b"nan",
    b"inf",
    b"-0",
    b".",
    b"..",
    b"/",
    b"%",
    b"=",
    b":",
    b",",
    b"\"",
    b"\n",
    b"\r\n",
    b"\0",
    b"\xff",
    b"\xc3\xa9",
    b" ",
];

const NUMBERS: [u64; 18] = [
    0,
    1,
    2,
    7,
    8,
    16,
    127,
    128,
    255,
    256,
    4095,
    4096,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    i64::MAX as u64,
    u64::MAX,
];

/// Lengths of ranges in bytes: short ones are more frequent.
const RANGE_BYTES: [usize; 4] = [4, 16, 64, 1024];

/// Writes input `number` of the run with the number `run`. The first inputs are the seeds unchanged.
pub fn input(corpus: &Corpus, bytes_max: usize, run: u64, number: u64, input: &mut Vec<u8>) {
    input.clear();
    if let Some(seed) = usize::try_from(number).ok().and_then(|number| corpus.seeds.get(number)) {
        input.extend_from_slice(seed);
        return;
    }
    let mut random = Random::new(run, number);
    let seeds = corpus.seeds.len();
    if seeds == 0 || random.below(64) == 0 {
        let length = random.below(bytes_max + 1);
        input.extend((0..length).map(|_| random.byte()));
        return;
    }
    input.extend_from_slice(&corpus.seeds[random.below(seeds)]);
    // One change is more frequent than many.
    let changes_max = 2 << random.below(4);
    let changes = 1 + random.below(changes_max);
    for _ in 0..changes {
        change(&mut random, corpus, input);
        input.truncate(bytes_max);
    }
}

/// Replaces a range by bytes.
fn replace(input: &mut Vec<u8>, range: Range<usize>, bytes: &[u8]) {
    input.splice(range, bytes.iter().copied());
}

fn change(random: &mut Random, corpus: &Corpus, input: &mut Vec<u8>) {
    let length = input.len();
    let some = RANGE_BYTES[random.below(RANGE_BYTES.len())];
    let at = random.below(length.max(1));
    match random.below(16) {
        0 if length > 0 => input[at] ^= 1 << random.below(8),
        1 if length > 0 => input[at] = random.byte(),
        2 if length > 0 => input[at] = input[at].wrapping_add(random.byte() % 17).wrapping_sub(8),
        3 => overwrite_number(random, input),
        4 => {
            let range = random.range(length, some);
            input.drain(range);
        }
        5 => {
            let bytes: Vec<u8> = (0..random.below(some) + 1).map(|_| random.byte()).collect();
            replace(input, at..at, &bytes);
        }
        6 | 7 => {
            // A piece of the input, elsewhere: instead of another piece, or beside it.
            let piece = input[random.range(length, some)].to_vec();
            let place = if random.byte().is_multiple_of(2) { at..at } else { random.range(length, piece.len()) };
            replace(input, place, &piece);
        }
        8 | 9 => {
            // A piece of another seed, or all that follows.
            let other = &corpus.seeds[random.below(corpus.seeds.len())];
            if random.byte().is_multiple_of(2) {
                input.truncate(at);
                input.extend_from_slice(&other[random.below(other.len() + 1)..]);
            } else {
                let place = random.range(length, some);
                replace(input, place, &other[random.range(other.len(), some)]);
            }
        }
        10 => {
            let token = TOKENS[random.below(TOKENS.len())];
            let place = random.range(length, token.len());
            replace(input, place, token);
        }
        11 if !corpus.words.is_empty() => {
            let word = &corpus.words[random.below(corpus.words.len())];
            let place =
                if random.byte().is_multiple_of(2) { at..at } else { run_at(input, at, u8::is_ascii_alphanumeric) };
            replace(input, place, word);
        }
        12 => {
            // A number in digits becomes another.
            let place = run_at(input, at, u8::is_ascii_digit);
            let number =
                if random.byte().is_multiple_of(4) { random.next() } else { NUMBERS[random.below(NUMBERS.len())] };
            replace(input, place, number.to_string().as_bytes());
        }
        13 => {
            // A line goes, comes twice, or moves to the end.
            let line = run_at(input, at, |byte| *byte != b'\n');
            let text = input[line.clone()].to_vec();
            match random.below(3) {
                0 => drop(input.drain(line)),
                1 => replace(input, line.end..line.end, &[b"\n", &text[..]].concat()),
                _ => {
                    input.drain(line);
                    input.extend_from_slice(&text);
                }
            }
        }
        14 => input.truncate(at),
        _ => input.extend((0..random.below(some)).map(|_| random.byte())),
    }
}

/// The run of bytes around `at` that all match `such`; the next such run, if the byte at `at` does not match.
fn run_at(input: &[u8], at: usize, such: impl Fn(&u8) -> bool) -> Range<usize> {
    let Some(first) = input.iter().skip(at).position(&such).map(|more| at + more) else { return at..at };
    let start = input[..first].iter().rposition(|byte| !such(byte)).map_or(0, |before| before + 1);
    let end = input[first..].iter().position(|byte| !such(byte)).map_or(input.len(), |more| first + more);
    start..end
}

fn overwrite_number(random: &mut Random, input: &mut [u8]) {
    let bytes = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
    let width = (1 << random.below(4)).min(input.len());
    let at = random.below(input.len() - width + 1);
    input[at..at + width].copy_from_slice(&bytes[..width]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus() -> Corpus {
        let seeds = vec![b"size=12 name=a\nnext 7".to_vec(), b"".to_vec(), vec![0, 255, 3]];
        Corpus { seeds, words: vec![b"size".to_vec()] }
    }

    #[test]
    fn the_same_number_is_the_same_input_and_none_is_too_long() {
        let (corpus, mut one, mut two) = (corpus(), Vec::new(), Vec::new());
        for number in 0..20_000 {
            input(&corpus, 40, 7, number, &mut one);
            input(&corpus, 40, 7, number, &mut two);
            assert!(one == two && one.len() <= 40);
        }
    }

    #[test]
    fn seeds_come_first_and_then_what_they_are_not() {
        let (corpus, mut bytes) = (corpus(), Vec::new());
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..1000 {
            input(&corpus, 40, 1, number, &mut bytes);
            assert!(number >= 3 || bytes == corpus.seeds[number as usize]);
            seen.insert(bytes.clone());
        }
        assert!(seen.len() > 800, "{} of 1000 are others", seen.len());
    }

    #[test]
    fn without_seeds_there_are_inputs_too() {
        let (corpus, mut bytes) = (Corpus { seeds: Vec::new(), words: Vec::new() }, Vec::new());
        input(&corpus, 40, 1, 0, &mut bytes);
        assert!(bytes.len() <= 40);
    }
}
