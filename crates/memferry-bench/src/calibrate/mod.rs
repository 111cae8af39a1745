//! What this machine does, measured in less than two minutes, as figures that models take: a profile of one's own.
//!
//! ```text
//! ways      each CPU node x each memory node: latency, reading, writing, copying; of hardware threads, of all together
//! copies    methods by size, in caches and elsewhere; the straight line through a core's copies; what waking a worker adds
//! devices   each DSA that can be used: its rate, and what a core does to submit a copy
//!   └─▶ Calibration ─▶ Machine with links, parameters and facts ─▶ profile_text, model
//! check     copies at sizes and on numbers of cores that were not measured before, beside what the model says of them
//! ```
//!
//! Everything lies in memory that no cache holds, as columns do that are worth bringing near. Times are those of a
//! machine with nothing else to do, as far as one gets them ([`undisturbed`]); the busier it is, the longer one has to
//! look for them, and the less the figures are worth. So everything is measured in several passes; those of a check lie
//! between those of a calibration, so that both have seen the same machine. A machine with many nodes gets fewer passes
//! and fewer samples, so that it takes no longer; a profile says how many ([`Sampling`]).
//!
//! Source: the chain of pointers is `lat_mem_rd` of L. McVoy, C. Staelin, "lmbench: portable tools for performance
//! analysis" (1996); bandwidths are those of all CPUs of a node, as in Greinsmark (2020), tables 5 to 8.

pub(crate) mod arena;
mod check;
mod copies;
mod devices;
mod effort;
mod error;
mod fit;
#[allow(unsafe_code)]
mod kernels;
pub(crate) mod threads;
mod ways;

pub use check::{Check, Checked};
pub use copies::{Copies, CopyRate, best_methods};
pub use devices::{DeviceCosts, Devices};
pub use effort::{Effort, Sampling};
pub use error::CalibrateError;
pub use fit::{Line, Spread};
use memferry::mover::CopyMethods;
use memferry::topology::{Basis, Fact, Link, Machine, Measured, Node, NodeId, Parameter};
pub use threads::undisturbed;
pub use ways::Way;

use self::arena::Arenas;
use self::effort::Sampler;

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// From each node with CPUs to each with memory.
    pub ways: Vec<Way>,
    /// Copies on the first node with both.
    pub copies: Copies,
    /// How a core there copies best, in its caches and elsewhere.
    pub methods: CopyMethods,
    /// Copies by devices, and why others do none.
    pub devices: Devices,
    /// How much of the machine was looked at, and how often.
    pub sampling: Sampling,
}

/// Nodes that have CPUs and nodes that have memory, of those that this process may use.
fn ends(machine: &Machine) -> (Vec<&Node>, Vec<&Node>) {
    let with_cpus = machine.nodes().iter().filter(|node| !node.allowed_cpus.is_empty());
    let with_memory = machine.nodes().iter().filter(|node| node.has_memory() && node.is_allowed);
    (with_cpus.collect(), with_memory.collect())
}

/// Measures this machine pass by pass, in memory and through queues that it keeps until it is dropped.
///
/// Whoever makes several passes keeps the best of each figure ([`Calibration::or_better`]).
pub struct Calibrator<'a> {
    machine: &'a Machine,
    arenas: Arenas<'a>,
    devices: Vec<devices::Device>,
    diagnostics: Vec<String>,
    /// Since the first pass.
    methods: Option<CopyMethods>,
    effort: Effort,
}

