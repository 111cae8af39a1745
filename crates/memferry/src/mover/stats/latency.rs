//! Latencies of copies: a histogram with exponential buckets.
//!
//! Each power of two has [`STEPS`] buckets of equal width. So a latency is exact within a quarter, from 1 ns to hours, in
//! 2 KiB: the scheme of HdrHistogram with few digits.
//!
//! Source: Tene, "HdrHistogram: A High Dynamic Range Histogram", hdrhistogram.org.

use std::array;

use serde::Serialize;

use super::Counter;

/// Buckets per power of two.
const STEPS: u64 = 1 << STEPS_LOG2;
const STEPS_LOG2: u32 = 2;
/// Latencies above these five hours share the last bucket.
const BOUND_LOG2: u32 = 44;
const BUCKETS: usize = (BOUND_LOG2 - STEPS_LOG2 + 1) as usize * STEPS as usize + 1;

/// A concurrent histogram of relaxed counters. A reader may see a bucket before the sum.
#[derive(Debug)]
pub(in crate::mover) struct Histogram {
    sum_ns: Counter,
    buckets: [Counter; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { sum_ns: Counter::default(), buckets: array::from_fn(|_| Counter::default()) }
    }
}

impl Histogram {
    pub(in crate::mover) fn record(&self, ns: u64) {
        self.buckets[bucket_of(ns)].add(1);
        self.sum_ns.add(ns);
    }

    /// [`record`](Histogram::record) for the only thread that writes this histogram.
    pub(in crate::mover) fn record_alone(&self, ns: u64) {
        self.buckets[bucket_of(ns)].add_alone(1);
        self.sum_ns.add_alone(ns);
    }

    pub(in crate::mover) fn read(&self) -> Latencies {
        let mut latencies = Latencies { sum_ns: self.sum_ns.get(), buckets: Vec::new() };
        for (bucket, count) in self.buckets.iter().enumerate() {
            let count = count.get();
            if count > 0 {
                latencies.buckets.push(LatencyBucket { latency_ns_max: upper_end(bucket), count });
            }
        }
        latencies
    }
}

/// The bucket of a latency. Below `2 * STEPS` each number has its own. A bucket includes its upper end, so that powers of
/// two are upper ends.
fn bucket_of(ns: u64) -> usize {
    let below = ns.saturating_sub(1);
    let shift = below.checked_ilog2().unwrap_or(0).saturating_sub(STEPS_LOG2);
    let bucket = u64::from(shift) * STEPS + (below >> shift);
    (bucket as usize).min(BUCKETS - 1)
}

/// The longest latency of a bucket.
fn upper_end(bucket: usize) -> u64 {
    if bucket == BUCKETS - 1 {
        return u64::MAX;
    }
    let bucket = bucket as u64;
    if bucket < 2 * STEPS {
        return bucket + 1;
    }
    let shift = bucket / STEPS - 1;
    (bucket % STEPS + STEPS + 1) << shift
}

/// Latencies of copies, from creation to completion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latencies {
    /// Sum of all latencies.
    pub sum_ns: u64,
    /// The buckets that are not empty, ascending.
    buckets: Vec<LatencyBucket>,
}

/// Copies with about the same latency.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
struct LatencyBucket {
    /// Longest latency of the bucket, at most a quarter above the shortest; `u64::MAX` for five hours and more.
    latency_ns_max: u64,
    /// Number of copies.
    count: u64,
}

impl Latencies {
    /// Adds other latencies.
    pub(in crate::mover) fn merge(&mut self, others: Latencies) {
        self.sum_ns = self.sum_ns.wrapping_add(others.sum_ns);
        for LatencyBucket { latency_ns_max, count } in others.buckets {
            match self.buckets.binary_search_by_key(&latency_ns_max, |bucket| bucket.latency_ns_max) {
                Ok(index) => self.buckets[index].count += count,
                Err(index) => self.buckets.insert(index, LatencyBucket { latency_ns_max, count }),
            }
        }
    }

    /// Number of copies.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.count).sum()
    }

    /// Number of copies up to this latency. Exact for powers of two; otherwise one bucket may be missing.
    pub fn count_within(&self, latency_ns: u64) -> u64 {
        let within = self.buckets.iter().take_while(|bucket| bucket.latency_ns_max <= latency_ns);
        within.map(|bucket| bucket.count).sum()
    }

    /// The quantile `part`, 0.5 for the median; up to a quarter too long. `None` without copies, and for parts outside 0
    /// to 1.
    pub fn quantile_ns(&self, part: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 || !(0.0..=1.0).contains(&part) {
            return None;
        }
        let rank = ((count as f64 * part).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        let bucket = self.buckets.iter().find(|bucket| {
            seen += bucket.count;
            seen >= rank
        });
        bucket.map(|bucket| bucket.latency_ns_max)
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_narrow() {
        let mut lower = 0;
        for bucket in 0..BUCKETS - 1 {
            let upper = upper_end(bucket);
            assert!(upper > lower, "bucket {bucket} ends at {upper}, the one before at {lower}");
            assert_eq!((bucket_of(lower + 1), bucket_of(upper)), (bucket, bucket), "{lower} to {upper}");
            assert!(upper - lower <= 1 || (upper - lower) * 4 <= lower, "{lower} to {upper}");
            lower = upper;
        }
        assert_eq!(lower, 1 << BOUND_LOG2);
        for ns in [lower + 1, u64::MAX] {
            assert_eq!(bucket_of(ns), BUCKETS - 1);
        }
        assert_eq!(bucket_of(0), 0);
    }

    #[test]
    fn merged_latencies_are_those_of_one_histogram() {
        let (all, parts) = (Histogram::default(), [Histogram::default(), Histogram::default()]);
        for ns in [1, 5, 5, 70, 900, 900, 10_000, u64::MAX >> 1] {
            all.record(ns);
            parts[usize::from(ns % 2 == 0 || ns == 5)].record(ns);
        }
        let mut merged = parts[0].read();
        merged.merge(parts[1].read());
        assert_eq!(merged, all.read());
    }

    #[test]
    fn quantiles_are_those_of_the_copies() {
        let histogram = Histogram::default();
        assert_eq!(histogram.read().quantile_ns(0.5), None);
        (1..=1000).for_each(|us| histogram.record(1000 * us));
        histogram.record(u64::MAX);
        let latencies = histogram.read();
        assert_eq!(latencies.count(), 1001);
        for (part, us) in [(0.0, 1), (0.1, 101), (0.5, 501), (0.99, 991)] {
            let ns = latencies.quantile_ns(part).expect("there are copies");
            let exact = us * 1000;
            assert!((exact..=exact + exact / 4).contains(&ns), "{part}: {ns} ns for {exact}");
        }
        assert_eq!(latencies.quantile_ns(1.0), Some(u64::MAX));
        assert_eq!((latencies.quantile_ns(1.1), latencies.quantile_ns(f64::NAN)), (None, None));
        assert_eq!(latencies.count_within(1 << 19), 524, "of 1 to 524 us, and 2^19 ns are 524.288 us");
    }
}
