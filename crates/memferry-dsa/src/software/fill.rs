//! Memory Fill.
//!
//! Most fills are made by the string instruction, as the C library's `memset`: its microcode writes whole lines, which are
//! not read first. Small ones, and patterns of 16 bytes, are made by vectors. Fills larger than the caches bypass them.
//!
//! Source: DSA specification 8.3.5.

use super::simd;

/// The size from which a fill bypasses the caches.
///
/// Source: measured on an AMD EPYC (Zen 4) with 32 MiB of last-level cache, GB/s through it and around it: 31 and 27 at
/// 16 MiB, 14.6 and 16.5 at 32 MiB, 13.0 and 16.2 at 48 MiB. Larger caches have a higher break-even; no queue of the
/// kernel's default configuration accepts transfers above 2 MiB.
const AROUND_CACHES_BYTES: usize = 32 << 20;

/// The size from which the string instruction is used.
///
/// Source: `__x86_rep_stosb_threshold` of the GNU C library.
const STRING_BYTES: usize = 2048;
/// The alignment that the string instruction gets: a line of the caches.
const LINE_BYTES: usize = 64;

/// Fills `target` with `pattern`, low byte first, from the start; the last repetition may be cut.
pub fn fill(pattern: u64, target: &mut [u8]) {
    let fill16 = |target: &mut [u8]| fill16(u128::from(pattern) << 64 | u128::from(pattern), target);
    match simd::Erms::detect() {
        Some(erms) if (STRING_BYTES..AROUND_CACHES_BYTES).contains(&target.len()) => {
            let skew = target.as_ptr().align_offset(LINE_BYTES);
            let (head, body) = target.split_at_mut(skew);
            fill16(head);
            simd::fill_by_string(erms, pattern.rotate_right(skew as u32 % 8 * 8), body);
        }
        _ => fill16(target),
    }
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
