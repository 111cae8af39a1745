//! Every data operation of DSA 1.0 on the CPU, over slices: the fallback without a device, and a reference for its results.
//!
//! ```text
//! copy                the standard library's memcpy
//! dualcast            vectors that are loaded once and stored twice, or memcpy of pieces that stay in the first-level cache
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
//! use memferry_dsa::software::{CrcMode, Delta, apply_delta, crc32c, create_delta};
//!
//! assert_eq!(crc32c(0, b"123456789", CrcMode::default()), 0xe306_9283);
//!
//! let (old, mut new, mut delta) = ([0; 64], [0; 64], [0; 80]);
//! new[9] = 1;
//! assert_eq!(create_delta(&old, &new, &mut delta), Delta::Complete { size_bytes: 10 });
//! let mut copy = old;
//! assert_eq!(apply_delta(&delta[..10], &mut copy), Ok(()));
//! assert_eq!(copy, new);
//! ```
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3 and appendices A and B.

pub(crate) mod compare;
pub(crate) mod copy;
pub(crate) mod crc;
pub(crate) mod delta;
pub(crate) mod dif;
pub(crate) mod fill;
#[allow(unsafe_code)]
pub(crate) mod flush;
mod guard;
pub(crate) mod isa;
#[allow(unsafe_code)]
#[cfg_attr(not(target_arch = "x86_64"), path = "simd/none.rs")]
mod simd;

pub(crate) use compare::{compare, compare_pattern};
pub(crate) use copy::dualcast;
pub(crate) use crc::copy_crc;
pub use crc::{CrcMode, crc32c};
pub(crate) use delta::{DELTA_BYTES_MAX, ENTRY_BYTES};
pub use delta::{Delta, DeltaError, apply_delta, create_delta};
pub use dif::Mismatch;
pub(crate) use fill::{fill, fill16};
pub(crate) use flush::{Flush, flush};

/// Bytes that are read once and used twice while they are in the first-level cache: half of the smallest one of a CPU
/// with AVX2 (32 KiB).
const PIECE_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests;
