//! Byte ranges: which to merge into one request.

use std::ops::Range;

/// Merges ranges whose gaps are at most `gap_bytes`, into ranges of at most `bytes_max` (a longer input stays whole).
///
/// The result is sorted; each input lies in exactly one range of it.
pub(crate) fn merge(mut ranges: Vec<Range<u64>>, gap_bytes: u64, bytes_max: u64) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        if let Some(last) = merged.last_mut() {
            let end = last.end.max(range.end);
            let overlaps = range.start < last.end;
            let near = range.start <= last.end.saturating_add(gap_bytes) && end - last.start <= bytes_max;
            if overlaps || near {
                last.end = end;
                continue;
            }
        }
        merged.push(range);
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::merge;

    #[test]
    fn merges_up_to_the_gap_and_the_size() {
        assert_eq!(merge(vec![20..30, 0..10], 10, 100), [0..30]);
        assert_eq!(merge(vec![21..30, 0..10], 10, 100), [0..10, 21..30]);
        assert_eq!(merge(vec![0..10, 10..20, 20..30], 0, 20), [0..20, 20..30]);
        assert_eq!(merge(vec![0..50, 50..60], 0, 20), [0..50, 50..60]);
        // Overlapping ranges are merged whatever their size: each input lies in one range.
        assert_eq!(merge(vec![0..15, 10..30], 0, 20), [0..30]);
        assert_eq!(merge(vec![5..5, 0..10], 0, 20), [0..10]);
        assert!(merge(vec![], 0, 20).is_empty());
    }
}
