//! The memory of a calibration: arenas and a chain on each node.

use memferry::memory::HugePages;
use memferry::topology::{Machine, NodeId};

use super::{CalibrateError, SamplingPlan, ends};
use crate::memory::arena::{Arena, chain_bytes, fitting_bytes};
use crate::memory::chain::Chain;

/// Arenas and chains of all memories, allocated on first use and kept: allocation takes longer than the measurements.
pub(super) struct Arenas<'a> {
    machine: &'a Machine,
    /// Number of arenas for the node with the most CPUs.
    count: usize,
    wanted_bytes: usize,
    /// Size of a chain.
    chain_bytes: usize,
    of_memories: Vec<OfMemory>,
}

struct OfMemory {
    node: NodeId,
    arenas: Vec<Arena>,
    chain: Chain,
}

/// Size for the largest copy.
const ARENA_BYTES_MIN: usize = 16 << 20;

impl<'a> Arenas<'a> {
    pub(super) fn new(machine: &'a Machine, effort: SamplingPlan) -> Arenas<'a> {
        let (cpus, _) = ends(machine);
        let most = |figure: &dyn Fn(&[u32]) -> usize| {
            cpus.iter().map(|node| figure(&node.allowed_cpus)).max().unwrap_or(1)
        };
        let chain_bytes = if effort.is_quick { ARENA_BYTES_MIN } else { most(&chain_bytes) };
        Arenas {
            machine,
            count: most(&|cpus| cpus.len()),
            wanted_bytes: most(&|cpus| effort.arena_bytes(cpus)),
            chain_bytes,
            of_memories: Vec::new(),
        }
    }

    /// The arenas of a memory, one per CPU of any node, and its chain.
    ///
    /// # Errors
    /// [`CalibrateError::Memory`].
    pub(super) fn of(&mut self, memory: NodeId) -> Result<(&mut [Arena], &Chain), CalibrateError> {
        let found = self.of_memories.iter().position(|of| of.node == memory);
        let index = match found {
            Some(index) => index,
            None => {
                self.of_memories.push(self.make(memory)?);
                self.of_memories.len() - 1
            }
        };
        let OfMemory { arenas, chain, .. } = &mut self.of_memories[index];
        Ok((&mut arenas[..], &*chain))
    }

    fn make(&self, node: NodeId) -> Result<OfMemory, CalibrateError> {
        let free_bytes = self.machine.node(node)?.free_bytes;
        let size_bytes = self.arena_bytes(free_bytes);
        let arenas = Arena::several(self.machine, node, self.count, size_bytes, HugePages::Advised)?;
        // At most an eighth of the free bytes.
        let chain_bytes = fitting_bytes(self.chain_bytes, free_bytes, 4, ARENA_BYTES_MIN);
        let chain = Chain::new(self.machine, node, chain_bytes, HugePages::Advised, 1)?;
        Ok(OfMemory { node, arenas, chain })
    }

    /// Arenas of two regions each.
    fn arena_bytes(&self, free_bytes: Option<u64>) -> usize {
        fitting_bytes(self.wanted_bytes, free_bytes, 2 * self.count, ARENA_BYTES_MIN)
    }

    /// Size of the smallest arena.
    pub(super) fn bytes_min(&self) -> usize {
        let arenas = self.of_memories.iter().filter_map(|of| of.arenas.first());
        arenas.map(Arena::size_bytes).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arenas_leave_room_and_stay() {
        let machine = Machine::discover().unwrap();
        let mut arenas = Arenas::new(&machine, SamplingPlan::QUICK);
        let memory = ends(&machine).1[0].id;
        let (all, _) = arenas.of(memory).unwrap();
        let (begin, count) = (all[0].all().0.as_ptr(), all.len());
        assert_eq!(arenas.of(memory).unwrap().0[0].all().0.as_ptr(), begin, "not made again");
        assert_eq!((count, arenas.bytes_min()), (arenas.count, 16 << 20));

        let arenas =
            Arenas { count: 24, wanted_bytes: 64 << 20, ..Arenas::new(&machine, SamplingPlan::FULL) };
        assert_eq!(arenas.arena_bytes(None), 64 << 20);
        assert_eq!(arenas.arena_bytes(Some(4 << 30)), 42 << 20);
        assert_eq!(arenas.arena_bytes(Some(1 << 20)), ARENA_BYTES_MIN);
    }

    /// With many CPUs to a cache, an arena of one thread fits into it.
    #[test]
    fn the_chain_exceeds_the_caches() {
        let machine = Machine::discover().unwrap();
        let arenas = Arenas::new(&machine, SamplingPlan::FULL);
        let cpus = &ends(&machine).0[0].allowed_cpus;
        assert!(arenas.chain_bytes >= chain_bytes(cpus), "{}", arenas.chain_bytes);
    }
}
