//! Every data operation of DSA 1.0 on the CPU, over slices: what to fall back to, and what to compare a device with.
//!
//! ```text
//! copy, dualcast      the standard library's memcpy, in pieces that stay in the first-level cache
//! fill, compare       one pass; vectors where they gain
//! delta               ten bytes for each eight that differ
//! crc                 CRC-32C of the crate crc-fast
//! dif                 CRC-16 by folding, and the rules for tags
//! flush               line by line
//! ```
//!
//! The results are those of the device, to the bit, for whole operations. What is particular to a device is not here:
//! descriptors, limits of queues, page faults, and regions that overlap, which slices cannot.
//!
//! Speed comes from instructions that are looked for at run time, with code for every CPU behind them.
//!
//! Functions that take several slices panic if their lengths do not fit each other: that is a bug of the caller, which no
//! data can cause.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3 and appendices A and B.

mod compare;
mod crc;
mod delta;
pub mod dif;
mod fill;
#[allow(unsafe_code)]
mod flush;
mod guard;
#[allow(unsafe_code)]
#[cfg_attr(not(target_arch = "x86_64"), path = "simd/none.rs")]
mod simd;

pub use compare::{compare, compare_pattern};
pub use crc::{CrcMode, copy_crc, crc32c};
pub use delta::{DELTA_BYTES_MAX, Delta, DeltaError, ENTRY_BYTES, apply_delta, create_delta};
pub use fill::{fill, fill16};
pub use flush::{Flush, flush};

/// How much is read once and used twice while it is in the first-level cache: half of the smallest one of a CPU with
/// AVX2 (32 KiB).
const PIECE_BYTES: usize = 16 << 10;

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
/// The device also wants the last 12 bits of the targets' addresses to be equal; this does not.
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

#[cfg(test)]
mod tests;
