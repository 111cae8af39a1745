//! Memory that no cache holds.

use std::{fs, thread};

use memferry::internals::CopyMethod;
use memferry::memory::{Binding, Mapping};
use memferry::topology::{Machine, NodeId};

use super::{CalibrateError, SamplingPlan, ends, kernels};

/// Two regions of a node's memory, used in a cycle: the next bytes have not been used for long.
pub(super) struct Arena {
    source: Mapping,
    target: Mapping,
    at: usize,
}

impl Arena {
    /// Two regions of `size_bytes` with all pages present; the source may be a chain ([`kernels::chain`]).
    fn new(
        machine: &Machine,
        node: NodeId,
        size_bytes: usize,
        is_chain: bool,
    ) -> Result<Arena, CalibrateError> {
        let mapping = || Mapping::new(machine, size_bytes, Binding::Bind(node));
        let mut arena = Arena { source: mapping()?, target: mapping()?, at: 0 };
        // Pages that the kernel has just zeroed may still be in a cache.
        kernels::write(&mut arena.source, 1);
        kernels::write(&mut arena.target, 2);
        if is_chain {
            kernels::chain(&mut arena.source, 1);
        }
        Ok(arena)
    }

    /// The next `size_bytes` of both. Panics if the regions are smaller.
    pub(super) fn next(&mut self, size_bytes: usize) -> (&[u8], &mut [u8]) {
        if self.at + size_bytes > self.source.len() {
            self.at = 0;
        }
        let range = self.at..self.at + size_bytes;
        // The next range begins on a new cache line, like blocks of allocators.
        self.at = range.end.next_multiple_of(kernels::LINE_BYTES);
        (&self.source[range.clone()], &mut self.target[range])
    }

    pub(super) fn read(&mut self, size_bytes: usize) {
        kernels::read(self.next(size_bytes).0);
    }

    pub(super) fn write(&mut self, size_bytes: usize) {
        kernels::write(self.next(size_bytes).1, 3);
    }

    pub(super) fn copy(&mut self, method: CopyMethod, size_bytes: usize) {
        let (source, target) = self.next(size_bytes);
        method.copy(source, target);
    }

    /// Both regions.
    pub(super) fn all(&mut self) -> (&[u8], &mut [u8]) {
        (&self.source, &mut self.target)
    }

    /// The source, which never changes.
    pub(super) fn source(&self) -> &[u8] {
        &self.source
    }
}

/// Arenas of all memories, allocated on first use and kept: allocation takes longer than the measurements.
pub(super) struct Arenas<'a> {
    machine: &'a Machine,
    /// Number of arenas for the node with the most CPUs.
    count: usize,
    wanted_bytes: usize,
    of_memories: Vec<(NodeId, Vec<Arena>)>,
}

/// Size for the largest copy.
const ARENA_BYTES_MIN: usize = 16 << 20;

impl<'a> Arenas<'a> {
    pub(super) fn new(machine: &'a Machine, effort: SamplingPlan) -> Arenas<'a> {
        let (cpus, _) = ends(machine);
        let most = |figure: &dyn Fn(&[u32]) -> usize| {
            cpus.iter().map(|node| figure(&node.allowed_cpus)).max().unwrap_or(1)
        };
        Arenas {
            machine,
            count: most(&|cpus| cpus.len()),
            wanted_bytes: most(&|cpus| effort.arena_bytes(cpus)),
            of_memories: Vec::new(),
        }
    }

    /// The arenas of a memory, one per CPU of any node. The source of the first one is a chain.
    ///
    /// # Errors
    /// [`CalibrateError::Memory`].
    pub(super) fn of(&mut self, memory: NodeId) -> Result<&mut [Arena], CalibrateError> {
        let found = self.of_memories.iter().position(|(node, _)| *node == memory);
        let index = match found {
            Some(index) => index,
            None => {
                self.of_memories.push((memory, self.make(memory)?));
                self.of_memories.len() - 1
            }
        };
        Ok(&mut self.of_memories[index].1)
    }

    /// Allocates all arenas at the same time: one thread after another would dominate the time on large machines.
    fn make(&self, memory: NodeId) -> Result<Vec<Arena>, CalibrateError> {
        let size_bytes = self.arena_bytes(self.machine.node(memory)?.free_bytes);
        let make = |index| Arena::new(self.machine, memory, size_bytes, index == 0);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.count).map(|index| scope.spawn(move || make(index))).collect();
            threads.into_iter().map(|thread| thread.join().expect("making an arena does not panic")).collect()
        })
    }

    /// Arenas of two regions each; all arenas of a memory use at most half of its free bytes.
    fn arena_bytes(&self, free_bytes: Option<u64>) -> usize {
        let fitting = free_bytes.map_or(usize::MAX, |free| free as usize / 4 / self.count.max(1));
        self.wanted_bytes.min(fitting >> 20 << 20).max(ARENA_BYTES_MIN)
    }

    /// Size of the smallest arena.
    pub(super) fn bytes_min(&self) -> usize {
        let arenas = self.of_memories.iter().filter_map(|(_, arenas)| arenas.first());
        arenas.map(|arena| arena.source.len()).min().unwrap_or(0)
    }
}

/// Size of the largest cache of a CPU, if the kernel reports it.
pub(crate) fn cache_bytes(cpu: u32) -> Option<usize> {
    let caches = fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}/cache")).ok()?;
    let size = |cache: fs::DirEntry| {
        let text = fs::read_to_string(cache.path().join("size")).ok()?;
        let kib: usize = text.trim().strip_suffix('K')?.parse().ok()?;
        Some(kib << 10)
    };
    caches.flatten().filter_map(size).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arenas_leave_room_and_stay() {
        let machine = Machine::discover().unwrap();
        let mut arenas = Arenas::new(&machine, SamplingPlan::QUICK);
        let memory = ends(&machine).1[0].id;
        let all = arenas.of(memory).unwrap();
        let (begin, count) = (all[0].source().as_ptr(), all.len());
        assert_eq!(arenas.of(memory).unwrap()[0].source().as_ptr(), begin, "not made again");
        assert_eq!((count, arenas.bytes_min()), (arenas.count, 16 << 20));

        let arenas =
            Arenas { count: 24, wanted_bytes: 64 << 20, ..Arenas::new(&machine, SamplingPlan::FULL) };
        assert_eq!(arenas.arena_bytes(None), 64 << 20);
        assert_eq!(arenas.arena_bytes(Some(4 << 30)), 42 << 20);
        assert_eq!(arenas.arena_bytes(Some(1 << 20)), ARENA_BYTES_MIN);
    }
}
