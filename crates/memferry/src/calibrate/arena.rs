//! Memory to work in that no cache holds.

use std::fs;

use super::CalibrateError;
use super::kernels;
use crate::memory::{Binding, Mapping};
use crate::mover::CopyMethod;
use crate::topology::{Machine, NodeId};

/// Two stretches of a node's memory, walked through in turns: whatever is used next has not been used for long.
pub(super) struct Arena {
    source: Mapping,
    target: Mapping,
    at: usize,
}

impl Arena {
    /// `size_bytes` for each of both, all pages there.
    pub(super) fn new(machine: &Machine, node: NodeId, size_bytes: usize) -> Result<Arena, CalibrateError> {
        let mapping = || Mapping::new(machine, size_bytes, Binding::Bind(node));
        let mut arena = Arena { source: mapping()?, target: mapping()?, at: 0 };
        // Pages that were only zeroed by the kernel may still be in a cache.
        kernels::write(&mut arena.source, 1);
        kernels::write(&mut arena.target, 2);
        Ok(arena)
    }

    /// The next `size_bytes` of both. Panics if that is more than they have.
    pub(super) fn next(&mut self, size_bytes: usize) -> (&[u8], &mut [u8]) {
        if self.at + size_bytes > self.source.len() {
            self.at = 0;
        }
        let range = self.at..self.at + size_bytes;
        // The next one begins on a line of its own, as blocks of allocators do.
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

    /// The source, to be made into a chain.
    pub(super) fn source(&mut self) -> &mut [u8] {
        &mut self.source
    }
}

/// Size of the largest cache of a CPU, if the kernel tells.
pub(crate) fn cache_bytes(cpu: u32) -> Option<usize> {
    let caches = fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}/cache")).ok()?;
    let size = |cache: fs::DirEntry| {
        let text = fs::read_to_string(cache.path().join("size")).ok()?;
        let kib: usize = text.trim().strip_suffix('K')?.parse().ok()?;
        Some(kib << 10)
    };
    caches.flatten().filter_map(size).max()
}
