//! Skewed keys.

use crate::harness::Random;

/// Zipf's law: key k of `count` keys is drawn in proportion to 1 / (k + 1)^exponent.
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    /// Cumulative shares of the keys, ascending to 1.
    cumulative: Vec<f64>,
}

impl Zipf {
    /// A distribution over `0..count`. Memory: one number per key.
    pub(super) fn new(count: usize, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=count).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        let sums: Vec<f64> = sums.collect();
        Zipf { cumulative: sums.into_iter().map(|share| share / sum).collect() }
    }

    /// Draws a key of `0..count`; key 0 is the most frequent one.
    pub(super) fn draw(&self, random: &mut Random) -> usize {
        let share = random.unit();
        self.cumulative.partition_point(|&end| end <= share).min(self.cumulative.len() - 1)
    }
}
