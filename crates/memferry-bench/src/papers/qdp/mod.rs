//! The papers' query, `SELECT sum(b) WHERE a < x`, as tasks of groups of threads, with column b brought near meanwhile.
//!
//! ```text
//! group 0   SCAN_a     | a0 a1 a2 ... |                    marks the rows that pass
//!           SCAN_b     | b0 b1 b2 ..    |                  requests copies of b
//!           AGGREGATE                   | b0 b1 b2 ... |   sums b of these rows, from the near copy if it is ready
//! group 1   ...
//! ```
//!
//! Rows are divided among groups, and the chunks of a group among the threads of each task. SCAN_a and SCAN_b of a
//! group run at the same time. AGGREGATE begins after the group's SCAN_a ([`Synchronization::Relaxed`]), or after
//! the copies of SCAN_b as well ([`Synchronization::Barrier`]); groups do not wait for each other. Without prefetching
//! there is no SCAN_b, and its threads scan a.
//!
//! [`Qdp`] runs a [`Query`] on the cores of this machine, with memferry's cache and mover (`cores`), with
//! emulated devices for the copies, or in the model (`modelled`).
//!
//! Source: Fürst, "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator" (2024), 5.2 and
//! chapter 6. It does not print the groups, the division of the first stage's threads, and the size of chunks;
//! [`Axes::on`] takes those of `scenarios/table-6.2.toml`.

mod axes;
mod columns;
mod cores;
mod decide;
mod modelled;
mod published;
mod query;
mod threads;

use std::sync::Arc;

pub use axes::Axes;
pub use decide::{Cause, Verdict, decide};
use memferry::model::ModelError;
use memferry::topology::Machine;
pub use published::published;
pub use query::{Nodes, PAGE_BYTES, Query};
use serde::{Deserialize, Serialize};

use self::cores::Cores;
use self::modelled::Modelled;
use super::{Measurement, Metric, Skipped};
use crate::harness::display_by_serde;

/// The place of column b, and the way it comes near.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Both columns on the home node.
    Baseline,
    /// Column b in near memory from the start: the result of perfect prefetching.
    UpperLimit,
    /// Both columns at home, all of b copied to near memory meanwhile.
    Prefetching,
    /// As [`Prefetching`](Variant::Prefetching), with b on another node than a.
    Distributed,
    /// Columns on two nodes without copies: the part of [`Distributed`](Variant::Distributed) that is not prefetching.
    DistributedAlone,
    /// Near memory as a hardware-managed cache, empty.
    CacheModeCold,
    /// Near memory as a hardware-managed cache, after a first run of the query.
    CacheMode,
    /// As [`Prefetching`](Variant::Prefetching), limited to the copies that
    /// [`Plan::advise`](memferry::model::Plan::advise) chooses.
    Advised,
    /// As [`Distributed`](Variant::Distributed), limited to the copies that `advise` chooses.
    AdvisedDistributed,
}

impl Variant {
    /// All variants; the first is the baseline of the others.
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

    /// Whether SCAN_b has threads and copies all of b.
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

/// The condition on which AGGREGATE starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Synchronization {
    /// SCAN_a is done.
    Relaxed,
    /// SCAN_a is done and the copies of SCAN_b are complete.
    Barrier,
}

display_by_serde!(Variant, Synchronization);

/// Numbers of runs of a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueryRuns {
    /// Runs that do not count, before the others.
    pub warm_ups: usize,
    /// Runs that count.
    pub runs: usize,
}

impl QueryRuns {
    /// Source: Fürst 2024, 6.1.
    pub const FULL: QueryRuns = QueryRuns { warm_ups: 5, runs: 5 };
    /// As short as possible: checks that it works.
    pub const QUICK: QueryRuns = QueryRuns { warm_ups: 1, runs: 2 };
}

/// Runs queries on cores or in the model.
#[derive(Debug)]
pub struct Qdp(On);

#[derive(Debug)]
enum On {
    Cores(Box<Cores>),
    Model(Box<Modelled>),
}

impl Qdp {
    /// The cores of this machine. Copies go through its DSA queues if this process may use any.
    ///
    /// # Errors
    /// [`Skipped::Failed`]: a queue exists and cannot be used.
    pub fn on_machine(machine: Machine) -> Result<Qdp, Skipped> {
        Ok(Qdp(On::Cores(Box::new(Cores::of_this_machine(machine)?))))
    }

    /// The cores of this machine. Copies go through emulated devices on the nodes of `machine`'s devices; this machine gets
    /// one if it has none. The costs are those of the profile of `machine`. All memory is this machine's.
    ///
    /// # Errors
    /// [`Skipped::Cannot`]: another machine has no devices, or lacks a cost of them. [`Skipped::Failed`]: a device does not
    /// start.
    pub fn on_emulated(machine: Machine) -> Result<Qdp, Skipped> {
        Ok(Qdp(On::Cores(Box::new(Cores::with_emulated(machine)?))))
    }

    /// The model of a machine.
    ///
    /// # Errors
    /// [`ModelError`]: the machine lacks parameters.
    pub fn on_model(machine: Machine) -> Result<Qdp, ModelError> {
        Ok(Qdp(On::Model(Box::new(Modelled::new(machine)?))))
    }

    /// The machine that is measured, emulated or modelled.
    pub fn machine(&self) -> &Arc<Machine> {
        match &self.0 {
            On::Cores(cores) => &cores.machine,
            On::Model(model) => &model.machine,
        }
    }

    /// Runs a query and checks its answers. Returns every metric but [`Metric::SPEED_UP`], which needs two queries. The
    /// model has no noise and runs once.
    ///
    /// # Errors
    /// [`Skipped::Cannot`] is recorded; [`Skipped::Failed`], for example a wrong answer, ends the run.
    pub fn run(&self, query: &Query, effort: QueryRuns) -> Result<Vec<Measurement>, Skipped> {
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
