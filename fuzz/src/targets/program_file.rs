//! Program files from any author: judged in bounded time, by the pager's rule and by that of the library for huge pages.
//! A file that the pager serves has the system's loader, by both.

use std::cell::Cell;

use contract::image::{self, LeftOut, Verdict};
use farmem_engine::program_file::{Judged, Source, judge};

/// Reads of one judgement: headers, their names, and a script's line byte by byte.
const READS_MAX: u32 = 2000;

struct File<'f> {
    bytes: &'f [u8],
    reads: Cell<u32>,
}

impl File<'_> {
    fn at(&self, offset: u64) -> &[u8] {
        self.reads.set(self.reads.get() + 1);
        usize::try_from(offset).ok().and_then(|offset| self.bytes.get(offset..)).unwrap_or_default()
    }
}

impl Source for File<'_> {
    fn read(&self, offset: u64, to: &mut [u8]) -> bool {
        let found = self.at(offset).get(..to.len());
        found.is_some_and(|found| {
            to.copy_from_slice(found);
            true
        })
    }
}

/// Runs one input; true when it is a program or a script.
pub fn run(bytes: &[u8]) -> bool {
    let file = File { bytes, reads: Cell::new(0) };
    let judged = judge(&file);
    assert!(file.reads.get() <= READS_MAX, "{} reads", file.reads.get());
    file.reads.set(0);
    let verdict = image::judge(&mut |offset, to| {
        let found = file.at(offset);
        let length = found.len().min(to.len());
        to[..length].copy_from_slice(&found[..length]);
        length
    });
    assert!(file.reads.get() <= READS_MAX, "{} reads", file.reads.get());
    let half = |at: usize| bytes.get(at..at + 2).map_or(0, |half| u16::from_le_bytes([half[0], half[1]]));
    match judged {
        Judged::Unknown => return false,
        Judged::Paged => {
            assert!(bytes.windows(28).any(|name| name == b"/lib64/ld-linux-x86-64.so.2\0"));
            // As the kernel accepts it, and all of it read by both.
            if half(54) == 56 && half(56) <= 64 {
                let served = matches!(verdict, Verdict::Served | Verdict::LeftOut(LeftOut::Sanitizer | LeftOut::Go));
                assert!(served, "{verdict:?}");
            }
        }
        Judged::LeftOut { .. } => {}
        Judged::Script(interpreter) => {
            let path = interpreter.path();
            assert!(bytes.starts_with(b"#!") && interpreter.with_zero().last() == Some(&0));
            let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
            assert!(!path.is_empty() && line.windows(path.len()).any(|part| part == path));
            assert!(!path.iter().any(|byte| matches!(byte, b' ' | b'\t' | b'\n' | 0)));
        }
    }
    true
}
