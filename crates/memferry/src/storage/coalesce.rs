//! Coalescing: neighbouring ranges become one read, if reading the gap is cheaper than a second read.

use std::ops::Range;

/// Default gap up to which two ranges are read as one: what a disk reads in the time that one more read costs it.
///
/// With 32 reads in flight, a virtio disk of 1.1 GB/s needs 12 us for a read besides its bytes, in which it reads 14 KB:
/// `docs/decisions/storage-engine.md`.
pub const COALESCE_GAP_BYTES: u64 = 16 << 10;

/// Joins ranges whose gaps have at most `gap_bytes`. Returns them ascending, without empty ones.
///
/// Overlapping and touching ranges are joined in any case. The input may have any order.
///
/// ```
/// use memferry::storage::coalesce;
///
/// assert_eq!(coalesce(&[90..100, 0..10, 14..20], 4), [0..20, 90..100]);
/// assert_eq!(coalesce(&[0..10, 14..20], 3), [0..10, 14..20]);
/// ```
pub fn coalesce(ranges: &[Range<u64>], gap_bytes: u64) -> Vec<Range<u64>> {
    let mut sorted: Vec<Range<u64>> = ranges.iter().filter(|range| !range.is_empty()).cloned().collect();
    sorted.sort_unstable_by_key(|range| (range.start, range.end));
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(gap_bytes) => {
                last.end = last.end.max(range.end)
            }
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against an oracle of single bytes.
        #[test]
        fn joins_what_the_bytes_say(
            ranges in proptest::collection::vec((0..200_u64, 0..30_u64), 0..12),
            gap_bytes in 0..20_u64,
        ) {
            let ranges: Vec<Range<u64>> = ranges.into_iter().map(|(start, len)| start..start + len).collect();
            let joined = coalesce(&ranges, gap_bytes);
            let wanted = |byte: u64| ranges.iter().any(|range| range.contains(&byte));
            for byte in (0..240).filter(|&byte| wanted(byte)) {
                prop_assert_eq!(joined.iter().filter(|range| range.contains(&byte)).count(), 1);
            }
            for range in &joined {
                prop_assert!(wanted(range.start) && wanted(range.end - 1), "no end lies in a gap");
                let mut gap = 0;
                for byte in range.clone() {
                    gap = if wanted(byte) { 0 } else { gap + 1 };
                    prop_assert!(gap <= gap_bytes);
                }
            }
            prop_assert!(joined.windows(2).all(|pair| pair[1].start - pair[0].end > gap_bytes));
        }
    }

    #[test]
    fn the_largest_offsets_do_not_overflow() {
        assert_eq!(coalesce(&[u64::MAX - 1..u64::MAX, 0..1], u64::MAX), std::slice::from_ref(&(0..u64::MAX)));
    }
}
