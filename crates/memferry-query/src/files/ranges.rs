//! Byte ranges: which to merge into one request.

use std::ops::Range;

/// When to merge ranges.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Merging {
    /// Largest gap between two ranges of one request.
    pub(crate) gap_bytes: u64,
    /// Largest merged request. A longer input stays whole.
    pub(crate) request_bytes_max: u64,
    /// Inputs of this size are requests of their own.
    pub(crate) alone_bytes: u64,
}

impl Merging {
    /// Merges near ranges. The result is sorted; each input that is not empty lies in exactly one range of it.
    pub(crate) fn merge(&self, mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
        ranges.retain(|range| !range.is_empty());
        ranges.sort_unstable_by_key(|range| (range.start, range.end));
        let is_alone = |range: &Range<u64>| range.end - range.start >= self.alone_bytes;
        let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        let mut last_is_alone = false;
        for range in ranges {
            if let Some(last) = merged.last_mut() {
                let end = last.end.max(range.end);
                let is_near = range.start <= last.end.saturating_add(self.gap_bytes)
                    && end - last.start <= self.request_bytes_max
                    && !(last_is_alone || is_alone(&range));
                if range.start < last.end || is_near {
                    last.end = end;
                    continue;
                }
            }
            last_is_alone = is_alone(&range);
            merged.push(range);
        }
        merged
    }
}

// A list of one range is meant.
#[cfg(test)]
#[expect(clippy::single_range_in_vec_init)]
mod tests {
    use std::ops::Range;

    use super::Merging;

    fn merge(ranges: Vec<Range<u64>>, gap_bytes: u64, request_bytes_max: u64) -> Vec<Range<u64>> {
        Merging { gap_bytes, request_bytes_max, alone_bytes: 40 }.merge(ranges)
    }

    #[test]
    fn merges_up_to_the_gap_and_the_size() {
        assert_eq!(merge(vec![20..30, 0..10], 10, 100), [0..30]);
        assert_eq!(merge(vec![21..30, 0..10], 10, 100), [0..10, 21..30]);
        assert_eq!(merge(vec![0..10, 10..20, 20..30], 0, 20), [0..20, 20..30]);
        assert_eq!(merge(vec![0..50, 50..60, 60..70, 70..110], 9, 200), [0..50, 50..70, 70..110]);
        // Overlapping ranges are merged whatever their size: each input lies in one range.
        assert_eq!(merge(vec![0..15, 10..30], 0, 20), [0..30]);
        assert_eq!(merge(vec![0..50, 40..60], 0, 20), [0..60]);
        assert_eq!(merge(vec![5..5, 0..10], 0, 20), [0..10]);
        assert!(merge(vec![], 0, 20).is_empty());
    }

    const ONLY_GAPS: Merging = Merging { gap_bytes: 0, request_bytes_max: u64::MAX, alone_bytes: u64::MAX };

    /// All lists of three ranges below 7, against an oracle of single bytes.
    #[test]
    fn merges_what_the_bytes_say() {
        let all: Vec<Range<u64>> = (0..7).flat_map(|start| (start..8).map(move |end| start..end)).collect();
        let lists = all.iter().flat_map(|a| all.iter().map(move |b| (a, b)));
        for (a, b) in lists {
            for c in &all {
                let ranges = vec![a.clone(), b.clone(), c.clone()];
                for gap_bytes in 0..4 {
                    let mut expected: Vec<Range<u64>> = vec![];
                    for byte in (0..8).filter(|byte| ranges.iter().any(|range| range.contains(byte))) {
                        match expected.last_mut() {
                            Some(last) if byte <= last.end + gap_bytes => last.end = byte + 1,
                            _ => expected.push(byte..byte + 1),
                        }
                    }
                    let merged = Merging { gap_bytes, ..ONLY_GAPS }.merge(ranges.clone());
                    assert_eq!(merged, expected, "{ranges:?}, gap {gap_bytes}");
                }
            }
        }
    }

    #[test]
    fn the_largest_offsets_do_not_overflow() {
        let merged = Merging { gap_bytes: u64::MAX, ..ONLY_GAPS }.merge(vec![u64::MAX - 1..u64::MAX, 0..1]);
        assert_eq!(merged, [0..u64::MAX]);
    }
}
