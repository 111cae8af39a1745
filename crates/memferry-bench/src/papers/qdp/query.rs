//! One query: nodes of its columns, and its threads.

use memferry::topology::{Machine, Node, NodeId};
use serde::Serialize;

use super::{Skipped, Synchronization, Variant};
use crate::papers::Columns;

/// The nodes of columns in the variants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Nodes {
    /// Node of column a; its CPUs run all threads.
    pub home: NodeId,
    /// Node of a memory that is faster for these CPUs.
    pub near: Option<NodeId>,
    /// Another node with memory of home's kind.
    pub other: Option<NodeId>,
}

impl Nodes {
    /// `home`, by default the first node with CPUs and memory; the nearest faster node, and the nearest other node of home's
    /// kind.
    ///
    /// # Errors
    /// [`Skipped::Cannot`]: no node has both.
    pub fn of(machine: &Machine, home: Option<NodeId>) -> Result<Nodes, Skipped> {
        let is_home = |node: &&Node| node.has_memory() && node.is_allowed && !node.allowed_cpus.is_empty();
        let found =
            machine.nodes().iter().filter(is_home).find(|node| home.is_none_or(|home| node.id == home));
        let Some(home) = found else {
            return Skipped::cannot(match home {
                Some(home) => {
                    format!("node {home} does not have both CPUs and memory that this process may use")
                }
                None => "no node has both CPUs and memory that this process may use".to_owned(),
            });
        };
        let others = machine.memories_near(home.id).into_iter();
        let other = others.filter(|node| node.tier == home.tier).find(|node| node.id != home.id);
        let near = machine.nearest_faster(home.id);
        Ok(Nodes { home: home.id, near: near.map(|node| node.id), other: other.map(|node| node.id) })
    }

    /// The node of b at the start.
    ///
    /// # Errors
    /// [`Skipped::Cannot`] for a missing node.
    pub(super) fn of_b(&self, variant: Variant) -> Result<NodeId, Skipped> {
        let missing = |what: &str| {
            Skipped::Cannot(format!(
                "{what} than that of node {} is known here; --machine PROFILE has more",
                self.home
            ))
        };
        match variant {
            Variant::UpperLimit => self.near.ok_or_else(|| missing("no faster memory")),
            Variant::Distributed | Variant::DistributedAlone | Variant::AdvisedDistributed => {
                self.other.ok_or_else(|| missing("no other memory"))
            }
            _ => Ok(self.home),
        }
    }
}

/// A complete description of one run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Query {
    /// The variant.
    pub variant: Variant,
    /// Size of each of the two columns; a multiple of [`PAGE_BYTES`].
    pub column_bytes: u64,
    /// Groups of threads.
    pub groups: usize,
    /// Threads of the first stage over all groups: SCAN_a, and SCAN_b if there is one.
    pub scan_threads: usize,
    /// Threads of these for SCAN_b, if all of b is prefetched.
    pub prefetch_threads: usize,
    /// Threads of AGGREGATE over all groups.
    pub aggregate_threads: usize,
    /// Unit of scans, copies and lookups; a multiple of [`PAGE_BYTES`].
    pub chunk_bytes: u64,
    /// The condition on which AGGREGATE starts.
    pub sync: Synchronization,
    /// The nodes of the columns.
    #[serde(flatten)]
    pub nodes: Nodes,
}

impl Columns for Query {
    const COLUMNS: &'static [&'static str] = &[
        "variant",
        "column_bytes",
        "groups",
        "scan_threads",
        "prefetch_threads",
        "aggregate_threads",
        "chunk_bytes",
        "sync",
        "home",
        "near",
        "other",
    ];
}

/// Columns and chunks are multiples of this size.
pub const PAGE_BYTES: u64 = 4096;

/// Maximum of threads of a query: as many as the largest machines have CPUs.
const THREADS_MAX: usize = 1024;

/// Threads of each task in one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TaskThreads {
    pub(super) scan_a: usize,
    pub(super) scan_b: usize,
    pub(super) aggregate: usize,
}

impl TaskThreads {
    pub(super) fn threads_count(self) -> usize {
        self.scan_a + self.scan_b + self.aggregate
    }
}

impl Query {
    /// Chunks of a column; the last may be shorter.
    pub(super) fn chunks_count(&self) -> usize {
        self.column_bytes.div_ceil(self.chunk_bytes) as usize
    }

    /// # Errors
    /// [`Skipped::Cannot`]: a contradiction.
    pub(super) fn check(&self) -> Result<(), Skipped> {
        if self.column_bytes == 0 || !self.column_bytes.is_multiple_of(PAGE_BYTES) {
            return Skipped::cannot(format!("a column is a multiple of {PAGE_BYTES} bytes"));
        }
        if self.chunk_bytes == 0 || !self.chunk_bytes.is_multiple_of(PAGE_BYTES) {
            return Skipped::cannot(format!("a chunk is a multiple of {PAGE_BYTES} bytes"));
        }
        let all = [self.scan_threads, self.prefetch_threads, self.aggregate_threads];
        if self.groups == 0 || all.iter().any(|&count| count == 0 || !count.is_multiple_of(self.groups)) {
            return Skipped::cannot(
                "threads are divided evenly: their numbers are multiples of that of the groups",
            );
        }
        if self.prefetch_threads >= self.scan_threads {
            return Skipped::cannot("of the scanning threads only some prefetch; leave others for column a");
        }
        if self.scan_threads.saturating_add(self.aggregate_threads)
            > THREADS_MAX - self.groups.min(THREADS_MAX)
        {
            return Skipped::cannot(format!("a query has {THREADS_MAX} threads at most"));
        }
        if self.chunks_count() < self.groups {
            return Skipped::cannot(
                "there are fewer chunks than groups; make chunks smaller, or groups fewer",
            );
        }
        Ok(())
    }

    /// The threads. With advised copies (`is_fetching`) nothing is submitted during the scan: all threads scan, and one more
    /// per group submits.
    pub(super) fn task_threads(&self, is_fetching: bool) -> TaskThreads {
        let scan = self.scan_threads / self.groups;
        let scan_b = match self.variant {
            variant if variant.is_prefetching() => self.prefetch_threads / self.groups,
            _ => usize::from(is_fetching),
        };
        let scan_a = if self.variant.is_prefetching() { scan - scan_b } else { scan };
        TaskThreads { scan_a, scan_b, aggregate: self.aggregate_threads / self.groups }
    }
}
