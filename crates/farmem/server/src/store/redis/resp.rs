//! RESP2, the protocol of Redis and Valkey: requests are arrays of byte strings, replies one of five forms.
//!
//! A client of its own, and not the `redis` crate: that one copies each value three times, and a fetch of 1 MiB took
//! 944 µs with it and 405 µs with plain reads (loopback, 2 cores). Pages are read directly into their destination.
//!
//! Truth: <https://redis.io/docs/latest/develop/reference/protocol-spec/>.

use std::io::{self, BufRead, IoSlice, Read, Write};

/// A server's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`
    Simple(String),
    /// `-ERR …`: the whole line without the dash.
    Error(String),
    /// `:1`
    Integer(i64),
    /// `$3 foo`
    Bulk(Vec<u8>),
    /// `$-1` or `*-1`: no value.
    Nil,
    /// `*2 …`
    Array(Vec<Reply>),
}

/// Value in the place of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// A page: it is in the buffer.
    Whole,
    /// No value.
    Missing,
    /// A value of this length, and not a page.
    Short(usize),
}

/// First byte of each line that a server sends.
const LINE_STARTS: &[u8] = b"+-:$*";
/// Lines are numbers, statuses and errors.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Replies other than pages: `INFO`, and the slots of a large Cluster.
const BULK_BYTES_MAX: usize = 16 << 20;
const ARRAY_LENGTH_MAX: usize = 1 << 20;
const DEPTH_MAX: usize = 8;
/// A whole reply, with the memory of each of its values: an array of arrays could go on for ever.
const REPLY_BYTES_MAX: usize = 64 << 20;
/// Largest number of pieces that the kernel takes at once (UIO_MAXIOV of include/uapi/linux/uio.h).
const SLICES_MAX: usize = 1024;

/// Requests to be sent. Pages are not copied into them, but sent from their place.
#[derive(Default)]
pub struct Requests<'a> {
    text: Vec<u8>,
    /// Pages, each with the length of the text before it.
    pages: Vec<(usize, &'a [u8])>,
}

impl<'a> Requests<'a> {
    /// Appends a request.
    pub fn request(&mut self, arguments: &[&[u8]]) {
        self.head(arguments.len());
        for argument in arguments {
            self.string(argument);
        }
    }

    /// Appends the head of a request; its `arguments` arguments follow.
    pub fn head(&mut self, arguments: usize) {
        self.number(b'*', arguments);
    }

    /// Appends an argument.
    pub fn string(&mut self, bytes: &[u8]) {
        self.number(b'$', bytes.len());
        self.text.extend_from_slice(bytes);
        self.text.extend_from_slice(b"\r\n");
    }

    /// Appends an argument that is not copied.
    pub fn page(&mut self, bytes: &'a [u8]) {
        self.number(b'$', bytes.len());
        self.pages.push((self.text.len(), bytes));
        self.text.extend_from_slice(b"\r\n");
    }

