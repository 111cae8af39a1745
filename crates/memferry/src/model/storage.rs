//! How long reads of a storage take: an interpolation of its measured rates.

use crate::topology::{ReadRate, Storage};

/// Rates of reads by size and depth: those of a calibrated [`Storage`].
#[derive(Clone, Debug, PartialEq)]
pub struct ReadRates {
    /// Ascending by size, then by depth; never empty.
    rates: Vec<ReadRate>,
    /// The multiple of the measured times that a scan has seen.
    slowdown: f64,
}

impl From<&Storage> for ReadRates {
    fn from(storage: &Storage) -> Self {
        Self { rates: storage.rates.clone(), slowdown: 1.0 }
    }
}

impl ReadRates {
    /// These rates, with times that are `factor` times as long.
    pub fn slowed(&self, factor: f64) -> Self {
        Self { slowdown: self.slowdown * factor, ..self.clone() }
    }

    /// Time of one of `depth` reads of `size_bytes` in flight, in seconds.
    ///
    /// Between two measured sizes or depths it changes linearly; beyond the largest ones the rate stays, and below the
    /// smallest ones the time.
    pub fn read_s(&self, size_bytes: f64, depth: f64) -> f64 {
        let mut by_size = vec![];
        for rates in self.rates.chunk_by(|one, other| one.size_bytes == other.size_bytes) {
            let size_bytes = rates[0].size_bytes as f64;
            // Little's law: `depth` reads of this size complete in the time of one.
            let time_s = |rate: &ReadRate| f64::from(rate.depth) * size_bytes / (rate.mb_per_s * 1e6);
            by_size
                .push((size_bytes, along(rates.iter().map(|it| (f64::from(it.depth), time_s(it))), depth)));
        }
        along(by_size.into_iter(), size_bytes) * self.slowdown
    }

    /// Bytes per second of reads of `size_bytes` with `depth` of them in flight, at least one.
    pub fn bytes_per_s(&self, size_bytes: f64, depth: f64) -> f64 {
        let depth = depth.max(1.0);
        depth * size_bytes / self.read_s(size_bytes, depth)
    }
}

/// The time at `x` of the lines through points, which ascend by `x`: that of the first one before it, and in proportion to
/// `x` after the last one.
fn along(points: impl Iterator<Item = (f64, f64)>, x: f64) -> f64 {
    let mut before: Option<(f64, f64)> = None;
    for (at, time_s) in points {
        if x <= at {
            return match before {
                None => time_s,
                Some((from, from_s)) => from_s + (time_s - from_s) * (x - from) / (at - from),
            };
        }
        before = Some((at, time_s));
    }
    before.map_or(f64::NAN, |(at, time_s)| time_s * x / at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 ms for a read of 4096 bytes, 2 ms for one of 1 MB, and two at a time for the same time.
    fn rates() -> ReadRates {
        let rate = |size_bytes, depth, mb_per_s| ReadRate { size_bytes, depth, mb_per_s };
        let rates = vec![
            rate(1_000_000, 2, 1000.0),
            rate(1_000_000, 1, 500.0),
            rate(4096, 1, 4.096),
            rate(4096, 2, 8.192),
        ];
        ReadRates::from(&Storage::new("/".into(), 1e6, rates, "a test".to_owned()).unwrap())
    }

    #[test]
    fn measured_rates_are_met_and_lie_on_lines_between() {
        let rates = rates();
        let near = |value: f64, expected: f64| {
            assert!((value / expected - 1.0).abs() < 1e-9, "{value} instead of {expected}");
        };
        near(rates.bytes_per_s(4096.0, 1.0), 4.096e6);
        near(rates.bytes_per_s(4096.0, 2.0), 8.192e6);
        near(rates.bytes_per_s(1e6, 2.0), 1e9);
        near(rates.read_s((1e6 + 4096.0) / 2.0, 1.0), 1.5e-3);
        near(rates.bytes_per_s(1e6, 200.0), 1e9);
        near(rates.bytes_per_s(4e6, 2.0), 1e9);
        near(rates.read_s(1.0, 1.0), 1e-3);
        near(rates.bytes_per_s(1e6, 0.1), 500e6);
        near(rates.slowed(2.0).slowed(2.0).bytes_per_s(1e6, 2.0), 250e6);
    }
}
