//! What a miss costs, measured while queries run: it decides what is kept where the budget is too small for all.
//!
//! A stored byte that is not near costs the time that decoders wait for it. A decoded byte that is not kept costs the time of
//! decoding it. Both are sums over what happened lately, because disks and columns differ.

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
pub(super) struct Rates(Mutex<[Rate; 2]>);

const WAIT: usize = 0;
const DECODE: usize = 1;

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
