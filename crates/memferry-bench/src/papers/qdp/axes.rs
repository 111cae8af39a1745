//! Axes of queries, and their columns in records.

use memferry::topology::Machine;
use serde_json::Value;

use super::{Nodes, Query, QueryMetric, Synchronization, Variant};
use crate::papers::axis::size_name;
use crate::papers::point::each;

/// An axis, by the name of its column in records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Axis {
    Variant,
    ColumnBytes,
    Groups,
    ScanThreads,
    PrefetchThreads,
    AggregateThreads,
    ChunkBytes,
    Sync,
    Home,
    Near,
    Other,
}

/// The values of all axes; queries are their combinations.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub struct Axes {
    pub variants: Vec<Variant>,
    pub columns_bytes: Vec<u64>,
    pub groups: Vec<usize>,
    pub scan_threads: Vec<usize>,
    pub prefetch_threads: Vec<usize>,
    pub aggregate_threads: Vec<usize>,
    pub chunks_bytes: Vec<u64>,
    pub syncs: Vec<Synchronization>,
    /// The same for all queries.
    pub nodes: Nodes,
}

impl Axis {
    /// All axes, in the order of columns.
    pub const ALL: [Axis; 11] = [
        Axis::Variant,
        Axis::ColumnBytes,
        Axis::Groups,
        Axis::ScanThreads,
        Axis::PrefetchThreads,
        Axis::AggregateThreads,
        Axis::ChunkBytes,
        Axis::Sync,
        Axis::Home,
        Axis::Near,
        Axis::Other,
    ];

    /// Its column in records.
    pub fn column(self) -> &'static str {
        match self {
            Axis::Variant => "variant",
            Axis::ColumnBytes => "column_bytes",
            Axis::Groups => "groups",
            Axis::ScanThreads => "scan_threads",
            Axis::PrefetchThreads => "prefetch_threads",
            Axis::AggregateThreads => "aggregate_threads",
            Axis::ChunkBytes => "chunk_bytes",
            Axis::Sync => "sync",
            Axis::Home => "home",
            Axis::Near => "near",
            Axis::Other => "other",
        }
    }

    /// The value of a query in records; null if it has none.
    pub fn value(self, query: &Query) -> Value {
        match self {
            Axis::Variant => query.variant.name().into(),
            Axis::ColumnBytes => query.column_bytes.into(),
            Axis::Groups => query.groups.into(),
            Axis::ScanThreads => query.scan_threads.into(),
            Axis::PrefetchThreads => query.prefetch_threads.into(),
            Axis::AggregateThreads => query.aggregate_threads.into(),
            Axis::ChunkBytes => query.chunk_bytes.into(),
            Axis::Sync => query.sync.name().into(),
            Axis::Home => query.nodes.home.0.into(),
            Axis::Near => query.nodes.near.map_or(Value::Null, |node| node.0.into()),
            Axis::Other => query.nodes.other.map_or(Value::Null, |node| node.0.into()),
        }
    }

    /// The value as a word of a row's name.
    fn word(self, query: &Query) -> String {
        match self {
            Axis::Variant | Axis::Sync => self.value(query).as_str().unwrap_or_default().to_owned(),
            Axis::ColumnBytes => size_name(query.column_bytes),
            Axis::ChunkBytes => format!("chunk{}", size_name(query.chunk_bytes)),
            axis => format!("{}{}", axis.column().replace('_', "-"), axis.value(query)),
        }
    }
}

/// Sizes of a column: the thesis's; larger than today's last-level caches, with three of them fitting an ordinary
/// machine; and one for quick runs.
const THESIS_BYTES: u64 = 4 << 30;
const OWN_BYTES: u64 = 512 << 20;
const QUICK_BYTES: u64 = 8 << 20;

impl Axes {
    /// All variants on a machine. Threads as in the thesis if the machine is large enough, otherwise one thread per task and
    /// group. Columns of 4 GiB in the model, which reads nothing, 512 MiB elsewhere.
    pub fn on(machine: &Machine, nodes: Nodes, is_model: bool, is_quick: bool) -> Axes {
        let cpus_count = machine.node(nodes.home).map_or(1, |node| node.allowed_cpus.len().max(1));
        let (column_bytes, chunk_bytes) = match (is_model, is_quick) {
            (true, _) => (THESIS_BYTES, 8 << 20),
            (false, false) => (OWN_BYTES, 8 << 20),
            (false, true) => (QUICK_BYTES, 1 << 20),
        };
        // Source: Fürst 2024, 6.1 for 64 and 32; the rest is that of scenarios/table-6.2.toml.
        let (groups, scan, prefetch, aggregate) = match cpus_count {
            8.. if is_model || !is_quick => (8, 64, 32, 32),
            count => (count.min(2), 2 * count.min(2), count.min(2), count.min(2)),
        };
        Axes {
            variants: Variant::ALL.to_vec(),
            columns_bytes: vec![column_bytes],
            groups: vec![groups],
            scan_threads: vec![scan],
            prefetch_threads: vec![prefetch],
            aggregate_threads: vec![aggregate],
            chunks_bytes: vec![chunk_bytes],
            syncs: vec![Synchronization::Relaxed],
            nodes,
        }
    }

    /// All combinations. The first axis varies fastest, so that compared variants run after each other.
    pub fn queries(&self) -> Vec<Query> {
        let mut queries = vec![Query {
            variant: Variant::Baseline,
            column_bytes: 0,
            groups: 0,
            scan_threads: 0,
            prefetch_threads: 0,
            aggregate_threads: 0,
            chunk_bytes: 0,
            sync: Synchronization::Relaxed,
            nodes: self.nodes,
        }];
        each(&mut queries, &self.syncs, |query, &sync| query.sync = sync);
        each(&mut queries, &self.chunks_bytes, |query, &bytes| query.chunk_bytes = bytes);
        each(&mut queries, &self.aggregate_threads, |query, &count| query.aggregate_threads = count);
        each(&mut queries, &self.prefetch_threads, |query, &count| query.prefetch_threads = count);
        each(&mut queries, &self.scan_threads, |query, &count| query.scan_threads = count);
        each(&mut queries, &self.groups, |query, &count| query.groups = count);
        each(&mut queries, &self.columns_bytes, |query, &bytes| query.column_bytes = bytes);
        each(&mut queries, &self.variants, |query, &variant| query.variant = variant);
        queries
    }

    /// Name of a query's row: the metric unless it is the total, the variant, and the axes with several values.
    pub fn row_name(&self, query: &Query, metric: QueryMetric) -> String {
        let counts = [
            (Axis::ColumnBytes, self.columns_bytes.len()),
            (Axis::Groups, self.groups.len()),
            (Axis::ScanThreads, self.scan_threads.len()),
            (Axis::PrefetchThreads, self.prefetch_threads.len()),
            (Axis::AggregateThreads, self.aggregate_threads.len()),
            (Axis::ChunkBytes, self.chunks_bytes.len()),
            (Axis::Sync, self.syncs.len()),
        ];
        let metric = if metric == QueryMetric::Total { "" } else { metric.name() };
        let mut words = vec!["qdp".to_owned(), metric.to_owned(), query.variant.name().to_owned()];
        words.extend(counts.into_iter().filter(|(_, count)| *count > 1).map(|(axis, _)| axis.word(query)));
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_")
    }
}
