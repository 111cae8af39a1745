//! Loops with instructions that not every x86-64 CPU has.
//!
//! Each function takes a proof that the CPU has them. Only `detect` makes one, so all functions are safe to call. Some are
//! portable loops that the compiler vectorises for these instructions.
//!
//! Vectors have 256 bits, with two exceptions that are clearly faster than 256 bits, measured on an AMD EPYC (Zen 4):
//! folding CRCs, 42 GB/s instead of 26 on blocks of 4096 bytes, and creating delta records, 25 GB/s instead of 9 to 14
//! where many words differ, because only AVX-512 can remove bytes from a vector.

use std::arch::x86_64::*;

use super::{compare, fill as filling};

mod delta;
mod fold;

pub(super) use delta::{apply_delta, create_delta, create_delta_512};
pub(super) use fold::{fold_pclmul, fold_vpclmul, fold_vpclmul_512};

/// Declares a proof that the CPU has the given features.
macro_rules! proof {
    ($name:ident $($feature:tt)*) => {
        #[doc = concat!("The CPU has", $(" ", $feature,)* ".")]
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $name(());

        impl $name {
            /// The proof, if the CPU has the features. The standard library caches the detection.
            #[inline]
            pub(super) fn detect() -> Option<$name> {
                (true $(&& is_x86_feature_detected!($feature))*).then_some($name(()))
            }
        }
    };
}

proof!(Avx2 "avx2" "popcnt");
proof!(Avx512 "avx512f" "avx512bw" "avx512vbmi" "avx512vbmi2" "popcnt");
proof!(Pclmul "pclmulqdq" "ssse3");
proof!(Vpclmul "vpclmulqdq" "avx2" "pclmulqdq" "ssse3");
proof!(Vpclmul512 "avx512f" "avx512bw" "vpclmulqdq" "avx2" "pclmulqdq" "ssse3");

pub(super) fn fill(_: Avx2, pattern: u128, target: &mut [u8]) {
    #[target_feature(enable = "avx2")]
    fn vectors(pattern: u128, target: &mut [u8]) {
        const BYTES: usize = size_of::<__m256i>();
        let size = target.len();
        if size < BYTES {
            return filling::portable(pattern, target);
        }
        let start = target.as_mut_ptr();
        // The pattern at `offset` bytes from the start.
        let turned = |offset: usize| {
            let pattern = pattern.rotate_right(offset as u32 % 16 * 8);
            let (low, high) = (pattern as i64, (pattern >> 64) as i64);
            _mm256_set_epi64x(high, low, high, low)
        };
        // A store that crosses cache lines costs two: all but the first and the last one are aligned.
        let skew = start.align_offset(BYTES).min(size - BYTES);
        let (first, body, last) = (turned(0), turned(skew), turned(size - BYTES));
        // SAFETY: the target has at least one vector: the first 32 bytes and the last 32 are in it. The loop writes
        // `at..at + 32` where that is not above its size. The stores need no alignment.
        unsafe {
            _mm256_storeu_si256(start.cast(), first);
            let mut at = skew;
            while at + 4 * BYTES <= size {
                for vector in 0..4 {
                    _mm256_storeu_si256(start.add(at + vector * BYTES).cast(), body);
                }
                at += 4 * BYTES;
            }
            while at + BYTES <= size {
                _mm256_storeu_si256(start.add(at).cast(), body);
                at += BYTES;
            }
            _mm256_storeu_si256(start.add(size - BYTES).cast(), last);
        }
    }
    // SAFETY: the CPU has AVX2 (the proof).
    unsafe { vectors(pattern, target) }
}

pub(super) fn fill_around_caches(avx2: Avx2, pattern: u128, target: &mut [u8]) {
    #[target_feature(enable = "avx2")]
    fn vectors(pattern: u128, lines: &mut [Line]) {
        let halves = [pattern as i64, (pattern >> 64) as i64];
        let vector = _mm256_set_epi64x(halves[1], halves[0], halves[1], halves[0]);
        for line in lines {
            let line: *mut __m256i = (&raw mut *line).cast();
            // SAFETY: both halves of the line are 32 bytes that this slice has alone, aligned because lines are.
            unsafe {
                _mm256_stream_si256(line, vector);
                _mm256_stream_si256(line.add(1), vector);
            }
        }
        // ORDERING: streaming stores are not ordered with later stores: a Release of this thread could be visible before
        // them. The fence orders them before later stores.
        _mm_sfence();
    }

    // SAFETY: a line consists of bytes, all of whose values are valid.
    let (head, lines, tail) = unsafe { target.align_to_mut::<Line>() };
    let turned = pattern.rotate_right(head.len() as u32 % 16 * 8); // also for the tail: a line is whole patterns
    fill(avx2, pattern, head);
    // SAFETY: the CPU has AVX2 (the proof).
    unsafe { vectors(turned, lines) }
    fill(avx2, turned, tail);
}

/// A line of the caches.
#[repr(C, align(64))]
struct Line([u8; 64]);

pub(super) fn compare_pattern(_: Avx2, pattern: u64, data: &[u8]) -> Option<usize> {
    #[target_feature(enable = "avx2")]
    fn vectors(pattern: u64, data: &[u8]) -> Option<usize> {
        compare::portable(pattern, data)
    }
    // SAFETY: the CPU has AVX2 (the proof).
    unsafe { vectors(pattern, data) }
}
