//! The papers' query, `SELECT sum(b) WHERE a < x`, as tasks of groups of threads, with column b brought near meanwhile.
//!
//! ```text
//! group 0   SCAN_a     | a0 a1 a2 ... |                    which rows pass
//!           SCAN_b     | b0 b1 b2 ..    |                  asks the cache to copy b
//!           AGGREGATE                   | b0 b1 b2 ... |   sums b where rows passed: near if it is there, else at home
//! group 1   ...
//! ```
//!
//! Rows are divided among groups, and the chunks of a group among the threads of each task. SCAN_a and SCAN_b of a
//! group run at the same time. AGGREGATE begins when the group's SCAN_a has ended ([`Synchronization::Relaxed`]), or
//! when what SCAN_b asked for has arrived as well ([`Synchronization::Barrier`]); groups do not wait for each other.
//! Without prefetching there is no SCAN_b, and its threads scan a.
//!
//! [`Qdp`] runs a [`Query`] on the cores of this machine, with the cache and the mover of this crate (`cores`), with
//! emulated devices for the copies, or in the model (`modelled`).
//!
//! Source: Fürst, "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator" (2024), 5.2 and
//! chapter 6. What is not printed there: the groups, the division of the first stage's threads, and the size of chunks;
//! [`Axes::on`] takes those of `scenarios/table-6.2.toml`.

mod axes;
mod columns;
mod cores;
mod modelled;
mod published;
mod query;
mod threads;

use std::sync::Arc;

pub use axes::{Axes, Axis};
use memferry::model::ModelError;
use memferry::topology::Machine;
use memferry_dsa_emulator::Timing;
pub use published::published;
pub use query::{Nodes, PAGE_BYTES, Query};
use serde::Deserialize;

use self::cores::Cores;
use self::modelled::Modelled;
use super::Skipped;

/// Something that is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// From the start to the end of the last AGGREGATE.
    Total,
    /// A group's time in SCAN_a, averaged over the groups.
    ScanA,
    /// The same in SCAN_b: until everything is submitted, or, with a barrier, has arrived.
    ScanB,
    /// The same in AGGREGATE.
    Aggregate,
    /// Share of the chunks of b that were near when AGGREGATE came to them.
    HitRate,
    /// The time of [`Variant::Baseline`] divided by this one's.
    SpeedUp,
}

impl Figure {
    /// Its name in records.
    pub fn name(self) -> &'static str {
        match self {
            Figure::Total => "total",
            Figure::ScanA => "scan_a",
            Figure::ScanB => "scan_b",
            Figure::Aggregate => "aggregate",
            Figure::HitRate => "hit_rate",
            Figure::SpeedUp => "speed_up",
        }
    }

    /// Its unit in records.
    pub fn unit(self) -> &'static str {
        match self {
            Figure::Total | Figure::ScanA | Figure::ScanB | Figure::Aggregate => "ms",
            Figure::HitRate | Figure::SpeedUp => "1",
        }
    }

    /// Whether more of it is better.
    pub fn is_more_better(self) -> bool {
        matches!(self, Figure::HitRate | Figure::SpeedUp)
    }
}

/// Where column b is, and what is done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Both columns on the home node.
    Baseline,
    /// Column b in the near memory from the start: what perfect prefetching would reach.
    UpperLimit,
    /// Both columns at home, all of b copied to the near memory meanwhile.
    Prefetching,
    /// The same with b on another node than a.
    Distributed,
    /// Columns on two nodes, nothing copied: what of [`Distributed`](Variant::Distributed) is not prefetching.
    DistributedAlone,
    /// The near memory as a cache that hardware manages, with nothing in it.
    CacheModeCold,
    /// The same after the query has run before.
    CacheMode,
    /// As [`Prefetching`](Variant::Prefetching), but only what [`advise`](memferry::model::advise) says that pays.
    Advised,
    /// As [`Distributed`](Variant::Distributed), but only what `advise` says.
    AdvisedDistributed,
}

impl Variant {
    /// All of them, the one that others are compared with first.
    pub const ALL: [Variant; 9] = [
        Variant::Baseline,
        Variant::UpperLimit,
        Variant::Prefetching,
        Variant::Distributed,
        Variant::DistributedAlone,
        Variant::CacheModeCold,
        Variant::CacheMode,
        Variant::Advised,
        Variant::AdvisedDistributed,
    ];

