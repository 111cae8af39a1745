//! The workload of the study about sub-NUMA clusters, in the model: what a database scans, where its workers are, and what
//! follows for throughput and traffic.
//!
//! Source: H. Greinsmark, *Effective Task Scheduling of In-Memory Databases on a Sub-NUMA Processor Topology*, master thesis,
//! KTH Stockholm, 2020, chapter 5, figures 8 to 14.
//!
//! ```text
//! layout     bytes of the columns of figure 8
//! results    bytes that queries write, from two published gains (a fit)
//! lookups    what the query of figure 9 waits for memory (figure 11)
//! Study      the query of figure 10 on a machine (figures 12 to 14): model::tasks of memferry
//! ```
//!
//! Inputs, fits and predictions are listed in `docs/decisions/sub-numa-study.md`.

mod layout;
mod lookups;
mod results;
mod rows;
#[cfg(test)]
mod tests;

pub use layout::Layout;
pub use lookups::{Lookup, lookups};
pub(crate) use results::FIT;
pub use results::{Results, counted_again};
pub(crate) use rows::rows_of;
pub use rows::{rows, scan_name};

use std::fmt;
use std::str::FromStr;

use memferry::internals::{Hardware, TableScan, TaskRun, TaskScans};
use memferry::model::ModelError;
use memferry::topology::{Machine, NodeId};
use serde::Deserialize;

/// Rows of a table.
pub const ROWS: u64 = 50_000_000;

/// Client connections.
pub const CLIENTS: usize = 56;

/// Predicates of a query, over both tables.
pub const PREDICATES: usize = 6;

/// The values of `range_pred`. Columns are random from 1 to [`ROWS`], so that a predicate selects nearly as many rows.
pub const RANGE_PREDS: [u64; 3] = [10_000, 100_000, 1_000_000];

/// Queries of a client that are counted. The publication has 512; the model has no noise.
const QUERIES_PER_CLIENT: usize = 8;

/// Where workers are.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workers {
    /// On all cores of the socket.
    All,
    /// On half of the cores of each domain.
    Half,
    /// On the domain of the first table only.
    First,
    /// On the domain of the second table only.
    Second,
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Workers::All => "all",
            Workers::Half => "half",
            Workers::First => "first",
            Workers::Second => "second",
        })
    }
}

impl FromStr for Workers {
    type Err = String;

    fn from_str(text: &str) -> Result<Workers, String> {
        let all = [Workers::All, Workers::Half, Workers::First, Workers::Second];
        all.into_iter()
            .find(|workers| workers.to_string() == text)
            .ok_or_else(|| format!("'{text}' is not a place of workers; use one of all, half, first, second"))
    }
}

/// How workers are bound, and whether they steal.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Where they are.
    pub workers: Workers,
    /// Whether they take tasks of the other domain while their own has none.
    pub is_stealing: bool,
}

/// The settings that a socket of so many domains has. Stealing needs workers on two domains.
pub fn settings(domains_count: usize) -> Vec<Setting> {
    let setting = |workers, is_stealing| Setting { workers, is_stealing };
    let (all, half) = (Workers::All, Workers::Half);
    match domains_count {
        0 | 1 => vec![setting(all, false), setting(half, false)],
        _ => vec![
            setting(all, false),
            setting(all, true),
            setting(half, false),
            setting(half, true),
            setting(Workers::First, false),
            setting(Workers::Second, false),
        ],
    }
}

/// A socket on which clients scan two tables.
#[derive(Clone, Debug)]
pub struct Study {
    hardware: Hardware,
    /// Nodes of the tables, and hardware threads there; one node has both tables.
    domains: Vec<(NodeId, usize)>,
    results: Results,
    /// Tasks of each column: one for each hardware thread of the first domain.
    tasks_per_column: usize,
    task_spread: f64,
}

/// The spread of the sizes of tasks, which is not published: assumed.
const TASK_SPREAD: f64 = 0.5;

