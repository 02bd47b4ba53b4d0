//! A list of active pages, as received from the tracker.

use core::mem::{offset_of, size_of};

use contract::track::list::{self, Head};

use crate::interface::{MasuPage, MasuWindow};
use crate::kernel::{Descriptor, Mapping};

// The program gets a page in the layout of the list.
const _: () = assert!(size_of::<MasuPage>() == size_of::<list::Page>());
const _: () = assert!(offset_of!(MasuPage, address) == offset_of!(list::Page, address));
const _: () = assert!(offset_of!(MasuPage, count) == offset_of!(list::Page, count));
const _: () = assert!(offset_of!(MasuPage, rate) == offset_of!(list::Page, rate));

/// A number of the list as an index or a length.
#[expect(clippy::cast_possible_truncation, reason = "masu runs on 64-bit machines only")]
fn index(number: u64) -> usize {
    number as usize
}

/// One list, mapped to be read.
pub struct List {
    mapping: Mapping,
    head: Head,
}

/// Reason for which there is no list.
pub enum Unusable {
    /// Not a tracker's list: it could be changed, or is malformed. Its sender is not trusted any more.
    Untrusted,
    /// No room for it in the address space.
    NoMemory,
}

impl List {
    /// List in a file that is sealed against changes.
    pub fn of(file: &Descriptor) -> Result<List, Unusable> {
        const SEALS: i32 = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK;
        // SAFETY: asks; a file without seals gives a negative answer.
        let seals = unsafe { libc::fcntl(file.number(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return Err(Unusable::Untrusted);
        }
        // SAFETY: asks; nothing is read or written.
        let end = unsafe { libc::lseek(file.number(), 0, libc::SEEK_END) };
        let Some(bytes) = usize::try_from(end).ok().filter(|bytes| *bytes >= size_of::<Head>()) else {
            return Err(Unusable::Untrusted);
        };
        let mapping = Mapping::of_file(file, bytes).ok_or(Unusable::NoMemory)?;
        // SAFETY: the mapping begins at a page and has room for it; it is sealed against writes, and any bytes are
        // valid.
        let head = unsafe { mapping.start().cast::<Head>().read() };
        if head.fits(bytes as u64) { Ok(List { mapping, head }) } else { Err(Unusable::Untrusted) }
    }

    /// Number of the list.
    pub fn generation(&self) -> u64 {
        self.head.generation
    }

    /// All its pages.
    pub fn pages(&self) -> &[MasuPage] {
        let windows = self.len() * size_of::<list::Window>();
        // SAFETY: the head fits the mapping, so the rest lies within it; it is aligned, is never written to, and any
        // bytes are valid.
        unsafe {
            let first = self.mapping.start().add(size_of::<Head>() + windows).cast();
            core::slice::from_raw_parts(first, index(self.head.pages))
        }
    }

    /// All its windows, as the program sees them. Windows with pages beyond the list are left out.
    pub fn windows(&self) -> impl Iterator<Item = (u64, MasuWindow)> + '_ {
        // SAFETY: as above.
        let windows: &[list::Window] = unsafe {
            let first = self.mapping.start().add(size_of::<Head>()).cast();
            core::slice::from_raw_parts(first, self.len())
        };
        let pages = self.pages();
        (0..).zip(windows).filter(|(_, window)| window.is_within(pages.len() as u64)).map(|(number, window)| {
            let seen = MasuWindow {
                address: window.address,
                pages: pages[index(window.first)..].as_ptr(),
                hot: window.hot,
                resident: window.resident,
                walks: window.walks,
                suggested: list::Verdict::of(window.suggested) as i32,
            };
            (number, seen)
        })
    }

    /// Number of windows.
    pub fn len(&self) -> usize {
        index(self.head.windows)
    }
}
