//! Memory that no cache holds.

use std::{fs, thread};

use memferry::internals::CopyMethod;
use memferry::memory::{Binding, HugePages, Mapping, MappingOptions, MemoryError};
use memferry::topology::{Machine, NodeId};

use super::kernels::{self, Loops};

/// Two regions of a node's memory: a thread reads the one, and writes or modifies the other.
///
/// [`next`](Arena::next) walks through both in a cycle: the next bytes have not been used for long.
pub(crate) struct Arena {
    source: Mapping,
    target: Mapping,
    at: usize,
    /// Loops that go through it.
    loops: Loops,
}

impl Arena {
    /// Two regions of `size_bytes` with all pages present.
    fn new(
        machine: &Machine,
        node: NodeId,
        size_bytes: usize,
        huge_pages: HugePages,
    ) -> Result<Arena, MemoryError> {
        let mapping = || Mapping::with(machine, size_bytes, options(node, huge_pages));
        let (mut source, mut target) = (mapping()?, mapping()?);
        // Pages that the kernel has just zeroed may still be in a cache.
        kernels::write(&mut source, 1);
        kernels::write(&mut target, 2);
        let loops = Loops::portable();
        Ok(Arena { source, target, at: 0, loops })
    }

    /// `count` arenas, allocated at the same time: one thread after another would dominate the time on large machines.
    /// Their loops are the fastest ones in the first arena.
    ///
    /// # Errors
    /// Those of [`Mapping::with`].
    pub(crate) fn several(
        machine: &Machine,
        node: NodeId,
        count: usize,
        size_bytes: usize,
        huge_pages: HugePages,
    ) -> Result<Vec<Arena>, MemoryError> {
        let make = || Arena::new(machine, node, size_bytes, huge_pages);
        let mut arenas = thread::scope(|scope| {
            let threads: Vec<_> = (0..count).map(|_| scope.spawn(make)).collect();
            let made =
                threads.into_iter().map(|thread| thread.join().expect("making an arena does not panic"));
            made.collect::<Result<Vec<Arena>, MemoryError>>()
        })?;
        if let Some(first) = arenas.first() {
            let loops = Loops::fastest(&first.source);
            arenas.iter_mut().for_each(|arena| arena.loops = loops);
        }
        Ok(arenas)
    }

    /// The next `size_bytes` of both. Panics if the regions are smaller.
    pub(crate) fn next(&mut self, size_bytes: usize) -> (&[u8], &mut [u8]) {
        if self.at + size_bytes > self.source.len() {
            self.at = 0;
        }
        let range = self.at..self.at + size_bytes;
        // The next range begins on a new cache line, like blocks of allocators.
        self.at = range.end.next_multiple_of(kernels::LINE_BYTES);
        (&self.source[range.clone()], &mut self.target[range])
    }

    pub(crate) fn read(&mut self, size_bytes: usize) {
        self.loops.read(self.next(size_bytes).0);
    }

    pub(crate) fn write(&mut self, size_bytes: usize) {
        kernels::write(self.next(size_bytes).1, 3);
    }

    pub(crate) fn copy(&mut self, method: CopyMethod, size_bytes: usize) {
        let (source, target) = self.next(size_bytes);
        method.copy(source, target);
    }

    pub(crate) fn loops(&self) -> Loops {
        self.loops
    }

    /// Both regions.
    pub(crate) fn all(&mut self) -> (&[u8], &mut [u8]) {
        (&self.source, &mut self.target)
    }

    /// Size of each region.
    pub(crate) fn size_bytes(&self) -> usize {
        self.source.len()
    }
}

/// Options of a mapping on `node`.
pub(super) fn options(node: NodeId, huge_pages: HugePages) -> MappingOptions {
    MappingOptions { binding: Binding::Bind(node), huge_pages, ..MappingOptions::default() }
}

/// Cache size where Linux does not report it: few CPUs exceed it.
const CACHE_BYTES_ASSUMED: usize = 32 << 20;

/// Size of each of `threads` regions, so that all together exceed the caches several times. Caches that do not evict in the
/// order of use would still hold a part of twice their size.
pub(crate) fn exceeding_caches_bytes(cpus: &[u32], threads: usize) -> usize {
    (8 * largest_cache_bytes(cpus) / threads.max(1)).max(32 << 20)
}

/// Size of a chain that exceeds the caches. Its lines are read in turn, so that none is left of the last time.
pub(crate) fn chain_bytes(cpus: &[u32]) -> usize {
    (4 * largest_cache_bytes(cpus)).max(64 << 20)
}

/// `wanted_bytes`, or less: `count` regions of this size take at most half of the free bytes of their node, but each has
/// `bytes_min`.
pub(crate) fn fitting_bytes(
    wanted_bytes: usize,
    free_bytes: Option<u64>,
    count: usize,
    bytes_min: usize,
) -> usize {
    let fitting = free_bytes.map_or(usize::MAX, |free| free as usize / 2 / count.max(1));
    wanted_bytes.min(fitting >> 20 << 20).max(bytes_min)
}

fn largest_cache_bytes(cpus: &[u32]) -> usize {
    cpus.first().and_then(|&cpu| cache_bytes(cpu)).unwrap_or(CACHE_BYTES_ASSUMED)
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
    fn regions_leave_room() {
        let fitting = |free_bytes, count| fitting_bytes(64 << 20, free_bytes, count, 16 << 20);
        assert_eq!(fitting(None, 48), 64 << 20);
        assert_eq!(fitting(Some(4 << 30), 48), 42 << 20);
        assert_eq!(fitting(Some(1 << 20), 48), 16 << 20);
    }

    #[test]
    fn sizes_exceed_the_caches() {
        let cache = largest_cache_bytes(&[0]);
        assert!(chain_bytes(&[0]) >= 4 * cache);
        for threads in [1, 2, 7] {
            assert!(threads * exceeding_caches_bytes(&[0], threads) >= 8 * cache - threads, "{threads}");
        }
    }
}
