//! The random generator of benchmarks and tests.

/// SplitMix64: the same seed gives the same sequence on every machine.
///
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
///
/// ```
/// # use memferry_bench::harness::Random;
/// assert_eq!(Random(0).next_u64(), 0xe220_a839_7b1d_cdaf);
/// ```
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of `0..limit`, uniform but for one part in 2^64 / limit.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next_u64()) * limit as u128) >> 64) as usize
    }

    /// A number of `0.0..1.0`, uniform.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
