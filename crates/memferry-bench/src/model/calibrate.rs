//! The recipes of the calibrated parameters in `machines/`.
//!
//! The profiles hold the results, so that reading a machine computes nothing; tests repeat the recipes and compare. Only
//! these rows are used: 131.18 ms and 93.09 ms of table 6.2, the 30 GiB/s of a device,
//! the two break-even sizes of Kuper et al., the matrices of Greinsmark, and one of the two hit rates of table 6.2
//! (93.20 %, with distributed columns).

use memferry::internals::{Fairness, Hardware, Pipeline, Run};
use memferry::model::{Column, Fetch, ModelError, Stage};
use memferry::mover::Route;
use memferry::topology::{Machine, NodeId};

/// The query of the thesis's chapter 6 on its machine, with assumptions for unprinted details.
///
/// Source: Fürst, "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator" (2024), 5.2 and 6.1.
#[derive(Clone, Debug, PartialEq)]
pub struct Thesis {
    /// Groups of threads. Not printed; "best configurations measured".
    pub groups_count: usize,
    /// Size of a chunk. Not printed; larger than without prefetching, so that queues do not overflow.
    pub chunk_bytes: u64,
    /// Threads of the 64 of the first stage that scan while the others prefetch. The split is not printed.
    pub scan_threads_count: usize,
    /// Sharing of memories.
    pub fairness: Fairness,
    /// Whether AGGREGATE waits for SCAN_b: not in the printed measurements.
    pub is_waiting: bool,
}

impl Default for Thesis {
    fn default() -> Thesis {
        Thesis {
            groups_count: 8,
            chunk_bytes: 8 << 20,
            scan_threads_count: 32,
            fairness: Fairness::default(),
            is_waiting: false,
        }
    }
}

/// Rows of table 6.2.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Setup {
    /// Both columns on node 0.
    Baseline,
    /// The second column in HBM from the start.
    UpperLimit,
    /// Both columns on node 0, the second copied to HBM.
    Prefetching,
    /// As prefetching, with the second column on node 1.
    Distributed,
}

impl Thesis {
    /// The pipeline of a set-up.
    pub(super) fn pipeline(&self, setup: Setup) -> Pipeline {
        let is_prefetching = matches!(setup, Setup::Prefetching | Setup::Distributed);
        let column = |name: &str, node| Column { name: name.into(), size_bytes: 4 << 30, node: NodeId(node) };
        let b = match setup {
            Setup::Baseline | Setup::Prefetching => 0,
            Setup::UpperLimit => 8,
            Setup::Distributed => 1,
        };
        let scan_threads = if is_prefetching { self.scan_threads_count } else { 64 };
        let stage = |name: &str, column, threads_count| Stage {
            name: name.into(),
            reads: vec![column],
            threads_count,
            thread_rate_max: f64::INFINITY,
        };
        let route = Some(Route::RoundRobin);
        let fetch = Fetch { column: 1, chunks_count: usize::MAX, node: NodeId(8), route };
        Pipeline {
            columns: vec![column("a", 0), column("b", b)],
            stages: vec![stage("SCAN_a", 0, scan_threads), stage("AGGREGATE", 1, 32)],
            cpus: NodeId(0),
            groups_count: self.groups_count,
            chunk_bytes: self.chunk_bytes,
            fetches: if is_prefetching { vec![fetch] } else { Vec::new() },
            is_waiting: self.is_waiting,
            fairness: self.fairness,
        }
    }

    pub(super) fn run(
        &self,
        machine: &Machine,
        hardware: &Hardware,
        setup: Setup,
    ) -> Result<Run, ModelError> {
        self.pipeline(setup).run(machine, hardware)
    }
}

