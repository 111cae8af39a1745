//! Latency and bandwidth from the CPUs of a node to a memory.

use super::arena::Arena;
use super::kernels;
use super::threads::together;
use super::{CalibrateError, Effort, Spread, undisturbed};
use crate::mover::CopyMethod;
use crate::topology::{Machine, Node, NodeId};

/// What CPUs have of a memory. Rates in bytes per second; a byte that is copied counts once.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Way {
    /// Whose CPUs.
    pub cpus: NodeId,
    /// Which memory.
    pub memory: NodeId,
    /// Following a chain of pointers, over hardware threads.
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

impl Way {
    /// The most that goes in and out of the memory.
    pub(super) fn traffic(&self) -> f64 {
        self.read.max(self.write).max(2.0 * self.copy)
    }
}

/// Steps of a chain in a round: some milliseconds.
const CHAIN_STEPS: usize = 20_000;

pub(super) fn measure(
    machine: &Machine,
    node: &Node,
    memory: NodeId,
    threads_max: usize,
    effort: Effort,
) -> Result<Way, CalibrateError> {
    let cpus = &node.allowed_cpus[..];
    let (arena_bytes, round_bytes) = (effort.arena_bytes(cpus), effort.round_bytes());
    let arena = |_| Arena::new(machine, memory, arena_bytes);
    let mut arenas = cpus.iter().map(arena).collect::<Result<Vec<_>, _>>()?;
    let rate = |cpus: &[u32], arenas: &mut [Arena], work: &(dyn Fn(&mut Arena) + Sync)| {
        let times = together(cpus, arenas, effort.rounds, work)?;
        Ok::<_, CalibrateError>((cpus.len() * round_bytes) as f64 / undisturbed(&times))
    };
    let read = |arena: &mut Arena| arena.read(round_bytes);
    let write = |arena: &mut Arena| arena.write(round_bytes);
    let copy = |arena: &mut Arena| arena.copy(CopyMethod::Memcpy, round_bytes);
    let (all_read, all_write) = (rate(cpus, &mut arenas, &read)?, rate(cpus, &mut arenas, &write)?);
    let all_copy = rate(cpus, &mut arenas, &copy)?;
    // Of one thread alone: evenly among all.
    arenas.truncate(1);
    let few = cpus.iter().step_by(cpus.len().div_ceil(threads_max)).copied();
    let (mut reads, mut copies, mut latencies) = (Vec::new(), Vec::new(), Vec::new());
    for cpu in few {
        reads.push(rate(&[cpu], &mut arenas, &read)?);
        copies.push(rate(&[cpu], &mut arenas, &copy)?);
    }
    for arena in &mut arenas {
        kernels::chain(arena.source(), 1);
    }
    for &cpu in cpus.iter().step_by(cpus.len().div_ceil(threads_max)) {
        latencies.push(latency_s(cpu, &mut arenas[0], effort)?);
    }
    let spread = |figures: &[f64]| Spread::of(figures).ok_or(CalibrateError::NoCpus);
    Ok(Way {
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

/// Seconds for a step along the chain in the arena's source.
fn latency_s(cpu: u32, arena: &mut Arena, effort: Effort) -> Result<f64, CalibrateError> {
    let mut chains = [(arena, 0)];
    let times = together(&[cpu], &mut chains, effort.rounds, |(arena, line)| {
        *line = kernels::follow(arena.source(), *line, CHAIN_STEPS);
    })?;
    Ok(undisturbed(&times) / CHAIN_STEPS as f64)
}
