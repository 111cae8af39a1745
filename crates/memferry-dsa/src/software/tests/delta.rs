//! Creating and applying delta records.

use proptest::prelude::*;

use super::super::delta::{CHUNK, apply_portable, create_portable};
use super::super::{DELTA_BYTES_MAX, Delta, DeltaError, ENTRY_BYTES, apply_delta, create_delta, simd};
use super::{at_skew, pattern};

/// Methods for an operation on a target, with their names.
type Ways<'a, T> = Vec<(&'static str, Box<dyn Fn(&mut [u8]) -> T + 'a>)>;

/// The record as the specification describes it.
fn create_naive(old: &[u8], new: &[u8], size_max: usize) -> (Delta, Vec<u8>) {
    let mut record = Vec::new();
    for (offset, (old, new)) in old.chunks(8).zip(new.chunks(8)).enumerate() {
        if old != new {
            if record.len() + ENTRY_BYTES > size_max {
                let overflow = Delta::Overflow { size_bytes: record.len(), bytes_compared: offset * 8 };
                return (overflow, record);
            }
            record.extend(u16::try_from(offset).unwrap().to_le_bytes());
            record.extend(new);
        }
    }
    match record.len() {
        0 => (Delta::Equal, record),
        size_bytes => (Delta::Complete { size_bytes }, record),
    }
}

fn apply_naive(record: &[u8], target: &mut [u8]) -> Result<(), DeltaError> {
    let mut last = None;
    for (at, entry) in record.chunks(ENTRY_BYTES).enumerate() {
        let offset = usize::from(u16::from_le_bytes([entry[0], entry[1]]));
        let applied_bytes = at * ENTRY_BYTES;
        if last.is_some_and(|last| offset < last) {
            return Err(DeltaError::Descending { applied_bytes });
        }
        if offset * 8 >= target.len() {
            return Err(DeltaError::OutOfRange { applied_bytes });
        }
        target[offset * 8..][..8].copy_from_slice(&entry[2..]);
        last = Some(offset);
    }
    Ok(())
}

/// Creates a record with every method, compares it with the naive one, and applies it.
fn check(old: &[u8], new: &[u8], size_max: usize, skew: usize) {
    let (expected, record) = create_naive(old, new, size_max);
    let words = (old.as_chunks().0, new.as_chunks().0);
    let mut ways: Ways<'_, Delta> = vec![
        ("public", Box::new(|delta| create_delta(old, new, delta))),
        ("portable", Box::new(|delta| create_portable(words.0, words.1, delta))),
    ];
    if let Some(avx2) = simd::Avx2::detect() {
        ways.push(("AVX2", Box::new(move |delta| simd::create_delta(avx2, words.0, words.1, delta))));
    }
    if let Some(avx512) = simd::Avx512::detect() {
        ways.push((
            "AVX-512",
            Box::new(move |delta| simd::create_delta_512(avx512, words.0, words.1, delta)),
        ));
    }
    for (name, create) in ways {
        let mut outcome = None;
        let delta = at_skew(&vec![0; size_max], skew, |delta| outcome = Some(create(delta)));
        assert_eq!(outcome, Some(expected), "{name}");
        assert!(delta[..record.len()] == record, "{name}: the records differ");
    }

    // The part that the record describes is new, the rest is old.
    let described = match expected {
        Delta::Overflow { bytes_compared, .. } => bytes_compared,
        _ => new.len(),
    };
    let mut now = new[..described].to_vec();
    now.extend(&old[described..]);
    assert!(apply_all_ways(&record, old, skew) == (Ok(()), now), "applied");
}

/// Applies a record with every method and compares the results with the naive one.
fn apply_all_ways(record: &[u8], target: &[u8], skew: usize) -> (Result<(), DeltaError>, Vec<u8>) {
    let mut naive = target.to_vec();
    let expected = apply_naive(record, &mut naive);
    let entries = record.as_chunks().0;
    let mut ways: Ways<'_, Result<(), DeltaError>> = vec![
        ("public", Box::new(|target| apply_delta(record, target))),
        ("portable", Box::new(|target| apply_portable(entries, target.as_chunks_mut().0))),
    ];
    if let Some(avx2) = simd::Avx2::detect() {
        ways.push((
            "AVX2",
            Box::new(move |target| simd::apply_delta(avx2, entries, target.as_chunks_mut().0)),
        ));
    }
    for (name, apply) in ways {
        let mut outcome = None;
        let now = at_skew(target, skew, |target| outcome = Some(apply(target)));
        assert_eq!(outcome, Some(expected), "{name}");
        assert!(now == naive, "{name}: the targets differ");
    }
    (expected, naive)
}

