//! A chain of pointers through all lines of a memory, in random order: the time of a step is the latency of a read.
//!
//! ```text
//! line 0 ─▶ line 7 ─▶ line 2 ─▶ ... ─▶ line 0      each line is read once before any is read again
//! ```
//!
//! Source: `lat_mem_rd` of L. McVoy, C. Staelin, "lmbench: portable tools for performance analysis" (1996).

use std::hint::black_box;

use memferry::memory::{HugePages, Mapping, MemoryError};
use memferry::topology::{Machine, NodeId};

use super::arena::options;
use super::kernels::LINE_BYTES;
use crate::harness::Random;

/// A line of the chain.
#[repr(C, align(64))]
pub(super) struct Line {
    /// Another line of the same chain.
    next: *const Line,
}
const _: () = assert!(size_of::<Line>() == LINE_BYTES);

/// A chain that visits each line of its memory before it returns to the first one.
///
/// The pointer of each line leads to a line of this memory: [`new`](Chain::new) writes them, no method changes or lends them
/// to be changed, and the memory does not move.
pub(crate) struct Chain {
    memory: Mapping,
}

/// Steps of an iteration of the loop, so that its counter does not matter. The peer in C has as many.
pub(super) const UNROLLED: usize = 16;

impl Chain {
    /// A chain in `size_bytes` of the memory of `node`; the seed decides the order.
    ///
    /// # Errors
    /// Those of [`Mapping::with`].
    ///
    /// # Panics
    /// With less than two lines, or 2^32 and more.
    pub(crate) fn new(
        machine: &Machine,
        node: NodeId,
        size_bytes: usize,
        huge_pages: HugePages,
        seed: u64,
    ) -> Result<Chain, MemoryError> {
        let mut memory = Mapping::with(machine, size_bytes, options(node, huge_pages))?;
        let lines_count = memory.len() / LINE_BYTES;
        let order = cycle(lines_count, &mut Random(seed));
        let first = memory.as_mut_ptr().cast::<Line>();
        for (line, next) in order.into_iter().enumerate() {
            let next = next as usize;
            assert!(line < lines_count && next < lines_count, "a line of the chain");
            // SAFETY: both lines lie within the mapping, which begins at a page and is owned exclusively here. The pointer
            // is the first field of a line; the other bytes stay those of the mapping, since padding would be undefined.
            unsafe { first.add(line).cast::<*const Line>().write(first.add(next)) };
        }
        Ok(Chain { memory })
    }

    /// Number of lines.
    pub(crate) fn lines_count(&self) -> usize {
        self.memory.len() / LINE_BYTES
    }

    /// The bytes of the chain.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory
    }

    /// Follows the chain from line `from` and returns the last line.
    ///
    /// # Panics
    /// If there is no line `from`.
    pub(crate) fn follow(&self, from: usize, steps: usize) -> usize {
        let mut line = self.address(from);
        for _ in 0..steps / UNROLLED {
            for _ in 0..UNROLLED {
                // SAFETY: `line` is a line of this chain: the first one by `address`, the others by the promise of the type.
                line = unsafe { (*line).next };
            }
        }
        for _ in 0..steps % UNROLLED {
            // SAFETY: as above.
            line = unsafe { (*line).next };
        }
        self.number(black_box(line))
    }

    /// The address of a line.
    pub(super) fn address(&self, line: usize) -> *const Line {
        assert!(line < self.lines_count(), "the chain has no line {line}");
        // SAFETY: the line lies within the mapping, as just checked.
        unsafe { self.memory.as_ptr().cast::<Line>().add(line) }
    }

    /// The number of the line at an address.
    pub(super) fn number(&self, address: *const Line) -> usize {
        let number = address.addr().wrapping_sub(self.memory.as_ptr().addr()) / LINE_BYTES;
        assert!(number < self.lines_count(), "a step has left the chain");
        number
    }
}

/// A random permutation of `0..count` that is a single cycle, as the successor of each number.
///
/// Source: S. Sattolo, "An algorithm to generate a random cyclic permutation", 1986.
fn cycle(count: usize, random: &mut Random) -> Vec<u32> {
    let limit = u32::try_from(count).expect("a chain has less than 2^32 lines");
    assert!(limit >= 2, "a chain needs two lines");
    let mut order: Vec<u32> = (0..limit).collect();
    for line in (1..count).rev() {
        order.swap(line, random.below(line));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(size_bytes: usize, seed: u64) -> Chain {
        let machine = Machine::discover().unwrap();
        let node = machine.nodes().iter().find(|node| node.has_memory() && node.is_allowed).unwrap().id;
        Chain::new(&machine, node, size_bytes, HugePages::AsSystem, seed).unwrap()
    }

    #[test]
    fn a_chain_goes_through_all_lines() {
        let chain = chain(64 << 10, 1);
        let lines = chain.lines_count();
        assert_eq!(lines, 1024);
        let mut seen = vec![false; lines];
        let mut line = 0;
        for _ in 0..lines {
            assert!(!std::mem::replace(&mut seen[line], true), "line {line} comes twice");
            line = chain.follow(line, 1);
        }
        assert_eq!(line, 0);
        // With and without a rest beside the unrolled steps.
        for steps in [lines, 3 * lines, 15, 16, 17, 100] {
            let by_one = (0..steps).fold(0, |line, _| chain.follow(line, 1));
            assert_eq!(chain.follow(0, steps), by_one, "{steps} steps");
        }
    }

    #[test]
    fn the_seed_decides_the_order() {
        let order = |seed| {
            let chain = chain(4096, seed);
            (0..64).map(|line| chain.follow(line, 1)).collect::<Vec<_>>()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        // Few steps lead to the next line, which the CPU would prefetch.
        let chain = chain(64 << 10, 1);
        let next_count = (0..1023).filter(|&line| chain.follow(line, 1) == line + 1).count();
        assert!(next_count < 20, "{next_count} of 1023");
    }

    #[test]
    #[should_panic(expected = "no line 64")]
    fn a_line_that_is_not_there() {
        chain(4096, 1).follow(64, 1);
    }
}
