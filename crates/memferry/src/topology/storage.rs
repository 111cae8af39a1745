//! Storage as a memory of the machine: how fast a disk is read past the page cache.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The measured storage below a directory.
///
/// [`rates`](Storage::rates) has a rate for each size of a read and each depth, the number of reads in flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// The directory whose file was read, absolute. Files on the same file system are as fast.
    pub directory: PathBuf,
    /// Median time of one of the smallest reads at depth 1, in nanoseconds.
    pub latency_ns: f64,
    /// The least depth at which the largest reads have at least 95 % of their best rate.
    pub depth_best: u32,
    /// Rates, ascending by size, then by depth; never empty.
    pub rates: Vec<ReadRate>,
    /// The measurement. It begins with one of the machine's references.
    pub source: String,
}

/// The rate of reads of one size at one depth.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadRate {
    /// Bytes of each read.
    pub size_bytes: u64,
    /// Reads in flight.
    pub depth: u32,
    /// 10^6 bytes per second of all reads together.
    pub mb_per_s: f64,
}

/// A rate is as good as the best one from this part of it on.
const AS_GOOD: f64 = 0.95;

impl Storage {
    /// The storage of these rates, in any order; `None` without a rate.
    pub fn new(
        directory: PathBuf,
        latency_ns: f64,
        mut rates: Vec<ReadRate>,
        source: String,
    ) -> Option<Storage> {
        rates.sort_by_key(|rate| (rate.size_bytes, rate.depth));
        let size_bytes = rates.last()?.size_bytes;
        let largest = || rates.iter().filter(|rate| rate.size_bytes == size_bytes);
        let best = largest().map(|rate| rate.mb_per_s).fold(0.0, f64::max);
        let depth_best = largest().find(|rate| rate.mb_per_s >= AS_GOOD * best)?.depth;
        Some(Storage { directory, latency_ns, depth_best, rates, source })
    }

    /// The storage with the better value of each figure. `other` has the same sizes and depths.
    pub fn or_better(self, other: &Storage) -> Storage {
        let latency_ns = self.latency_ns.min(other.latency_ns);
        let better = |rate: ReadRate| {
            let is_alike =
                |other: &&ReadRate| (other.size_bytes, other.depth) == (rate.size_bytes, rate.depth);
            let others = other.rates.iter().find(is_alike).map_or(0.0, |other| other.mb_per_s);
            ReadRate { mb_per_s: rate.mb_per_s.max(others), ..rate }
        };
        let rates = self.rates.iter().copied().map(better).collect();
        Storage::new(self.directory.clone(), latency_ns, rates, self.source.clone()).unwrap_or(self)
    }

    /// Whether `path` lies below the measured directory.
    pub fn has(&self, path: &Path) -> bool {
        path.starts_with(&self.directory)
    }

    /// The first contradiction in it, if any: profiles are external input.
    pub(super) fn contradiction(&self) -> Option<String> {
        let of = |what: &str| Some(format!("storage {}: {what}", self.directory.display()));
        let is_wrong = |value: f64| !value.is_finite() || value <= 0.0;
        let rate = |rate: &ReadRate| (rate.size_bytes, rate.depth);
        if is_wrong(self.latency_ns) {
            return of("latency_ns is not positive; calibrate again");
        }
        if self.rates.is_empty() {
            return of("it has no rates; calibrate again");
        }
        if self.rates.iter().any(|it| is_wrong(it.mb_per_s) || it.size_bytes == 0 || it.depth == 0) {
            return of("a rate, its size or its depth is not positive; calibrate again");
        }
        if !self.rates.windows(2).all(|pair| rate(&pair[0]) < rate(&pair[1])) {
            return of("its rates are not in ascending order of size and depth");
        }
        if !self.rates.iter().any(|it| it.depth == self.depth_best) {
            return of("depth_best is none of the depths of its rates");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storage(rates: &[(u64, u32, f64)]) -> Storage {
        let rate = |&(size_bytes, depth, mb_per_s): &_| ReadRate { size_bytes, depth, mb_per_s };
        let rates = rates.iter().map(rate).collect();
        Storage::new(PathBuf::from("/data"), 100_000.0, rates, "a test".to_owned()).unwrap()
    }

    #[test]
    fn the_best_depth_is_the_least_within_five_percent() {
        let it = storage(&[(1024, 8, 100.0), (2048, 4, 96.0), (2048, 1, 50.0), (2048, 8, 100.0)]);
        assert_eq!((it.depth_best, it.rates[0].size_bytes, it.rates[1].depth), (4, 1024, 1));
        assert_eq!(storage(&[(2048, 4, 94.0), (2048, 8, 100.0)]).depth_best, 8);
        assert_eq!(it.contradiction(), None);
        let better = it.or_better(&storage(&[(2048, 1, 120.0), (2048, 8, 90.0)]));
        assert_eq!(better.depth_best, 1, "{better:?}");
        assert_eq!(better.rates.last().unwrap().mb_per_s, 100.0);
    }

    #[test]
    fn contradictions_are_named() {
        type Change = fn(&mut Storage);
        let changes: [(Change, &str); 6] = [
            (|it| it.latency_ns = f64::NAN, "latency_ns is not positive"),
            (|it| it.rates.clear(), "no rates"),
            (|it| it.rates[0].mb_per_s = 0.0, "not positive"),
            (|it| it.rates[1].depth = 0, "not positive"),
            (|it| it.rates.swap(0, 1), "ascending"),
            (|it| it.depth_best = 3, "depth_best"),
        ];
        for (change, words) in changes {
            let mut it = storage(&[(1024, 1, 50.0), (1024, 2, 100.0)]);
            change(&mut it);
            let why = it.contradiction().expect(words);
            assert!(why.contains(words) && why.contains("/data"), "{why}");
        }
    }
}
