//! Work for Redis, block by block: the requests of each kind, and the parsing of their replies.

use std::io::{self, BufReader};

use super::blocks::{self, Block, FIELDS, Part};
use super::connection::Stream;
use super::resp::{self, ErrorLine, Field, Reply, Requests};
use crate::store::{GetRun, Location, PAGE_BYTES, PutRun, Span};

/// List of blocks, and an idempotent operation on each.
pub trait Work {
    /// Number of blocks.
    fn len(&self) -> usize;
    /// Block at an index.
    fn block(&self, index: usize) -> Block;
    /// Number of bytes transferred for a block.
    fn bytes(&self, index: usize) -> usize;
    /// Whether it changes data: then replicas acknowledge it, and it must not be carried out late.
    fn writes(&self) -> bool;
    /// Appends the requests, each after the prefix of `asking`.
    fn request<'s>(&'s self, index: usize, key: &[u8], asking: Asking, out: &mut Requests<'s>);
    /// Reads all replies to them, also after an error line; that is returned as `Ok(Err(line))`.
    fn reply(&mut self, index: usize, input: &mut BufReader<Stream>) -> io::Result<Result<(), ErrorLine>>;
}

/// Whether the pages are migrating to this node. Then every request needs the prefix ASKING, whose `+OK` is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// Migrating.
    Yes,
    /// Not migrating.
    No,
}

impl Asking {
    fn say(self, out: &mut Requests<'_>) {
        if self == Asking::Yes {
            out.request(&[b"ASKING"]);
        }
    }
}

/// Pages of a block, by field: their content, or their destination.
type Pages<P> = (Block, Vec<(usize, P)>);

/// Sorts the pages of a run into their blocks; equal consecutive blocks are merged.
fn sort_in<P>(blocks: &mut Vec<Pages<P>>, span: Span, mut pages: impl Iterator<Item = P>) {
    for part in blocks::cut(span) {
        let fields = part.fields.zip(&mut pages);
        match blocks.last_mut() {
            Some((block, known)) if *block == part.block => known.extend(fields),
            _ => blocks.push((part.block, fields.collect())),
        }
    }
}

/// Writes pages, and renews their block's lease.
pub struct Puts<'a> {
    blocks: Vec<Pages<&'a [u8]>>,
    ttl_seconds: String,
    page_bytes: usize,
}

impl<'a> Puts<'a> {
    /// The runs, cut into blocks.
    pub fn new(runs: &[PutRun<'a>], ttl_seconds: String, page_bytes: usize) -> Puts<'a> {
        let mut puts = Puts { blocks: Vec::new(), ttl_seconds, page_bytes };
        for run in runs {
            sort_in(&mut puts.blocks, run.span(page_bytes), run.bytes.chunks_exact(page_bytes));
        }
        puts
    }

    /// The blocks that get pages.
    pub fn blocks(&self) -> impl Iterator<Item = Block> {
        self.blocks.iter().map(|(block, _)| *block)
    }
}

impl Work for Puts<'_> {
    fn len(&self) -> usize {
        self.blocks.len()
    }

    fn block(&self, index: usize) -> Block {
        self.blocks[index].0
    }

    fn bytes(&self, index: usize) -> usize {
        self.blocks[index].1.len() * self.page_bytes
    }

    fn writes(&self) -> bool {
        true
    }

    fn request<'s>(&'s self, index: usize, key: &[u8], asking: Asking, out: &mut Requests<'s>) {
        asking.say(out);
        let pages = &self.blocks[index].1;
        out.head(2 + 2 * pages.len());
        out.string(b"HSET");
        out.string(key);
        for (field, page) in pages {
            out.string(FIELDS[*field]);
            out.page(page);
        }
        asking.say(out);
        out.request(&[b"EXPIRE", key, self.ttl_seconds.as_bytes()]);
    }

    fn reply(&mut self, _: usize, input: &mut BufReader<Stream>) -> io::Result<Result<(), ErrorLine>> {
        integers(input, 2)
    }
}

/// Reads pages into their places.
pub struct Gets<'a> {
    blocks: Vec<Pages<&'a mut [u8]>>,
    page_bytes: usize,
    /// First page that was missing, or not whole.
    pub lost: Option<(Location, Field)>,
}

impl<'a> Gets<'a> {
    /// The runs, cut into blocks.
    pub fn new(runs: &'a mut [GetRun<'_>], page_bytes: usize) -> Gets<'a> {
        let mut gets = Gets { blocks: Vec::new(), page_bytes, lost: None };
        for run in runs {
            let span = run.span(page_bytes);
            sort_in(&mut gets.blocks, span, run.bytes.chunks_exact_mut(page_bytes));
        }
        gets
    }
}

