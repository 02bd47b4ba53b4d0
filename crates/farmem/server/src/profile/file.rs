//! A profile as bytes. Anybody may have written them: whatever they are, they are sites with habits, or refused.
//!
//! A head of 16 bytes (what it is and which make, then how many sites), and for each site 52 bytes: build-id, offset in that
//! file, habit. Numbers are little-endian.

use farmem_engine::policy::site::{HABIT_BYTES, Habit, SITES};
use linux::build_id::{BUILD_ID_BYTES, BuildId};

/// Another layout, or another meaning of a habit, is another make.
const MAGIC: &[u8; 12] = b"masu-sites-1";

const HEAD_BYTES: usize = MAGIC.len() + 4;
const SITE_BYTES: usize = BUILD_ID_BYTES + 8 + HABIT_BYTES;

/// No profile is larger.
pub const MOST_BYTES: usize = HEAD_BYTES + SITES * SITE_BYTES;

/// A site, named so that another run finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The file with its instruction.
    pub object: BuildId,
    /// Where in the file.
    pub offset: u64,
    /// What it does.
    pub habit: Habit,
}

/// Why a profile is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Its first bytes are others.
    #[error("it is no profile, or one of another version of masu")]
    Magic,
    /// It does not have the length that it says.
    #[error("it is torn: it has not the length that it says")]
    Length,
}

/// What is kept, at most as many sites as can be known.
pub fn bytes(sites: &[Kept]) -> Vec<u8> {
    let sites = &sites[..sites.len().min(SITES)];
    let mut bytes = MAGIC.to_vec();
    bytes.extend(u32::try_from(sites.len()).unwrap_or(0).to_le_bytes());
    for site in sites {
        bytes.extend(site.object.0);
        bytes.extend(site.offset.to_le_bytes());
        bytes.extend(site.habit.bytes());
    }
    bytes
}

/// What was kept.
///
/// # Errors
/// Why it is nothing.
pub fn parse(bytes: &[u8]) -> Result<Vec<Kept>, Broken> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(Broken::Magic)?;
    let (count, rest) = rest.split_first_chunk().ok_or(Broken::Length)?;
    let (sites, odd) = rest.as_chunks::<SITE_BYTES>();
    if u32::from_le_bytes(*count) as usize != sites.len() || !odd.is_empty() || sites.len() > SITES {
        return Err(Broken::Length);
    }
    Ok(sites.iter().filter_map(site).collect())
}

fn site(bytes: &[u8; SITE_BYTES]) -> Option<Kept> {
    let (object, rest) = bytes.split_first_chunk()?;
    let (offset, rest) = rest.split_first_chunk()?;
    let habit = Habit::of(rest.first_chunk()?);
    Some(Kept { object: BuildId(*object), offset: u64::from_le_bytes(*offset), habit })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_site() -> impl Strategy<Value = Kept> {
        (any::<[u8; 20]>(), any::<u64>(), any::<[u8; 24]>()).prop_map(|(id, offset, habit)| Kept {
            object: BuildId(id),
            offset,
            habit: Habit::of(&habit),
        })
    }

    proptest! {
        #[test]
        fn what_is_kept_is_found_again(sites in proptest::collection::vec(any_site(), 0..40)) {
            let written = bytes(&sites);
            prop_assert!(written.len() <= MOST_BYTES);
            prop_assert_eq!(parse(&written), Ok(sites));
        }

        #[test]
        fn any_bytes_are_a_profile_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), head: bool) {
            if head {
                bytes.splice(0..0, *MAGIC);
            }
            if let Ok(sites) = parse(&bytes) {
                prop_assert_eq!(bytes.len(), HEAD_BYTES + sites.len() * SITE_BYTES);
            }
        }

        #[test]
        fn a_changed_byte_changes_a_hint_or_has_it_refused(
            sites in proptest::collection::vec(any_site(), 1..8),
            at: prop::sample::Index,
            byte: u8,
        ) {
            let mut written = bytes(&sites);
            let at = at.index(written.len());
            written[at] = byte;
            if let Ok(found) = parse(&written) {
                prop_assert_eq!(found.len(), sites.len());
            }
        }

        #[test]
        fn a_torn_one_is_refused(sites in proptest::collection::vec(any_site(), 1..8), at: prop::sample::Index) {
            let written = bytes(&sites);
            prop_assert!(parse(&written[..at.index(written.len())]).is_err());
        }
    }
}
