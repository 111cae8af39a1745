//! Calibration: measures this machine in less than two minutes and writes a profile for the model.
//!
//! ```text
//! paths     each CPU node x each memory node: latency, reading, writing, copying; of hardware threads, of all together
//! copies    methods by size, in caches and elsewhere; the straight line through a core's copies; the cost of waking a worker
//! devices   each usable DSA: its rate, and the core's cost of submitting a copy
//! storage   the disk below a directory, if one is given: reads by size and depth
//!   └─▶ Calibration ─▶ Machine with links, parameters and facts ─▶ profile_text, model
//! check     copies of other sizes and by other numbers of cores, beside the predictions of the model
//! ```
//!
//! All data lies in memory that no cache holds, like columns that are worth copying. Times are those of an idle machine as
//! far as possible ([`undisturbed`]). On a busy machine this takes more samples, and the results are less reliable.
//! Everything is measured in several passes. The passes of a check lie between those of a calibration, so that both see
//! the same machine. A machine with many nodes gets fewer passes and samples in the same time; a profile states how many
//! ([`Sampling`]).
//!
//! The loops and their memory are those of [`crate::memory`]. Bandwidths are those of all CPUs of a node, as in Greinsmark
//! (2020), tables 5 to 8.

mod arenas;
mod check;
mod copies;
mod devices;
mod error;
mod fit;
mod memory_paths;
mod sampling;
mod storage;

pub use check::{Check, Checked};
pub use copies::{Copies, CopyRate, best_methods};
pub use devices::{Devices, MeasuredCosts};
pub use error::CalibrateError;
pub use fit::{Line, Spread};
use memferry::internals::{Basis, Fact, Measured, Parameter};
use memferry::mover::CopyMethods;
use memferry::topology::{Link, Machine, Node, NodeId, Storage};
pub use memory_paths::MemoryPath;
pub use sampling::{Sampling, SamplingPlan};
pub use storage::{StorageProbe, StorageRateError};

use self::arenas::Arenas;
use self::sampling::Sampler;
pub use crate::memory::threads::undisturbed;

/// The results of a calibration.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// From each node with CPUs to each with memory.
    pub paths: Vec<MemoryPath>,
    /// Copies on the first node with both.
    pub copies: Copies,
    /// The best copy methods of a core there, in its caches and elsewhere.
    pub methods: CopyMethods,
    /// Copies by devices, and the devices that cannot be used.
    pub devices: Devices,
    /// Extent of the measurements.
    pub sampling: Sampling,
}

/// Usable nodes with CPUs, and usable nodes with memory.
fn ends(machine: &Machine) -> (Vec<&Node>, Vec<&Node>) {
    let with_cpus = machine.nodes().iter().filter(|node| !node.allowed_cpus.is_empty());
    let with_memory = machine.nodes().iter().filter(|node| node.has_memory() && node.is_allowed);
    (with_cpus.collect(), with_memory.collect())
}

/// Measures this machine pass by pass. Keeps memory and queues until it is dropped.
///
/// [`Calibration::or_better`] merges several passes.
pub struct Calibrator<'a> {
    machine: &'a Machine,
    arenas: Arenas<'a>,
    devices: Vec<devices::Device>,
    diagnostics: Vec<String>,
    /// `None` before the first pass.
    methods: Option<CopyMethods>,
    effort: SamplingPlan,
}

