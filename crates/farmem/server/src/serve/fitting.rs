//! Session parameters within a program's own limits. Pure.
//!
//! The pager's tables and slots take address space of the program, which `ulimit -v` and `ulimit -d` limit. They get at
//! most an eighth of it: the rest is the program's, which would have all of it alone. The tables shrink for that, since a
//! program within a limit has fewer pages. Where they do not fit, the program runs unserved, and its own limit bounds it.

use farmem_engine::handshake::{Limits, SessionParameters};
use farmem_engine::left_out::LeftOut;
use farmem_engine::segment::Layout;
use farmem_engine::space::CHUNK_PAGES;
use farmem_engine::{MAX_UNIT_PAGES, PAGE_BYTES};
use units::cast::{index, saturated};

/// Part of a limit that the library may take: an eighth.
const PART: u64 = 8;

/// Pages with a number, for each page that fits into the limit: a page number is not used again.
const NUMBERS_A_PAGE: u64 = 4;

/// Chunks of addresses that programs with little memory use: for libraries, heap, stacks and mappings.
const LEAST_CHUNKS: u64 = 64;

/// Memory of the first threads' signal stacks.
const STACKS_BYTES: u64 = 1 << 20;

/// Parameters for a program with these limits.
///
/// # Errors
/// `AddressSpace` where the tables would take too much of a limit.
pub fn fitted(parameters: &SessionParameters, limits: Limits) -> Result<SessionParameters, LeftOut> {
    let bound = limits.address_space.min(limits.data);
    if bound == u64::MAX {
        return Ok(*parameters);
    }
    let pages = bound / PAGE_BYTES;
    let most_pages = pages.saturating_mul(NUMBERS_A_PAGE).max(LEAST_CHUNKS * CHUNK_PAGES);
    let share = parameters.budget_share;
    let frames = if share > 0 { (pages >> 16).saturating_mul(share.into()).max(1 << 8) } else { u64::MAX };
    let fitted = SessionParameters {
        most_pages: saturated(most_pages.min(parameters.most_pages.into())),
        budget_frames: saturated(frames.min(parameters.budget_frames.into())),
        ..*parameters
    };
    let (shared, own) = taken(&fitted);
    let fits = |bytes: u64, limit: u64| limit == u64::MAX || bytes <= limit / PART;
    let all_fits = fits(shared.saturating_add(own), limits.address_space) && fits(own, limits.data);
    if all_fits { Ok(fitted) } else { Err(LeftOut::AddressSpace) }
}

/// Address space of the shared segment, and of the library's own memory.
fn taken(parameters: &SessionParameters) -> (u64, u64) {
    let layout = Layout::new(index(parameters.most_pages.into()), index(parameters.budget_frames.into()));
    let slots = layout.slots as u64 * PAGE_BYTES;
    (layout.bytes as u64, slots + u64::from(MAX_UNIT_PAGES) * PAGE_BYTES + STACKS_BYTES)
}

#[cfg(test)]
mod tests {
    use farmem_engine::handshake::Sections;
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn parameters(frames: u32, share: u32) -> SessionParameters {
        SessionParameters {
            budget_frames: frames,
            budget_share: share,
            most_pages: 1 << 28,
            unit_pages: 0,
            base_pages: 1,
            least_bytes: 1 << 16,
            sections: Sections::Auto,
            background: true,
            has_file: true,
            segment: None,
            backend: None,
        }
    }

    fn address_space(bytes: u64) -> Limits {
        Limits { address_space: bytes, ..Limits::NONE }
    }

    #[test]
    fn without_a_limit_nothing_changes_and_a_limit_on_files_is_none_on_memory() {
        let wanted = parameters(1 << 14, 0);
        assert_eq!(fitted(&wanted, Limits::NONE), Ok(wanted));
        assert_eq!(fitted(&wanted, Limits { file_size: 1, ..Limits::NONE }), Ok(wanted));
    }

    #[test]
    fn a_limit_of_a_gigabyte_has_room_for_small_tables_and_one_of_200_megabytes_has_not() {
        let wanted = parameters(1 << 10, 0);
        let got = fitted(&wanted, address_space(1024 * MIB)).unwrap();
        // 1 GiB has 2^18 pages.
        assert_eq!((got.most_pages, got.budget_frames), (1 << 20, 1 << 10));
        assert_eq!(fitted(&wanted, address_space(200 * MIB)), Err(LeftOut::AddressSpace));
        assert_eq!(fitted(&wanted, Limits { data: 200 * MIB, ..Limits::NONE }), Err(LeftOut::AddressSpace));
        assert!(fitted(&wanted, Limits { data: 400 * MIB, ..Limits::NONE }).is_ok());
    }

    #[test]
    fn local_memory_that_is_most_of_the_limit_leaves_no_room() {
        assert_eq!(fitted(&parameters(1 << 18, 0), address_space(1024 * MIB)), Err(LeftOut::AddressSpace));
    }

    proptest! {
        #[test]
        fn at_most_an_eighth_of_each_limit_is_taken(
            frames in 256_u32..1 << 22, share in 0_u32..=65536, address_space: u64, data: u64,
        ) {
            let limits = Limits { address_space: address_space >> 16, data: data >> 16, ..Limits::NONE };
            if let Ok(got) = fitted(&parameters(frames, share), limits) {
                let (shared, own) = taken(&got);
                prop_assert!((shared + own) * 8 <= limits.address_space && own * 8 <= limits.data);
                prop_assert!(got.most_pages <= 1 << 28 && got.budget_frames <= frames);
            }
        }
    }
}
