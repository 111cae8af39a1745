//! The recipes of the calibrated parameters in `machines/`.
//!
//! The profiles hold the results, so that reading a machine computes nothing; tests repeat the recipes and compare. Only
//! these rows are used: 131.18 ms and 93.09 ms of table 6.2, the 30 GiB/s of a device,
//! the two break-even sizes of Kuper et al. and their 90 GB/s of four devices, the matrices of Greinsmark, and one of the two hit rates of table 6.2
//! (93.20 %, with distributed columns).

use memferry::internals::{Hardware, Offload, Pipeline};
use memferry::model::ModelError;
use memferry::topology::Machine;

use super::scenario;

/// The query of the thesis's chapter 6: the runs of the scenario `table-6.2`, which has assumptions for unprinted details.
///
/// Source: Fürst, "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator" (2024), 5.2 and 6.1.
#[derive(Clone)]
pub(super) struct Thesis {
    /// Both columns on node 0.
    pub(super) baseline: Pipeline,
    /// The second column in HBM from the start.
    pub(super) upper_limit: Pipeline,
    /// Both columns on node 0, the second copied to HBM.
    pub(super) prefetching: Pipeline,
    /// As prefetching, with the second column on node 1.
    pub(super) distributed: Pipeline,
}

impl Thesis {
    pub(super) fn read() -> Result<Thesis, ModelError> {
        let mut runs = scenario("table-6.2")?.pipelines()?.into_iter().map(|(_, pipeline)| pipeline);
        let mut next = || runs.next().expect("the scenario has a run for each row of the table");
        Ok(Thesis { baseline: next(), upper_limit: next(), prefetching: next(), distributed: next() })
    }

    /// The same query with a change of each run.
    pub(super) fn with(mut self, change: impl Fn(&mut Pipeline)) -> Thesis {
        let Thesis { baseline, upper_limit, prefetching, distributed } = &mut self;
        [baseline, upper_limit, prefetching, distributed].into_iter().for_each(change);
        self
    }
}

/// Changes the threads of the first stage that scan while the others of the 64 prefetch. The split is not printed.
pub(super) fn scan_threads(run: &mut Pipeline, count: usize) {
    if !run.fetches.is_empty() {
        run.stages[0].threads_count = count;
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
/// upper limit takes 93.09 ms. The skew is chosen so that 93.20 % of the chunks hit with distributed columns.
///
/// # Errors
/// As [`Pipeline::run`].
pub fn thesis(machine: &Machine) -> Result<Calibrated, ModelError> {
    let thesis = Thesis::read()?;
    let (mut low, mut high) = (0.0, 0.95);
    for _ in 0..12 {
        let middle = (low + high) / 2.0;
        let run = thesis.distributed.run(machine, &with_skew(machine, &thesis, middle)?)?;
        // More skew, fewer hits.
        let hits = run.hit_rate().unwrap_or(0.0);
        if hits > DISTRIBUTED_HITS { low = middle } else { high = middle }
    }
    let hardware = with_skew(machine, &thesis, (low + high) / 2.0)?;
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
        let baseline_ms = thesis.baseline.run(machine, &hardware)?.total_s * 1e3;
        let dram = hardware.memory_rate(0)? * baseline_ms / BASELINE_MS;
        for memory in hardware.memories.iter_mut().filter(|memory| memory.cpus_count > 0) {
            memory.rate = Some(dram);
        }
        let limit_ms = thesis.upper_limit.run(machine, &hardware)?.total_s * 1e3;
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
/// with a waiter (row K029), and as long for 256 bytes as a busy device for a descriptor (row K030). The rate of a device whose
/// writes exceed its part of the last-level cache is that of each of four (row K052).
///
/// # Errors
/// [`ModelError::Unknown`] if the copy rate of a core is not known.
pub fn kuper(machine: &Machine) -> Result<Calibrated, ModelError> {
    const WAITED_BYTES: f64 = 4096.0;
    const PIPELINED_BYTES: f64 = 256.0;
    const FOUR_LEAKING_MB_PER_S: f64 = 90_000.0;
    let hardware = Hardware::of(machine)?;
    let costs = Offload::of(&hardware)?;
    // Devices count in whole nanoseconds.
    let ns = |seconds: f64| (seconds * 1e9).round();
    Ok(vec![
        ("device_offload_ns", ns(costs.core_s(WAITED_BYTES) - WAITED_BYTES / costs.device_rate())),
        ("device_descriptor_ns", ns(costs.core_s(PIPELINED_BYTES))),
        ("device_leaking_mb_per_s", FOUR_LEAKING_MB_PER_S / 4.0),
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
        agrees(&xeon_max, thesis(&xeon_max).expect("known"), 1e-3);
        let spr = Machine::from_profile("spr-56c").expect("built in");
        agrees(&spr, kuper(&spr).expect("known"), 1e-3);
    }
}
