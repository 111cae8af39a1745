//! A cache server that answers requests for values of very different sizes: CacheLib under CacheBench.
//!
//! A get finds a value by its key and copies it to the answer. A set copies a new value over the old one. Values of at least
//! 8 KiB are copied by the device, and the core waits for it, as the publication's library does with calls of memcpy.
//!
//! Source: Kuper et al. (2024), appendix B and figure 19.

use std::collections::HashMap;
use std::f64::consts::LN_2;

use super::host::check;
use super::{CaseError, Host, Samples};
use crate::harness::Random;

/// Values below this are copied by the core: "we offload any memcpy()s above this threshold", 8 KB.
pub(super) const OFFLOAD_BYTES_MIN: usize = 8 << 10;
/// The work for a request beside its copy. Assumed: two cache misses, to the index and to the value.
const LOOKUP_NS: f64 = 160.0;
/// Every so many requests one is a set.
const SET_EVERY: usize = 10;

/// The sizes of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// All alike.
    Equal(usize),
    /// 4.8 % are of 8 KiB to 1 MiB, as the publication counts calls of memcpy. The others are of 64 bytes to 1 KiB. Within both ranges
    /// each doubling is as frequent: the sizes are assumed.
    Published,
}

/// Part of the values of at least 8 KiB: "around 4.8%".
const LARGE_PART: f64 = 0.048;
/// Least size of large and of small values, and how often they double up to the largest.
const LARGE: (f64, f64) = (OFFLOAD_BYTES_MIN as f64, 7.0);
const SMALL: (f64, f64) = (64.0, 4.0);

impl Mix {
    fn draw(self, random: &mut Random) -> usize {
        let (least, doublings) = match self {
            Mix::Equal(bytes) => return bytes,
            Mix::Published if random.unit() < LARGE_PART => LARGE,
            Mix::Published => SMALL,
        };
        (least * (random.unit() * doublings).exp2()) as usize
    }

    /// The mean size of a large value of the published mix, and the work of a core beside its copy in nanoseconds: lookups, and
    /// the small values for each large one. `copy_ns`: a copy by a core.
    pub(super) fn large_copy(copy_ns: impl Fn(f64) -> f64) -> (f64, f64) {
        let mean = |(least, doublings): (f64, f64)| least * (doublings.exp2() - 1.0) / (doublings * LN_2);
        let small_count = (1.0 - LARGE_PART) / LARGE_PART;
        (mean(LARGE), LOOKUP_NS + small_count * (LOOKUP_NS + copy_ns(mean(SMALL))))
    }
}

/// Latencies of gets and of sets.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Of gets.
    pub gets: Samples,
    /// Of sets.
    pub sets: Samples,
}

/// The bytes of a value, which say whose it is.
fn content(key: u64, version: u64) -> [u8; 8] {
    ((key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version).to_le_bytes()
}

fn write(value: &mut [u8], key: u64, version: u64) {
    let bytes = content(key, version);
    value.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&bytes[..chunk.len()]));
}

fn is_written(value: &[u8], key: u64, version: u64) -> bool {
    let bytes = content(key, version);
    value.chunks(8).all(|chunk| *chunk == bytes[..chunk.len()])
}

/// Values one after the other, and where they are.
struct Values {
    bytes: Vec<u8>,
    /// Offset, length and version by key.
    index: HashMap<u64, (usize, usize, u64)>,
}

impl Values {
    fn new(mix: Mix, cache_bytes: usize, random: &mut Random) -> Values {
        let mut values = Values { bytes: Vec::new(), index: HashMap::new() };
        while values.bytes.len() < cache_bytes {
            let (key, offset, len) = (values.index.len() as u64, values.bytes.len(), mix.draw(random));
            values.bytes.resize(offset + len, 0);
            write(&mut values.bytes[offset..], key, 0);
            values.index.insert(key, (offset, len, 0));
        }
        values
    }
}

/// Answers so many requests from a cache of about `cache_bytes`, by keys that are equally frequent.
///
/// # Errors
/// [`CaseError`], also if an answer has wrong bytes.
pub fn serve(
    host: &Host,
    mix: Mix,
    cache_bytes: usize,
    requests: usize,
    seed: u64,
) -> Result<Latencies, CaseError> {
    let mut random = Random(seed);
    let mut values = Values::new(mix, cache_bytes, &mut random);
    let longest = values.index.values().map(|(_, len, _)| *len).max().unwrap_or(0);
    let (mut answer, mut new) = (vec![0; longest], vec![0; longest]);
    let mut latencies = Latencies::default();
    for request in 1..=requests {
        let key = random.below(values.index.len()) as u64;
        if request % SET_EVERY == 0 {
            let version = request as u64;
            let len = values.index[&key].1;
            write(&mut new[..len], key, version);
            host.sample(&mut latencies.sets, 1, || -> Result<(), CaseError> {
                let index = &mut values.index;
                let found = host.work(LOOKUP_NS, move || index.get_mut(&key));
                let Some((offset, len, current)) = found else { return Ok(()) };
                host.copy_from(OFFLOAD_BYTES_MIN, &new[..*len], &mut values.bytes[*offset..][..*len])?;
                *current = version;
                Ok(())
            })?;
            let (offset, len, current) = values.index[&key];
            let is_right = current == version && is_written(&values.bytes[offset..][..len], key, version);
            check("cache", is_right, || format!("the value of {key} is not the one that was set"))?;
        } else {
            let found =
                host.sample(&mut latencies.gets, 1, || -> Result<Option<(usize, u64)>, CaseError> {
                    let found = host.work(LOOKUP_NS, || values.index.get(&key));
                    let Some(&(offset, len, version)) = found else { return Ok(None) };
                    host.copy_from(OFFLOAD_BYTES_MIN, &values.bytes[offset..][..len], &mut answer[..len])?;
                    Ok(Some((len, version)))
                })?;
            let is_right = found.is_some_and(|(len, version)| is_written(&answer[..len], key, version));
            check("cache", is_right, || format!("the answer for {key} has other bytes"))?;
        }
    }
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The publication prints 96.4 % of the bytes in 4.8 % of the copies.
    #[test]
    fn large_values_have_nearly_all_bytes() {
        let mut random = Random(3);
        let sizes: Vec<usize> = (0..1_000_000).map(|_| Mix::Published.draw(&mut random)).collect();
        let large: Vec<usize> = sizes.iter().copied().filter(|&bytes| bytes >= OFFLOAD_BYTES_MIN).collect();
        let count = large.len() as f64 / sizes.len() as f64;
        assert!((count / 0.048 - 1.0).abs() < 0.02, "{count}");
        let bytes = large.iter().sum::<usize>() as f64 / sizes.iter().sum::<usize>() as f64;
        assert!((bytes - 0.964).abs() < 0.01, "{bytes}");
        assert!(sizes.iter().all(|bytes| (64..=1 << 20).contains(bytes)));
        let mean = large.iter().sum::<usize>() as f64 / large.len() as f64;
        assert!((Mix::large_copy(|_| 0.0).0 / mean - 1.0).abs() < 0.02, "{mean}");
    }
}
