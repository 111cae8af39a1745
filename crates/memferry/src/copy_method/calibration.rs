//! Measurement of the fastest copy methods of this CPU.

use std::hint::black_box;
use std::time::Instant;

use super::{CLASS_BYTES, CopyMethod, CopyMethods, PROBE_BYTES, PROBED_BYTES_MIN};
use crate::moment::Moment;

/// Rounds of a calibration; the methods alternate in each.
const ROUNDS_COUNT: usize = 7;
/// Bytes of the copies in a round, so that the clock does not matter.
const ROUND_BYTES: usize = 2 << 20;
/// Size of the copies whose first parts are timed, warm and cold, for the threshold. Warm bytes are mostly in the
/// last-level cache after such a copy.
const PROBED_CLASS_BYTES: usize = CLASS_BYTES[2];
/// Number of each: their times overlap.
const PROBES_COUNT: usize = 101;
/// Least gain over memcpy to be chosen: less is noise.
const GAIN_MIN: f64 = 1.03;

impl CopyMethods {
    /// Measures the fastest methods with copies from `source` to `target`.
    ///
    /// Cold copies rotate over the buffers, which are cold only if each is at least four times as long as the last-level
    /// cache. A size class above the length of the buffers uses the methods of the class below.
    ///
    /// Cost: the time of some fifty copies of all of `source`, on this thread.
    ///
    /// # Panics
    /// If their lengths differ.
    pub fn calibrate(source: &[u8], target: &mut [u8]) -> CopyMethods {
        let mut trial = Trial::new(source, target);
        let mut methods = CopyMethods { warm_probe_ns_max: 0, ..CopyMethods::default() };
        for (class, &size_bytes) in CLASS_BYTES.iter().enumerate() {
            if size_bytes <= source.len() {
                methods.warm[class] = trial.fastest(size_bytes, Bytes::Warm, GAIN_MIN);
                methods.cold[class] = match size_bytes < PROBED_BYTES_MIN {
                    true => methods.warm[class],
                    false => trial.fastest(size_bytes, Bytes::Cold, GAIN_MIN),
                };
            } else if class > 0 {
                methods.warm[class] = methods.warm[class - 1];
                methods.cold[class] = methods.cold[class - 1];
            }
        }
        if PROBE_BYTES <= source.len() {
            let size_bytes = PROBED_CLASS_BYTES.min(source.len());
            let method = methods.method(size_bytes, false);
            let [warm, cold] =
                [Bytes::Warm, Bytes::Cold].map(|bytes| trial.probes_ns(size_bytes, bytes, method));
            methods.warm_probe_ns_max = threshold(&warm, &cold);
        }
        methods
    }
}

/// The place of the bytes of a copy.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// The same bytes each time, where the last copy left them.
    Warm,
    /// Other bytes each time, rotating over the buffers.
    Cold,
}

/// Timed copies between two buffers.
pub struct Trial<'a> {
    source: &'a [u8],
    target: &'a mut [u8],
    /// Cold copies so far.
    turn: usize,
}

impl<'a> Trial<'a> {
    /// Panics if the lengths differ.
    pub fn new(source: &'a [u8], target: &'a mut [u8]) -> Trial<'a> {
        assert_eq!(source.len(), target.len(), "a copy is as long as its source");
        Trial { source, target, turn: 0 }
    }

    /// The method with the least median time, or memcpy if the gain is below `gain_min`.
    ///
    /// `size_bytes` is from 1 to the length of the buffers.
    pub fn fastest(&mut self, size_bytes: usize, bytes: Bytes, gain_min: f64) -> CopyMethod {
        let mut times = vec![Vec::new(); CopyMethod::ALL.len()];
        for _ in 0..ROUNDS_COUNT {
            for (method, times) in CopyMethod::ALL.iter().zip(&mut times) {
                times.push(self.seconds_each(size_bytes, bytes, ROUND_BYTES, |a, b| method.copy(a, b)));
            }
        }
        let times = CopyMethod::ALL.iter().zip(times.into_iter().map(middle));
        let weighed = times.map(|(&method, time)| match method {
            CopyMethod::Memcpy => (method, time),
            _ => (method, time * gain_min),
        });
        let fastest = weighed.min_by(|a, b| a.1.total_cmp(&b.1));
        fastest.map_or(CopyMethod::Memcpy, |(method, _)| method)
    }

    /// Times of the first parts of copies of `size_bytes`, which is at least `PROBE_BYTES`.
    fn probes_ns(&mut self, size_bytes: usize, bytes: Bytes, method: CopyMethod) -> Vec<u64> {
        let places_count = self.source.len() / size_bytes;
        let mut one = || {
            let place = if bytes == Bytes::Warm { 0 } else { self.turn % places_count };
            self.turn += usize::from(bytes == Bytes::Cold);
            let bytes = place * size_bytes..(place + 1) * size_bytes;
            let (probed, rest) = black_box(&self.source[bytes.clone()]).split_at(PROBE_BYTES);
            let (probed_target, rest_target) = black_box(&mut self.target[bytes]).split_at_mut(PROBE_BYTES);
            let begin = Moment::now();
            method.copy(probed, probed_target);
            let elapsed_ns = begin.elapsed_ns();
            method.copy(rest, rest_target);
            elapsed_ns
        };
        // Warms the bytes up.
        one();
        (0..PROBES_COUNT).map(|_| one()).collect()
    }

    /// The mean time of copies of `round_bytes` together, at least one copy.
    #[inline]
    pub fn seconds_each(
        &mut self,
        size_bytes: usize,
        bytes: Bytes,
        round_bytes: usize,
        copy: impl Fn(&[u8], &mut [u8]),
    ) -> f64 {
        let places_count = self.source.len() / size_bytes;
        let copies_count = (round_bytes / size_bytes).max(1);
        let mut one = |place: usize| {
            let bytes = place * size_bytes..(place + 1) * size_bytes;
            copy(black_box(&self.source[bytes.clone()]), black_box(&mut self.target[bytes]));
        };
        let begin = match bytes {
            Bytes::Warm => {
                one(0);
                let begin = Instant::now();
                (0..copies_count).for_each(|_| one(0));
                begin
            }
            Bytes::Cold => {
                let begin = Instant::now();
                (self.turn..self.turn + copies_count).for_each(|turn| one(turn % places_count));
                self.turn += copies_count;
                begin
            }
        };
        begin.elapsed().as_secs_f64() / copies_count as f64
    }
}