impl<'a> Calibrator<'a> {
    /// A calibrator of `machine`. The profile marks devices as emulated if `are_devices_emulated`.
    ///
    /// # Errors
    /// [`CalibrateError::NotHere`] for a machine that was not discovered, [`NoCpus`](CalibrateError::NoCpus).
    pub fn new(
        machine: &'a Machine,
        effort: SamplingPlan,
        are_devices_emulated: bool,
    ) -> Result<Calibrator<'a>, CalibrateError> {
        if !machine.is_this_machine() {
            return Err(CalibrateError::NotHere { machine: machine.name().to_owned() });
        }
        home(machine)?;
        let (devices, diagnostics) = devices::open(machine, are_devices_emulated);
        let arenas = Arenas::new(machine, effort);
        Ok(Calibrator { machine, arenas, devices, diagnostics, methods: None, effort })
    }

    /// Number of calls of `progress` in a pass.
    pub fn steps_count(&self) -> usize {
        self.paths_count() + copies::STEPS_COUNT + self.devices.len()
    }

    fn paths_count(&self) -> usize {
        let (cpus, memories) = ends(self.machine);
        cpus.len() * memories.len()
    }

    /// Measures everything once. `progress` is called after each of [`steps_count`](Self::steps_count) steps.
    ///
    /// # Errors
    /// [`CalibrateError::Memory`] without enough memory, [`Pin`](CalibrateError::Pin) if the kernel does not pin threads,
    /// [`Disturbed`](CalibrateError::Disturbed) for implausible times. A device that fails is not an error; it is listed in
    /// [`Devices::diagnostics`].
    pub fn pass(&mut self, progress: &mut dyn FnMut()) -> Result<Calibration, CalibrateError> {
        let (cpus, memories) = ends(self.machine);
        let threads_max = self.effort.threads_max(self.paths_count());
        let figures = self.paths_count() * memory_paths::figures_count(threads_max)
            + copies::FIGURES_COUNT
            + self.devices.len() * devices::FIGURES_COUNT;
        let mut sampler = Sampler::new(self.effort, figures);
        let mut paths = Vec::new();
        // All nodes use the arenas of a memory before those of the next memory are allocated.
        for memory in &memories {
            let (arenas, chain) = self.arenas.of(memory.id)?;
            for cpus in &cpus {
                paths.push(memory_paths::measure(cpus, memory.id, arenas, chain, threads_max, &mut sampler)?);
                progress();
            }
        }
        // In the order of the machine's nodes, as its links are.
        paths.sort_by_key(|way| (way.cpus, way.memory));
        let home = home(self.machine)?;
        let arena = &mut self.arenas.of(home.id)?.0[0];
        let copies = copies::measure(self.machine, home, arena, &mut sampler, progress)?;
        let methods = self.methods.map_or_else(|| copies::methods(home, arena), Ok)?;
        self.methods = Some(methods);
        let mut measured = Devices { costs: Vec::new(), diagnostics: self.diagnostics.clone() };
        for device in &self.devices {
            match device.measure(self.machine, home, &mut sampler) {
                Ok(costs) => measured.costs.push(costs),
                Err(why) => measured.diagnostics.push(format!("{} was not measured: {why}", device.name)),
            }
            progress();
        }
        let of_threads = cpus.iter().map(|node| node.allowed_cpus.len()).max().unwrap_or(0);
        let step = of_threads.div_ceil(threads_max).max(1);
        let sampling = Sampling {
            passes: 1,
            samples: sampler.taken(),
            threads: (of_threads.div_ceil(step), of_threads),
            arena_bytes: self.arenas.bytes_min(),
        };
        Ok(Calibration { paths, copies, methods, devices: measured, sampling })
    }

    /// Runs the benchmarks of a [`Check`] once.
    ///
    /// # Errors
    /// As [`pass`](Self::pass).
    pub fn check(&mut self) -> Result<Check, CalibrateError> {
        let home = home(self.machine)?;
        Check::measure(self.machine, home, self.arenas.of(home.id)?.0, self.effort)
    }
}

/// The first node with CPUs and memory, on which copies are measured.
fn home(machine: &Machine) -> Result<&Node, CalibrateError> {
    let (cpus, memories) = ends(machine);
    let has_both = |node: &&&Node| memories.iter().any(|memory| memory.id == node.id);
    cpus.iter().find(has_both).copied().ok_or(CalibrateError::NoCpus)
}

