//! CRCs of guards by folding; see [`guard`](super::super::guard).

use std::arch::x86_64::*;

use super::super::guard::{POLYNOMIAL, STEP_BYTES, divide, remainder};
use super::{Pclmul, Vpclmul, Vpclmul512, load_128, load_256, load_512};

/// The factors that move the high and the low half of 16 bytes by `bits`.
const fn fold_factors(bits: u32) -> [i64; 2] {
    [remainder(1, bits + 64) as i64, remainder(1, bits) as i64]
}

/// Factors for a step, and for vectors that are 64, 48, 32 and 16 bytes apart.
const STEP: [i64; 2] = fold_factors(8 * STEP_BYTES as u32);
const APART_64: [i64; 2] = fold_factors(512);
const APART_48: [i64; 2] = fold_factors(384);
const APART_32: [i64; 2] = fold_factors(256);
const APART_16: [i64; 2] = fold_factors(128);

/// The CRC of `first` and `steps` after `seed`, 16 bytes at a time. The seed is added to the first two bytes.
pub(in super::super) fn fold_pclmul(
    _: Pclmul,
    seed: u16,
    first: &[u8; STEP_BYTES],
    steps: &[[u8; STEP_BYTES]],
) -> u16 {
    #[target_feature(enable = "pclmulqdq,ssse3")]
    fn vectors(seed: u16, first: &[u8; STEP_BYTES], steps: &[[u8; STEP_BYTES]]) -> u16 {
        let mut folded = load_16(first);
        folded[0] = _mm_xor_si128(folded[0], _mm_set_epi64x(i64::from(seed) << 48, 0));
        let factors = factors_16(STEP);
        for step in steps {
            let step = load_16(step);
            for (folded, step) in folded.iter_mut().zip(step) {
                *folded = fold_16(*folded, factors, step);
            }
        }
        let [a, b, c, d, e, f, g, h] = folded;
        let factors = factors_16(APART_64);
        let [a, b, c, d] =
            [fold_16(a, factors, e), fold_16(b, factors, f), fold_16(c, factors, g), fold_16(d, factors, h)];
        let factors = factors_16(APART_32);
        let [a, b] = [fold_16(a, factors, c), fold_16(b, factors, d)];
        reduce(fold_16(a, factors_16(APART_16), b))
    }
    // SAFETY: the CPU has PCLMULQDQ and SSSE3 (the proof).
    unsafe { vectors(seed, first, steps) }
}

