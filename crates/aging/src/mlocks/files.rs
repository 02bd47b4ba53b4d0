//! Choice of the mapped files to hold: open and mapped by masu, to scan them and to mlock their pages.
//!
//! A held file costs a descriptor (for the scan), a mapping (for the mlock) and address space. All three are limited.
//! Owners have their [share](crate::shares) of them; costs are counted in files.
//!
//! No I/O, no clock, no randomness.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use linux::Error;
use rustix::io::Errno;
use units::{Bytes, Pages};

use crate::class::Class;
use crate::left_out::{Cause, Tally};
use crate::levels::Levels;
use crate::mapped::{FileKey, Mapped, MappedFile};
use crate::shares::{Claim, Pieces, divide};

/// Upper limit of files, since each pass scans each file: some 20 µs.
const FILES_MAX: u64 = 16_384;
/// Lower limit of files, for a very low limit of descriptors.
const FILES_MIN: u64 = 16;
/// Address space for files, of 128 TiB.
const ADDRESSES: Bytes = Bytes::gib(64 << 10);

/// Number of files that may be held: three quarters of the descriptors and of the mappings. The rest is left for masu's
/// other uses.
pub fn most(open_files: u64, mappings: u64) -> u64 {
    let part = |most: u64| most / 4 * 3;
    part(open_files).min(part(mappings)).clamp(FILES_MIN, FILES_MAX)
}

/// Current limit: lowered when the kernel refused a resource shared by all files, then slowly raised again.
pub fn adapted(limit: u64, held: u64, was_refused: bool, most: u64) -> u64 {
    if was_refused { (held / 4 * 3).clamp(FILES_MIN, most) } else { (limit + limit / 4).clamp(FILES_MIN, most) }
}

/// Pages of a file to map: with whole large folios at both ends, because the kernel does not mlock a folio that is
/// mapped in part.
pub fn window(mapped: &MappedFile, length: Pages) -> Range<u64> {
    const FOLIO: u64 = 512;
    let Range { start, end } = mapped.window();
    start / FOLIO * FOLIO..end.max(end.next_multiple_of(FOLIO).min(length.0))
}

/// Can any class of the file have a claim to be mlocked?
pub fn has_a_claim(mapped: &MappedFile, levels: &Levels) -> bool {
    let has = |class| levels.get(class).is_some();
    (has(Class::Code) && !mapped.code.is_empty()) || has(Class::ReadOnly) || has(Class::Shared)
}

/// Does the error concern one file only, so that the rest continues? A lock refused for lack of memory does not mean
/// lack of the privilege.
pub fn is_of_file(error: &Error) -> bool {
    matches!(error, Error::Other(_)) || matches!(error.errno(), Some(Errno::NOMEM | Errno::AGAIN))
}

/// Wanted file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// File.
    pub key: FileKey,
    /// Some pages are mlocked.
    pub is_mlocked: bool,
}

/// Chooses the files to hold, within `limit` files.
pub fn choose(mapped: &Mapped, mut wanted: Vec<Wanted>, limit: u64, left_out: &mut Tally) -> Vec<FileKey> {
    let file = |of: &Wanted| mapped.files.get(&of.key);
    wanted.retain(|of| file(of).is_some());
    // Within one owner, files with mlocked pages stay first, then large files.
    let pages = |of: &Wanted| file(of).map_or(0, |file| file.all.pages());
    wanted.sort_by_cached_key(|of| (!of.is_mlocked, std::cmp::Reverse(pages(of)), of.key));
    let unit = ADDRESSES.pages().0 / limit.max(1);
    let claims: Vec<Claim> = wanted
        .iter()
        .filter_map(file)
        .map(|file| {
            let addresses = file.window().end - file.window().start;
            Claim { owners: file.owners.iter().copied().collect(), size: 1 + addresses / unit }
        })
        .collect();
    let granted = divide(&mapped.owners, &claims, limit, Pieces::Whole, |_, wanted| wanted);
    let mut chosen = Vec::new();
    for ((of, claim), granted) in wanted.iter().zip(&claims).zip(granted) {
        if granted == claim.size {
            chosen.push(of.key);
        } else if let Some(owner) = claim.owners.first() {
            left_out.add(Cause::Files, *owner, Pages(pages(of)).bytes());
        }
    }
    chosen
}

/// Refused files, each with its cause and the time of the next try.
#[derive(Debug, Default)]
pub struct Refusals(BTreeMap<FileKey, Refusal>);

#[derive(Clone, Copy, Debug)]
struct Refusal {
    cause: Option<Cause>,
    /// `None`: never.
    again: Option<Duration>,
    wait: Duration,
}

