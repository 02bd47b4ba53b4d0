//! Conversions between integer types, named by the caller's expectation, as in `units::cast`. Pure.

const _: () = assert!(usize::BITS == 64, "lengths and offsets are 64 bits wide");

/// `value` as an index, a length or an offset in memory. Lossless.
#[must_use]
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits, checked above")]
pub const fn index(value: u64) -> usize {
    value as usize
}

/// Lower half of a word.
#[must_use]
#[inline(always)]
pub const fn low(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

/// Integer type with its bounds.
pub trait Integer: Copy {
    /// Smallest value.
    const MIN: Self;
    /// Largest value.
    const MAX: Self;
    /// Whether the value is below zero.
    fn is_below_zero(self) -> bool;
}

macro_rules! integers {
    ($($name:ident)*) => {$(
        impl Integer for $name {
            const MIN: Self = $name::MIN;
            const MAX: Self = $name::MAX;
            #[inline(always)]
            #[allow(unused_comparisons, reason = "the same code for types without a sign")]
            fn is_below_zero(self) -> bool {
                self < 0
            }
        }
    )*};
}

integers!(u8 u16 u32 u64 u128 usize i16 i32 i64 i128);

/// `value`, which fits by construction. Tests and fuzz targets fail where it does not; a release build saturates.
#[must_use]
#[inline(always)]
#[track_caller]
pub fn fits<From: Integer, To: Integer + TryFrom<From>>(value: From) -> To {
    debug_assert!(To::try_from(value).is_ok(), "the value does not fit into {}", core::any::type_name::<To>());
    saturated(value)
}

/// The value of the type that is nearest to `value`.
#[must_use]
#[inline(always)]
pub fn saturated<From: Integer, To: Integer + TryFrom<From>>(value: From) -> To {
    To::try_from(value).unwrap_or(if value.is_below_zero() { To::MIN } else { To::MAX })
}
