//! The tests themselves, a file per subject. Each is listed in `table.rs`.

pub mod collapse;
pub mod knob;
pub mod pagemap;
pub mod toy;

use linux::pagemap::Pagemap;

use crate::knob::Knob;
use crate::toy::{Mapping, ToyProcess};

/// What goes wrong in a test; any error with words turns into it.
type Outcome = Result<(), libtest_mimic::Failed>;

/// Huge pages come only by order (or by a program's own wish) until this is dropped.
fn no_automatic_huge_pages() -> std::io::Result<Knob> {
    Knob::turn("/sys/kernel/mm/transparent_hugepage/enabled", "madvise")
}

/// Which pages of the mapping are in memory, by number.
fn present_pages(toy: &ToyProcess, mapping: Mapping) -> Result<Vec<u64>, linux::Error> {
    let entries = Pagemap::open(toy.pid())?.entries(mapping.range())?;
    Ok((0..).zip(&entries).filter(|(_, entry)| entry.is_present()).map(|(page, _)| page).collect())
}

/// The anonymous memory of the mapping that is on huge pages, in bytes.
fn huge_bytes(live: &crate::live::Live, toy: &ToyProcess, mapping: Mapping) -> Result<u64, linux::Error> {
    let details = linux::smaps::details(live.files(), toy.pid())?;
    let range = mapping.range();
    Ok(details.iter().filter(|d| range.covers(d.mapping.range)).map(|d| d.anon_huge_pages.0).sum())
}
