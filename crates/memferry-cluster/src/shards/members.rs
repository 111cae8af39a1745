//! The workers that a query may use, and the decision after a failure. No clock, no network: the tests simulate both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use thiserror::Error;

use super::{Assignment, ShardMap, ShardsLost};

/// The workers of one query, from its first plan to its last.
///
/// ```text
/// assign ─▶ run ─┬▶ rows, end
///                └▶ failure ─▶ after ─┬▶ Again: no row was returned, the worker is not used any more
///                                     └▶ Report: an error; rows were returned, or the query itself is wrong
/// ```
///
/// A query is planned at most once for each worker, because each further plan has lost one.
#[derive(Clone, Debug)]
pub struct Members {
    map: Arc<ShardMap>,
    lost: BTreeMap<usize, String>,
}

/// The reason for which a plan failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A worker cannot be reached, does not answer, or refuses the plan because it has another version of the map.
    Worker {
        /// Its number in the map.
        worker: usize,
        /// What happened to it.
        what: String,
    },
    /// The query is wrong, such as a division by zero: no other worker would answer otherwise.
    Query,
}

/// The step after a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Plan the query again, without the worker.
    Again,
    /// Report the error of the query.
    Report,
    /// Report that a worker was lost.
    ReportLost(QueryFailure),
}

/// A query that lost a worker and cannot be run again by itself.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "worker {worker} failed after {rows} rows of the answer had been returned: {what}; they are not the whole answer: run the \
     query again, which uses the replicas of its shards"
)]
pub struct QueryFailure {
    /// The address of the worker.
    pub worker: String,
    /// What happened to it.
    pub what: String,
    /// Rows that had been returned.
    pub rows: u64,
}

impl Members {
    /// All workers of `map`.
    pub fn new(map: Arc<ShardMap>) -> Members {
        Members { map, lost: BTreeMap::new() }
    }

    /// The map.
    pub fn map(&self) -> &Arc<ShardMap> {
        &self.map
    }

    /// Marks a worker as lost, and says why. The first reason is kept.
    pub fn lose(&mut self, worker: usize, what: impl Into<String>) {
        self.lost.entry(worker).or_insert_with(|| what.into());
    }

    /// The workers that are not lost.
    pub fn alive(&self) -> BTreeSet<usize> {
        (0..self.map.workers().len()).filter(|worker| !self.lost.contains_key(worker)).collect()
    }

    /// The lost workers with their reasons.
    pub fn lost(&self) -> &BTreeMap<usize, String> {
        &self.lost
    }

    /// The tasks of a stage on the workers that are not lost.
    ///
    /// # Errors
    /// [`ShardsLost`]
    pub fn assign(&self, tasks: usize) -> Result<Assignment, ShardsLost> {
        self.map.assign(&self.alive(), tasks)
    }

    /// Decides after a failure, when `rows` rows of the answer have been returned to the client.
    pub fn after(&mut self, failure: &Failure, rows: u64) -> Next {
        let Failure::Worker { worker, what } = failure else { return Next::Report };
        let known = self.lost.contains_key(worker);
        self.lose(*worker, what.clone());
        if rows > 0 {
            let worker = self.map.workers()[*worker].clone();
            return Next::ReportLost(QueryFailure { worker, what: what.clone(), rows });
        }
        // A plan that fails at a worker that it does not use would fail forever.
        if known { Next::Report } else { Next::Again }
    }
}