    /// Its name in records and options.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Baseline => "baseline",
            Variant::UpperLimit => "upper-limit",
            Variant::Prefetching => "prefetching",
            Variant::Distributed => "distributed",
            Variant::DistributedAlone => "distributed-alone",
            Variant::CacheModeCold => "cache-mode-cold",
            Variant::CacheMode => "cache-mode",
            Variant::Advised => "advised",
            Variant::AdvisedDistributed => "advised-distributed",
        }
    }

    /// Whether SCAN_b brings all of b near, and has threads for it.
    fn is_prefetching(self) -> bool {
        matches!(self, Variant::Prefetching | Variant::Distributed)
    }

    fn is_advised(self) -> bool {
        matches!(self, Variant::Advised | Variant::AdvisedDistributed)
    }

    fn is_cache_mode(self) -> bool {
        matches!(self, Variant::CacheMode | Variant::CacheModeCold)
    }
}

/// What AGGREGATE waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Synchronization {
    /// SCAN_a.
    Relaxed,
    /// SCAN_a, and the copies that SCAN_b asked for.
    Barrier,
}

impl Synchronization {
    /// Its name in records and options.
    pub fn name(self) -> &'static str {
        match self {
            Synchronization::Relaxed => "relaxed",
            Synchronization::Barrier => "barrier",
        }
    }
}

/// How often a query runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Runs before those that count.
    pub warm_ups: usize,
    /// Runs that count.
    pub runs: usize,
}

impl Effort {
    /// Source: Fürst 2024, 6.1.
    pub const FULL: Effort = Effort { warm_ups: 5, runs: 5 };
    /// To see that it works.
    pub const QUICK: Effort = Effort { warm_ups: 1, runs: 2 };
}

/// What a query yields of one figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// Which one.
    pub figure: Figure,
    /// Of each run, in the figure's unit; empty if it has none here, and then there is a note.
    pub values: Vec<f64>,
    /// What to know of it, if anything.
    pub note: Option<String>,
}

/// Whoever runs queries.
#[derive(Debug)]
pub struct Qdp(On);

#[derive(Debug)]
enum On {
    Cores(Box<Cores>),
    Model(Modelled),
}

impl Qdp {
    /// The cores of this machine, and for copies its DSA queues if it has some that this process may use.
    ///
    /// # Errors
    /// [`Skipped::Failed`]: a queue that is there cannot be used.
    pub fn on_machine(machine: Machine) -> Result<Qdp, Skipped> {
        Ok(Qdp(On::Cores(Box::new(Cores::of_this_machine(machine)?))))
    }

    /// The cores of this machine, and for copies emulated devices where `machine` has some; one if it is this machine
    /// and has none. Each takes the time of that timing. All memory is this machine's.
    ///
    /// # Errors
    /// [`Skipped::Cannot`]: another machine has no devices. [`Skipped::Failed`]: one does not start.
    pub fn on_emulated(machine: Machine, timing: Timing) -> Result<Qdp, Skipped> {
        Ok(Qdp(On::Cores(Box::new(Cores::with_emulated(machine, timing)?))))
    }

    /// [`crate::model`] on a machine that need not be here.
    ///
    /// # Errors
    /// [`ModelError`]: the machine's parameters are none.
    pub fn on_model(machine: Machine) -> Result<Qdp, ModelError> {
        Ok(Qdp(On::Model(Modelled::new(machine)?)))
    }

    /// The machine that it is, has devices like, or computes.
    pub fn machine(&self) -> &Arc<Machine> {
        match &self.0 {
            On::Cores(cores) => &cores.machine,
            On::Model(model) => &model.machine,
        }
    }

    /// Runs a query; every figure but [`Figure::SpeedUp`], which takes two queries. Answers are checked. The model has
    /// no noise: there once is enough, whatever the effort.
    ///
    /// # Errors
    /// [`Skipped::Cannot`] is a result too, and [`Skipped::Failed`], also a wrong answer, the end of the run.
    pub fn run(&self, query: &Query, effort: Effort) -> Result<Vec<Taken>, Skipped> {
        query.check()?;
        for node in [Some(query.nodes.home), query.nodes.near, query.nodes.other].into_iter().flatten() {
            self.machine().node(node).map_err(|error| Skipped::Cannot(error.to_string()))?;
        }
        match &self.0 {
            On::Cores(cores) => cores.run(query, effort),
            On::Model(model) => model.run(query),
        }
    }
}

#[cfg(test)]
mod tests;