/// Rounds to five digits: more than the accuracy of any clock, and few enough for an exact text.
fn rounded(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

/// A measured parameter, also for [`Calibration::apply`]; `value` is rounded to five digits.
pub fn parameter(name: &str, value: f64, how: &str) -> Parameter {
    let value = rounded(value);
    Parameter {
        name: name.to_owned(),
        value,
        basis: Basis::Measured,
        rows: Vec::new(),
        source: how.to_owned(),
    }
}

fn fact(name: String, value: f64, unit: &str, source: &str) -> Fact {
    Fact { name, value: rounded(value), unit: unit.to_owned(), source: source.to_owned() }
}

impl Calibration {
    /// Merges two passes by the better value of each: disturbances only make a machine slower. Copy methods are equal in all
    /// passes of a [`Calibrator`]; those of `self` stay.
    ///
    /// # Errors
    /// [`CalibrateError::Disturbed`] as for [`Calibrator::pass`].
    pub fn or_better(self, other: Calibration) -> Result<Calibration, CalibrateError> {
        let paths = self.paths.into_iter().zip(other.paths).map(|(one, other)| one.or_better(other));
        Ok(Calibration {
            paths: paths.collect(),
            copies: self.copies.or_better(other.copies)?,
            methods: self.methods,
            devices: self.devices.or_better(other.devices),
            sampling: self.sampling.with(other.sampling),
        })
    }

    /// The machine with these results, with `others` and with `storage`. `name` and `what` describe the measurement: in
    /// short, and with date, version and machine.
    ///
    /// # Errors
    /// [`CalibrateError::Topology`] for impossible values, such as an infinite rate.
    pub fn apply(
        &self,
        machine: Machine,
        others: Vec<Parameter>,
        storage: Vec<Storage>,
        (name, what): (&str, &str),
    ) -> Result<Machine, CalibrateError> {
        let mut parameters = self.parameters(&machine, name);
        parameters.extend(self.devices.parameters(name));
        parameters.extend(others);
        let measured = Measured {
            reference: (name.to_owned(), format!("{what}; {}", self.sampling)),
            links: self.paths.iter().map(|way| (way.cpus, way.memory, way.link())).collect(),
            accelerators: self.devices.rates(),
            parameters,
            copy_methods: Some(self.methods),
            facts: self.facts(name),
            storage,
        };
        Ok(machine.with_measured(measured)?)
    }

    fn parameters(&self, machine: &Machine, name: &str) -> Vec<Parameter> {
        let of = |what: &str| format!("{name}: {what}");
        let Copies { line: Line { base_s, bytes_per_s }, wake_s, warm_s, .. } = self.copies;
        let line = "the line through copies of a core by memcpy, of memory that no cache holds, by size";
        let mut parameters = vec![
            parameter("core_copy_mb_per_s", bytes_per_s / 1e6, &of(line)),
            parameter("core_copy_latency_ns", base_s * 1e9, &of(line)),
            parameter(
                "worker_wake_ns",
                wake_s * 1e9,
                &of("a small copy by a worker that slept, until it is waited for, less the copy"),
            ),
            parameter(
                "worker_warm_ns",
                warm_s * 1e9,
                &of("a copy of 2 MiB by a worker that slept, less the copy and the waking"),
            ),
        ];
        let own = self.paths.iter().find(|way| way.cpus == way.memory);
        if let Some(way) = own {
            let how = of("reading of a single core, mean over hardware threads");
            parameters.push(parameter("core_mb_per_s", way.core_read.mean / 1e6, &how));
            let how = of("copying by all CPUs of the first node together");
            parameters.push(parameter("cores_copy_mb_per_s", way.copy / 1e6, &how));
        }
        for (tier, name) in [
            (memferry::topology::Tier::Dram, "dram_mb_per_s"),
            (memferry::topology::Tier::Hbm, "hbm_mb_per_s"),
        ] {
            let is_of_tier = |memory: NodeId| machine.node(memory).is_ok_and(|node| node.tier == tier);
            let rates = self.paths.iter().filter(|way| is_of_tier(way.memory)).map(MemoryPath::traffic);
            if let Some(most) = rates.reduce(f64::max) {
                let how = of(
                    "the most that all CPUs of a node get out of and into a memory, reading, writing or copying",
                );
                parameters.push(parameter(name, most / 1e6, &how));
            }
        }
        parameters
    }

    fn facts(&self, name: &str) -> Vec<Fact> {
        let mut facts = Vec::new();
        let mut fact = |what: String, value: f64, unit: &str| facts.push(fact(what, value, unit, name));
        for MemoryPath { cpus, memory, latency_s, core_read, core_copy, copy, .. } in &self.paths {
            let way = format!("{cpus}_to_{memory}");
            for (figure, spread, scale, unit) in [
                ("read_latency", latency_s, 1e9, "ns"),
                ("core_read", core_read, 1e-6, "MB/s"),
                ("core_copy", core_copy, 1e-6, "MB/s"),
            ] {
                fact(format!("{figure}_min_{way}"), spread.min * scale, unit);
                fact(format!("{figure}_mean_{way}"), spread.mean * scale, unit);
                fact(format!("{figure}_max_{way}"), spread.max * scale, unit);
            }
            fact(format!("copy_{way}"), copy / 1e6, "MB/s");
        }
        for CopyRate { method, size_bytes, bytes_per_s } in &self.copies.rates {
            fact(format!("copy_{}_{size_bytes}_bytes", method.name()), bytes_per_s / 1e6, "MB/s");
        }
        for (method, size_bytes) in best_methods(&self.copies.rates) {
            fact(format!("copy_{}_best_from", method.name()), size_bytes as f64, "bytes");
        }
        facts.extend(self.sampling.facts(name));
        facts.extend(self.devices.facts(name));
        facts
    }
}

impl MemoryPath {
    fn link(&self) -> Link {
        Link {
            distance: None,
            read_bytes_per_s: Some(rounded(self.read) as u64),
            write_bytes_per_s: Some(rounded(self.write) as u64),
            read_latency_ns: Some(rounded(self.latency_s.mean * 1e9)),
            write_latency_ns: None,
        }
    }
}

#[cfg(test)]
mod tests;
