//! The seconds of memories and CPUs that reads take.

use crate::topology::Machine;

use super::super::ModelError;
use super::super::hardware::Hardware;
use super::{HomeRead, ReadHistory};

/// Weight of all loads beside the longest one. If two memories are equally busy, relieving one of them does not shorten the
/// longest load, but is the first half of what does. Small, so that the longest load decides.
const SPREAD_WEIGHT: f64 = 0.05;

/// The rates of reads, by position of the nodes in the machine.
pub(super) struct Rates {
    /// Bytes per second of each memory; `None` if unknown.
    pub(super) memories: Vec<Option<f64>>,
    /// `reads[i][j]`: what the CPUs of node `i` get from memory `j` alone.
    pub(super) reads: Vec<Vec<f64>>,
}

impl Rates {
    pub(super) fn of(hardware: &Hardware) -> Rates {
        let memories: Vec<Option<f64>> = hardware.memories.iter().map(|memory| memory.rate).collect();
        let read = |cpus: usize, memory: usize| {
            // A core has a fixed number of cache lines on their way, so its rate falls as the latency rises.
            let cores = hardware.core_rate * hardware.memories[cpus].cpus_count.max(1) as f64
                / hardware.latencies[cpus][memory];
            memories[memory].unwrap_or(f64::INFINITY).min(hardware.ways[cpus][memory]).min(cores)
        };
        let count = memories.len();
        let reads = (0..count).map(|cpus| (0..count).map(|memory| read(cpus, memory)).collect());
        Rates { reads: reads.collect(), memories }
    }

    pub(super) fn memory(&self, position: usize, machine: &Machine) -> Result<f64, ModelError> {
        self.memories[position].ok_or_else(|| ModelError::Unknown {
            what: format!("the rate of the memory of node {}", machine.nodes()[position].id),
        })
    }
}

/// A read in terms of positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) cpus: usize,
    pub(super) memory: usize,
    pub(super) bytes: f64,
}

/// The reads of each window by column.
pub(super) fn reads_of(
    history: &ReadHistory,
    rates: &Rates,
    machine: &Machine,
    hardware: &Hardware,
) -> Result<Vec<Vec<Vec<Read>>>, ModelError> {
    let mut windows = Vec::with_capacity(history.windows.len());
    for window in &history.windows {
        let mut by_column: Vec<Vec<Read>> = vec![Vec::new(); history.columns.len()];
        for &HomeRead { cpus, column, node, size_bytes } in &window.reads {
            let (cpus, memory) = (hardware.position(cpus)?, hardware.position(node)?);
            rates.memory(memory, machine)?;
            by_column[column].push(Read { cpus, memory, bytes: size_bytes as f64 });
        }
        windows.push(by_column);
    }
    Ok(windows)
}

/// The loads of a window in seconds.
#[derive(Clone, Debug)]
pub(super) struct Loads {
    pub(super) memories: Vec<f64>,
    pub(super) cpus: Vec<f64>,
}

impl Loads {
    pub(super) fn new(count: usize) -> Loads {
        Loads { memories: vec![0.0; count], cpus: vec![0.0; count] }
    }

    pub(super) fn copy_from(&mut self, other: &Loads) {
        self.memories.copy_from_slice(&other.memories);
        self.cpus.copy_from_slice(&other.cpus);
    }

    /// Adds so many times the reads of a column; of a column with `targets`, from these in equal parts.
    pub(super) fn add(&mut self, times: f64, reads: &[Read], targets: Option<&[usize]>, rates: &Rates) {
        for read in reads {
            let own = [read.memory];
            let memories = targets.unwrap_or(&own);
            let bytes = times * read.bytes / memories.len() as f64;
            for &memory in memories {
                // Only memories of known rate are read or are targets.
                self.memories[memory] += bytes / rates.memories[memory].unwrap_or(f64::INFINITY);
                self.cpus[read.cpus] += bytes / rates.reads[read.cpus][memory];
            }
        }
    }

    /// The time of the window: the longest load. Sums that were subtracted again may leave a trace, so never below 0.
    pub(super) fn seconds(&self) -> f64 {
        self.all().fold(0.0, f64::max)
    }

    /// Measure of a search: the time, and a little of how uneven the loads are.
    pub(super) fn score(&self) -> f64 {
        self.seconds() + SPREAD_WEIGHT * self.all().map(|load| load * load).sum::<f64>().sqrt()
    }

    fn all(&self) -> impl Iterator<Item = f64> + '_ {
        self.memories.iter().chain(&self.cpus).copied()
    }
}
