//! The map of shards to workers, and the choice of the worker that reads a shard.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Shards and their workers. All tables of a cluster have the same map, so that rows with equal keys meet on one worker.
///
/// Shard `s` of `n` workers has its replicas on the workers `s`, `s + d`, `s + 2d`, ... (mod `n`). The distance `d` differs
/// from one round of shards to the next, so that the shards of a lost worker go to several others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardMap {
    version: u64,
    workers: Vec<String>,
    shards: Vec<Vec<usize>>,
}

impl ShardMap {
    /// A map of `shards` shards with up to `replicas` replicas each; fewer workers than replicas hold one each.
    ///
    /// # Errors
    /// [`MapError`]
    pub fn new(
        version: u64,
        workers: Vec<String>,
        shards: usize,
        replicas: usize,
    ) -> Result<ShardMap, MapError> {
        if workers.is_empty() {
            return Err(MapError::NoWorker);
        }
        if shards == 0 || replicas == 0 {
            return Err(MapError::Zero);
        }
        let mut known = BTreeSet::new();
        if let Some(twice) = workers.iter().find(|worker| !known.insert(worker.as_str())) {
            return Err(MapError::Twice { worker: twice.clone() });
        }
        let count = workers.len();
        let shards = (0..shards).map(|shard| replicas_of(shard, count, replicas.min(count))).collect();
        Ok(ShardMap { version, workers, shards })
    }

    /// The version: a worker answers queries that were planned with its own version only.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The addresses of the workers, `HOST:PORT`.
    pub fn workers(&self) -> &[String] {
        &self.workers
    }

    /// Number of shards of each table.
    pub fn shards_count(&self) -> usize {
        self.shards.len()
    }

    /// The workers that hold `shard`, the preferred one first.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn replicas(&self, shard: usize) -> &[usize] {
        &self.shards[shard]
    }

    /// The shards that a worker holds.
    pub fn shards_of(&self, worker: usize) -> Vec<usize> {
        (0..self.shards.len()).filter(|&shard| self.shards[shard].contains(&worker)).collect()
    }

    /// Divides the shards among `tasks` tasks on the workers of `alive`.
    ///
    /// Task `i` runs on the `i`-th worker of `alive`; with more tasks than workers, on worker `i` modulo their number. A shard
    /// goes to a worker that holds it and has a task, to the one with the fewest shards so far. If none of them has a task,
    /// the task with the fewest shards reads it over the network. The answer depends on nothing but the arguments, so
    /// tables with equal keys have equal shards in each task.
    ///
    /// # Errors
    /// [`ShardsLost`] if no worker of `alive` holds a shard.
    pub fn assign(&self, alive: &BTreeSet<usize>, tasks: usize) -> Result<Assignment, ShardsLost> {
        let lost: Vec<usize> = (0..self.shards.len())
            .filter(|&shard| !self.shards[shard].iter().any(|worker| alive.contains(worker)))
            .collect();
        if let Some(&shard) = lost.first() {
            let workers = self.shards[shard].iter().map(|&worker| self.workers[worker].clone()).collect();
            return Err(ShardsLost {
                shard,
                workers,
                lost_count: lost.len(),
                shards_count: self.shards.len(),
            });
        }
        let alive: Vec<usize> = alive.iter().copied().filter(|&worker| worker < self.workers.len()).collect();
        let workers: Vec<usize> = (0..tasks.max(1)).map(|task| alive[task % alive.len()]).collect();
        let mut shards: Vec<Vec<usize>> = vec![Vec::new(); workers.len()];
        for shard in 0..self.shards.len() {
            let holds = |&task: &usize| self.shards[shard].contains(&workers[task]);
            let fewest =
                |tasks: &mut dyn Iterator<Item = usize>| tasks.min_by_key(|&task| shards[task].len());
            let task = fewest(&mut (0..workers.len()).filter(holds))
                .or_else(|| fewest(&mut (0..workers.len())))
                .expect("there is at least one task");
            shards[task].push(shard);
        }
        Ok(Assignment { workers, shards })
    }
}

fn replicas_of(shard: usize, workers: usize, replicas: usize) -> Vec<usize> {
    let (first, round) = (shard % workers, shard / workers);
    let mut holders = vec![first];
    let distance = if workers > 1 { 1 + round % (workers - 1) } else { 0 };
    let mut next = first;
    while holders.len() < replicas {
        next = (next + distance) % workers;
        // A distance that divides the number of workers comes back early.
        while holders.contains(&next) {
            next = (next + 1) % workers;
        }
        holders.push(next);
    }
    holders
}

/// The tasks of a stage that reads tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The worker of each task.
    pub workers: Vec<usize>,
    /// The shards that each task reads; each shard is in exactly one.
    pub shards: Vec<Vec<usize>>,
}

impl Assignment {
    /// The shards of `task`, divided among `partitions` partitions; with fewer shards some are empty.
    ///
    /// # Panics
    /// If there is no such task, or no partition.
    pub fn partitions(&self, task: usize, partitions: usize) -> Vec<Vec<usize>> {
        let mut divided = vec![Vec::new(); partitions];
        for (index, &shard) in self.shards[task].iter().enumerate() {
            divided[index % partitions].push(shard);
        }
        divided
    }
}

/// A map that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MapError {
    /// No worker.
    #[error("the cluster has no worker; name at least one HOST:PORT in `workers`")]
    NoWorker,
    /// No shard or no replica.
    #[error("`shards` and `replicas` must be at least 1")]
    Zero,
    /// A worker is named twice.
    #[error("the worker {worker} is named twice in `workers`; remove one of them")]
    Twice {
        /// Its address.
        worker: String,
    },
}

/// No worker that is alive holds a shard.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "no worker that holds shard {shard} can be reached: {}; {lost_count} of {shards_count} shards are lost; start one of \
     these workers again",
    .workers.join(", ")
)]
pub struct ShardsLost {
    /// The first lost shard.
    pub shard: usize,
    /// The workers that hold it.
    pub workers: Vec<String>,
    /// Number of lost shards.
    pub lost_count: usize,
    /// Number of all shards.
    pub shards_count: usize,
}