#[test]
fn the_example() {
    let old = [0; 64];
    let mut new = old;
    (new[8], new[63]) = (1, 0xff);
    let mut delta = [0; 80];
    assert_eq!(create_delta(&old, &new, &mut delta), Delta::Complete { size_bytes: 20 });
    assert_eq!(delta[..20], [1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0xff]);
}

#[test]
fn largest_regions() {
    let old = pattern(DELTA_BYTES_MAX, 1);
    let inverted: Vec<u8> = old.iter().map(|byte| !byte).collect();
    check(&old, &inverted, DELTA_BYTES_MAX / 8 * ENTRY_BYTES, 1);
    check(&old, &inverted, 300_000, 2);
    let mut new = old.clone();
    for at in [0, 1, 77_777, DELTA_BYTES_MAX - 1] {
        new[at] ^= 1;
    }
    check(&old, &new, 80, 3);
    check(&old, &old, 80, 4);
}

/// One difference at each position, and a run that ends at each position, in regions of a few blocks.
#[test]
fn every_place() {
    for words in [1, 2, 5, 6, 7, 31, 32, 33, 65, 100] {
        let old = pattern(words * 8, 2);
        for word in 0..words {
            let mut new = old.clone();
            new[word * 8 + word % 8] ^= 1;
            check(&old, &new, 80, word);
            new[..word * 8].iter_mut().for_each(|byte| *byte ^= 0x55);
            check(&old, &new, 2000, word);
            check(&old, &new, 2000.min(word * ENTRY_BYTES + 9), word);
        }
    }
}

/// Regular differences in regions around the sizes of vectors, blocks, chunks and pages, at starts that are not aligned to
/// words.
#[test]
fn every_pattern_at_every_size() {
    type Differs = fn(usize, usize) -> bool;
    let patterns: [(&str, Differs); 8] = [
        ("none", |_, _| false),
        ("first", |at, _| at == 0),
        ("last", |at, words| at == words - 1),
        ("sparse", |at, _| at % 97 == 31),
        ("alternating", |at, _| at % 2 == 1),
        ("all but few", |at, _| at % 41 != 5),
        ("all", |_, _| true),
        ("second half", |at, words| at >= words / 2),
    ];
    let sizes = [
        0,
        1,
        2,
        7,
        8,
        9,
        23,
        24,
        25,
        63,
        64,
        65,
        CHUNK - 1,
        CHUNK,
        CHUNK + 1,
        511,
        512,
        513,
        3 * CHUNK + 40,
    ];
    for words in sizes {
        for (name, differs) in patterns {
            for skew in [0, 1, 7, 13, 33] {
                let (old, new_skew) = (pattern(skew + words * 8, 5), 64 - skew);
                let mut new = [vec![0; new_skew], old[skew..].to_vec()].concat();
                for at in (0..words).filter(|at| differs(*at, words)) {
                    new[new_skew + at * 8 + at % 8] ^= 0x10;
                }
                println!("{words} words, {name}, at {skew}");
                check(&old[skew..], &new[new_skew..], words * ENTRY_BYTES, skew);
            }
        }
    }
}

/// A chunk in which all words differ, then one with a single differing or equal word at each position, for every alignment
/// in a cache line.
#[test]
fn every_place_of_a_dense_chunk() {
    let words = 2 * CHUNK + 50;
    let old = pattern(words * 8, 2);
    for word in 0..words {
        let mut new: Vec<u8> = old.iter().map(|byte| !byte).collect();
        new[word * 8..][..8].copy_from_slice(&old[word * 8..][..8]);
        let from = word % 8 * 8;
        check(&old[from..], &new[from..], words * ENTRY_BYTES, word);
        new[CHUNK * 8 + 64..].copy_from_slice(&old[CHUNK * 8 + 64..]);
        new[word * 8] ^= 1;
        check(&old[from..], &new[from..], words * ENTRY_BYTES, word);
    }
}

#[test]
fn every_room_for_a_full_record() {
    for words in [60, 2 * CHUNK + 20] {
        let old = pattern(words * 8, 3);
        let new: Vec<u8> = old.iter().map(|byte| !byte).collect();
        let all = words * ENTRY_BYTES;
        for size_max in (0..=620).chain((620..all).step_by(97)).chain(all.saturating_sub(620)..all + 20) {
            check(&old, &new, size_max, size_max);
        }
    }
}

