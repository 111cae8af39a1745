//! Loops that read, write and modify memory that no cache holds.
//!
//! No width of vectors is the fastest on all CPUs. With 512 bits instead of 256, one core of an AMD EPYC of family 25
//! model 17 reads 3 % less; on two cores of one of family 26 model 2, a loop with 512 bits in C read 15 % more than ours with 256
//! (measured). So the width is chosen at run time, by a measurement. Prefetches gained nothing on the former.

use std::hint::black_box;
use std::time::Instant;

use super::threads::undisturbed;

/// Bytes of a cache line on every machine that memferry runs on.
pub(crate) const LINE_BYTES: usize = 64;
/// Two lines: one that is only read, and one that is modified.
const PAIR_BYTES: usize = 2 * LINE_BYTES;

/// The loops with vectors of one width. A value exists only where the CPU has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loops(Vectors);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vectors {
    /// Of the compiler's choice, for any CPU.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Loops {
    /// Those of every CPU.
    pub(crate) fn portable() -> Loops {
        Loops(Vectors::Portable)
    }

    /// Those of this CPU.
    fn available() -> Vec<Loops> {
        let mut vectors = vec![Vectors::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            vectors.extend(is_x86_feature_detected!("avx2").then_some(Vectors::Avx2));
            vectors.extend(is_x86_feature_detected!("avx512f").then_some(Vectors::Avx512));
        }
        vectors.into_iter().map(Loops).collect()
    }

    /// Those that read `bytes` in the least time, in turns.
    pub(crate) fn fastest(bytes: &[u8]) -> Loops {
        const ROUNDS: usize = 3;
        let mut times: Vec<(Loops, Vec<f64>)> =
            Loops::available().into_iter().map(|loops| (loops, Vec::new())).collect();
        for _ in 0..ROUNDS {
            for (loops, samples) in &mut times {
                let begin = Instant::now();
                loops.read(bytes);
                samples.push(begin.elapsed().as_secs_f64());
            }
        }
        let fastest =
            times.iter().min_by(|(_, one), (_, other)| undisturbed(one).total_cmp(&undisturbed(other)));
        fastest.expect("the portable loops are always there").0
    }

    /// Bits of a vector; `None`: the compiler has chosen them.
    pub(crate) fn vector_bits(self) -> Option<usize> {
        match self.0 {
            Vectors::Portable => None,
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2 => Some(256),
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512 => Some(512),
        }
    }

    /// Reads all bytes: the wrapping sum of their words. Zeros complete the last word.
    pub(crate) fn read(self, bytes: &[u8]) -> u64 {
        black_box(match self.0 {
            Vectors::Portable => sum(bytes),
            // SAFETY: these loops exist only on a CPU with AVX2.
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2 => unsafe { avx2::read(bytes) },
            // SAFETY: these loops exist only on a CPU with AVX-512F.
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512 => unsafe { avx512::read(bytes) },
        })
    }

    /// Reads two lines for each one that it writes: of each pair of lines the first is read, and each word of the second
    /// is incremented in place. Returns the sum of the words of the first lines. An incomplete pair at the end is left out.
    ///
    /// In place, a line is read once and written once, so that the memory transfers what the program does.
    pub(crate) fn mix(self, bytes: &mut [u8]) -> u64 {
        black_box(match self.0 {
            Vectors::Portable => mix_pairs(bytes),
            // SAFETY: these loops exist only on a CPU with AVX2.
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2 => unsafe { avx2::mix(bytes) },
            // SAFETY: these loops exist only on a CPU with AVX-512F.
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512 => unsafe { avx512::mix(bytes) },
        })
    }
}