impl Refusal {
    fn is_of(&self, now: Duration) -> bool {
        self.again.is_none_or(|again| now < again)
    }
}

impl Refusals {
    /// Adds a refused file. `None` as cause: it can never be mlocked, such as a device.
    pub fn add(&mut self, key: FileKey, cause: Option<Cause>, now: Duration) {
        const FIRST: Duration = Duration::from_secs(1);
        const LAST: Duration = Duration::from_secs(60);
        let wait = self.0.get(&key).map_or(FIRST, |before| (before.wait * 2).min(LAST));
        let again = cause.filter(|cause| cause.may_pass()).map(|_| now + wait);
        self.0.insert(key, Refusal { cause, again, wait });
    }

    /// Adds the file, and counts it in the pass of the refusal, even if its wait is over before the next pass.
    pub fn add_and_count(&mut self, key: FileKey, cause: Cause, mapped: &Mapped, now: Duration, left_out: &mut Tally) {
        self.add(key, Some(cause), now);
        count_one(key, cause, mapped, left_out);
    }

    /// Removes a file that could be mlocked.
    pub fn forget(&mut self, key: FileKey) {
        self.0.remove(&key);
    }

    /// Is the file still waiting?
    pub fn has(&self, key: FileKey, now: Duration) -> bool {
        self.0.get(&key).is_some_and(|refusal| refusal.is_of(now))
    }

    /// Removes files that no process maps any more, and counts the waiting ones.
    pub fn count(&mut self, mapped: &Mapped, now: Duration, left_out: &mut Tally) {
        self.0.retain(|key, _| mapped.files.contains_key(key));
        for (key, refusal) in self.0.iter().filter(|(_, refusal)| refusal.is_of(now)) {
            if let Some(cause) = refusal.cause {
                count_one(*key, cause, mapped, left_out);
            }
        }
    }
}