impl Work for Gets<'_> {
    fn len(&self) -> usize {
        self.blocks.len()
    }

    fn block(&self, index: usize) -> Block {
        self.blocks[index].0
    }

    fn bytes(&self, index: usize) -> usize {
        self.blocks[index].1.len() * self.page_bytes
    }

    fn writes(&self) -> bool {
        false
    }

    fn request<'s>(&'s self, index: usize, key: &[u8], asking: Asking, out: &mut Requests<'s>) {
        asking.say(out);
        let places = &self.blocks[index].1;
        out.head(2 + places.len());
        out.string(b"HMGET");
        out.string(key);
        for (field, _) in places {
            out.string(FIELDS[*field]);
        }
    }

    fn reply(&mut self, index: usize, input: &mut BufReader<Stream>) -> io::Result<Result<(), ErrorLine>> {
        let (block, places) = &mut self.blocks[index];
        let fields: Vec<usize> = places.iter().map(|(field, _)| *field).collect();
        let lost = &mut self.lost;
        resp::pages(input, places.iter_mut().map(|(_, place)| &mut **place), |at, field| {
            if field != Field::Whole {
                lost.get_or_insert((block.location(fields[at]), field));
            }
        })
    }
}

/// Deletes pages, or whole blocks.
pub struct Forgets {
    parts: Vec<Part>,
}

impl Forgets {
    /// The spans, cut into blocks.
    pub fn new(spans: &[Span]) -> Forgets {
        Forgets { parts: spans.iter().flat_map(|span| blocks::cut(*span)).collect() }
    }

    /// Deletes whole blocks.
    pub fn whole(blocks: &[Block]) -> Forgets {
        Forgets { parts: blocks.iter().map(|&block| Part { block, fields: 0..FIELDS.len() }).collect() }
    }

    /// Blocks that are deleted as a whole.
    pub fn whole_blocks(&self) -> impl Iterator<Item = Block> {
        self.parts.iter().filter(|part| part.is_whole()).map(|part| part.block)
    }
}

impl Work for Forgets {
    fn len(&self) -> usize {
        self.parts.len()
    }

    fn block(&self, index: usize) -> Block {
        self.parts[index].block
    }

    fn bytes(&self, _: usize) -> usize {
        // Little is sent, but the server has much to do: the same number at once as with pages.
        PAGE_BYTES
    }

    fn writes(&self) -> bool {
        true
    }

    fn request<'s>(&'s self, index: usize, key: &[u8], asking: Asking, out: &mut Requests<'s>) {
        asking.say(out);
        let part = &self.parts[index];
        if part.is_whole() {
            return out.request(&[b"UNLINK", key]);
        }
        out.head(2 + part.fields.len());
        out.string(b"HDEL");
        out.string(key);
        for field in &FIELDS[part.fields.clone()] {
            out.string(field);
        }
    }

    fn reply(&mut self, _: usize, input: &mut BufReader<Stream>) -> io::Result<Result<(), ErrorLine>> {
        integers(input, 1)
    }
}

/// Renews the leases of blocks.
pub struct Leases<'a> {
    /// The blocks.
    pub blocks: &'a [Block],
    /// Life time from now on, in seconds.
    pub ttl_seconds: String,
}

impl Work for Leases<'_> {
    fn len(&self) -> usize {
        self.blocks.len()
    }

    fn block(&self, index: usize) -> Block {
        self.blocks[index]
    }

    fn bytes(&self, _: usize) -> usize {
        PAGE_BYTES
    }

    fn writes(&self) -> bool {
        // Carried out late, it does no harm, and nothing waits for it.
        false
    }

    fn request<'s>(&'s self, _: usize, key: &[u8], asking: Asking, out: &mut Requests<'s>) {
        asking.say(out);
        out.request(&[b"EXPIRE", key, self.ttl_seconds.as_bytes()]);
    }

    fn reply(&mut self, _: usize, input: &mut BufReader<Stream>) -> io::Result<Result<(), ErrorLine>> {
        integers(input, 1)
    }
}

/// Reads `count` integer replies, and returns the first error line among them. The answer to ASKING may come before
/// each.
fn integers(input: &mut BufReader<Stream>, count: usize) -> io::Result<Result<(), ErrorLine>> {
    let mut said = Ok(());
    for _ in 0..count {
        let mut reply = resp::reply(input)?;
        if matches!(reply, Reply::Simple(_)) {
            reply = resp::reply(input)?;
        }
        match reply {
            Reply::Integer(_) => (),
            Reply::Error(line) => said = said.and(Err(ErrorLine(line))),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is not understood: no number")),
        }
    }
    Ok(said)
}
