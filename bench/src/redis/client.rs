//! The client's half of Redis's protocol, as far as a benchmark needs it: pipelined SET and GET, and plain commands.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::redis::keys::{NAME_BYTES, TOKEN_BYTES, name, token};
use crate::stop::Stop;

/// Requests sent before the first of their answers is read.
pub const DEPTH: usize = 64;

/// One connection.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    requests: Vec<u8>,
    answers: Vec<u8>,
}

/// Depth of the check of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// Length and first bytes, which depend on the key.
    Quick,
    /// Every byte.
    Whole,
}

impl Client {
    /// Connects to the Unix socket at `path`.
    ///
    /// # Errors
    /// When no server listens there.
    pub fn connect(path: &Path) -> Result<Client> {
        let stream = UnixStream::connect(path).with_context(|| format!("cannot connect to {}", path.display()))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Client::over(stream))
    }

    /// Over a stream that is connected.
    pub fn over(stream: UnixStream) -> Client {
        Client { stream, requests: Vec::new(), answers: Vec::new() }
    }

    /// Sends a command and returns the answer's text: a status, a number or a string.
    ///
    /// # Errors
    /// When the server answers with an error, or is gone.
    pub fn command(&mut self, words: &[&str]) -> Result<String> {
        self.requests.clear();
        write!(self.requests, "*{}\r\n", words.len())?;
        for word in words {
            write!(self.requests, "${}\r\n{word}\r\n", word.len())?;
        }
        self.stream.write_all(&self.requests)?;
        let head = self.text_line()?;
        match head.split_at_checked(1) {
            Some(("+" | ":", rest)) => Ok(rest.to_owned()),
            Some(("$", length)) => {
                let length: usize = length.parse().with_context(|| format!("redis answered `{head}`"))?;
                let mut text = vec![0; length + 2];
                self.stream.read_exact(&mut text)?;
                Ok(String::from_utf8_lossy(&text[..length]).into_owned())
            }
            _ => bail!("redis answered `{head}` to {}", words.join(" ")),
        }
    }

    fn text_line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            self.stream.read_exact(&mut byte).context("redis hung up")?;
            line.push(byte[0]);
        }
        line.truncate(line.len() - 2);
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    /// Sets the keys `from..to` to values of `value_bytes`.
    ///
    /// # Errors
    /// When the server refuses, is gone, or we are interrupted.
    pub fn load(&mut self, from: u32, to: u32, value_bytes: usize, stop: &Stop) -> Result<()> {
        const OK: &[u8] = b"+OK\r\n";
        let all: Vec<u32> = (from..to).collect();
        for keys in all.chunks(DEPTH) {
            stop.check()?;
            self.requests.clear();
            for &key in keys {
                self.requests.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$14\r\n");
                self.requests.extend_from_slice(&name(key));
                write!(self.requests, "\r\n${value_bytes}\r\n")?;
                let token = token(key);
                self.requests.extend(token.iter().cycle().take(value_bytes));
                self.requests.extend_from_slice(b"\r\n");
            }
            self.stream.write_all(&self.requests)?;
            self.answers.resize(keys.len() * OK.len(), 0);
            self.stream.read_exact(&mut self.answers).context("redis hung up")?;
            let refused = self.answers.chunks(OK.len()).find(|answer| *answer != OK);
            ensure!(refused.is_none(), "redis refused a SET: {}", String::from_utf8_lossy(&self.answers));
        }
        Ok(())
    }

    /// Gets `keys`, two batches of [`DEPTH`] under way at a time.
    ///
    /// # Errors
    /// When the beginning of an answer is not that of the set value, or the server is gone.
    pub fn get_pipelined(&mut self, keys: &[u32], value_bytes: usize) -> Result<()> {
        self.get_checked(keys, value_bytes, Look::Quick)
    }

    /// Gets the keys `0..count` and checks every byte of the answers.
    ///
    /// # Errors
    /// When an answer is not the set value, or the server is gone.
    pub fn check(&mut self, count: u32, value_bytes: usize) -> Result<()> {
        self.get_checked(&(0..count).collect::<Vec<u32>>(), value_bytes, Look::Whole)
    }

    fn get_checked(&mut self, keys: &[u32], value_bytes: usize, look: Look) -> Result<()> {
        let mut waiting: Option<&[u32]> = None;
        for batch in keys.chunks(DEPTH) {
            self.ask(batch)?;
            if let Some(sent_before) = waiting.replace(batch) {
                self.hear(sent_before, value_bytes, look)?;
            }
        }
        waiting.map_or(Ok(()), |last| self.hear(last, value_bytes, look))
    }

    /// Gets one key and waits for the answer.
    ///
    /// # Errors
    /// As [`Client::get_pipelined`].
    pub fn get(&mut self, key: u32, value_bytes: usize) -> Result<()> {
        self.ask(&[key])?;
        self.hear(&[key], value_bytes, Look::Quick)
    }

    /// Gets the keys of `pool`, from the beginning again when it is through, while `go_on`, called with the time since
    /// the start, returns true. Returns GETs per second, and the time taken.
    ///
    /// # Errors
    /// As [`Client::get_pipelined`], or when we are interrupted.
    pub fn get_while(
        &mut self,
        pool: &[u32],
        value_bytes: usize,
        stop: &Stop,
        mut go_on: impl FnMut(Duration) -> bool,
    ) -> Result<(f64, Duration)> {
        let (mut done, begun) = (0usize, Instant::now());
        for batch in pool.chunks(DEPTH * 128).cycle() {
            stop.check()?;
            if !go_on(begun.elapsed()) {
                break;
            }
            self.get_pipelined(batch, value_bytes)?;
            done += batch.len();
        }
        Ok((done as f64 / begun.elapsed().as_secs_f64(), begun.elapsed()))
    }

    fn ask(&mut self, keys: &[u32]) -> Result<()> {
        self.requests.clear();
        for &key in keys {
            self.requests.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$14\r\n");
            self.requests.extend_from_slice(&name(key));
            self.requests.extend_from_slice(b"\r\n");
        }
        Ok(self.stream.write_all(&self.requests)?)
    }

    fn hear(&mut self, keys: &[u32], value_bytes: usize, look: Look) -> Result<()> {
        let head = format!("${value_bytes}\r\n");
        let answer_bytes = head.len() + value_bytes + 2;
        self.answers.resize(keys.len() * answer_bytes, 0);
        self.stream.read_exact(&mut self.answers).context("redis hung up, or answered too little")?;
        for (key, answer) in keys.iter().zip(self.answers.chunks(answer_bytes)) {
            let token = token(*key);
            let value = answer.strip_prefix(head.as_bytes()).map(|rest| &rest[..value_bytes]);
            let good = value.is_some_and(|value| match look {
                Look::Quick => value.starts_with(&token[..TOKEN_BYTES.min(value.len())]),
                Look::Whole => value.chunks(TOKEN_BYTES).all(|piece| piece == &token[..piece.len()]),
            });
            if !good {
                let start = String::from_utf8_lossy(&answer[..answer.len().min(40)]).into_owned();
                bail!("redis answered `{start}…` for key {}", String::from_utf8_lossy(&name(*key)));
            }
        }
        Ok(())
    }
}

