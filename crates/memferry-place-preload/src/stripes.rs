//! Weights without the kernel: a range is cut into stripes, each on one node.
//!
//! The kernel's weights apply to all processes, and only root sets them. So weights of one process are a pattern of
//! ranges with a policy each:
//!
//! ```text
//! weights 3 and 1    |  node 0  |n 8|  node 0  |n 8|  …     a period: each node once, as long as its weight
//! ```
//!
//! A stripe is a mapping of the kernel (a VMA), and a process has 65,530 of them by default (`vm.max_map_count`). So
//! large ranges have longer periods. Stripes begin at multiples of 2 MiB, where huge pages begin, if the shortest is
//! that long.

use crate::sys::PAGE;

/// Most stripes of one range: a hundred ranges take less than half of the mappings of a process.
pub(crate) const STRIPES_MAX: usize = 256;
/// x86-64: a huge page.
const HUGE: usize = 2 << 20;

/// The stripes of a range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stripes<'a> {
    start: usize,
    end: usize,
    weights: &'a [(u32, u32)],
    sum: usize,
    granule: usize,
    periods: usize,
}

impl<'a> Stripes<'a> {
    /// The stripes of whole pages, at most `stripes_max` but at least one per node. No weight is 0.
    pub(crate) fn new(
        start: usize,
        end: usize,
        weights: &'a [(u32, u32)],
        stripes_max: usize,
    ) -> Stripes<'a> {
        let sum: usize = weights.iter().map(|&(_, weight)| weight as usize).sum();
        let least = weights.iter().map(|&(_, weight)| weight as usize).min().unwrap_or(1).max(1);
        let bytes = end - start;
        // The shortest period whose shortest stripe is one granule.
        let shortest = |granule: usize| (granule * sum).div_ceil(least);
        let granule = if bytes >= shortest(HUGE) { HUGE } else { PAGE };
        // One node has one stripe.
        let most = if weights.len() == 1 { 1 } else { (stripes_max / weights.len().max(1)).max(1) };
        let periods = (bytes / shortest(granule).max(1)).clamp(1, most);
        Stripes { start, end, weights, sum, granule, periods }
    }

    /// Start, end and node of each; without empty ones.
    pub(crate) fn iter(self) -> impl Iterator<Item = (usize, usize, u32)> {
        let nodes = self.weights.len();
        let count = self.periods * nodes;
        // The whole granule, so that stripes begin at multiples of it.
        let first = self.start / self.granule * self.granule;
        let mut next = first;
        (0..count).filter_map(move |index| {
            let (node, weight) = self.weights[index % nodes];
            let period = index / nodes;
            let bytes = self.share(first, weight, period + 1) - self.share(first, weight, period);
            let from = next.max(self.start);
            next += bytes;
            // The last one gets the rest: less than a granule per node.
            let to = if index + 1 == count { self.end } else { next.min(self.end) };
            (from < to).then_some((from, to, node))
        })
    }

    /// The bytes of a node in the first periods: whole granules of its exact share, so that errors do not add up.
    fn share(&self, first: usize, weight: u32, periods: usize) -> usize {
        let parts = self.sum as u128 * self.periods as u128;
        let bytes = (self.end - first) as u128 * u128::from(weight) * periods as u128 / parts;
        bytes as usize / self.granule * self.granule
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(stripes: Stripes<'_>, node: u32) -> usize {
        stripes.iter().filter(|stripe| stripe.2 == node).map(|stripe| stripe.1 - stripe.0).sum()
    }

    #[test]
    fn stripes_cover_the_range_and_follow_the_weights() {
        let sets: [&[(u32, u32)]; 5] = [
            &[(0, 1), (1, 1)],
            &[(0, 3), (8, 1)],
            &[(0, 1), (8, 255)],
            &[(0, 7), (1, 5), (2, 3), (9, 2)],
            &[(5, 9)],
        ];
        for weights in sets {
            for bytes in [PAGE, 3 * PAGE, 1 << 20, (1 << 20) + PAGE, 64 << 20, 1 << 30, 100 << 30, 7 << 40] {
                let start = 0x7000_0000_3000;
                let stripes = Stripes::new(start, start + bytes, weights, STRIPES_MAX);
                let mut at = start;
                for (from, to, _) in stripes.iter() {
                    assert!(from == at && to > from && from % PAGE == 0, "{weights:?} {bytes}");
                    at = to;
                }
                assert_eq!(at, start + bytes, "{weights:?} {bytes}");
                assert!(stripes.iter().count() <= STRIPES_MAX, "{weights:?} {bytes}");
                let sum: usize = weights.iter().map(|&(_, weight)| weight as usize).sum();
                for &(node, weight) in weights {
                    let wanted = (bytes as u128 * weight as u128 / sum as u128) as usize;
                    let found = bytes_of(stripes, node);
                    // The start of the first stripe is not a multiple, and the last one has the rest.
                    let error = (weights.len() + 1) * stripes.granule;
                    assert!(found.abs_diff(wanted) <= error, "{weights:?} {bytes}: {found} {wanted}");
                }
            }
        }
    }

    #[test]
    fn large_ranges_keep_whole_huge_pages() {
        let weights = [(0, 3), (1, 1)];
        let (start, bytes) = (0x7000_0000_0000 + PAGE, 64 << 20);
        let stripes: Vec<_> = Stripes::new(start, start + bytes, &weights, STRIPES_MAX).iter().collect();
        assert_eq!(stripes.len(), 16, "eight periods of 8 MiB");
        assert!(stripes[1..].iter().all(|stripe| stripe.0 % HUGE == 0), "{stripes:x?}");
        let few: Vec<_> = Stripes::new(start, start + bytes, &weights, 4).iter().collect();
        assert_eq!(few.len(), 4);
    }
}
