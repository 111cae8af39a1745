//! Medians, geometric means, and how sure of them one may be.
//!
//! Two programs are compared by running them alternately (A B B A ...), so that whatever changes slowly on the machine
//! (clock speed, page cache, neighbours) hits both. Each query yields pairs of times; its ratio is that of the medians,
//! and the ratios of several queries are summed up by their geometric mean. The confidence interval is the percentile
//! bootstrap: draw as many pairs as there are, with replacement, and see how much the result moves.
//! Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13.

/// The times of one query in two programs, in milliseconds; `ours_ms[i]` and `peer_ms[i]` ran next to each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs {
    pub(crate) ours_ms: Vec<f64>,
    pub(crate) peer_ms: Vec<f64>,
}

impl Pairs {
    /// Above 1 when ours is faster.
    pub(crate) fn ratio(&self) -> f64 {
        median(&self.peer_ms) / median(&self.ours_ms)
    }

    fn resampled(&self, random: &mut SplitMix64) -> Pairs {
        let count = self.ours_ms.len();
        let drawn: Vec<usize> = (0..count).map(|_| random.below(count)).collect();
        Pairs {
            ours_ms: drawn.iter().map(|&i| self.ours_ms[i]).collect(),
            peer_ms: drawn.iter().map(|&i| self.peer_ms[i]).collect(),
        }
    }
}

/// A ratio and the ends of its 95 % confidence interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Estimate {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// How often the bootstrap draws: enough that the ends of the interval move by less than they are rounded to.
const RESAMPLES: usize = 4000;

/// The geometric mean of the queries' ratios. The same `seed` gives the same interval.
///
/// Panics if a query has no pair, or not as many times of ours as of the peer's.
pub(crate) fn geomean_ratio<'a>(queries: impl IntoIterator<Item = &'a Pairs>, seed: u64) -> Estimate {
    let queries: Vec<&Pairs> = queries.into_iter().collect();
    for query in &queries {
        assert_eq!(query.ours_ms.len(), query.peer_ms.len(), "times come in pairs");
    }
    let mut random = SplitMix64(seed);
    let mut drawn: Vec<f64> = (0..RESAMPLES)
        .map(|_| geomean(queries.iter().map(|query| query.resampled(&mut random).ratio())))
        .collect();
    drawn.sort_by(f64::total_cmp);
    let at = |share: f64| drawn[(share * (RESAMPLES - 1) as f64).round() as usize];
    Estimate { value: geomean(queries.iter().map(|query| query.ratio())), low: at(0.025), high: at(0.975) }
}

/// The middle value, or the mean of the two middle ones. Panics without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// The geometric mean of positive values. Panics without values.
pub(crate) fn geomean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0), |(sum, count), value| (sum + value.ln(), count + 1));
    assert!(count > 0, "a mean needs values");
    (sum / f64::from(count)).exp()
}

/// A small generator whose sequence is the same everywhere. Source: Steele, Lea, Flood, "Fast splittable pseudorandom
/// number generators", OOPSLA 2014.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Even over `0..bound` but for one part in 2^64 / bound.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(ours_ms: &[f64], peer_ms: &[f64]) -> Pairs {
        Pairs { ours_ms: ours_ms.to_vec(), peer_ms: peer_ms.to_vec() }
    }

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[7.0]), 7.0);
    }

    #[test]
    fn geomean_of_a_doubling_and_a_halving_is_one() {
        assert!((geomean([2.0, 0.5]) - 1.0).abs() < 1e-12);
        assert!((geomean([2.0, 8.0]) - 4.0).abs() < 1e-12);
    }

    #[test]
    fn ratio_above_one_means_that_ours_is_faster() {
        assert_eq!(pairs(&[10.0], &[20.0]).ratio(), 2.0);
    }

    #[test]
    fn interval_of_constant_times_is_a_point() {
        let query = pairs(&[10.0; 11], &[12.0; 11]);
        let estimate = geomean_ratio([&query, &query], 1);
        for value in [estimate.value, estimate.low, estimate.high] {
            assert!((value - 1.2).abs() < 1e-12, "{estimate:?}");
        }
    }

    /// Of many experiments whose true ratio is known, about 95 % must have it inside their interval.
    #[test]
    fn interval_covers_the_truth() {
        const TRUTH: f64 = 1.1;
        let mut random = SplitMix64(7);
        // The sum of twelve uniform numbers is close to normal with deviation 1; 5 % of noise.
        let mut noisy = |ms: f64| {
            let normal: f64 =
                (0..12).map(|_| random.below(1 << 20) as f64 / f64::from(1 << 20)).sum::<f64>() - 6.0;
            ms * (1.0 + 0.05 * normal)
        };
        let experiments = 60;
        let covered = (0..experiments)
            .filter(|&seed| {
                let queries: Vec<Pairs> = (0..3)
                    .map(|_| {
                        let (ours, peer) = (0..11).map(|_| (noisy(100.0), noisy(100.0 * TRUTH))).unzip();
                        Pairs { ours_ms: ours, peer_ms: peer }
                    })
                    .collect();
                let estimate = geomean_ratio(&queries, seed);
                assert!(estimate.low <= estimate.value && estimate.value <= estimate.high, "{estimate:?}");
                assert!(estimate.high - estimate.low < 0.2, "the noise does not explain {estimate:?}");
                (estimate.low..=estimate.high).contains(&TRUTH)
            })
            .count();
        assert!((51..=60).contains(&covered), "{covered} of {experiments}");
    }

    /// Pairs are drawn as pairs: a disturbance that hits both programs alike leaves the ratio alone.
    #[test]
    fn common_noise_cancels() {
        let ours = [10.0, 11.0, 30.0, 10.5, 80.0];
        let query = pairs(&ours, &ours.map(|ms| 1.2 * ms));
        let estimate = geomean_ratio([&query], 5);
        assert!(estimate.high - estimate.low < 1e-9, "{estimate:?}");
    }

    #[test]
    fn same_seed_same_interval() {
        let query = pairs(&[10.0, 11.0, 30.0, 10.5], &[12.0, 13.0, 33.0, 12.5]);
        let (a, b) = (geomean_ratio([&query], 3), geomean_ratio([&query], 3));
        assert_eq!((a.low, a.high), (b.low, b.high));
        assert!(a.low < a.high, "{a:?}");
    }
}