fn count_one(key: FileKey, cause: Cause, mapped: &Mapped, left_out: &mut Tally) {
    let Some(file) = mapped.files.get(&key) else { return };
    if let Some(owner) = file.owners.first() {
        left_out.add(cause, *owner, Pages(file.all.pages()).bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn key(inode: u64) -> FileKey {
        FileKey { device: (1, 2), inode }
    }

    /// Files of users in control groups, each with a number of pages.
    fn mapped(files: &[(&str, u32, Range<u64>)]) -> Mapped {
        let mut mapped = Mapped::default();
        for (nth, (group, user, pages)) in files.iter().enumerate() {
            let owners = BTreeSet::from([mapped.owners.of(group, *user)]);
            let all = std::iter::once(pages.clone()).collect();
            let file = MappedFile {
                path: linux::Untrusted::default(),
                owners,
                through: Vec::new(),
                code: std::iter::empty().collect(),
                all,
            };
            mapped.files.insert(key(nth as u64), file);
        }
        mapped
    }

    fn wanted(mapped: &Mapped, mlocked: &[u64]) -> Vec<Wanted> {
        mapped.files.keys().map(|key| Wanted { key: *key, is_mlocked: mlocked.contains(&key.inode) }).collect()
    }

    fn chosen(mapped: &Mapped, mlocked: &[u64], limit: u64) -> Vec<u64> {
        choose(mapped, wanted(mapped, mlocked), limit, &mut Tally::default()).into_iter().map(|key| key.inode).collect()
    }

    #[test]
    fn three_quarters_of_the_limits_are_for_mlock() {
        assert_eq!(most(1024, 65_530), 768);
        assert_eq!(most(u64::MAX, 4000), 3000);
        assert_eq!((most(1 << 20, 1 << 20), most(3, 9)), (FILES_MAX, FILES_MIN));
    }

    #[test]
    fn the_limit_goes_down_when_the_kernel_refuses_and_comes_back() {
        let low = adapted(16_000, 400, true, 16_000);
        assert_eq!(low, 300);
        let mut limit = low;
        let passes = (0..)
            .take_while(|_| {
                limit = adapted(limit, 0, false, 16_000);
                limit < 16_000
            })
            .count();
        assert!(passes < 20, "{passes}");
        assert_eq!(adapted(0, 0, true, 8000), FILES_MIN);
    }

    #[test]
    fn the_files_of_one_user_keep_no_other_user_out() {
        let mut files = vec![("/", 4001, 0..1); 300];
        files.push(("/", 4002, 0..10));
        let all = mapped(&files);
        let mlocked: Vec<u64> = (0..100).collect();
        let held = chosen(&all, &mlocked, 100);
        assert_eq!((held.len(), held.contains(&300)), (100, true), "also when the others came first");
        let after: Vec<u64> = held.clone();
        assert_eq!(
            chosen(&all, &after, 100).into_iter().collect::<BTreeSet<_>>(),
            held.into_iter().collect(),
            "and they stay"
        );
    }

    #[test]
    fn a_file_that_needs_all_addresses_takes_none_of_the_others() {
        let huge = 1u64 << 40;
        let all = mapped(&[("/", 4001, 0..huge), ("/", 4001, 0..1 << 20), ("/", 4002, 5..9)]);
        assert_eq!(chosen(&all, &[], 1000), [1, 2]);
    }

    #[test]
    fn whole_folios_are_mapped_and_nothing_beyond_the_file() {
        let of = |pages: Range<u64>, length| {
            let all = mapped(&[("/", 1, pages)]);
            window(&all.files[&key(0)], Pages(length))
        };
        assert_eq!(of(600..700, 5000), 512..1024);
        assert_eq!(of(600..700, 710), 512..710);
        assert_eq!(of(600..700, 0), 512..700, "a file that was cut short");
        assert_eq!(of(1 << 40..(1 << 40) + 1, u64::MAX), 1 << 40..(1 << 40) + 512);
    }

    #[test]
    fn a_passing_refusal_is_retried_and_a_lasting_one_is_not() {
        let mut refusals = Refusals::default();
        let full = Some(Cause::Kernel(rustix::io::Errno::MFILE.raw_os_error()));
        refusals.add(key(1), full, Duration::ZERO);
        refusals.add(key(2), Some(Cause::Served), Duration::ZERO);
        assert!(refusals.has(key(1), SECOND / 2) && !refusals.has(key(1), SECOND));
        assert!(refusals.has(key(2), SECOND * 100_000));
        refusals.add(key(1), full, SECOND);
        assert!(refusals.has(key(1), SECOND * 2) && !refusals.has(key(1), SECOND * 3), "twice as long");
        refusals.forget(key(1));
        assert!(!refusals.has(key(1), SECOND));
        for _ in 0..100 {
            refusals.add(key(1), full, Duration::ZERO);
        }
        assert!(!refusals.has(key(1), SECOND * 60), "at most a minute");
        let mut left_out = Tally::default();
        refusals.count(&mapped(&[("/", 1, 0..1)]), Duration::ZERO, &mut left_out);
        assert!(!refusals.has(key(2), Duration::ZERO), "an unmapped file is forgotten");
    }

    #[test]
    fn a_file_that_is_refused_in_this_pass_is_in_its_tally() {
        let (all, mut refusals, mut left_out) = (mapped(&[("/", 1, 0..2)]), Refusals::default(), Tally::default());
        refusals.add_and_count(key(0), Cause::Unknown, &all, Duration::ZERO, &mut left_out);
        let lines = crate::left_out::Reports::default().of(left_out, &all.owners, Duration::ZERO);
        assert_eq!((lines.len(), lines[0].count, lines[0].bytes), (1, 1, Bytes(8192)));
        let mut next = Tally::default();
        refusals.count(&all, SECOND, &mut next);
        let lines = crate::left_out::Reports::default().of(next, &all.owners, SECOND);
        assert!(lines.is_empty(), "it is tried again in this pass, and counted if it is refused again");
    }

    proptest! {
        #[test]
        fn the_limit_holds_and_an_owner_with_few_files_has_all(
            files in prop::collection::vec((0u32..6, 1u64..100), 0..80), limit in 1u64..60, mlocked in prop::collection::vec(0u64..80, 0..60),
        ) {
            let files: Vec<(&str, u32, Range<u64>)> = files.into_iter().map(|(user, pages)| ("/a", user, 0..pages)).collect();
            let all = mapped(&files);
            let held = chosen(&all, &mlocked, limit);
            prop_assert!(held.len() as u64 <= limit);
            prop_assert_eq!(held.len(), files.len().min(usize::try_from(limit).unwrap()), "and none fewer");
            let users: BTreeSet<u32> = files.iter().map(|(_, user, _)| *user).collect();
            for user in &users {
                let own: Vec<u64> = (0..).zip(&files).filter(|(_, (_, of, _))| of == user).map(|(nth, _)| nth).collect();
                if own.len() as u64 <= limit / users.len() as u64 {
                    prop_assert!(own.iter().all(|nth| held.contains(nth)));
                }
            }
            let again: BTreeSet<u64> = chosen(&all, &held, limit).into_iter().collect();
            prop_assert_eq!(again, held.into_iter().collect::<BTreeSet<u64>>(), "what is held stays");
        }
    }
}
