//! Byte format of a profile. Anybody may have written the bytes: they decode to sites with profiles, or are refused.
//!
//! A head of 16 bytes (magic with version, then the number of sites), and for each site 52 bytes: build-id, offset in
//! that file, profile. Numbers are little-endian.

use units::cast::fits;

use farmem_engine::policy::site::{PROFILE_BYTES, SITES, SiteProfile};
use linux::build_id::{BUILD_ID_BYTES, BuildId};

/// Magic with version: another layout, or another meaning of a profile, needs another one.
const MAGIC: &[u8; 12] = b"masu-sites-1";

const HEAD_BYTES: usize = MAGIC.len() + 4;
const SITE_BYTES: usize = BUILD_ID_BYTES + 8 + PROFILE_BYTES;

/// Largest size of a profile.
pub const MOST_BYTES: usize = HEAD_BYTES + SITES * SITE_BYTES;

/// Site with an identity that is stable between runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedSite {
    /// The file with its instruction.
    pub object: BuildId,
    /// Offset in the file.
    pub offset: u64,
    /// Saved profile.
    pub profile: SiteProfile,
}

/// Reason why bytes are not a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Wrong first bytes.
    #[error("it is no profile, or one of another version of masu")]
    Magic,
    /// Length differs from the number of sites.
    #[error("it is torn: it has not the length that it says")]
    Length,
}

/// Encodes the sites, at most as many as can be known.
pub fn bytes(sites: &[SavedSite]) -> Vec<u8> {
    let sites = &sites[..sites.len().min(SITES)];
    let mut bytes = MAGIC.to_vec();
    bytes.extend(fits::<_, u32>(sites.len()).to_le_bytes());
    for site in sites {
        bytes.extend(site.object.0);
        bytes.extend(site.offset.to_le_bytes());
        bytes.extend(site.profile.bytes());
    }
    bytes
}

/// Decodes the sites.
///
/// # Errors
/// Reason why the bytes are not a profile.
pub fn parse(bytes: &[u8]) -> Result<Vec<SavedSite>, Broken> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(Broken::Magic)?;
    let (count, rest) = rest.split_first_chunk().ok_or(Broken::Length)?;
    let (sites, odd) = rest.as_chunks::<SITE_BYTES>();
    if u32::from_le_bytes(*count) as usize != sites.len() || !odd.is_empty() || sites.len() > SITES {
        return Err(Broken::Length);
    }
    Ok(sites.iter().filter_map(site).collect())
}

fn site(bytes: &[u8; SITE_BYTES]) -> Option<SavedSite> {
    let (object, rest) = bytes.split_first_chunk()?;
    let (offset, rest) = rest.split_first_chunk()?;
    let profile = SiteProfile::of(rest.first_chunk()?);
    Some(SavedSite { object: BuildId(*object), offset: u64::from_le_bytes(*offset), profile })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_site() -> impl Strategy<Value = SavedSite> {
        (any::<[u8; 20]>(), any::<u64>(), any::<[u8; 24]>()).prop_map(|(id, offset, profile)| SavedSite {
            object: BuildId(id),
            offset,
            profile: SiteProfile::of(&profile),
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
