//! A best-fit allocator of ranges that joins free neighbours.
//!
//! Free extents are indexed by start, to find neighbours, and by length, to find the smallest that fits. So allocation
//! and release cost a few tree operations, at any fragmentation. Among equal lengths the lowest start wins, which keeps
//! the far end of a range untouched as long as possible.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The free parts of `0..size`, in any unit.
#[derive(Debug)]
pub(super) struct Extents {
    /// Start to length. No two extents touch.
    by_start: BTreeMap<usize, usize>,
    /// The same extents as (length, start).
    by_length: BTreeSet<(usize, usize)>,
}

impl Extents {
    /// Extents with all of `0..size` free.
    pub(super) fn new(size: usize) -> Extents {
        let mut extents = Extents { by_start: BTreeMap::new(), by_length: BTreeSet::new() };
        if size > 0 {
            extents.insert(0..size);
        }
        extents
    }

    /// Takes a contiguous range of `length` > 0.
    pub(super) fn take(&mut self, length: usize) -> Option<Range<usize>> {
        debug_assert!(length > 0);
        let &(found, start) = self.by_length.range((length, 0)..).next()?;
        self.remove(start, found);
        if found > length {
            self.insert(start + length..start + found);
        }
        Some(start..start + length)
    }

    /// Returns a taken range.
    pub(super) fn give_back(&mut self, range: Range<usize>) {
        let Range { mut start, mut end } = range;
        if let Some((&before, &length)) = self.by_start.range(..start).next_back() {
            debug_assert!(before + length <= start, "given back twice");
            if before + length == start {
                self.remove(before, length);
                start = before;
            }
        }
        if let Some((&after, &length)) = self.by_start.range(start..).next() {
            debug_assert!(end <= after, "given back twice");
            if after == end {
                self.remove(after, length);
                end = after + length;
            }
        }
        self.insert(start..end);
    }

    fn insert(&mut self, range: Range<usize>) {
        self.by_start.insert(range.start, range.len());
        self.by_length.insert((range.len(), range.start));
    }

    fn remove(&mut self, start: usize, length: usize) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The extents of a map from units to whether they are free.
    fn model_extents(free: &[bool]) -> Vec<Range<usize>> {
        let mut extents: Vec<Range<usize>> = Vec::new();
        for start in (0..free.len()).filter(|&i| free[i]) {
            match extents.last_mut() {
                Some(last) if last.end == start => last.end += 1,
                _ => extents.push(start..start + 1),
            }
        }
        extents
    }

    proptest! {
        /// Compared with a map of units: ranges are the best fit, and free neighbours are joined.
        #[test]
        fn like_a_map_of_units(
            size in 0usize..80,
            steps in prop::collection::vec((any::<bool>(), 1usize..20), 0..80),
        ) {
            let mut extents = Extents::new(size);
            let mut free = vec![true; size];
            let mut taken = Vec::new();
            for (take, n) in steps {
                if take {
                    let fits = model_extents(&free).into_iter().filter(|extent| extent.len() >= n);
                    let best = fits.map(|extent| (extent.len(), extent.start)).min();
                    let range = extents.take(n);
                    prop_assert_eq!(range.clone(), best.map(|(_, start)| start..start + n));
                    if let Some(range) = range {
                        free[range.clone()].fill(false);
                        taken.push(range);
                    }
                } else if !taken.is_empty() {
                    let range: Range<usize> = taken.swap_remove(n % taken.len());
                    free[range.clone()].fill(true);
                    extents.give_back(range);
                }
                let now: Vec<_> =
                    extents.by_start.iter().map(|(&start, &length)| start..start + length).collect();
                prop_assert_eq!(now, model_extents(&free));
                prop_assert_eq!(extents.by_start.len(), extents.by_length.len());
            }
        }
    }
}