/// Records that break a rule at each position, inside and between runs.
#[test]
fn bad_records() {
    let words = 120;
    let target = pattern(words * 8, 4);
    for (count, gap) in [(1usize, 1usize), (30, 1), (30, 3), (100, 1)] {
        let record: Vec<u8> =
            (0..count).flat_map(|at| [(at * gap) as u8, 0].into_iter().chain([at as u8 + 1; 8])).collect();
        assert_eq!(apply_all_ways(&record, &target, 5).0, Ok(()));
        for place in 0..count {
            for bad in [
                0,
                (place.saturating_sub(2) * gap) as u16,
                (place.saturating_sub(1) * gap) as u16,
                words as u16,
                0x100,
                u16::MAX,
            ] {
                let mut record = record.clone();
                record[place * ENTRY_BYTES..][..2].copy_from_slice(&bad.to_le_bytes());
                let (outcome, _) = apply_all_ways(&record, &target, place);
                let applied_bytes = place * ENTRY_BYTES;
                if usize::from(bad) >= words {
                    assert_eq!(outcome, Err(DeltaError::OutOfRange { applied_bytes }));
                } else if usize::from(bad) < place.saturating_sub(1) * gap {
                    assert_eq!(outcome, Err(DeltaError::Descending { applied_bytes }));
                } else {
                    assert_eq!(outcome, Ok(()), "equal to the offset before");
                }
            }
        }
    }
    // Two runs of a group each; the second begins inside the first, with its last word, and behind it.
    for (second, is_bad) in [(0, true), (20, true), (53, true), (54, false), (55, false), (56, false)] {
        let offsets = (30..55u8).chain(second..second + 25);
        let record: Vec<u8> = offsets.flat_map(|at| [at, 0].into_iter().chain([at; 8])).collect();
        let bad = Err(DeltaError::Descending { applied_bytes: 25 * ENTRY_BYTES });
        assert_eq!(apply_all_ways(&record, &target, 7).0, if is_bad { bad } else { Ok(()) });
    }
    // A run that exceeds the target in its middle.
    let record: Vec<u8> = (100..140u8).flat_map(|at| [at, 0].into_iter().chain([at; 8])).collect();
    let (outcome, _) = apply_all_ways(&record, &target, 6);
    assert_eq!(outcome, Err(DeltaError::OutOfRange { applied_bytes: 20 * ENTRY_BYTES }));
}

#[test]
#[should_panic(expected = "whole words")]
fn odd_regions() {
    create_delta(&[0; 12], &[0; 12], &mut [0; 80]);
}

#[test]
#[should_panic(expected = "whole entries")]
fn odd_records() {
    let _ = apply_delta(&[0; 12], &mut [0; 16]);
}

proptest! {
    #[test]
    fn records_like_the_specification(
        words in prop_oneof![0..300usize, 0..4 * CHUNK],
        // Each for a third of the region.
        densities in [0, 1, 2].map(|_| prop::sample::select(&[0, 1, 5, 30, 70, 99, 100][..])),
        choices in prop::collection::vec((0..100u32, any::<u64>()), 1..300),
        room in prop_oneof![Just(1.0), 0.0..1.0f64],
        skew in 0..64usize,
    ) {
        let old = pattern(words * 8, 7);
        let mut new = old.clone();
        let choices = choices.iter().cycle();
        for (at, (word, (percent, value))) in new.chunks_mut(8).zip(choices).enumerate() {
            if *percent < densities[at * 3 / words] {
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
        let from = skew.min(words) / 8 * 8;
        check(&old[from..], &new[from..], (room * (words * ENTRY_BYTES) as f64) as usize, skew);
    }

    #[test]
    fn any_records(
        entries in prop::collection::vec((0..5u16, any::<u64>()), 0..200),
        jumps in prop::collection::vec(any::<prop::sample::Index>(), 0..2),
        words in 0..300usize,
    ) {
        let mut offset = 0u16;
        let mut record = Vec::new();
        let jumps: Vec<usize> = jumps.iter().filter(|_| !entries.is_empty()).map(|jump| jump.index(entries.len())).collect();
        for (at, (step, value)) in entries.iter().enumerate() {
            // Mostly runs; sometimes an equal offset, or an entry too low or too high.
            let step = [0, 1, 1, 1, 2][usize::from(*step)];
            offset = if jumps.contains(&at) { *value as u16 } else { offset.wrapping_add(step) };
            record.extend(offset.to_le_bytes());
            record.extend(value.to_le_bytes());
        }
        let _ = apply_all_ways(&record, &pattern(words * 8, 8), words);
    }
}
