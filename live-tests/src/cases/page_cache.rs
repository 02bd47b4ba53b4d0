//! A file's pages in the page cache, and the pages that a drop removes.

use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use linux::kpageflags::FrameTable;
use linux::page_cache::{drop_clean, resident, start_write_out};
use linux::pagemap::Pagemap;
use units::Pages;

use super::Outcome;
use super::disk_file::{DiskFile, MappedFile, content_of};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    page_cache requires [DiskFiles];
    clean_pages_go_all_at_once;
    a_range_loses_its_folios_and_nothing_outside_of_it_goes [Root, PageFrames];
    pages_that_a_program_maps_stay;
    written_pages_are_never_lost;
    of_somebody_elses_file_nothing_is_said [Root];
};

const LENGTH: Pages = Pages(8192);
const ALL: Range<u64> = 0..LENGTH.0;

/// All of the file that is clean and not mapped, and nothing of it before it was read.
fn clean_pages_go_all_at_once(_: &Host) -> Outcome {
    let of = DiskFile::make("page-cache", LENGTH)?;
    assert_eq!(resident(&of.file, ALL)?, []);
    of.read(ALL)?;
    assert_eq!(resident(&of.file, ALL)?, vec![ALL; 1]);
    assert_eq!(resident(&of.file, 100..200)?, vec![100..200; 1]);
    drop_clean(&of.file, ALL)?;
    assert_eq!(resident(&of.file, ALL)?, []);
    Ok(())
}

/// Folios that reach over an end of the range stay as a whole: nothing outside of it is dropped, and the remaining
/// pages inside are theirs.
fn a_range_loses_its_folios_and_nothing_outside_of_it_goes(_: &Host) -> Outcome {
    let of = DiskFile::make("page-cache", LENGTH)?;
    for asked in [1001..2001, 2048..4096, 5000..5001] {
        of.read(ALL)?;
        let before = folios(&of)?;
        drop_clean(&of.file, asked.clone())?;
        let expected: Vec<u64> = before
            .iter()
            .filter(|folio| folio.start < asked.start || folio.end > asked.end)
            .flat_map(Clone::clone)
            .collect();
        let left: Vec<u64> = resident(&of.file, ALL)?.into_iter().flatten().collect();
        assert_eq!(left, expected, "dropped {asked:?}");
    }
    Ok(())
}

/// The folios of a file that is in memory as a whole, by the flags of their frames.
fn folios(of: &DiskFile) -> Result<Vec<Range<u64>>, libtest_mimic::Failed> {
    let mapped = MappedFile::map(&of.file, LENGTH)?;
    let entries = Pagemap::open(linux::Pid::own())?.entries(mapped.range())?;
    let table = FrameTable::open()?;
    let mut found: Vec<Range<u64>> = Vec::new();
    for (page, entry) in (0..).zip(entries) {
        let frame = entry.frame().ok_or_else(|| format!("page {page} is not in memory"))?;
        match found.last_mut() {
            Some(last) if table.flags(frame)?.is_tail() => last.end += 1,
            _ => found.push(page..page + 1),
        }
    }
    Ok(found)
}

/// Whose page tables name them, needs them.
fn pages_that_a_program_maps_stay(_: &Host) -> Outcome {
    let of = DiskFile::make("page-cache", LENGTH)?;
    of.read(ALL)?;
    let mapped = MappedFile::map(&of.file, Pages(2048))?;
    drop_clean(&of.file, ALL)?;
    let left: Vec<u64> = resident(&of.file, ALL)?.into_iter().flatten().collect();
    assert!(left.len() >= 2048 && left.iter().take(2048).copied().eq(0..2048), "{left:?}");
    drop(mapped);
    drop_clean(&of.file, ALL)?;
    assert_eq!(resident(&of.file, ALL)?, []);
    Ok(())
}

/// Written pages are on the disk or in memory, whenever pages are dropped, and are dropped once they are on the disk.
fn written_pages_are_never_lost(_: &Host) -> Outcome {
    let of = DiskFile::make("page-cache", LENGTH)?;
    for (page, mark) in [(0, 1), (4095, 2), (4096, 3), (8191, 4)] {
        let mut changed = content_of(page);
        changed[..8].copy_from_slice(&[mark; 8]);
        of.file.write_all_at(&changed, page * 4096)?;
        drop_clean(&of.file, ALL)?;
        let mut found = vec![0; changed.len()];
        of.file.read_exact_at(&mut found, page * 4096)?;
        assert!(found == changed, "page {page} lost what was written to it");
    }
    start_write_out(&of.file, ALL)?;
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        drop_clean(&of.file, ALL)?;
        let left = resident(&of.file, ALL)?;
        if left.is_empty() {
            break;
        }
        assert!(Instant::now() < end, "never written out: {left:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Contents of the disk itself.
    let past_the_cache = std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(of.path())?;
    let mut buffer = vec![0u8; 2 * 4096];
    let skipped = buffer.as_ptr().align_offset(4096);
    past_the_cache.read_exact_at(&mut buffer[skipped..skipped + 4096], 4095 * 4096)?;
    assert_eq!(buffer[skipped..skipped + 9], [2, 2, 2, 2, 2, 2, 2, 2, 0xff]);
    Ok(())
}

/// The kernel would name all of its pages.
fn of_somebody_elses_file_nothing_is_said(_: &Host) -> Outcome {
    let of = DiskFile::make("page-cache", Pages(16))?;
    let path = of.path();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    if let Some(folder) = path.parent() {
        std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    let asked = std::thread::spawn(move || {
        // For this thread alone: the library would change all threads of the process. SAFETY: a system call with a
        // number.
        let answer = unsafe { libc::syscall(libc::SYS_setresuid, -1, NOBODY_UID, -1) };
        assert_eq!(answer, 0);
        std::fs::File::open(path).map(|file| resident(&file, 0..16))
    });
    let answer = asked.join().map_err(|_| "the thread failed")??;
    assert!(matches!(answer, Err(linux::Error::Denied(_))), "{answer:?}");
    Ok(())
}

/// User id of nobody, which owns nothing.
const NOBODY_UID: libc::c_long = 65534;
