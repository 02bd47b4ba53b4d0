//! Request and answer of the walk: `bpf/walk_record.h` in Rust.
//!
//! A test compares these with the type information in the compiled program, member by member.

/// `struct walk_request`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkRequest {
    pub start: u64,
    pub end: u64,
    pub direct_map: u64,
    pub magic: u64,
    pub candidates: u32,
    pub levels: u32,
    pub mode: u32,
    pub unused: u32,
}

/// `enum walk_mode`.
pub const WALK_READ: u32 = 0;
/// `enum walk_mode`.
pub const WALK_CALIBRATE: u32 = 1;
/// `enum walk_mode`.
pub const WALK_WRITTEN: u32 = 2;

/// `struct walk_answer`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkAnswer {
    pub address_space: u64,
    pub next: u64,
    pub direct_map: u64,
    pub records: u32,
    pub tasks: u32,
}

/// `struct window_record`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowRecord {
    pub start: u64,
    pub flags: u64,
    pub accessed: [u64; 8],
    pub present: [u64; 8],
}

/// `WALK_RECORDS_MAX`.
pub const WALK_RECORDS_MAX: usize = 2048;
/// `WINDOW_HUGE`.
pub const WINDOW_HUGE: u64 = 1;
/// `WINDOW_UNREADABLE`.
pub const WINDOW_UNREADABLE: u64 = 2;

macro_rules! to_bytes {
    ($($record:ident: $($field:ident as $kind:ty),+;)+) => { $(
        impl $record {
            /// Encodes it for the kernel: the fields in order, native byte order, no padding.
            pub fn to_bytes(self) -> Vec<u8> {
                let mut bytes = Vec::with_capacity(size_of::<$record>());
                $( bytes.extend_from_slice(&self.$field.to_ne_bytes()); )+
                bytes
            }

            #[allow(dead_code, reason = "a request is only sent")]
            /// The reverse; `None` when the length is not exactly that of the record.
            pub fn from_bytes(bytes: &[u8]) -> Option<$record> {
                let mut record = $record::default();
                let mut rest = bytes;
                $(
                    let (field, left) = rest.split_first_chunk()?;
                    record.$field = <$kind>::from_ne_bytes(*field);
                    rest = left;
                )+
                rest.is_empty().then_some(record)
            }
        }
    )+ };
}

to_bytes! {
    WalkRequest: start as u64, end as u64, direct_map as u64, magic as u64,
        candidates as u32, levels as u32, mode as u32, unused as u32;
    WalkAnswer: address_space as u64, next as u64, direct_map as u64, records as u32, tasks as u32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_way_through_bytes() {
        let request =
            WalkRequest { start: 1, end: 2, direct_map: 3, magic: 4, candidates: 5, levels: 6, mode: 7, unused: 8 };
        assert_eq!(WalkRequest::from_bytes(&request.to_bytes()), Some(request));
        assert_eq!(request.to_bytes().len(), size_of::<WalkRequest>());
        assert_eq!(WalkAnswer::from_bytes(&[0; 3]), None);
    }
}
