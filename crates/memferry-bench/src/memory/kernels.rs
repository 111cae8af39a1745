//! Loops that read, write and modify memory that no cache holds.
//!
//! Vectors of 256 bits where the CPU has AVX2, chosen at run time: 512 bits were not faster (20.7 GB/s of one core instead
//! of 21.9, measured, AMD EPYC family 25 model 17), and neither were prefetches.

use std::hint::black_box;

/// Bytes of a cache line on every machine that memferry runs on.
pub(crate) const LINE_BYTES: usize = 64;
/// Two lines: one that is only read, and one that is modified.
const PAIR_BYTES: usize = 2 * LINE_BYTES;

/// Reads all bytes: the wrapping sum of their words. Zeros complete the last word.
pub(crate) fn read(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2, as just detected.
        return black_box(unsafe { x86::read(bytes) });
    }
    black_box(sum(bytes))
}

/// Writes all bytes, as programs do: by memset of the C library.
pub(crate) fn write(bytes: &mut [u8], value: u8) {
    bytes.fill(value);
    black_box(bytes);
}

/// Reads two lines for each one that it writes: of each pair of lines the first is read, and each word of the second
/// is incremented in place. Returns the sum of the words of the first lines. An incomplete pair at the end is left out.
///
/// In place, a line is read once and written once, so that the memory transfers what the program does.
pub(crate) fn mix(bytes: &mut [u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2, as just detected.
        return black_box(unsafe { x86::mix(bytes) });
    }
    black_box(mix_pairs(bytes))
}

fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    words.iter().fold(u64::from_ne_bytes(last), |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)))
}

fn mix_pairs(bytes: &mut [u8]) -> u64 {
    let (pairs, _) = bytes.as_chunks_mut::<PAIR_BYTES>();
    pairs.iter_mut().fold(0, |total, pair| {
        let (first, second) = pair.split_at_mut(LINE_BYTES);
        for word in second.as_chunks_mut::<8>().0 {
            *word = u64::from_ne_bytes(*word).wrapping_add(1).to_ne_bytes();
        }
        total.wrapping_add(sum(first))
    })
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi64, _mm256_loadu_si256, _mm256_set1_epi64x, _mm256_setzero_si256,
        _mm256_storeu_si256,
    };

    use super::{LINE_BYTES, PAIR_BYTES};

    const VECTOR_BYTES: usize = size_of::<__m256i>();
    /// Independent sums, so that no addition waits for the one before.
    const SUMS: usize = 8;
    const BLOCK_BYTES: usize = SUMS * VECTOR_BYTES;

    #[target_feature(enable = "avx2")]
    pub(super) fn read(bytes: &[u8]) -> u64 {
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        let mut sums = [_mm256_setzero_si256(); SUMS];
        for block in blocks {
            for (index, sum) in sums.iter_mut().enumerate() {
                *sum = _mm256_add_epi64(*sum, load(block, index));
            }
        }
        total(&sums).wrapping_add(super::sum(rest))
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn mix(bytes: &mut [u8]) -> u64 {
        let one = _mm256_set1_epi64x(1);
        let mut sums = [_mm256_setzero_si256(); LINE_BYTES / VECTOR_BYTES];
        for pair in bytes.as_chunks_mut::<PAIR_BYTES>().0 {
            for (index, sum) in sums.iter_mut().enumerate() {
                *sum = _mm256_add_epi64(*sum, load(pair, index));
                let second = index + LINE_BYTES / VECTOR_BYTES;
                let incremented = _mm256_add_epi64(load(pair, second), one);
                // SAFETY: the vector lies within the pair, which has four of them, and is not required to be aligned.
                unsafe { _mm256_storeu_si256(pair.as_mut_ptr().cast::<__m256i>().add(second), incremented) };
            }
        }
        total(&sums)
    }

    /// The vector `index` of a block.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn load<const N: usize>(block: &[u8; N], index: usize) -> __m256i {
        assert!((index + 1) * VECTOR_BYTES <= N, "a vector within the block");
        // SAFETY: the vector lies within the block, as just checked, and is not required to be aligned.
        unsafe { _mm256_loadu_si256(block.as_ptr().cast::<__m256i>().add(index)) }
    }

    #[target_feature(enable = "avx2")]
    fn total(sums: &[__m256i]) -> u64 {
        let sum = sums.iter().fold(_mm256_setzero_si256(), |total, sum| _mm256_add_epi64(total, *sum));
        let mut words = [0_u64; VECTOR_BYTES / size_of::<u64>()];
        // SAFETY: the words are as large as the vector, which is not required to be aligned.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast::<__m256i>(), sum) };
        words.iter().fold(0, |total, word| total.wrapping_add(*word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Random;

    fn random_bytes(count: usize) -> Vec<u8> {
        let mut random = Random(count as u64);
        (0..count).map(|_| random.next_u64() as u8).collect()
    }

    /// Around each size of word, line, pair and block, at each alignment of a word.
    #[test]
    fn all_bytes_are_read() {
        let bytes = random_bytes(2000);
        for from in 0..8 {
            for size in [0, 1, 7, 8, 9, 63, 64, 65, 255, 256, 257, 511, 512, 1000, 1991] {
                let part = &bytes[from..from + size];
                let naive = part.chunks(8).fold(0_u64, |sum, word| {
                    let word = word.iter().rev().fold(0_u64, |value, &byte| value << 8 | u64::from(byte));
                    sum.wrapping_add(word)
                });
                assert_eq!((read(part), sum(part)), (naive, naive), "{size} bytes from {from}");
            }
        }
    }

    #[test]
    fn every_second_line_is_modified() {
        for size in [0, 127, 128, 255, 256, 1000] {
            let before = random_bytes(size);
            let (mut bytes, mut portable) = (before.clone(), before.clone());
            let total = mix(&mut bytes);
            assert_eq!((mix_pairs(&mut portable), &portable), (total, &bytes), "{size}");
            let complete = size / PAIR_BYTES * PAIR_BYTES;
            let mut read_words = 0_u64;
            for (index, (word, old)) in bytes.chunks(8).zip(before.chunks(8)).enumerate() {
                let is_second = index * 8 < complete && index / 8 % 2 == 1;
                match is_second {
                    true => assert_eq!(sum(word), sum(old).wrapping_add(1), "word {index} of {size}"),
                    false => assert_eq!(word, old, "word {index} of {size}"),
                }
                if index * 8 < complete && !is_second {
                    read_words = read_words.wrapping_add(sum(old));
                }
            }
            assert_eq!(total, read_words, "{size}");
        }
    }

    #[test]
    fn all_bytes_are_written() {
        let mut bytes = random_bytes(1000);
        write(&mut bytes, 7);
        assert!(bytes.iter().all(|&byte| byte == 7));
    }
}
