//! What this machine does, measured in less than two minutes, as figures that models take: a profile of one's own.
//!
//! ```text
//! ways      each CPU node x each memory node: latency, reading, writing, copying; of hardware threads, of all together
//! copies    methods by size; the straight line through a core's copies; what waking a worker adds
//!   └─▶ Calibration ─▶ Machine with links, parameters and facts ─▶ profile_text, model
//! check     copies at sizes and on numbers of cores that were not measured before, beside what the model says of them
//! ```
//!
//! Everything lies in memory that no cache holds, as columns do that are worth bringing near. Times are those of a
//! machine with nothing else to do, as far as one gets them ([`undisturbed`]); the busier it is, the longer one has to
//! look for them, and the less the figures are worth.
//!
//! Source: the chain of pointers is `lat_mem_rd` of L. McVoy, C. Staelin, "lmbench: portable tools for performance
//! analysis" (1996); bandwidths are those of all CPUs of a node, as in Greinsmark (2020), tables 5 to 8.

pub(crate) mod arena;
mod check;
mod copies;
mod error;
mod fit;
#[allow(unsafe_code)]
mod kernels;
mod threads;
mod ways;

pub use check::{Checked, check};
pub use copies::{Copies, CopyRate, best_methods};
pub use error::CalibrateError;
pub use fit::{Line, Spread};
pub use threads::undisturbed;
pub use ways::Way;

use crate::topology::{Basis, Fact, Link, Machine, Measured, Node, NodeId, Parameter};

/// How much to measure.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Samples of each figure.
    pub rounds: usize,
    /// Whether memory is small, so that everything is over soon. The figures are then those of caches.
    pub is_quick: bool,
}

impl Effort {
    /// For figures to keep.
    pub const FULL: Effort = Effort { rounds: 100, is_quick: false };
    /// To see that it works.
    pub const QUICK: Effort = Effort { rounds: 2, is_quick: true };

    /// What each CPU walks through, so that all together exceed the caches several times: of twice a cache's size,
    /// caches that do not evict in the order of use still have a part.
    fn arena_bytes(self, cpus: &[u32]) -> usize {
        if self.is_quick {
            return 16 << 20;
        }
        let cache_bytes = cpus.first().and_then(|&cpu| arena::cache_bytes(cpu)).unwrap_or(32 << 20);
        (8 * cache_bytes / cpus.len().max(1)).max(32 << 20)
    }

    /// What is read or written in one round: some milliseconds, so that some rounds go undisturbed.
    fn round_bytes(self) -> usize {
        if self.is_quick { 1 << 20 } else { 16 << 20 }
    }

    /// Hardware threads of a node that are measured one by one, on so many ways between nodes.
    fn threads_max(self, ways_count: usize) -> usize {
        if self.is_quick { 2 } else { (64 / ways_count.max(1)).clamp(2, 8) }
    }
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// From each node with CPUs to each with memory.
    pub ways: Vec<Way>,
    /// Copies on the first node with both.
    pub copies: Copies,
}

/// Nodes that have CPUs and nodes that have memory, of those that this process may use.
fn ends(machine: &Machine) -> (Vec<&Node>, Vec<&Node>) {
    let with_cpus = machine.nodes().iter().filter(|node| !node.allowed_cpus.is_empty());
    let with_memory = machine.nodes().iter().filter(|node| node.has_memory() && node.is_allowed);
    (with_cpus.collect(), with_memory.collect())
}

/// How many calls of `progress` a [`measure`] makes.
pub fn steps_count(machine: &Machine) -> usize {
    let (cpus, memories) = ends(machine);
    cpus.len() * memories.len() + copies::STEPS_COUNT
}

/// Measures this machine. `progress` is called after each of [`steps_count`] steps.
///
/// # Errors
/// [`CalibrateError::NotHere`] for a machine that was not discovered, [`NoCpus`](CalibrateError::NoCpus),
/// [`Memory`](CalibrateError::Memory) where there is no room, [`Pin`](CalibrateError::Pin) where the kernel does not
/// let threads stay on their CPUs, [`Disturbed`](CalibrateError::Disturbed) for times that make no sense.
pub fn measure(
    machine: &Machine,
    effort: Effort,
    progress: &mut dyn FnMut(),
) -> Result<Calibration, CalibrateError> {
    if !machine.is_this_machine() {
        return Err(CalibrateError::NotHere { machine: machine.name().to_owned() });
    }
    let (cpus, memories) = ends(machine);
    let threads_max = effort.threads_max(cpus.len() * memories.len());
    let mut ways = Vec::new();
    for cpus in &cpus {
        for memory in &memories {
            ways.push(ways::measure(machine, cpus, memory.id, threads_max, effort)?);
            progress();
        }
    }
    let copies = copies::measure(machine, home(machine)?, effort, progress)?;
    Ok(Calibration { ways, copies })
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

impl Calibration {
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
        parameters.extend(others);
        let measured = Measured {
            reference: (name.to_owned(), what.to_owned()),
            links: self.ways.iter().map(|way| (way.cpus, way.memory, way.link())).collect(),
            parameters,
            facts: self.facts(name),
        };
        Ok(machine.with_measured(measured)?)
    }

    fn parameters(&self, machine: &Machine, name: &str) -> Vec<Parameter> {
        let of = |what: &str| format!("{name}: {what}");
        let Line { base_s, bytes_per_s } = self.copies.line;
        let line = "the line through copies of a core by memcpy, of memory that no cache holds, by size";
        let mut parameters = vec![
            parameter("core_copy_mb_per_s", bytes_per_s / 1e6, &of(line)),
            parameter("core_copy_latency_ns", base_s * 1e9, &of(line)),
            parameter(
                "worker_wake_ns",
                self.copies.wake_s * 1e9,
                &of("a small copy by a worker that slept, until it is waited for, less the copy"),
            ),
        ];
        let own = self.ways.iter().find(|way| way.cpus == way.memory);
        if let Some(way) = own {
            let how = of("reading of a single core, mean over hardware threads");
            parameters.push(parameter("core_mb_per_s", way.core_read.mean / 1e6, &how));
        }
        for (tier, name) in
            [(crate::topology::Tier::Dram, "dram_mb_per_s"), (crate::topology::Tier::Hbm, "hbm_mb_per_s")]
        {
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
        let mut fact = |what: String, value: f64, unit: &str| {
            facts.push(Fact {
                name: what,
                value: rounded(value),
                unit: unit.to_owned(),
                source: name.to_owned(),
            });
        };
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