impl Study {
    /// The study on the first socket of a machine; of more than two domains, on its first two.
    ///
    /// # Errors
    /// [`ModelError::Unknown`] if the machine's rates are not known, [`Scenario`](ModelError::Scenario) if it has no domain with
    /// CPUs and memory.
    pub fn of(machine: &Machine) -> Result<Study, ModelError> {
        let hardware = Hardware::of(machine)?;
        let sockets = machine.sockets();
        let nodes = sockets.first().map_or(&[][..], |socket| &socket.domains);
        let with_memory = |id: NodeId| {
            machine.nodes().iter().find(|node| node.id == id && node.has_memory() && !node.cpus.is_empty())
        };
        let domains = nodes.iter().filter_map(|domain| with_memory(domain.cpu_node));
        let domains: Vec<_> = domains.map(|node| (node.id, node.cpus.len())).take(2).collect();
        let Some(&(_, threads)) = domains.first() else {
            return Err(ModelError::Scenario { what: format!("{} has no CPUs with memory", machine.name()) });
        };
        Ok(Study {
            hardware,
            domains,
            results: Results::published()?,
            tasks_per_column: threads,
            task_spread: TASK_SPREAD,
        })
    }

    /// The same with another number of tasks for each column. The publication does not say how many there are.
    pub fn with_tasks_per_column(self, tasks_per_column: usize) -> Study {
        Study { tasks_per_column, ..self }
    }

    /// The same with another spread of the sizes of tasks, from 0 to below 1.
    pub fn with_task_spread(self, task_spread: f64) -> Study {
        Study { task_spread, ..self }
    }

    /// The nodes of the tables: two, or one that has both.
    pub fn domains(&self) -> impl Iterator<Item = NodeId> {
        self.domains.iter().map(|&(node, _)| node)
    }

    /// The settings that this socket has.
    pub fn settings(&self) -> Vec<Setting> {
        settings(self.domains.len())
    }

    /// Throughput and traffic of queries that have so many of the [`PREDICATES`] on the first table.
    ///
    /// # Errors
    /// [`ModelError::Unknown`], [`Scenario`](ModelError::Scenario) for more predicates than there are or a setting that the
    /// socket does not have.
    pub fn run(&self, setting: Setting, on_first: usize, range_pred: u64) -> Result<TaskRun, ModelError> {
        self.scans(setting, on_first, range_pred)?.run(&self.hardware)
    }

    fn scans(&self, setting: Setting, on_first: usize, range_pred: u64) -> Result<TaskScans, ModelError> {
        let wrong = |what: String| Err(ModelError::Scenario { what });
        if on_first > PREDICATES {
            return wrong(format!("it has {on_first} predicates on the first table of {PREDICATES} in all"));
        }
        if !(1..=ROWS).contains(&range_pred) {
            return wrong(format!(
                "its predicates are below {range_pred}; columns have values from 1 to {ROWS}"
            ));
        }
        let Setting { workers, is_stealing } = setting;
        let one = self.domains.len() == 1;
        if one && (is_stealing || matches!(workers, Workers::First | Workers::Second)) {
            return wrong(format!("workers {workers} and stealing need two domains, and the socket has one"));
        }
        let counts = self.domains.iter().enumerate().map(|(index, &(node, threads))| {
            let count = match workers {
                Workers::All => threads,
                Workers::Half => (threads / 2).max(1),
                Workers::First if index == 0 => threads,
                Workers::Second if index == 1 => threads,
                Workers::First | Workers::Second => 0,
            };
            (node, count)
        });
        let homes = [self.domains[0].0, self.domains[self.domains.len() - 1].0];
        let scan = |(node, columns_count): (NodeId, usize)| TableScan {
            node,
            columns_count,
            column_bytes: Layout::VALUE.vector_bytes(),
            result_bytes: self.results.bytes(columns_count, range_pred),
        };
        let columns = [on_first, PREDICATES - on_first];
        Ok(TaskScans {
            clients_count: CLIENTS,
            queries_per_client: QUERIES_PER_CLIENT,
            workers: counts.filter(|&(_, count)| count > 0).collect(),
            is_stealing,
            tasks_per_column: self.tasks_per_column,
            task_spread: self.task_spread,
            scans: homes.into_iter().zip(columns).filter(|&(_, columns)| columns > 0).map(scan).collect(),
        })
    }
}
