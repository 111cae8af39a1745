//! Tests of copy, dualcast, fill, compare and flush.

use proptest::prelude::*;

use super::super::copy::copy;
use super::super::{Flush, compare, compare_pattern, dualcast, fill, fill16, flush, simd};
use super::{SIZES, at_skew, pattern, size};

fn fill_naive(pattern: u128, size: usize) -> Vec<u8> {
    (0..size).map(|at| pattern.to_le_bytes()[at % 16]).collect()
}

const PATTERN: u128 = 0x1122_3344_5566_7788_99aa_bbcc_ddee_ff01;

#[test]
fn copies() {
    for (skew, size) in SIZES.into_iter().enumerate() {
        let source = pattern(size, 1);
        let blank = vec![0; size];
        assert_eq!(at_skew(&blank, skew, |target| copy(&source, target)), source);
        let mut second = Vec::new();
        let first = at_skew(&blank, skew, |target_1| {
            second = at_skew(&blank, 3 * skew + 1, |target_2| dualcast(&source, target_1, target_2));
        });
        assert_eq!((first, second), (source.clone(), source), "{size} bytes");
    }
}

/// Source and targets with different alignments.
#[test]
fn dualcasts_at_all_alignments() {
    let sizes = [0, 1, 7, 8, 31, 32, 33, 63, 64, 65, 95, 96, 97, 4095, 4096, 4097];
    for size in sizes {
        for skew in 0..64 {
            let source = pattern(skew + size, 6);
            let blank = vec![0; size];
            let mut second = Vec::new();
            let first = at_skew(&blank, skew * 7, |target_1| {
                second = at_skew(&blank, skew * 5, |target_2| dualcast(&source[skew..], target_1, target_2));
            });
            assert!(first == source[skew..], "{size} bytes at {skew}, first target");
            assert!(second == source[skew..], "{size} bytes at {skew}, second target");
        }
    }
}

#[test]
fn fills_at_all_alignments() {
    for size in SIZES {
        for skew in 0..64 {
            let told = format!("{size} bytes at {skew}");
            let blank = vec![0; size];
            let expected = fill_naive(PATTERN, size);
            assert!(at_skew(&blank, skew, |target| fill16(PATTERN, target)) == expected, "{told}");
            let portable = at_skew(&blank, skew, |target| super::super::fill::portable(PATTERN, target));
            assert!(portable == expected, "{told}, portable");
            if let Some(avx2) = simd::Avx2::detect() {
                let around = at_skew(&blank, skew, |target| simd::fill_around_caches(avx2, PATTERN, target));
                assert!(around == expected, "{told}, around the caches");
            }
            let word = PATTERN as u64;
            let expected = fill_naive(u128::from(word) << 64 | u128::from(word), size);
            assert!(at_skew(&blank, skew, |target| fill(word, target)) == expected, "{told}, 8 bytes");
        }
    }
}

/// A fill that bypasses the caches, through the public function.
#[test]
fn large_fill() {
    let mut target = vec![0; (33 << 20) + 5];
    fill(PATTERN as u64, &mut target[3..]);
    assert_eq!(target[..3], [0; 3]);
    let word = (PATTERN as u64).to_le_bytes();
    let (words, rest) = target[3..].as_chunks::<8>();
    assert!(words.iter().all(|found| *found == word));
    assert_eq!(rest, &word[..rest.len()]);
}

#[test]
fn compare_finds_each_place() {
    for size in SIZES {
        let first = pattern(size, 2);
        assert_eq!(compare(&first, &first.clone()), None, "{size} bytes");
        let step = 1 + size / 200;
        for place in (0..size).step_by(step).chain(size.checked_sub(1)) {
            let mut second = first.clone();
            second[place] ^= 0x80;
            assert_eq!(compare(&first, &second), Some(place), "{size} bytes");
            second[size - 1] ^= 1; // a later difference does not count
            if place < size - 1 {
                assert_eq!(compare(&first, &second), Some(place), "{size} bytes, two differences");
            }
        }
    }
}

#[test]
fn compare_pattern_finds_each_place() {
    let word = PATTERN as u64;
    for size in SIZES {
        let equal = fill_naive(u128::from(word) << 64 | u128::from(word), size);
        assert_eq!(compare_pattern(word, &equal), None, "{size} bytes");
        let step = 1 + size / 200;
        for place in (0..size).step_by(step).chain(size.checked_sub(1)) {
            let mut data = equal.clone();
            data[size - 1] ^= 1;
            data[place] ^= 0x40;
            at_skew(&data, place, |data| {
                assert_eq!(compare_pattern(word, data), Some(place), "{size} bytes");
                assert_eq!(
                    super::super::compare::portable(word, data),
                    Some(place),
                    "{size} bytes, portable"
                );
            });
        }
    }
}

proptest! {
    #[test]
    fn compare_like_a_loop(size in size(), differences in prop::collection::vec(any::<prop::sample::Index>(), 0..3), skew in 0..64usize) {
        let first = pattern(size, 3);
        let mut second = first.clone();
        for difference in differences.iter().filter(|_| size > 0) {
            let place = difference.index(size);
            second[place] = second[place].wrapping_add(1);
        }
        let expected = first.iter().zip(&second).position(|(first, second)| first != second);
        at_skew(&second, skew, |second| assert_eq!(compare(&first, second), expected));
    }

    #[test]
    fn fill_like_a_loop(size in size(), skew in 0..64usize, pattern in any::<u128>()) {
        let filled = at_skew(&vec![0; size], skew, |target| fill16(pattern, target));
        prop_assert_eq!(filled, fill_naive(pattern, size));
    }

    #[test]
    fn lines_like_a_search(start in 0..1000usize, size in 0..1000usize) {
        let touched = |line: &usize| size > 0 && *line < start + size && *line + 64 > start;
        let expected: Vec<usize> = (0..3000).step_by(64).filter(touched).collect();
        prop_assert_eq!(super::super::flush::lines(start, size).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn flushing_changes_nothing() {
    for size in SIZES {
        let mut data = pattern(size, 4);
        for how in [Flush::WriteBack, Flush::Invalidate] {
            data.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
            let before = data.clone();
            flush(&data, how);
            assert_eq!(data, before);
        }
    }
    flush(&[], Flush::Invalidate);
}

#[test]
#[should_panic(expected = "differ in length")]
fn dualcast_requires_equal_lengths() {
    dualcast(&[1, 2], &mut [0, 0], &mut [0]);
}

#[test]
#[should_panic(expected = "differ in length")]
fn compare_requires_equal_lengths() {
    compare(&[1, 2], &[1]);
}
