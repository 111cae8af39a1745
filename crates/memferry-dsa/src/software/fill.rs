//! Memory Fill.
//!
//! With AVX2, stores have 32 bytes. Fills larger than the caches bypass them, as the C library's do: a line that is written
//! whole is not read first.
//!
//! Source: DSA specification 8.3.5.

use super::simd;

/// The size from which a fill bypasses the caches.
///
/// Source: measured on an AMD EPYC (Zen 4) with 32 MiB of last-level cache, GB/s through it and around it: 31 and 27 at
/// 16 MiB, 14.6 and 16.5 at 32 MiB, 13.0 and 16.2 at 48 MiB. Larger caches have a higher break-even; no queue of the
/// kernel's default configuration accepts transfers above 2 MiB.
const AROUND_CACHES_BYTES: usize = 32 << 20;

/// Fills `target` with `pattern`, low byte first, from the start; the last repetition may be cut.
pub fn fill(pattern: u64, target: &mut [u8]) {
    fill16(u128::from(pattern) << 64 | u128::from(pattern), target);
}

/// Fills `target` with a pattern of 16 bytes, as DSA 2.0 does, low byte first, from the start.
pub(crate) fn fill16(pattern: u128, target: &mut [u8]) {
    match simd::Avx2::detect() {
        Some(avx2) if target.len() >= AROUND_CACHES_BYTES => simd::fill_around_caches(avx2, pattern, target),
        Some(avx2) => simd::fill(avx2, pattern, target),
        None => portable(pattern, target),
    }
}

/// The fill for every CPU.
#[inline(always)]
pub(super) fn portable(pattern: u128, target: &mut [u8]) {
    let mut patterns = [0; 64];
    patterns.as_chunks_mut().0.fill(pattern.to_le_bytes());
    let (whole, rest) = target.as_chunks_mut();
    for line in whole {
        *line = patterns;
    }
    rest.copy_from_slice(&patterns[..rest.len()]);
}
