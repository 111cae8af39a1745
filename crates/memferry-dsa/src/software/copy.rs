//! Copies to one and to two targets.

use std::hint::black_box;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use super::{PIECE_BYTES, simd};

/// Copies `source` to `target`.
///
/// # Panics
/// If the lengths differ.
///
/// Source: DSA specification 8.3.4.
pub fn copy(source: &[u8], target: &mut [u8]) {
    target.copy_from_slice(source);
}

/// Copies `source` to both targets, reading it from memory once.
///
/// Unlike the device, this does not require equal low 12 bits of the targets' addresses. The first call with 16 KiB or
/// more measures the two methods, in some 0.2 ms.
///
/// # Panics
/// If the lengths differ.
///
/// Source: DSA specification 8.3.10.
pub fn dualcast(source: &[u8], target_1: &mut [u8], target_2: &mut [u8]) {
    assert!(
        source.len() == target_1.len() && source.len() == target_2.len(),
        "source and targets differ in length"
    );
    match simd::Avx2::detect() {
        Some(avx2) if source.len() < PIECE_BYTES || vectors_are_faster(avx2) => {
            simd::dualcast(avx2, source, target_1, target_2);
        }
        _ => dualcast_by_pieces(source, target_1, target_2),
    }
}

/// Copies in pieces that stay in the first-level cache.
fn dualcast_by_pieces(source: &[u8], target_1: &mut [u8], target_2: &mut [u8]) {
    let targets = target_1.chunks_mut(PIECE_BYTES).zip(target_2.chunks_mut(PIECE_BYTES));
    for (source, (target_1, target_2)) in source.chunks(PIECE_BYTES).zip(targets) {
        target_1.copy_from_slice(source);
        target_2.copy_from_slice(source);
    }
}

/// Whether vectors are faster than memcpy of pieces on this CPU, by a measurement of the first call. The C library copies
/// pieces by the string instruction: the fastest method of most CPUs, and slower than vectors by factors on an AMD Zen 3.
fn vectors_are_faster(avx2: simd::Avx2) -> bool {
    /// 0 before the measurement, then 1 or 2. Two threads may both measure. Not a lock, which a fork could leave locked.
    static ANSWER: AtomicU8 = AtomicU8::new(0);
    const BYTES: usize = 256 << 10;
    const ROUNDS: usize = 5;

    match ANSWER.load(Ordering::Relaxed) {
        0 => {
            // Written, so that their pages are present.
            let (source, mut target_1, mut target_2) = (vec![1; BYTES], vec![2; BYTES], vec![3; BYTES]);
            let mut shortest = [Duration::MAX; 2];
            for _ in 0..ROUNDS {
                for (method, shortest) in shortest.iter_mut().enumerate() {
                    let begin = Instant::now();
                    match method {
                        0 => simd::dualcast(avx2, black_box(&source), &mut target_1, &mut target_2),
                        _ => dualcast_by_pieces(black_box(&source), &mut target_1, &mut target_2),
                    }
                    *shortest = begin.elapsed().min(*shortest);
                    black_box((&mut target_1, &mut target_2));
                }
            }
            let is_faster = shortest[0] < shortest[1];
            ANSWER.store(1 + u8::from(is_faster), Ordering::Relaxed);
            is_faster
        }
        answer => answer == 2,
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn both_methods_copy_the_same() {
        let source: Vec<u8> = (0..PIECE_BYTES + 100).map(|at| (at * 7) as u8).collect();
        let blank = vec![0; source.len()];
        let mut targets = [blank.clone(), blank.clone(), blank.clone(), blank];
        let [a, b, c, d] = &mut targets;
        dualcast_by_pieces(&source, a, b);
        match simd::Avx2::detect() {
            Some(avx2) => simd::dualcast(avx2, &source, c, d),
            None => dualcast(&source, c, d),
        }
        assert!(targets.iter().all(|target| *target == source));
    }
}
