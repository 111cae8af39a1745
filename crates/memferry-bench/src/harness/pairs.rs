//! Samples of two programs in pairs, and statistics over them.
//!
//! Two programs are compared by running them alternately (A B B A ...), so that slow changes of the machine (clock
//! speed, page cache, neighbours) affect both. The ratio of a query is the ratio of its medians. The geometric mean
//! summarises the ratios of several queries. The confidence interval is the percentile bootstrap: it draws as many
//! pairs as there are, with replacement, and observes how much the result moves.
//! Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13.

use std::convert::Infallible;

use super::Random;

/// Samples of ours and of a peer; `ours[i]` and `peer[i]` were taken next to each other. Less is better.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pairs {
    /// Samples of ours.
    pub ours: Vec<f64>,
    /// Samples of the peer, as many as of ours.
    pub peer: Vec<f64>,
}

impl Pairs {
    /// Takes one sample of each in every round; see [`alternate`].
    pub fn measure(rounds_count: usize, ours: impl FnMut() -> f64, peer: impl FnMut() -> f64) -> Pairs {
        let (ours, peer) = alternate(rounds_count, ours, peer);
        Pairs { ours, peer }
    }

    /// The peer's median divided by ours: above 1, ours is better.
    pub fn ratio(&self) -> f64 {
        median(&self.peer) / median(&self.ours)
    }

    fn resampled(&self, random: &mut Random) -> Pairs {
        let count = self.ours.len();
        let drawn: Vec<usize> = (0..count).map(|_| random.below(count)).collect();
        Pairs {
            ours: drawn.iter().map(|&index| self.ours[index]).collect(),
            peer: drawn.iter().map(|&index| self.peer[index]).collect(),
        }
    }
}

/// Runs `ours` and `peer` once in every round. Even rounds begin with ours, odd rounds with the peer.
///
/// ```
/// # use std::cell::RefCell;
/// # use memferry_bench::harness::alternate;
/// let order = RefCell::new(String::new());
/// alternate(2, || order.borrow_mut().push('A'), || order.borrow_mut().push('B'));
/// assert_eq!(order.into_inner(), "ABBA");
/// ```
pub fn alternate<T>(
    rounds_count: usize,
    mut ours: impl FnMut() -> T,
    mut peer: impl FnMut() -> T,
) -> (Vec<T>, Vec<T>) {
    let Ok(samples) = try_alternate::<T, Infallible>(rounds_count, || Ok(ours()), || Ok(peer()));
    samples
}

/// [`alternate`] for samples that can fail.
///
/// # Errors
/// The first error of `ours` or `peer`.
pub fn try_alternate<T, E>(
    rounds_count: usize,
    mut ours: impl FnMut() -> Result<T, E>,
    mut peer: impl FnMut() -> Result<T, E>,
) -> Result<(Vec<T>, Vec<T>), E> {
    let (mut ours_samples, mut peer_samples) = (Vec::new(), Vec::new());
    for round in 0..rounds_count {
        if round % 2 == 0 {
            ours_samples.push(ours()?);
        }
        peer_samples.push(peer()?);
        if round % 2 == 1 {
            ours_samples.push(ours()?);
        }
    }
    Ok((ours_samples, peer_samples))
}

/// A ratio and its 95 % confidence interval.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    /// The ratio.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// A ratio without noise: the interval is a point.
    pub fn exact(value: f64) -> Estimate {
        Estimate { value, low: value, high: value }
    }
}

/// Draws of the bootstrap: enough that the ends of the interval move by less than they are rounded to.
const RESAMPLES: usize = 4000;

/// The geometric mean of the queries' ratios. The same `seed` gives the same interval.
///
/// # Panics
/// If a query has no pair, or different numbers of samples of ours and of the peer.
pub fn geomean_ratio<'a>(queries: impl IntoIterator<Item = &'a Pairs>, seed: u64) -> Estimate {
    let queries: Vec<&Pairs> = queries.into_iter().collect();
    for query in &queries {
        assert_eq!(query.ours.len(), query.peer.len(), "samples come in pairs");
    }
    let mut random = Random(seed);
    let mut drawn: Vec<f64> = (0..RESAMPLES)
        .map(|_| geomean(queries.iter().map(|query| query.resampled(&mut random).ratio())))
        .collect();
    drawn.sort_by(f64::total_cmp);
    let at = |share: f64| drawn[(share * (RESAMPLES - 1) as f64).round() as usize];
    Estimate { value: geomean(queries.iter().map(|query| query.ratio())), low: at(0.025), high: at(0.975) }
}

/// The middle value, or the mean of the two middle ones.
///
/// # Panics
/// Without values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// The geometric mean of positive values.
///
/// # Panics
/// Without values.
pub fn geomean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0), |(sum, count), value| (sum + value.ln(), count + 1));
    assert!(count > 0, "a mean needs values");
    (sum / f64::from(count)).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(ours: &[f64], peer: &[f64]) -> Pairs {
        Pairs { ours: ours.to_vec(), peer: peer.to_vec() }
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

    /// The true ratio lies inside the interval of about 95 % of many experiments.
    #[test]
    fn interval_covers_the_truth() {
        const TRUTH: f64 = 1.1;
        let mut random = Random(7);
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
                        Pairs { ours, peer }
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

    /// The bootstrap draws pairs: a disturbance of both programs does not change the ratio.
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

    #[test]
    fn an_error_ends_the_rounds() {
        let mut rounds = 0;
        let ours = || {
            rounds += 1;
            if rounds == 2 { Err("no") } else { Ok(1.0) }
        };
        assert_eq!(try_alternate(9, ours, || Ok(2.0)), Err("no"));
        assert_eq!(rounds, 2);
    }
}
