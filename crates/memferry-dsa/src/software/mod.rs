//! Every data operation of DSA 1.0 on the CPU, over slices: the fallback without a device, and a reference for its results.
//!
//! ```text
//! copy, dualcast      the standard library's memcpy, in pieces that stay in the first-level cache
//! fill, compare       one pass, with vectors where they are faster
//! delta               ten bytes for each differing word of eight
//! crc                 CRC-32C of the crate crc-fast
//! dif                 CRC-16 by folding, and the rules for tags
//! flush               line by line
//! ```
//!
//! For whole operations the results are bit by bit those of the device. Descriptors, limits of queues, page faults and
//! overlapping regions exist only with a device.
//!
//! The fast code uses instructions that are detected at run time; portable code replaces it on other CPUs.
//!
//! Functions with several slices panic if the lengths do not match: that is a bug of the caller, which no data can cause.
//!
//! ```
//! use memferry_dsa::software::{CrcMode, copy_crc};
//!
//! let mut target = [0; 9];
//! assert_eq!(copy_crc(b"123456789", &mut target, 0, CrcMode::default()), 0xe306_9283);
//! assert_eq!(&target, b"123456789");
//! ```
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
pub use fill::fill;
pub(crate) use fill::fill16;
pub use flush::{Flush, flush};

/// Bytes that are read once and used twice while they are in the first-level cache: half of the smallest one of a CPU
/// with AVX2 (32 KiB).
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

#[cfg(test)]
mod tests;
