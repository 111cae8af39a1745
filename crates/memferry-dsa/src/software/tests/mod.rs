//! Each operation, with every method of this CPU, compared with the simplest code for it.
//!
//! Targets are between canaries, at every alignment within a cache line.

mod crc;
mod delta;
mod dif;
mod streams;

use proptest::prelude::*;

/// Sizes around those of words, vectors, cache lines, pages and pieces.
pub(super) const SIZES: [usize; 26] = [
    0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 511, 513, 4095, 4096,
    4097, 33_001,
];

/// Bytes without short repetitions.
pub(super) fn pattern(size: usize, seed: u64) -> Vec<u8> {
    (0..size as u64).map(|at| ((at * 0x9e37_79b9 + seed * 0x85eb_ca6b) >> 7 ^ at >> 3) as u8).collect()
}

/// Runs `write` on a copy of `before` that begins `skew` bytes behind the start of a cache line, and returns the copy.
pub(super) fn at_skew(before: &[u8], skew: usize, write: impl FnOnce(&mut [u8])) -> Vec<u8> {
    const AROUND: usize = 128;
    const CANARY: u8 = 0xc5;
    let mut memory = vec![CANARY; before.len() + 2 * AROUND + 64];
    let start = memory.as_ptr().align_offset(64) + AROUND + skew % 64;
    let end = start + before.len();
    memory[start..end].copy_from_slice(before);
    write(&mut memory[start..end]);
    assert!(memory[..start].iter().all(|byte| *byte == CANARY), "wrote before the target");
    assert!(memory[end..].iter().all(|byte| *byte == CANARY), "wrote behind the target");
    memory[start..end].to_vec()
}

/// Sizes of [`SIZES`] and others.
pub(super) fn size() -> impl Strategy<Value = usize> {
    prop_oneof![2 => prop::sample::select(&SIZES[..]), 1 => 0..700usize, 1 => 4000..9000usize]
}
