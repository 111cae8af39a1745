//! The copy kernel beside the best of its methods.

use std::cell::RefCell;

use memferry::internals::{Bytes, Trial};
use memferry::mover::CopyMethods;

use super::Size;
use crate::harness::{Comparison, Pairs};
use crate::memory::arena::cache_bytes;

/// Times of the copy kernel beside its methods.
#[derive(Clone, Debug)]
pub struct Copies {
    /// The choice of calibration.
    pub methods: CopyMethods,
    /// `copy_*`: nanoseconds per copy, beside the best method for this size and place, which a separate pass selects.
    pub rows: Vec<Comparison>,
    /// `copy_call_ns`: additional time of a copy of one cache line over a direct call of memcpy.
    pub call_ns: Vec<f64>,
}

/// Name, size, place.
const CASES: [(&str, usize, Bytes); 6] = [
    ("copy_hot_4KiB", 4 << 10, Bytes::Warm),
    ("copy_hot_64KiB", 64 << 10, Bytes::Warm),
    ("copy_hot_1MiB", 1 << 20, Bytes::Warm),
    ("copy_cold_1MiB", 1 << 20, Bytes::Cold),
    ("copy_16MiB", 16 << 20, Bytes::Cold),
    ("copy_256MiB", 256 << 20, Bytes::Cold),
];
const LINE_BYTES: usize = 64;

/// Calibrates, and measures the resulting methods.
pub fn copies(size: Size) -> Copies {
    let source: Vec<u8> = (0..size.buffer_bytes).map(|index| index as u8).collect();
    // Written, so that its pages are present.
    let mut target = vec![1; size.buffer_bytes];
    let methods = CopyMethods::calibrate(&source, &mut target);
    let mut trial = Trial::new(&source, &mut target);
    let rows = CASES
        .into_iter()
        .filter(|(_, size_bytes, _)| *size_bytes <= size.buffer_bytes)
        .map(|(name, size_bytes, bytes)| {
            let best = trial.fastest(size_bytes, bytes, 1.0);
            let trial = RefCell::new(&mut trial);
            let ns_each = |copy: &dyn Fn(&[u8], &mut [u8])| {
                trial.borrow_mut().seconds_each(size_bytes, bytes, size.round_bytes, copy) * 1e9
            };
            let pairs = Pairs::measure(
                size.rounds_count,
                || ns_each(&|source, target| methods.copy(source, target)),
                || ns_each(&|source, target| best.copy(source, target)),
            );
            Comparison::new(name, "ns", best.name(), pairs)
        })
        .collect();
    let trial = RefCell::new(trial);
    let call = Pairs::measure(
        size.rounds_count,
        || {
            let copy = |source: &[u8], target: &mut [u8]| methods.copy(source, target);
            trial.borrow_mut().seconds_each(LINE_BYTES, Bytes::Warm, size.round_bytes / 16, copy)
        },
        || {
            let copy = |source: &[u8], target: &mut [u8]| target.copy_from_slice(source);
            trial.borrow_mut().seconds_each(LINE_BYTES, Bytes::Warm, size.round_bytes / 16, copy)
        },
    );
    let call_ns = call.ours.iter().zip(call.peer).map(|(ours, direct)| (ours - direct) * 1e9).collect();
    Copies { methods, rows, call_ns }
}

/// Size of the last-level cache of the first CPU; 32 MiB if Linux does not report it, which few CPUs exceed.
pub fn last_level_cache_bytes() -> usize {
    cache_bytes(0).unwrap_or(32 << 20)
}
