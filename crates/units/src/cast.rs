//! Conversions between integer types, named by the caller's expectation. Pure.
//!
//! `fits` for a value that fits by construction, `saturated` where the bound of the type is the wanted answer, `index`
//! for lengths and offsets in memory. `T::try_from(value).unwrap_or(…)` shows neither, and `cargo xtask rules` rejects it.

const _: () = assert!(usize::BITS == 64, "lengths and offsets are 64 bits wide");

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
            #[allow(unused_comparisons, reason = "the same code for types without a sign")]
            fn is_below_zero(self) -> bool {
                self < 0
            }
        }
    )*};
}

integers!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);

/// `value` as an index, a length or an offset in memory. Lossless.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits, checked above")]
pub const fn index(value: u64) -> usize {
    value as usize
}

/// `value`, which fits by construction. Tests and fuzz targets fail where it does not; a release build saturates.
#[must_use]
#[track_caller]
pub fn fits<From: Integer, To: Integer + TryFrom<From>>(value: From) -> To {
    debug_assert!(To::try_from(value).is_ok(), "the value does not fit into {}", std::any::type_name::<To>());
    saturated(value)
}

/// The value of the type that is nearest to `value`.
#[must_use]
pub fn saturated<From: Integer, To: Integer + TryFrom<From>>(value: From) -> To {
    To::try_from(value).unwrap_or(if value.is_below_zero() { To::MIN } else { To::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_value_is_on_the_side_of_the_sign() {
        assert_eq!(saturated::<u64, u8>(200), 200);
        assert_eq!(saturated::<u64, u8>(256), 255);
        assert_eq!(saturated::<i64, u32>(-1), 0);
        assert_eq!(saturated::<i64, i8>(-129), -128);
        assert_eq!(saturated::<u128, u64>(u128::MAX), u64::MAX);
        assert_eq!(index(u64::MAX), usize::MAX);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "does not fit into u8")]
    fn a_value_that_does_not_fit_by_construction_is_found_in_tests() {
        let _: u8 = fits(256u64);
    }
}