impl<'a> Calibrator<'a> {
    /// `are_devices_emulated`: those that Linux shows are no silicon, and the profile has to say so.
    ///
    /// # Errors
    /// [`CalibrateError::NotHere`] for a machine that was not discovered, [`NoCpus`](CalibrateError::NoCpus).
    pub fn new(
        machine: &'a Machine,
        effort: Effort,
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

    /// How many calls of `progress` a pass makes.
    pub fn steps_count(&self) -> usize {
        self.ways_count() + copies::STEPS_COUNT + self.devices.len()
    }

    fn ways_count(&self) -> usize {
        let (cpus, memories) = ends(self.machine);
        cpus.len() * memories.len()
    }

    /// Measures everything once. `progress` is called after each of [`steps_count`](Self::steps_count) steps.
    ///
    /// # Errors
    /// [`CalibrateError::Memory`] where there is no room, [`Pin`](CalibrateError::Pin) where the kernel does not let
    /// threads stay on their CPUs, [`Disturbed`](CalibrateError::Disturbed) for times that make no sense. A device that
    /// fails is no error, but among [`Devices::diagnostics`].
    pub fn pass(&mut self, progress: &mut dyn FnMut()) -> Result<Calibration, CalibrateError> {
        let (cpus, memories) = ends(self.machine);
        let threads_max = self.effort.threads_max(self.ways_count());
        let figures = self.ways_count() * ways::figures_count(threads_max)
            + copies::FIGURES_COUNT
            + self.devices.len() * devices::FIGURES_COUNT;
        let mut sampler = Sampler::new(self.effort, figures);
        let mut ways = Vec::new();
        // A memory's arenas are used by all nodes before the next memory's are made.
        for memory in &memories {
            let arenas = self.arenas.of(memory.id)?;
            for cpus in &cpus {
                ways.push(ways::measure(cpus, memory.id, arenas, threads_max, &mut sampler)?);
                progress();
            }
        }
        // In the order of the machine's nodes, as its links are.
        ways.sort_by_key(|way| (way.cpus, way.memory));
        let home = home(self.machine)?;
        let arena = &mut self.arenas.of(home.id)?[0];
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
        Ok(Calibration { ways, copies, methods, devices: measured, sampling })
    }

    /// Runs the benchmarks of a [`Check`] once.
    ///
    /// # Errors
    /// As [`pass`](Self::pass).
    pub fn check(&mut self) -> Result<Check, CalibrateError> {
        let home = home(self.machine)?;
        Check::measure(self.machine, home, self.arenas.of(home.id)?, self.effort)
    }
}

/// The first node with CPUs and memory; where copies are measured.
fn home(machine: &Machine) -> Result<&Node, CalibrateError> {
    let (cpus, memories) = ends(machine);
    let has_both = |node: &&&Node| memories.iter().any(|memory| memory.id == node.id);
    cpus.iter().find(has_both).copied().ok_or(CalibrateError::NoCpus)
}

/// Five digits: more than any clock tells, and few enough that a text says exactly what is meant.
fn rounded(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

/// A parameter that was measured, here or by somebody else for [`Calibration::apply`]; `value` is kept in five digits.
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
    /// Of each figure the better one: nothing makes a machine faster than it is. Copy methods, which are the same in all
    /// passes of a [`Calibrator`], are the first one's.
    ///
    /// # Errors
    /// [`CalibrateError::Disturbed`] as for [`Calibrator::pass`].
    pub fn or_better(self, other: Calibration) -> Result<Calibration, CalibrateError> {
        let ways = self.ways.into_iter().zip(other.ways).map(|(one, other)| one.or_better(other));
        Ok(Calibration {
            ways: ways.collect(),
            copies: self.copies.or_better(other.copies)?,
            methods: self.methods,
            devices: self.devices.or_better(other.devices),
            sampling: self.sampling.with(other.sampling),
        })
    }

    /// The machine with these figures, and with `others` that were measured elsewhere. `name` and `what` say which
    /// measurement it was: short, and with date, version and machine.
    ///
    /// # Errors
    /// [`CalibrateError::Topology`] if the figures cannot be, such as an infinite rate.
    pub fn apply(
        &self,
        machine: Machine,
        others: Vec<Parameter>,
        (name, what): (&str, &str),
    ) -> Result<Machine, CalibrateError> {
        let mut parameters = self.parameters(&machine, name);
        parameters.extend(self.devices.parameters(name));
        parameters.extend(others);
        let measured = Measured {
            reference: (name.to_owned(), format!("{what}; {}", self.sampling)),
            links: self.ways.iter().map(|way| (way.cpus, way.memory, way.link())).collect(),
            accelerators: self.devices.rates(),
            parameters,
            copy_methods: Some(self.methods),
            facts: self.facts(name),
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
        let own = self.ways.iter().find(|way| way.cpus == way.memory);
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
            let rates = self.ways.iter().filter(|way| is_of_tier(way.memory)).map(Way::traffic);
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
        for Way { cpus, memory, latency_s, core_read, core_copy, copy, .. } in &self.ways {
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

impl Way {
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