/// The same, 32 bytes at a time.
pub(in super::super) fn fold_vpclmul(
    _: Vpclmul,
    seed: u16,
    first: &[u8; STEP_BYTES],
    steps: &[[u8; STEP_BYTES]],
) -> u16 {
    #[target_feature(enable = "vpclmulqdq,avx2,pclmulqdq,ssse3")]
    fn vectors(seed: u16, first: &[u8; STEP_BYTES], steps: &[[u8; STEP_BYTES]]) -> u16 {
        let mut folded = load_32(first);
        folded[0] = _mm256_xor_si256(folded[0], _mm256_set_epi64x(0, 0, i64::from(seed) << 48, 0));
        let factors = factors_32(STEP);
        for step in steps {
            let step = load_32(step);
            for (folded, step) in folded.iter_mut().zip(step) {
                *folded = fold_32(*folded, factors, step);
            }
        }
        let [a, b, c, d] = folded;
        let factors = factors_32(APART_64);
        let [a, b] = [fold_32(a, factors, c), fold_32(b, factors, d)];
        let a = fold_32(a, factors_32(APART_32), b);
        // The lower half of the vector came first.
        let (first, second) = (_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
        reduce(fold_16(first, factors_16(APART_16), second))
    }
    // SAFETY: the CPU has VPCLMULQDQ, AVX2, PCLMULQDQ and SSSE3 (the proof).
    unsafe { vectors(seed, first, steps) }
}

/// The same, 64 bytes at a time.
pub(in super::super) fn fold_vpclmul_512(
    _: Vpclmul512,
    seed: u16,
    first: &[u8; STEP_BYTES],
    steps: &[[u8; STEP_BYTES]],
) -> u16 {
    #[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,avx2,pclmulqdq,ssse3")]
    fn vectors(seed: u16, first: &[u8; STEP_BYTES], steps: &[[u8; STEP_BYTES]]) -> u16 {
        let [mut a, mut b] = load_64(first);
        a = _mm512_xor_si512(a, _mm512_set_epi64(0, 0, 0, 0, 0, 0, i64::from(seed) << 48, 0));
        let factors = _mm512_broadcast_i32x4(factors_16(STEP));
        for step in steps {
            let [next_a, next_b] = load_64(step);
            a = fold_64(a, factors, next_a);
            b = fold_64(b, factors, next_b);
        }
        let a = fold_64(a, _mm512_broadcast_i32x4(factors_16(APART_64)), b);
        // Each of the four lanes by its own distance from the last one, which stays.
        let factors = _mm512_set_epi64(
            0,
            0,
            APART_16[0],
            APART_16[1],
            APART_32[0],
            APART_32[1],
            APART_48[0],
            APART_48[1],
        );
        let last = _mm512_maskz_mov_epi64(0b1100_0000, a);
        let a = fold_64(a, factors, last);
        let a = _mm256_xor_si256(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
        reduce(_mm_xor_si128(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)))
    }
    // SAFETY: the CPU has AVX-512 F and BW, VPCLMULQDQ, AVX2, PCLMULQDQ and SSSE3 (the proof).
    unsafe { vectors(seed, first, steps) }
}

#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold_64(folded: __m512i, factors: __m512i, next: __m512i) -> __m512i {
    let high = _mm512_clmulepi64_epi128(folded, factors, 0x11);
    let low = _mm512_clmulepi64_epi128(folded, factors, 0x00);
    _mm512_ternarylogic_epi64(high, low, next, 0x96) // all three, XORed
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load_64(step: &[u8; STEP_BYTES]) -> [__m512i; STEP_BYTES / 64] {
    let turn = _mm512_broadcast_i32x4(_mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    let mut vectors = [_mm512_setzero_si512(); STEP_BYTES / 64];
    for (vector, bytes) in vectors.iter_mut().zip(step.as_chunks().0) {
        *vector = _mm512_shuffle_epi8(load_512(bytes), turn);
    }
    vectors
}

#[inline]
#[target_feature(enable = "pclmulqdq")]
fn factors_16([high, low]: [i64; 2]) -> __m128i {
    _mm_set_epi64x(high, low)
}

#[inline]
#[target_feature(enable = "avx2")]
fn factors_32([high, low]: [i64; 2]) -> __m256i {
    _mm256_set_epi64x(high, low, high, low)
}

/// Folds `folded` by the distance of `factors` and adds `next`.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn fold_16(folded: __m128i, factors: __m128i, next: __m128i) -> __m128i {
    let high = _mm_clmulepi64_si128(folded, factors, 0x11);
    let low = _mm_clmulepi64_si128(folded, factors, 0x00);
    _mm_xor_si128(_mm_xor_si128(high, low), next)
}

#[inline]
#[target_feature(enable = "vpclmulqdq,avx2")]
fn fold_32(folded: __m256i, factors: __m256i, next: __m256i) -> __m256i {
    let high = _mm256_clmulepi64_epi128(folded, factors, 0x11);
    let low = _mm256_clmulepi64_epi128(folded, factors, 0x00);
    _mm256_xor_si256(_mm256_xor_si256(high, low), next)
}

/// Loads the bytes into vectors, each with its first byte highest, as in a polynomial.
#[inline]
#[target_feature(enable = "ssse3")]
fn load_16(step: &[u8; STEP_BYTES]) -> [__m128i; STEP_BYTES / 16] {
    let turn = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let mut vectors = [_mm_setzero_si128(); STEP_BYTES / 16];
    for (vector, bytes) in vectors.iter_mut().zip(step.as_chunks().0) {
        *vector = _mm_shuffle_epi8(load_128(bytes), turn);
    }
    vectors
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_32(step: &[u8; STEP_BYTES]) -> [__m256i; STEP_BYTES / 32] {
    let turn =
        _mm256_broadcastsi128_si256(_mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    let mut vectors = [_mm256_setzero_si256(); STEP_BYTES / 32];
    for (vector, bytes) in vectors.iter_mut().zip(step.as_chunks().0) {
        *vector = _mm256_shuffle_epi8(load_256(bytes), turn);
    }
    vectors
}

/// The remainder of `folded` * x^16.
///
/// ```text
/// 128 bits:  high * x^80 + low * x^16                      80 bits are left
///            (the 16 above 64) * x^64 + the lower 64       64 bits are left
/// Barrett:   quotient = (rest / x^16) * (x^64 / P) / x^48;  rest + quotient * P
/// ```
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn reduce(folded: __m128i) -> u16 {
    const FACTORS: [i64; 2] = [remainder(1, 64) as i64, remainder(1, 80) as i64];
    const BARRETT: [i64; 2] = [POLYNOMIAL as i64, divide(1, 64).0 as i64];
    let (factors, barrett) = (factors_16(FACTORS), factors_16(BARRETT));
    let low = _mm_srli_si128(_mm_slli_si128(folded, 8), 6);
    let rest = _mm_xor_si128(_mm_clmulepi64_si128(folded, factors, 0x01), low);
    let rest = _mm_xor_si128(_mm_clmulepi64_si128(rest, factors, 0x11), rest);
    let rest_64 = _mm_cvtsi128_si64(rest) as u64;
    let quotient = _mm_clmulepi64_si128(_mm_cvtsi64_si128((rest_64 >> 16) as i64), barrett, 0x00);
    let product = _mm_clmulepi64_si128(_mm_srli_si128(quotient, 6), barrett, 0x10);
    rest_64 as u16 ^ _mm_cvtsi128_si64(product) as u16
}
