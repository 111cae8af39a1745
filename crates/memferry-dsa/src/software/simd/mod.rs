//! Loops with instructions that not every x86-64 CPU has.
//!
//! Each function takes a proof that the CPU has them. Only `detect` makes one, so all functions are safe to call. Some are
//! portable loops that the compiler vectorises for these instructions.
//!
//! Vectors are read from arrays and written to arrays by `load` and `store` functions of this module, and pointers move by
//! `wrapping_add`. With debug assertions, which a development build has, the intrinsics for unaligned vectors and `add`
//! check their pointers at run time: folding took 1.4 times as long, creating delta records 2.5 times (Zen 4).
//!
//! Vectors have 256 bits, with two exceptions that are clearly faster than 256 bits, measured on an AMD EPYC (Zen 4):
//! folding CRCs, 42 GB/s instead of 26 on blocks of 4096 bytes, and creating delta records, 18 to 22 GB/s instead of 15
//! where many words differ, because only AVX-512 can remove bytes from a vector.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::transmute;

use super::isa::allows_avx512;
use super::{compare, fill as filling};

mod delta;
mod fold;

pub(super) use delta::{apply_delta, create_delta, create_delta_512};
pub(super) use fold::{fold_pclmul, fold_vpclmul, fold_vpclmul_512};

/// Declares a proof that the CPU has the given features, and that they may be used.
macro_rules! proof {
    (if $allowed:expr => $name:ident $($feature:tt)*) => {
        #[doc = concat!("The CPU has", $(" ", $feature,)* ".")]
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $name(());

        impl $name {
            /// The proof, if the CPU has the features. The standard library caches the detection.
            #[inline]
            pub(super) fn detect() -> Option<$name> {
                ($allowed $(&& is_x86_feature_detected!($feature))*).then_some($name(()))
            }
        }
    };
    ($name:ident $($feature:tt)*) => {
        proof!(if true => $name $($feature)*);
    };
}

proof!(Avx2 "avx2" "popcnt");
proof!(if allows_avx512() => Avx512 "avx512f" "avx512bw" "avx512vbmi" "avx512vbmi2" "popcnt");
proof!(Pclmul "pclmulqdq" "ssse3");
proof!(Vpclmul "vpclmulqdq" "avx2" "pclmulqdq" "ssse3");
proof!(if allows_avx512() => Vpclmul512 "avx512f" "avx512bw" "vpclmulqdq" "avx2" "pclmulqdq" "ssse3");
proof!(Erms "ermsb");

/// Loads a vector, at any alignment.
#[inline]
#[target_feature(enable = "sse2")]
fn load_128(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: both types have 16 bytes, and all their values are valid.
    unsafe { transmute(*bytes) }
}

/// Loads a vector, at any alignment.
#[inline]
#[target_feature(enable = "avx")]
fn load_256(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: both types have 32 bytes, and all their values are valid.
    unsafe { transmute(*bytes) }
}

/// Stores a vector, at any alignment.
#[inline]
#[target_feature(enable = "avx")]
fn store_256(vector: __m256i, bytes: &mut [u8; 32]) {
    // SAFETY: both types have 32 bytes, and all their values are valid.
    *bytes = unsafe { transmute::<__m256i, [u8; 32]>(vector) };
}

/// Loads a vector, at any alignment.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_512(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: both types have 64 bytes, and all their values are valid.
    unsafe { transmute(*bytes) }
}

/// Stores a vector, at any alignment.
#[inline]
#[target_feature(enable = "avx512f")]
fn store_512(vector: __m512i, bytes: &mut [u8; 64]) {
    // SAFETY: both types have 64 bytes, and all their values are valid.
    *bytes = unsafe { transmute::<__m512i, [u8; 64]>(vector) };
}

