//! Keys from a seed.

/// SplitMix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Even over `0..limit`, but for one part in 2^64 / limit.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next_u64()) * limit as u128) >> 64) as usize
    }

    /// Even over 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Zipf's law: the k-th of `count` keys is drawn in proportion to 1 / k^exponent.
#[derive(Clone, Debug)]
pub struct Zipf {
    /// Share of the first keys up to each, ascending to 1.
    up_to: Vec<f64>,
}

impl Zipf {
    /// Cost: a number for each key.
    pub fn new(count: usize, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=count).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        let sums: Vec<f64> = sums.collect();
        Zipf { up_to: sums.into_iter().map(|up_to| up_to / sum).collect() }
    }

    /// A key in `0..count`, 0 the most frequent.
    pub fn draw(&self, random: &mut Random) -> usize {
        let share = random.unit();
        self.up_to.partition_point(|&up_to| up_to <= share).min(self.up_to.len() - 1)
    }
}