/// The threshold that separates copies from caches and from memory with the fewest mistakes, if two slower parts count as
/// memory.
fn threshold(warm_ns: &[u64], cold_ns: &[u64]) -> u64 {
    let slow_share = |times: &[u64], limit: u64| {
        times.iter().filter(|&&ns| ns > limit).count() as f64 / times.len() as f64
    };
    let mistakes = |limit: u64| slow_share(warm_ns, limit).powi(2) + 1.0 - slow_share(cold_ns, limit).powi(2);
    let times = || warm_ns.iter().chain(cold_ns).copied();
    let best = times().min_by(|&a, &b| mistakes(a).total_cmp(&mistakes(b)).then(a.cmp(&b))).unwrap_or(0);
    // All values up to the next time are equal: the middle is chosen.
    let next = times().filter(|&ns| ns > best).min().unwrap_or(best);
    ((best as f64) * (next as f64)).sqrt() as u64
}

fn middle(times: impl IntoIterator<Item = f64>) -> f64 {
    let mut times: Vec<f64> = times.into_iter().collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    /// Which is fastest is the machine's business; that something was measured shows in the threshold.
    #[test]
    fn a_calibration_copies_and_chooses() {
        let source = vec![7_u8; 1 << 20];
        let mut target = vec![0; 1 << 20];
        let methods = CopyMethods::calibrate(&source, &mut target);
        assert!(target == source, "cold copies rotate over all of it");
        assert!(methods.warm_probe_ns_max > 0);
        assert_eq!(methods.warm[..2], methods.cold[..2], "small copies go by their size");
        // 16 MiB do not fit: as 1 MiB.
        assert_eq!(methods.method(16 << 20, true), methods.method(1 << 20, true));
        let tiny = CopyMethods::calibrate(&[1; 100], &mut [0; 100]);
        assert_eq!(tiny, CopyMethods::only(CopyMethod::Memcpy));
    }

    #[test]
    fn the_threshold_makes_the_fewest_mistakes() {
        // Apart: between them, by factors.
        assert_eq!(threshold(&[500, 600, 400], &[1600, 1400, 1350]), 900);
        // An interrupt among the warm ones and a lucky cold one do not move it.
        let (warm, cold) = ([500, 510, 520, 530, 540, 550, 560, 570, 400, 9000], [1000; 9]);
        assert_eq!(threshold(&warm, &cold), 754);
        assert_eq!(threshold(&warm, &[&cold[..], &[505]].concat()), 754);
        // Where they are the same, it is one of them.
        assert_eq!(threshold(&[700; 5], &[700; 5]), 700);
    }

    #[test]
    fn cold_copies_take_turns_over_the_buffers() {
        let (source, mut target) = ([1_u8; 100], [0_u8; 100]);
        let mut trial = Trial::new(&source, &mut target);
        let copy =
            |source: &[u8], target: &mut [u8]| target.iter_mut().zip(source).for_each(|(b, a)| *b += a);
        trial.seconds_each(10, Bytes::Cold, 70, copy);
        trial.seconds_each(10, Bytes::Cold, 50, copy);
        trial.seconds_each(30, Bytes::Warm, 5, copy);
        let counts = [[4; 20].as_slice(), &[3; 10], &[1; 70]].concat();
        assert_eq!(target[..], counts);
    }
}
