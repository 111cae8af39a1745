//! Percentiles of latencies.

/// The percentiles of a latency: their name, and their rank in hundred thousandths.
pub const PERCENTILES: [(&str, usize); 5] =
    [("p50", 50_000), ("p99", 99_000), ("p99.9", 99_900), ("p99.99", 99_990), ("p99.999", 99_999)];

/// Samples that must lie beyond a percentile, so that it is not that of a few outliers.
const BEYOND_MIN: usize = 10;

/// The percentile of this rank (in hundred thousandths) by nearest rank; `None` if fewer than 10 samples lie beyond it.
///
/// ```
/// # use memferry_bench::cases::percentile;
/// let sorted: Vec<f64> = (1..=1000).map(f64::from).collect();
/// assert_eq!(percentile(&sorted, 50_000), Some(500.0));
/// assert_eq!(percentile(&sorted, 99_000), Some(990.0));
/// assert_eq!(percentile(&sorted, 99_900), None);
/// ```
pub fn percentile(sorted: &[f64], rank: usize) -> Option<f64> {
    let index = (sorted.len() * rank).div_ceil(100_000);
    (sorted.len().saturating_sub(index) >= BEYOND_MIN).then(|| sorted[index.saturating_sub(1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_sample_with_enough_beyond() {
        let sorted: Vec<f64> = (1..=1_000_000).map(f64::from).collect();
        let of = |count: usize| PERCENTILES.map(|(_, rank)| percentile(&sorted[..count], rank));
        let all = [500_000.0, 990_000.0, 999_000.0, 999_900.0, 999_990.0];
        assert_eq!(of(1_000_000), all.map(Some));
        // 9.99999 samples beyond the last percentile.
        assert_eq!(of(999_999)[4], None);
        assert_eq!(of(999_999)[3], Some(999_900.0));
        assert_eq!(of(20), [Some(10.0), None, None, None, None]);
        assert_eq!((of(19)[0], of(0)), (None, [None; 5]));
    }
}