// The requests above spell the length of a name.
const _: () = assert!(NAME_BYTES == 14);

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers everything with `answer`, and returns the requests that it received.
    fn answering(answer: Vec<u8>) -> (Client, std::thread::JoinHandle<Vec<u8>>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || {
            theirs.write_all(&answer).unwrap();
            let mut asked = Vec::new();
            theirs.read_to_end(&mut asked).unwrap();
            asked
        });
        (Client::over(ours), server)
    }

    fn value(key: u32, bytes: usize) -> Vec<u8> {
        let token = token(key);
        let body: Vec<u8> = token.iter().copied().cycle().take(bytes).collect();
        [format!("${bytes}\r\n").into_bytes(), body, b"\r\n".to_vec()].concat()
    }

    #[test]
    fn a_get_asks_for_its_key_and_takes_its_value() {
        let (mut client, server) = answering([value(7, 20), value(8, 20)].concat());
        client.get_checked(&[7, 8], 20, Look::Whole).unwrap();
        drop(client);
        let one = |key| format!("*2\r\n$3\r\nGET\r\n$14\r\nkey:{key:010}\r\n");
        assert_eq!(String::from_utf8(server.join().unwrap()).unwrap(), one(7) + &one(8));
    }

    #[test]
    fn a_wrong_value_is_an_error_and_a_late_wrong_byte_needs_a_whole_look() {
        let (mut client, _server) = answering(value(8, 20));
        assert!(client.get(7, 20).is_err());
        let mut late = value(7, 20);
        let place = late.len() - 4;
        late[place] ^= 1;
        let (mut client, _server) = answering(late.clone());
        client.get_pipelined(&[7], 20).unwrap();
        let (mut client, _server) = answering(late);
        assert!(client.get_checked(&[7], 20, Look::Whole).is_err());
    }

    #[test]
    fn commands_understand_the_three_kinds_of_answers_and_report_errors() {
        let (mut client, _server) = answering(b"+OK\r\n:12\r\n$5\r\nhello\r\n-ERR no\r\n".to_vec());
        let answers: Vec<String> = (0..3).map(|_| client.command(&["X"]).unwrap()).collect();
        assert_eq!(answers, ["OK", "12", "hello"]);
        assert_eq!(client.command(&["X", "y"]).unwrap_err().to_string(), "redis answered `-ERR no` to X y");
    }
}
