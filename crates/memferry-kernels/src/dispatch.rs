//! Comparisons with a range, compiled for the vectors that each CPU of the family has and for those of this one.

use crate::ranges::words;

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
