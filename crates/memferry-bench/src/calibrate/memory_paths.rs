//! Latency and bandwidth from the CPUs of a node to a memory.

use memferry::internals::CopyMethod;
use memferry::topology::{Node, NodeId};

use super::sampling::Sampler;
use super::{CalibrateError, Spread};
use crate::memory::arena::Arena;
use crate::memory::chain::Chain;

/// Latency and bandwidth between the CPUs of a node and a memory. Rates in bytes per second; a copied byte counts once.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MemoryPath {
    /// Node of the CPUs.
    pub cpus: NodeId,
    /// Node of the memory.
    pub memory: NodeId,
    /// Seconds per step along a chain of pointers, over hardware threads.
    pub latency_s: Spread,
    /// Reading by one thread alone, over hardware threads.
    pub core_read: Spread,
    /// Copying within the memory by one thread alone, over hardware threads.
    pub core_copy: Spread,
    /// Reading by all CPUs together.
    pub read: f64,
    /// Writing by all CPUs together.
    pub write: f64,
    /// Copying within the memory by all CPUs together.
    pub copy: f64,
}

impl MemoryPath {
    pub(super) fn or_better(self, other: MemoryPath) -> MemoryPath {
        MemoryPath {
            latency_s: self.latency_s.or_better(other.latency_s, f64::min),
            core_read: self.core_read.or_better(other.core_read, f64::max),
            core_copy: self.core_copy.or_better(other.core_copy, f64::max),
            read: self.read.max(other.read),
            write: self.write.max(other.write),
            copy: self.copy.max(other.copy),
            ..self
        }
    }

    /// The maximum traffic of the memory, in and out.
    pub(super) fn traffic(&self) -> f64 {
        self.read.max(self.write).max(2.0 * self.copy)
    }
}

/// Steps of a chain in a round: some milliseconds.
const CHAIN_STEPS: usize = 20_000;

/// Number of sampled values of a path, with `threads` measured one by one.
pub(super) const fn figures_count(threads: usize) -> usize {
    3 + 3 * threads
}

/// Measures a path. Arenas, at least one per CPU, and the chain are in `memory`.
pub(super) fn measure(
    node: &Node,
    memory: NodeId,
    arenas: &mut [Arena],
    chain: &Chain,
    threads_max: usize,
    sampler: &mut Sampler,
) -> Result<MemoryPath, CalibrateError> {
    let cpus = &node.allowed_cpus[..];
    let round_bytes = sampler.effort.round_bytes();
    let mut rate = |cpus: &[u32], arenas: &mut [Arena], work: &(dyn Fn(&mut Arena) + Sync)| {
        let time_s = sampler.together_s(cpus, arenas, work)?;
        Ok::<_, CalibrateError>((cpus.len() * round_bytes) as f64 / time_s)
    };
    let read = |arena: &mut Arena| arena.read(round_bytes);
    let write = |arena: &mut Arena| arena.write(round_bytes);
    let copy = |arena: &mut Arena| arena.copy(CopyMethod::Memcpy, round_bytes);
    let (all_read, all_write) = (rate(cpus, arenas, &read)?, rate(cpus, arenas, &write)?);
    let all_copy = rate(cpus, arenas, &copy)?;
    // Single threads, evenly distributed among all.
    let (mut reads, mut copies, mut latencies) = (Vec::new(), Vec::new(), Vec::new());
    for cpu in cpus.iter().step_by(cpus.len().div_ceil(threads_max)).copied() {
        reads.push(rate(&[cpu], arenas, &read)?);
        copies.push(rate(&[cpu], arenas, &copy)?);
    }
    for &cpu in cpus.iter().step_by(cpus.len().div_ceil(threads_max)) {
        latencies.push(latency_s(cpu, chain, sampler)?);
    }
    let spread = |figures: &[f64]| Spread::of(figures).ok_or(CalibrateError::NoCpus);
    Ok(MemoryPath {
        cpus: node.id,
        memory,
        latency_s: spread(&latencies)?,
        core_read: spread(&reads)?,
        core_copy: spread(&copies)?,
        read: all_read,
        write: all_write,
        copy: all_copy,
    })
}

/// Seconds per step along the chain.
fn latency_s(cpu: u32, chain: &Chain, sampler: &mut Sampler) -> Result<f64, CalibrateError> {
    let time_s = sampler.together_s(&[cpu], &mut [0], |line| {
        *line = chain.follow(*line, CHAIN_STEPS);
    })?;
    Ok(time_s / CHAIN_STEPS as f64)
}
