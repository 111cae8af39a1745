//! Loops compiled for the instructions that each CPU of the family has and for those of this one: comparisons with a range, and bits that
//! are counted and found.
//!
//! With AVX-512 instead of AVX2, comparisons of values in memory were not faster (AMD EPYC of family 25 model 17: as fast, and in some
//! runs slower).

use crate::ranges::{self, words};

macro_rules! within {
    ($($name:ident $wide:ident $native:ident $size:literal)*) => {
        $(
            /// The rows whose value minus `first` is at most `span`.
            pub(crate) fn $name(bytes: &[u8], rows: usize, first: $native, span: $native) -> Vec<u64> {
                #[cfg(target_arch = "x86_64")]
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: this CPU has AVX2.
                    return unsafe { $wide(bytes, rows, first, span) };
                }
                words!(bytes, rows, $size, |value| $native::from_le_bytes(value).wrapping_sub(first) <= span)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn $wide(bytes: &[u8], rows: usize, first: $native, span: $native) -> Vec<u64> {
                words!(bytes, rows, $size, |value| $native::from_le_bytes(value).wrapping_sub(first) <= span)
            }
        )*
    };
}

within! {
    within_u8 within_u8_avx2 u8 1
    within_u16 within_u16_avx2 u16 2
    within_u32 within_u32_avx2 u32 4
    within_u64 within_u64_avx2 u64 8
}

macro_rules! of_bits {
    ($($name:ident $counted:ident $result:ty)*) => {
        $(
            /// The function of this name in `ranges`, for this CPU.
            pub(crate) fn $name(bytes: &[u8], start: usize, rows: usize) -> $result {
                #[cfg(target_arch = "x86_64")]
                if is_x86_feature_detected!("popcnt") && is_x86_feature_detected!("bmi1") {
                    // SAFETY: this CPU has both.
                    return unsafe { $counted(bytes, start, rows) };
                }
                ranges::$name(bytes, start, rows)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "popcnt,bmi1")]
            fn $counted(bytes: &[u8], start: usize, rows: usize) -> $result {
                ranges::$name(bytes, start, rows)
            }
        )*
    };
}

of_bits! {
    set_rows set_rows_counted Vec<u32>
    set_count set_count_counted usize
}

/// Begins to load the cache line of a value that is read soon.
#[inline(always)]
pub(crate) fn load_ahead<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the address is that of a value, and a prefetch changes nothing that a program sees.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