/// The result of a recipe: names of [`PARAMETERS`](memferry::internals::PARAMETERS) and their values.
pub type Calibrated = Vec<(&'static str, f64)>;

/// Rows F072, F073 and F084.
const BASELINE_MS: f64 = 131.18;
const UPPER_LIMIT_MS: f64 = 93.09;
const DISTRIBUTED_HITS: f64 = 0.9320;

/// Rates of a DRAM node and of a core of the Xeon Max, and the skew of its threads.
///
/// For a given skew, the DRAM rate is chosen so that the baseline takes 131.18 ms, and then the core's rate so that the
/// upper limit takes 93.09 ms. Without a given skew, it is chosen so that 93.20 % of the chunks hit with distributed
/// columns.
///
/// # Errors
/// As [`Pipeline::run`].
pub fn thesis(machine: &Machine, thesis: &Thesis, skew: Option<f64>) -> Result<Calibrated, ModelError> {
    let hardware = match skew {
        Some(skew) => with_skew(machine, thesis, skew)?,
        None => {
            let (mut low, mut high) = (0.0, 0.95);
            for _ in 0..12 {
                let middle = (low + high) / 2.0;
                let hardware = with_skew(machine, thesis, middle)?;
                let run = thesis.run(machine, &hardware, Setup::Distributed)?;
                // More skew, fewer hits.
                let hits = run.hit_rate().unwrap_or(0.0);
                if hits > DISTRIBUTED_HITS { low = middle } else { high = middle }
            }
            with_skew(machine, thesis, (low + high) / 2.0)?
        }
    };
    Ok(vec![
        ("dram_mb_per_s", hardware.memories[0].rate.unwrap_or(0.0) / 1e6),
        ("core_mb_per_s", hardware.core_rate / 1e6),
        ("thread_skew", hardware.thread_skew),
    ])
}

/// The machine with this skew, and rates for which the two runs without prefetching take the printed times.
pub(super) fn with_skew(machine: &Machine, thesis: &Thesis, skew: f64) -> Result<Hardware, ModelError> {
    let mut hardware = Hardware::of(machine)?;
    hardware.thread_skew = skew;
    // Times are nearly inverse to the rate that bounds them, so that this converges in a few steps. The core's rate bounds a
    // part of its run only and is corrected by the time of that part.
    for _ in 0..8 {
        let baseline_ms = thesis.run(machine, &hardware, Setup::Baseline)?.total_s * 1e3;
        let dram = hardware.memory_rate(0)? * baseline_ms / BASELINE_MS;
        for memory in hardware.memories.iter_mut().filter(|memory| memory.cpus_count > 0) {
            memory.rate = Some(dram);
        }
        let limit_ms = thesis.run(machine, &hardware, Setup::UpperLimit)?.total_s * 1e3;
        let scan_ms = (4 << 30) as f64 / dram * 1e3;
        let wanted_ms = (UPPER_LIMIT_MS - scan_ms).max(1.0);
        hardware.core_rate *= ((limit_ms - scan_ms) / wanted_ms).clamp(0.7, 1.4);
        if (baseline_ms / BASELINE_MS - 1.0).abs().max((limit_ms / UPPER_LIMIT_MS - 1.0).abs()) < 1e-5 {
            break;
        }
    }
    Ok(hardware)
}

/// Costs of a submission and of a descriptor, from the two break-even sizes: a core takes as long for 4 KiB as a device
/// with a waiter (row K029), and as long for 256 bytes as a busy device for a descriptor (row K030).
///
/// # Errors
/// [`ModelError::Unknown`] if the copy rate of a core is not known.
pub fn kuper(machine: &Machine) -> Result<Calibrated, ModelError> {
    const WAITED_BYTES: f64 = 4096.0;
    const PIPELINED_BYTES: f64 = 256.0;
    let hardware = Hardware::of(machine)?;
    let costs = memferry::internals::Offload::of(&hardware)?;
    Ok(vec![
        ("device_offload_ns", (costs.core_s(WAITED_BYTES) - WAITED_BYTES / costs.device_rate()) * 1e9),
        ("device_descriptor_ns", costs.core_s(PIPELINED_BYTES) * 1e9),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The profiles hold the results of the recipes.
    fn agrees(machine: &Machine, calibrated: Calibrated, tolerance: f64) {
        for (name, value) in calibrated {
            let parameter = machine.parameter(name).expect(name);
            let error = parameter / value - 1.0;
            assert!(error.abs() < tolerance, "{name}: {parameter} in the profile, {value} calibrated");
        }
    }

    #[test]
    fn profiles_have_what_the_recipes_give() {
        let xeon_max = Machine::from_profile("xeon-max-9468-2s-flat").expect("built in");
        agrees(&xeon_max, thesis(&xeon_max, &Thesis::default(), None).expect("known"), 1e-3);
        let spr = Machine::from_profile("spr-56c").expect("built in");
        agrees(&spr, kuper(&spr).expect("known"), 1e-3);
    }
}
