//! What a miss costs, measured while queries run: it decides what is kept where the budget is too small for all.
//!
//! A stored byte that is not near costs the time that decoders wait for it. A decoded byte that is not kept costs the time of
//! decoding it; keeping it costs fresh pages and a copy. All are sums over what happened lately, because disks and columns
//! differ.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use memferry::cache::Keep;

/// Bytes after which an observation counts half. Chosen: some seconds of a scan.
const HALF_LIFE_BYTES: f64 = (1_u64 << 30) as f64;

/// Reading a byte costs no less than copying it: 10 GB/s, about the rate of one core. Waiting for reads ahead may take no time at
/// all, while other work had to wait for the core that served them.
const READ_NS_PER_BYTE_MIN: f64 = 0.1;

/// Measured costs. All files of one near memory share them.
#[derive(Debug, Default)]
pub(super) struct Rates(Mutex<[Rate; 4]>);

const WAIT: usize = 0;
const DECODE: usize = 1;
const KEEP: usize = 2;
const WORK: usize = 3;

/// Time of a partition for a stored byte, without waiting, before any was measured: decoding and the operators above. In the
/// record `2026-11-24-cold` of an AMD EPYC of model 17 (TPC-H, scale 1, 2 partitions) the bytes of a query divided by the rate
/// of the disk, 1.18 GB/s, are 0.27 of its time, as a geometric mean over the queries.
pub(super) const WORK_NS_PER_BYTE: f64 = 2.0 / 1.18 / 0.27;

/// The use of a column at which it is kept, at most.
const USES_MAX: u32 = 8;

/// Kept bytes from which on their cost is known: the first ones pay for whole huge pages.
const KEPT_BYTES_MIN: f64 = (256_u64 << 20) as f64;

/// Time and bytes, of which the older ones count less.
#[derive(Debug, Default)]
struct Rate {
    ns: f64,
    bytes: f64,
}

impl Rate {
    fn add(&mut self, time: Duration, bytes: u64) {
        let kept = 0.5_f64.powf(bytes as f64 / HALF_LIFE_BYTES);
        self.ns = self.ns * kept + time.as_nanos() as f64;
        self.bytes = self.bytes * kept + bytes as f64;
    }

    fn ns_per_byte(&self) -> Option<f64> {
        (self.bytes > 0.0).then(|| self.ns / self.bytes)
    }
}

impl Rates {
    /// Decoders waited for `time` for `bytes` of files.
    pub(super) fn waited(&self, time: Duration, bytes: u64) {
        self.add(WAIT, time, bytes);
    }

    /// Decoding `bytes`, as they are afterwards, took `time` of a core.
    pub(super) fn decoded(&self, time: Duration, bytes: u64) {
        self.add(DECODE, time, bytes);
    }

    /// A partition took `time` for decoding `bytes` of a file, and for the operators above.
    pub(super) fn worked(&self, time: Duration, bytes: u64) {
        self.add(WORK, time, bytes);
    }

    /// Time that a partition works for a stored byte, from what scans took lately.
    pub(super) fn work_ns_per_byte(&self) -> f64 {
        let rates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rates[WORK].ns_per_byte().unwrap_or(WORK_NS_PER_BYTE)
    }

    /// Keeping `bytes` took `time` of a core.
    pub(super) fn kept(&self, time: Duration, bytes: u64) {
        self.add(KEEP, time, bytes);
    }

    /// The use of a column at which it is kept: decoding it at the uses since the first one would cost as much as keeping it.
    /// From 2 to 8, and 2 before both costs are known.
    pub(super) fn uses_min(&self) -> u32 {
        let rates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let keep = rates[KEEP].ns_per_byte().filter(|_| rates[KEEP].bytes >= KEPT_BYTES_MIN);
        match (rates[DECODE].ns_per_byte(), keep) {
            (Some(decode), Some(keep)) if decode > 0.0 => {
                1 + (keep / decode).ceil().clamp(1.0, f64::from(USES_MAX - 1)) as u32
            }
            _ => 2,
        }
    }

    fn add(&self, which: usize, time: Duration, bytes: u64) {
        if bytes > 0 {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)[which].add(time, bytes);
        }
    }

    /// How many times as much time a decoded byte saves as a stored byte, for [`Keep::rounds`]; 0 if it saves less. 1 before
    /// both were measured.
    pub(super) fn rounds(&self) -> u8 {
        let rates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (rates[DECODE].ns_per_byte(), rates[WAIT].ns_per_byte()) {
            (Some(decode), Some(wait)) => {
                let times = (decode / wait.max(READ_NS_PER_BYTE_MIN)).round();
                times.min(f64::from(Keep::ROUNDS_MAX)) as u8
            }
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_kept_when_decoding_has_cost_as_much() {
        let rates = Rates::default();
        assert_eq!(rates.uses_min(), 2, "nothing is measured");
        rates.decoded(Duration::from_secs(1), 1 << 30);
        rates.kept(Duration::from_secs(10), 100 << 20);
        assert_eq!(rates.uses_min(), 2, "little has been kept");
        (0..20).for_each(|_| rates.kept(Duration::from_millis(300), 1 << 30));
        assert_eq!(rates.uses_min(), 2, "keeping costs less than decoding");
        (0..20).for_each(|_| rates.kept(Duration::from_millis(2500), 1 << 30));
        assert_eq!(rates.uses_min(), 4, "keeping costs 2.5 times as much as decoding");
        (0..20).for_each(|_| rates.kept(Duration::from_secs(100), 1 << 30));
        assert_eq!(rates.uses_min(), USES_MAX);
    }

    #[test]
    fn rounds_are_the_ratio_of_the_costs() {
        let rates = Rates::default();
        assert_eq!(rates.rounds(), 1, "nothing is measured");
        rates.waited(Duration::from_secs(1), 1 << 30);
        assert_eq!(rates.rounds(), 1, "decoding is not measured");
        rates.decoded(Duration::from_secs(3), 1 << 30);
        assert_eq!(rates.rounds(), 3);
        // A slow disk: stored bytes are worth more.
        (0..20).for_each(|_| rates.waited(Duration::from_secs(10), 1 << 30));
        assert_eq!(rates.rounds(), 0);
        // Reads that are served from memory.
        (0..40).for_each(|_| rates.waited(Duration::ZERO, 1 << 30));
        assert_eq!(rates.rounds(), Keep::ROUNDS_MAX);
    }
}
