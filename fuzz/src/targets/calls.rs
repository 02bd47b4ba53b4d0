//! Decoding of a paged program's system calls, before the kernel gets them: any call, any arguments, and any memory
//! behind pointers. All buffers lie in user memory, nothing is read that is not named too, and every decoding ends.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use crate::input::Input;
use farmem_engine::PAGE_BYTES;
use farmem_engine::calls::{
    Access, Buffer, Call, Kind, Known, Memory, Signal, Until, buffers, kind, number, robust_list,
};

const USER_START: u64 = 4096;
const USER_END: u64 = 1 << 56;
/// Most bytes that the kernel moves in one call.
const TRANSFER_BYTES_MAX: u64 = 0x7fff_f000;
/// Most words read for one call: exec with 6 MiB of pointers to empty strings has the most; 1024 messages of 1024
/// vectors come next.
const WORDS_MOST: u64 = 4 << 20;

/// Target of most pointers.
const HERE: u64 = 0x10_0000;
const REPEATED_WORDS: u64 = 1 << 12;

/// A small memory with the input's words, and a rule for all other addresses.
struct Fake {
    words: Vec<u64>,
    elsewhere: Elsewhere,
    own: bool,
    read: Cell<u64>,
    last: Cell<u64>,
    pages: RefCell<BTreeSet<u64>>,
}

#[derive(Clone, Copy)]
enum Elsewhere {
    Nothing,
    Same(u64),
    /// The same words repeated, up to [`REPEATED_WORDS`].
    Repeated,
}

impl Memory for Fake {
    fn word(&self, address: u64) -> Option<u64> {
        assert_eq!(address % 8, 0, "read across a page");
        assert!((USER_START..USER_END).contains(&address), "read at {address:#x}");
        self.read.set(self.read.get() + 1);
        assert!(self.read.get() <= WORDS_MOST, "no end of it");
        let at = address.wrapping_sub(HERE) / 8;
        let here = usize::try_from(at).ok().and_then(|at| self.words.get(at)).copied();
        let word = here.or(match self.elsewhere {
            Elsewhere::Nothing => None,
            Elsewhere::Same(word) => Some(word),
            Elsewhere::Repeated if at >= REPEATED_WORDS => None,
            Elsewhere::Repeated => self.words.get((at as usize).checked_rem(self.words.len())?).copied(),
        })?;
        let page = address / PAGE_BYTES;
        if self.last.replace(page) != page {
            self.pages.borrow_mut().insert(page);
        }
        Some(word)
    }

    fn is_own_process(&self, _: u32) -> bool {
        self.own
    }
}

/// Numbers with a meaning in some call, or at a border.
fn argument(input: &mut Input<'_>) -> u64 {
    let small = u64::from(input.byte());
    match input.byte() % 12 {
        0..4 => HERE + small * 8,
        4 => HERE + small,
        5 | 6 => small,
        7 => u64::from(input.half()),
        8 => input.word(),
        9 => USER_END - 128 + small,
        10 => u64::MAX - small,
        _ => (small << 32) | u64::from(input.half()),
    }
}

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let mut input = Input(bytes);
    let number = u32::from(input.half()) % 512;
    let arguments = std::array::from_fn(|_| argument(&mut input));
    let call = Call { number, arguments };
    let elsewhere = match input.byte() % 4 {
        0 | 1 => Elsewhere::Nothing,
        2 if input.byte().is_multiple_of(8) => Elsewhere::Same(argument(&mut input)),
        _ => Elsewhere::Repeated,
    };
    let mut words = Vec::new();
    while !input.0.is_empty() && words.len() < 512 {
        words.push(argument(&mut input));
    }
    let mut memory =
        Fake { words, elsewhere, own: false, read: Cell::new(0), last: Cell::new(0), pages: RefCell::default() };
    let (known, named) = seen(call, &memory);
    assert_eq!(known != Known::No, number::name(number).is_some());
    assert!(known == Known::Yes || named.is_empty() && memory.read.get() == 0);
    agrees(call, &named);

    if matches!(number, number::PROCESS_VM_READV | number::PROCESS_VM_WRITEV) {
        memory.own = true;
        let (_, more) = seen(call, &memory);
        assert!(named.is_subset(&more), "of its own memory a process touches no less");
    }

    robust_list(arguments[0], &memory, &mut |buffer| {
        checked(buffer);
    });
    known == Known::Yes && !named.is_empty()
}

/// The buffers of a call. Checks that they cover all words read to find them.
fn seen(call: Call, memory: &Fake) -> (Known, Named) {
    memory.read.set(0);
    memory.last.set(0);
    memory.pages.borrow_mut().clear();
    let mut named = Named::default();
    let known = buffers(call, memory, &mut |buffer| {
        named.insert(checked(buffer));
    });
    // The kernel reads these pages too: the pager must have mapped all of them in.
    let mut covered = 0;
    let mut buffers = named.iter().peekable();
    for page in memory.pages.borrow().iter() {
        while let Some((start, bytes, ..)) = buffers.next_if(|(start, ..)| start / PAGE_BYTES <= *page) {
            covered = covered.max((start + bytes - 1) / PAGE_BYTES);
        }
        assert!(covered >= *page, "page {page:#x} is read and not named: {call:x?} {named:x?}");
    }
    (known, named)
}

/// Start, bytes, whether it is written, whether it is kept.
type Named = BTreeSet<(u64, u64, bool, bool)>;

fn checked(Buffer { start, bytes, access, until }: Buffer) -> (u64, u64, bool, bool) {
    let end = start.checked_add(bytes);
    assert!(
        bytes > 0 && start >= USER_START && end.is_some_and(|end| end <= USER_END),
        "{start:x} and {bytes:x} bytes"
    );
    (start, bytes, access == Access::Write, until == Until::Replaced)
}

/// Checks the `kind` of a call against its buffers.
fn agrees(call: Call, named: &Named) {
    let may_be = |start: u64| (USER_START..USER_END).contains(&start);
    let begins = |start: u64| !may_be(start) || named.iter().any(|it| it.0 == start);
    match kind(call) {
        Kind::Transfer { address, length, vectors: false, access, .. } => {
            let (start, bytes) = (call.arguments[address], call.arguments[length]);
            if may_be(start) && bytes > 0 {
                let bytes = bytes.min(TRANSFER_BYTES_MAX).min(USER_END - start);
                assert!(named.contains(&(start, bytes, access == Access::Write, false)), "{call:x?}");
            }
        }
        Kind::Transfer { vectors: true, access: Access::Write, .. } => {
            let data = named.iter().filter(|it| it.2);
            assert!(data.map(|it| it.1).sum::<u64>() <= TRANSFER_BYTES_MAX, "{call:x?}");
        }
        Kind::Transfer { vectors: true, access: Access::Read, .. } => assert!(named.iter().all(|it| !it.2)),
        Kind::Signal(Signal::MaskDuring { set: at, .. } | Signal::Takes { set: at, .. })
        | Kind::Signal(Signal::MaskDuringBehind { pair: at }) => assert!(begins(call.arguments[at]), "{call:x?}"),
        Kind::Refused { errno, .. } => assert!(errno > 0),
        _ => {}
    }
}