    fn number(&mut self, sort: u8, mut number: usize) {
        let mut digits = [0; 20];
        let mut start = digits.len();
        loop {
            start -= 1;
            digits[start] = b'0' + units::cast::fits::<_, u8>(number % 10);
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.text.push(sort);
        self.text.extend_from_slice(&digits[start..]);
        self.text.extend_from_slice(b"\r\n");
    }

    /// Sends everything.
    ///
    /// # Errors
    /// The connection's.
    pub fn write_to(&self, output: &mut impl Write) -> io::Result<()> {
        let mut slices = Vec::with_capacity(2 * self.pages.len() + 1);
        let mut from = 0;
        for &(position, page) in &self.pages {
            slices.push(IoSlice::new(&self.text[from..position]));
            slices.push(IoSlice::new(page));
            from = position;
        }
        slices.push(IoSlice::new(&self.text[from..]));
        let mut left = &mut slices[..];
        while !left.is_empty() {
            let some = left.len().min(SLICES_MAX);
            match output.write_vectored(&left[..some]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut left, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        output.flush()
    }
}

/// Reads one reply.
///
/// # Errors
/// The connection's, and `InvalidData` for an invalid reply.
pub fn reply(input: &mut impl BufRead) -> io::Result<Reply> {
    reply_at(input, 0, &mut REPLY_BYTES_MAX.clone())
}

/// Reads one reply; `left` is the rest of its size limit.
fn reply_at(input: &mut impl BufRead, depth: usize, left: &mut usize) -> io::Result<Reply> {
    let line = line(input)?;
    take_from(left, size_of::<Reply>() + line.len())?;
    let (&sort, rest) = line.split_first().ok_or_else(|| malformed("an empty line"))?;
    let text = || String::from_utf8_lossy(rest).into_owned();
    match sort {
        b'+' => Ok(Reply::Simple(text())),
        b'-' => Ok(Reply::Error(text())),
        b':' => Ok(Reply::Integer(integer(rest)?)),
        b'$' => match length(rest, BULK_BYTES_MAX)? {
            None => Ok(Reply::Nil),
            Some(length) => {
                take_from(left, length)?;
                // An announced length is not trusted before its bytes have come.
                let mut bytes = Vec::new();
                input.take(length as u64).read_to_end(&mut bytes)?;
                if bytes.len() < length {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                end_of_string(input)?;
                Ok(Reply::Bulk(bytes))
            }
        },
        b'*' if depth == DEPTH_MAX => Err(malformed("arrays in arrays without end")),
        b'*' => match length(rest, ARRAY_LENGTH_MAX)? {
            None => Ok(Reply::Nil),
            Some(length) => {
                (0..length).map(|_| reply_at(input, depth + 1, left)).collect::<io::Result<_>>().map(Reply::Array)
            }
        },
        _ => Err(malformed("no reply of Redis")),
    }
}

fn take_from(left: &mut usize, bytes: usize) -> io::Result<()> {
    *left = left.checked_sub(bytes).ok_or_else(|| malformed("a reply beyond all bounds"))?;
    Ok(())
}

/// Error line of the server, without its `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorLine(pub String);

/// Reads the reply to a request for the pages of one hash into their places, and tells the value in each place.
/// `Ok(Err(line))` is an error line from the server.
///
/// # Errors
/// As [`reply`].
pub fn pages<'a>(
    input: &mut impl BufRead,
    places: impl ExactSizeIterator<Item = &'a mut [u8]>,
    mut each: impl FnMut(usize, Field),
) -> io::Result<Result<(), ErrorLine>> {
    let mut first = line(input)?;
    // The answer to ASKING, which is sent once.
    if first == b"+OK" {
        first = line(input)?;
    }
    match first.split_first() {
        Some((b'-', text)) => return Ok(Err(ErrorLine(String::from_utf8_lossy(text).into_owned()))),
        Some((b'*', text)) if length(text, ARRAY_LENGTH_MAX)? == Some(places.len()) => (),
        _ => return Err(malformed("another number of values than was asked for")),
    }
    for (index, place) in places.enumerate() {
        let header = line(input)?;
        let Some((b'$', text)) = header.split_first() else { return Err(malformed("no value")) };
        match length(text, BULK_BYTES_MAX)? {
            None => each(index, Field::Missing),
            Some(length) if length == place.len() => {
                input.read_exact(place)?;
                end_of_string(input)?;
                each(index, Field::Whole);
            }
            Some(length) => {
                if io::copy(&mut input.take(length as u64), &mut io::sink())? < length as u64 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                end_of_string(input)?;
                each(index, Field::Short(length));
            }
        }
    }
    Ok(Ok(()))
}

/// A line without its end.
fn line(input: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::with_capacity(16);
    let read = input.take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line);
    // Another service may send no end of a line, and wait.
    if line.first().is_some_and(|first| !LINE_STARTS.contains(first)) {
        return Err(malformed("a line of another protocol"));
    }
    read?;
    if line.ends_with(b"\r\n") {
        line.truncate(line.len() - 2);
        return Ok(line);
    }
    if line.len() >= LINE_BYTES_MAX || line.ends_with(b"\n") {
        return Err(malformed("a line without its end"));
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

fn end_of_string(input: &mut impl BufRead) -> io::Result<()> {
    let mut end = [0; 2];
    input.read_exact(&mut end)?;
    if end == *b"\r\n" { Ok(()) } else { Err(malformed("a string without its end")) }
}

fn integer(text: &[u8]) -> io::Result<i64> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| malformed("no number"))
}

/// Parses a length; `None` for -1.
fn length(text: &[u8], most: usize) -> io::Result<Option<usize>> {
    let number = integer(text)?;
    if number == -1 {
        return Ok(None);
    }
    let length = usize::try_from(number).ok().filter(|&length| length <= most);
    length.map(Some).ok_or_else(|| malformed("a length beyond all bounds"))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the answer is not understood: {what}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(mut bytes: &[u8]) -> io::Result<Reply> {
        reply(&mut bytes)
    }

    #[test]
    fn a_request_is_an_array_of_strings() {
        let mut requests = Requests::default();
        requests.request(&[b"GET", b"a long key"]);
        assert_eq!(sent(&requests), b"*2\r\n$3\r\nGET\r\n$10\r\na long key\r\n");
    }

    fn sent(requests: &Requests<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        requests.write_to(&mut out).unwrap();
        out
    }

    /// Output that takes a few bytes at once, as a socket may.
    struct Narrow(Vec<u8>);

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let some = bytes.len().min(7);
            self.0.extend_from_slice(&bytes[..some]);
            Ok(some)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn pages_are_sent_in_their_place_however_little_is_taken_at_once() {
        let page = [b'x'; 20];
        let mut requests = Requests::default();
        requests.head(2);
        requests.page(&page);
        requests.page(&page);
        requests.request(&[b"PING"]);
        let expected = format!("*2\r\n$20\r\n{x}\r\n$20\r\n{x}\r\n*1\r\n$4\r\nPING\r\n", x = "x".repeat(20));
        assert_eq!(sent(&requests), expected.as_bytes());
        let mut narrow = Narrow(Vec::new());
        requests.write_to(&mut narrow).unwrap();
        assert_eq!(narrow.0, expected.as_bytes());
        let mut many = Requests::default();
        (0..2000).for_each(|_| many.page(&page));
        assert_eq!(sent(&many), b"$20\r\nxxxxxxxxxxxxxxxxxxxx\r\n".repeat(2000));
    }

    #[test]
    fn every_form_of_reply_is_read() {
        assert_eq!(read(b"+OK\r\n").unwrap(), Reply::Simple("OK".to_owned()));
        assert_eq!(read(b"-ERR no\r\n").unwrap(), Reply::Error("ERR no".to_owned()));
        assert_eq!(read(b":-12\r\n").unwrap(), Reply::Integer(-12));
        assert_eq!(read(b"$3\r\na\r\n\r\n").unwrap(), Reply::Bulk(b"a\r\n".to_vec()));
        assert_eq!(read(b"$-1\r\n").unwrap(), Reply::Nil);
        assert_eq!(read(b"*2\r\n:1\r\n*0\r\n").unwrap(), Reply::Array(vec![Reply::Integer(1), Reply::Array(vec![])]));
    }

    #[test]
    fn what_was_cut_short_is_an_end_and_what_is_no_reply_is_invalid() {
        for short in [&b"+OK"[..], b"+OK\r", b"$3\r\nab", b"$3\r\nabc\r", b"*2\r\n:1\r\n", b""] {
            assert_eq!(read(short).unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "{short:?}");
        }
        for bad in
            [&b"HTTP/1.1 400\r\n"[..], b"\r\n", b":x\r\n", b"$-2\r\n", b"$99999999999\r\n", b"$1\r\nabc", b"+a\n"]
        {
            assert_eq!(read(bad).unwrap_err().kind(), io::ErrorKind::InvalidData, "{bad:?}");
        }
        let nested = b"*1\r\n".repeat(1000);
        assert_eq!(read(&nested).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    /// Sends some bytes, and then nothing.
    struct Silent(&'static [u8]);

    impl Read for Silent {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer) {
                Ok(0) => Err(io::ErrorKind::TimedOut.into()),
                other => other,
            }
        }
    }

    #[test]
    fn bytes_of_another_protocol_are_no_slow_answer() {
        let said = |bytes| reply(&mut io::BufReader::new(Silent(bytes))).unwrap_err();
        assert_eq!(said(b"+O").kind(), io::ErrorKind::TimedOut);
        assert_eq!(said(b"").kind(), io::ErrorKind::TimedOut);
        assert_eq!(said(b"\x15\x03\x03\0\x02").to_string(), "the answer is not understood: a line of another protocol");
        let closed = read(b"HTTP/1.1").unwrap_err();
        assert_eq!(closed.kind(), io::ErrorKind::InvalidData, "{closed}");
    }

    #[test]
    fn pages_come_into_their_places_and_what_is_none_is_said() {
        let mut input = &b"*3\r\n$4\r\nabcd\r\n$-1\r\n$2\r\nxy\r\n:7\r\n"[..];
        let mut place = [0; 12];
        let mut said = Vec::new();
        pages(&mut input, place.chunks_mut(4), |index, field| said.push((index, field))).unwrap().unwrap();
        assert_eq!(&place[..4], b"abcd");
        assert_eq!(said, [(0, Field::Whole), (1, Field::Missing), (2, Field::Short(2))]);
        assert_eq!(reply(&mut input).unwrap(), Reply::Integer(7), "the next reply is whole");
    }

    /// Input of the same bytes, repeated.
    struct Endless(&'static [u8], usize);

    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            for place in &mut *buffer {
                *place = self.0[self.1 % self.0.len()];
                self.1 += 1;
            }
            Ok(buffer.len())
        }
    }

    #[test]
    fn a_server_that_answers_without_end_is_refused() {
        let endless = |head: &'static [u8], rest| io::BufReader::new(head.chain(Endless(rest, 0)));
        let error = reply(&mut endless(b"*1048576\r\n", b"*1048576\r\n:1\r\n")).unwrap_err();
        assert!(error.to_string().contains("without end"), "{error}");
        for values in [&b":1\r\n"[..], b"*0\r\n", b"$65536\r\n"] {
            let head = b"*1048576\r\n*1048576\r\n*1048576\r\n";
            let error = reply(&mut endless(head, values)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        }
        let error = pages(&mut endless(b"", b"+OK\r\n"), std::iter::empty(), |_, _| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }

    #[test]
    fn an_error_instead_of_pages_is_the_servers() {
        let mut place = [0; 4];
        let answer = pages(&mut &b"-MOVED 1 h:1\r\n"[..], place.chunks_mut(4), |_, _| ()).unwrap();
        assert_eq!(answer, Err(ErrorLine("MOVED 1 h:1".to_owned())));
        let wrong = pages(&mut &b"*2\r\n"[..], place.chunks_mut(4), |_, _| ()).unwrap_err();
        assert_eq!(wrong.kind(), io::ErrorKind::InvalidData);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_reply_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = read(&bytes);
        }

        #[test]
        fn what_looks_like_replies_never_panics(text in "([*$:+-]-?[0-9]{0,3}[a-z]{0,3}(\r\n)?){0,12}") {
            let _ = read(text.as_bytes());
            let mut place = [0; 16];
            let _ = pages(&mut text.as_bytes(), place.chunks_mut(4), |_, _| ());
        }

        #[test]
        fn numbers_are_written_in_decimal(length in any::<usize>()) {
            let mut requests = Requests::default();
            requests.head(length);
            prop_assert_eq!(sent(&requests), format!("*{length}\r\n").into_bytes());
        }
    }
}
