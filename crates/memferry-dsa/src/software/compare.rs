//! Compare and Compare Pattern, with the exact offset of the first difference.
//!
//! Two regions are compared in pieces by the C library's `memcmp`, which is as fast as the machine allows. A differing
//! piece is compared again in smaller pieces, which locates the difference.
//!
//! Source: DSA specification 8.3.6 and 8.3.7.

use super::simd;

/// The sizes of pieces, coarse to fine. A coarse piece is large enough to amortise the call of `memcmp`, and small enough
/// to be still in a cache when it is compared again.
const PIECES_BYTES: [usize; 2] = [32 << 10, 512];
/// Words that are compared with a pattern before one branch on the result.
const WORDS: usize = 32;

/// The offset of the first byte that differs; `None` if all are equal.
///
/// # Panics
/// If the lengths differ.
pub fn compare(first: &[u8], second: &[u8]) -> Option<usize> {
    assert_eq!(first.len(), second.len(), "the regions differ in length");
    let (mut offset, mut end) = (0, first.len());
    for piece_bytes in PIECES_BYTES {
        let pieces = first[offset..end].chunks(piece_bytes).zip(second[offset..end].chunks(piece_bytes));
        let equal = pieces.take_while(|(first, second)| first == second).count();
        offset += equal * piece_bytes;
        if offset >= end {
            return None;
        }
        end = end.min(offset + piece_bytes);
    }
    let bytes = first[offset..end].iter().zip(&second[offset..end]);
    Some(offset + bytes.take_while(|(first, second)| first == second).count())
}

/// The offset of the first byte of `data` that differs from the repeated `pattern`, low byte first.
///
/// The device may report an offset up to 7 bytes lower; this one is exact.
pub fn compare_pattern(pattern: u64, data: &[u8]) -> Option<usize> {
    match simd::Avx2::detect() {
        Some(avx2) => simd::compare_pattern(avx2, pattern, data),
        None => portable(pattern, data),
    }
}

/// The comparison for every CPU.
#[inline(always)]
pub(super) fn portable(pattern: u64, data: &[u8]) -> Option<usize> {
    let (words, rest) = data.as_chunks::<8>();
    let (blocks, last) = words.as_chunks::<WORDS>();
    let differs = |word: &[u8; 8]| u64::from_le_bytes(*word) ^ pattern;
    let equal =
        blocks.iter().take_while(|block| block.iter().fold(0, |all, word| all | differs(word)) == 0).count();
    // The differing block, or the words behind all blocks.
    let words = if equal < blocks.len() { &blocks[equal][..] } else { last };
    for (at, word) in words.iter().enumerate() {
        let differs = differs(word);
        if differs != 0 {
            return Some((equal * WORDS + at) * 8 + differs.trailing_zeros() as usize / 8);
        }
    }
    let expected = pattern.to_le_bytes();
    let at = rest.iter().zip(expected).position(|(byte, expected)| *byte != expected)?;
    Some(data.len() - rest.len() + at)
}
