//! Copies to one and to two targets.

use super::PIECE_BYTES;

/// Copies `source` to `target`.
///
/// # Panics
/// If the lengths differ.
///
/// Source: DSA specification 8.3.4.
pub fn copy(source: &[u8], target: &mut [u8]) {
    target.copy_from_slice(source);
}

/// Copies `source` to both targets, reading it from memory once.
///
/// Unlike the device, this does not require equal low 12 bits of the targets' addresses.
///
/// # Panics
/// If the lengths differ.
///
/// Source: DSA specification 8.3.10.
pub fn dualcast(source: &[u8], target_1: &mut [u8], target_2: &mut [u8]) {
    assert!(
        source.len() == target_1.len() && source.len() == target_2.len(),
        "source and targets differ in length"
    );
    let targets = target_1.chunks_mut(PIECE_BYTES).zip(target_2.chunks_mut(PIECE_BYTES));
    for (source, (target_1, target_2)) in source.chunks(PIECE_BYTES).zip(targets) {
        target_1.copy_from_slice(source);
        target_2.copy_from_slice(source);
    }
}