pub(super) fn fill(_: Avx2, pattern: u128, target: &mut [u8]) {
    #[target_feature(enable = "avx2")]
    fn vectors(pattern: u128, target: &mut [u8]) {
        const BYTES: usize = size_of::<__m256i>();
        let Some(last_at) = target.len().checked_sub(BYTES) else {
            return filling::portable(pattern, target);
        };
        // The pattern at `offset` bytes from the start.
        let turned = |offset: usize| {
            let pattern = pattern.rotate_right(offset as u32 % 16 * 8);
            let (low, high) = (pattern as i64, (pattern >> 64) as i64);
            _mm256_set_epi64x(high, low, high, low)
        };
        // A store that crosses cache lines costs two: all but the first and the last one are aligned.
        let skew = target.as_ptr().align_offset(BYTES).min(last_at);
        let (first, body, last) = (turned(0), turned(skew), turned(last_at));
        target.first_chunk_mut().into_iter().for_each(|bytes| store_256(first, bytes));
        for bytes in target[skew..].as_chunks_mut().0 {
            store_256(body, bytes);
        }
        target.last_chunk_mut().into_iter().for_each(|bytes| store_256(last, bytes));
    }
    // SAFETY: the CPU has AVX2 (the proof).
    unsafe { vectors(pattern, target) }
}

/// Fills by the string instruction of x86, whose microcode writes whole lines without reading them. The pattern has eight
/// bytes.
pub(super) fn fill_by_string(_: Erms, pattern: u64, target: &mut [u8]) {
    let (words, rest) = target.as_chunks_mut::<8>();
    // SAFETY: it writes the words, upwards: the direction flag is clear by the ABI. Bytes need no alignment.
    unsafe {
        asm!(
            "rep stosq",
            inout("rcx") words.len() => _,
            inout("rdi") words.as_mut_ptr() => _,
            in("rax") pattern,
            options(nostack, preserves_flags)
        );
    }
    rest.copy_from_slice(&pattern.to_le_bytes()[..rest.len()]);
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

/// Copies to both targets: loads each vector once. All three have the same length.
pub(super) fn dualcast(_: Avx2, source: &[u8], target_1: &mut [u8], target_2: &mut [u8]) {
    #[target_feature(enable = "avx2")]
    fn vectors(source: &[u8], target_1: &mut [u8], target_2: &mut [u8]) {
        let (Some(first), Some(last)) = (source.first_chunk(), source.last_chunk()) else {
            target_1.copy_from_slice(source);
            return target_2.copy_from_slice(source);
        };
        // Aligned stores to the first target; on a device the targets have the same alignment.
        let skew = target_1.as_ptr().align_offset(size_of::<__m256i>()).min(source.len());
        let bodies = target_1[skew..].as_chunks_mut().0.iter_mut().zip(target_2[skew..].as_chunks_mut().0);
        for (bytes, (body_1, body_2)) in source[skew..].as_chunks().0.iter().zip(bodies) {
            let loaded = load_256(bytes);
            store_256(loaded, body_1);
            store_256(loaded, body_2);
        }
        for target in [target_1, target_2] {
            target.first_chunk_mut::<32>().into_iter().for_each(|bytes| *bytes = *first);
            target.last_chunk_mut::<32>().into_iter().for_each(|bytes| *bytes = *last);
        }
    }
    // SAFETY: the CPU has AVX2 (the proof).
    unsafe { vectors(source, target_1, target_2) }
}

pub(super) fn compare_pattern(_: Avx2, pattern: u64, data: &[u8]) -> Option<usize> {
    /// Vectors that are compared before one branch on the result.
    const VECTORS: usize = 8;
    const BLOCK: usize = VECTORS * size_of::<__m256i>();

    #[target_feature(enable = "avx2")]
    fn vectors(pattern: u64, data: &[u8]) -> Option<usize> {
        let expected = _mm256_set1_epi64x(pattern as i64);
        let (blocks, _) = data.as_chunks::<BLOCK>();
        // Loops without closures: a closure has these instructions, the iterators that call it do not, so it is not
        // inlined.
        let mut equal = 0;
        for block in blocks {
            let mut differ = _mm256_setzero_si256();
            for bytes in block.as_chunks().0 {
                differ = _mm256_or_si256(differ, _mm256_xor_si256(load_256(bytes), expected));
            }
            if _mm256_testz_si256(differ, differ) == 0 {
                break;
            }
            equal += BLOCK;
        }
        // From the differing block on, or behind all blocks. A block is whole patterns.
        compare::portable(pattern, &data[equal..]).map(|at| equal + at)
    }
    // SAFETY: the CPU has AVX2 (the proof).
    unsafe { vectors(pattern, data) }
}
