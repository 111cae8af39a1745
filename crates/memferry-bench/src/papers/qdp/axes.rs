//! Axes of queries, and the names of their rows.

use memferry::topology::Machine;

use super::{Metric, Nodes, Query, Synchronization, Variant};
use crate::papers::columns::size_name;
use crate::papers::point::each;

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
    pub fn row_name(&self, query: &Query, metric: Metric) -> String {
        let axes = [
            (self.columns_bytes.len(), size_name(query.column_bytes)),
            (self.groups.len(), format!("groups{}", query.groups)),
            (self.scan_threads.len(), format!("scan-threads{}", query.scan_threads)),
            (self.prefetch_threads.len(), format!("prefetch-threads{}", query.prefetch_threads)),
            (self.aggregate_threads.len(), format!("aggregate-threads{}", query.aggregate_threads)),
            (self.chunks_bytes.len(), format!("chunk{}", size_name(query.chunk_bytes))),
            (self.syncs.len(), query.sync.to_string()),
        ];
        let metric = (metric != Metric::TOTAL).then(|| metric.name.to_owned());
        let mut words: Vec<String> = ["qdp".to_owned()].into_iter().chain(metric).collect();
        words.push(query.variant.to_string());
        words.extend(axes.into_iter().filter(|(count, _)| *count > 1).map(|(_, word)| word));
        words.join("_")
    }
}