/// Writes all bytes, as programs do: by memset of the C library.
pub(crate) fn write(bytes: &mut [u8], value: u8) {
    bytes.fill(value);
    black_box(bytes);
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

/// The loops with one kind of vectors.
#[cfg(target_arch = "x86_64")]
macro_rules! loops {
    ($name:ident, $feature:literal, $sums:literal, $vector:ident, $add:ident, $load:ident, $store:ident, $set:ident) => {
        mod $name {
            use std::arch::x86_64::{$add, $load, $set, $store, $vector};

            use super::{LINE_BYTES, PAIR_BYTES};

            const VECTOR_BYTES: usize = size_of::<$vector>();
            /// Vectors of a line.
            const OF_LINE: usize = LINE_BYTES / VECTOR_BYTES;
            /// Independent sums, so that no addition waits for the one before.
            const SUMS: usize = $sums;

            #[target_feature(enable = $feature)]
            pub(super) fn read(bytes: &[u8]) -> u64 {
                let (blocks, rest) = bytes.as_chunks::<{ SUMS * VECTOR_BYTES }>();
                let mut sums = [$set(0); SUMS];
                for block in blocks {
                    for (sum, vector) in sums.iter_mut().zip(block.as_chunks().0) {
                        *sum = $add(*sum, load(vector));
                    }
                }
                total(&sums).wrapping_add(super::sum(rest))
            }

            #[target_feature(enable = $feature)]
            pub(super) fn mix(bytes: &mut [u8]) -> u64 {
                let one = $set(1);
                let mut sums = [$set(0); OF_LINE];
                for pair in bytes.as_chunks_mut::<PAIR_BYTES>().0 {
                    let (first, second) = pair.split_at_mut(LINE_BYTES);
                    for (sum, vector) in sums.iter_mut().zip(first.as_chunks().0) {
                        *sum = $add(*sum, load(vector));
                    }
                    for vector in second.as_chunks_mut().0 {
                        store(vector, $add(load(vector), one));
                    }
                }
                total(&sums)
            }

            #[target_feature(enable = $feature)]
            #[inline]
            fn load(vector: &[u8; VECTOR_BYTES]) -> $vector {
                // SAFETY: the bytes are as many as the vector's, which is not required to be aligned.
                unsafe { $load(vector.as_ptr().cast()) }
            }

            #[target_feature(enable = $feature)]
            #[inline]
            fn store(vector: &mut [u8; VECTOR_BYTES], value: $vector) {
                // SAFETY: as in `load`.
                unsafe { $store(vector.as_mut_ptr().cast(), value) }
            }

            #[target_feature(enable = $feature)]
            fn total(sums: &[$vector]) -> u64 {
                let sum = sums.iter().fold($set(0), |total, sum| $add(total, *sum));
                let mut bytes = [0; VECTOR_BYTES];
                store(&mut bytes, sum);
                super::sum(&bytes)
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
loops!(
    avx2,
    "avx2",
    8,
    __m256i,
    _mm256_add_epi64,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    _mm256_set1_epi64x
);
#[cfg(target_arch = "x86_64")]
loops!(
    avx512,
    "avx512f",
    4,
    __m512i,
    _mm512_add_epi64,
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_set1_epi64
);

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
                for loops in Loops::available() {
                    assert_eq!(loops.read(part), naive, "{size} bytes from {from}, {loops:?}");
                }
            }
        }
    }

    #[test]
    fn every_second_line_is_modified() {
        let sizes = [0, 127, 128, 255, 256, 1000];
        for (loops, size) in Loops::available().into_iter().flat_map(|loops| sizes.map(|size| (loops, size)))
        {
            let before = random_bytes(size);
            let mut bytes = before.clone();
            let total = loops.mix(&mut bytes);
            let complete = size / PAIR_BYTES * PAIR_BYTES;
            let mut read_words = 0_u64;
            for (index, (word, old)) in bytes.chunks(8).zip(before.chunks(8)).enumerate() {
                let is_second = index * 8 < complete && index / 8 % 2 == 1;
                match is_second {
                    true => {
                        assert_eq!(sum(word), sum(old).wrapping_add(1), "word {index} of {size}, {loops:?}")
                    }
                    false => assert_eq!(word, old, "word {index} of {size}, {loops:?}"),
                }
                if index * 8 < complete && !is_second {
                    read_words = read_words.wrapping_add(sum(old));
                }
            }
            assert_eq!(total, read_words, "{size}, {loops:?}");
        }
    }

    #[test]
    fn all_bytes_are_written() {
        let mut bytes = random_bytes(1000);
        write(&mut bytes, 7);
        assert!(bytes.iter().all(|&byte| byte == 7));
    }
}
