//! Which copy method is fastest here: by trying them.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::kernel::{CLASS_BYTES, PROBE_BYTES, PROBED_BYTES_MIN};
use super::{CopyMethod, CopyMethods};

/// Rounds of a calibration, in which the methods take turns.
const ROUNDS_COUNT: usize = 7;
/// Of copies in a round, so that small ones outweigh the clock.
const ROUND_BYTES: usize = 2 << 20;
/// What another method must gain over memcpy to be chosen: less is noise.
const GAIN_MIN: f64 = 1.03;

impl CopyMethods {
    /// Finds out what is fastest here, with copies from `source` to `target`: up to their length, and for what is cold
    /// rotating over all of it. That is cold only if each of them is at least four times as long as the last-level cache.
    /// A class of sizes that does not fit goes the way of the one below.
    ///
    /// Cost: the time of some fifty copies of all of `source`, on this thread.
    ///
    /// # Panics
    /// If their lengths differ.
    pub fn calibrate(source: &[u8], target: &mut [u8]) -> CopyMethods {
        let mut trial = Trial::new(source, target);
        let mut methods = CopyMethods::only(CopyMethod::Memcpy);
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
            let method = methods.method(PROBE_BYTES, false);
            let [warm, cold] =
                [Bytes::Warm, Bytes::Cold].map(|bytes| {
                    middle((0..ROUNDS_COUNT).map(|_| {
                        trial.seconds_each(PROBE_BYTES, bytes, ROUND_BYTES, |a, b| method.copy(a, b))
                    }))
                });
            methods.warm_probe_max = Duration::from_secs_f64((warm * cold).sqrt());
        }
        methods
    }
}

/// Where the bytes of a copy are.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Bytes {
    /// Where the last copy left them: the same bytes each time.
    Warm,
    /// Where the buffers' turn has come to: other bytes each time.
    Cold,
}

/// Timed copies between two buffers.
pub(super) struct Trial<'a> {
    source: &'a [u8],
    target: &'a mut [u8],
    /// Cold copies so far.
    turn: usize,
}

impl<'a> Trial<'a> {
    /// Panics if the lengths differ.
    pub(super) fn new(source: &'a [u8], target: &'a mut [u8]) -> Trial<'a> {
        assert_eq!(source.len(), target.len(), "a copy is as long as its source");
        Trial { source, target, turn: 0 }
    }

    /// The method with the least median time; of those that gain less than `gain_min` on memcpy none.
    ///
    /// `size_bytes` is from 1 to the length of the buffers.
    pub(super) fn fastest(&mut self, size_bytes: usize, bytes: Bytes, gain_min: f64) -> CopyMethod {
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

    /// The mean time of some copies: of `round_bytes` together, but one at least.
    #[inline]
    pub(super) fn seconds_each(
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
        assert!(methods.warm_probe_max > Duration::ZERO);
        assert_eq!(methods.warm[..2], methods.cold[..2], "small copies go by their size");
        // 16 MiB do not fit: as 1 MiB.
        assert_eq!(methods.method(16 << 20, true), methods.method(1 << 20, true));
        let tiny = CopyMethods::calibrate(&[1; 100], &mut [0; 100]);
        assert_eq!(tiny, CopyMethods::only(CopyMethod::Memcpy));
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
