//! The query in the model: the pipelines of `scenarios/table-6.2.toml`, with the numbers of a [`Query`].

use std::sync::Arc;

use memferry::internals::{Fairness, Hardware, Offload, Pipeline, hit_share};
use memferry::model::{Advice, Column, Fetch, ModelError, Stage};
use memferry::mover::Route;
use memferry::topology::{Machine, NodeId};

use super::{Query, QueryMeasurement, QueryMetric, Skipped, Synchronization, Variant};

/// Runs queries in the model of a machine.
#[derive(Debug)]
pub(super) struct Modelled {
    pub(super) machine: Arc<Machine>,
    hardware: Hardware,
}

/// The pipeline of a query, without copies if advice is to decide.
///
/// # Errors
/// [`Skipped::Cannot`]: the variant needs a missing node.
pub(super) fn pipeline(machine: &Machine, query: &Query) -> Result<Pipeline, Skipped> {
    let Query { variant, column_bytes, nodes, .. } = *query;
    let column = |name: &str, node| Column { name: name.to_owned(), size_bytes: column_bytes, node };
    let task_threads = query.task_threads(false);
    let stage = |name: &str, column, threads_of_group: usize| Stage {
        name: name.to_owned(),
        reads: vec![column],
        threads_count: threads_of_group * query.groups,
        thread_rate_max: f64::INFINITY,
    };
    let fetch = |node| {
        // Whole chunks in turn to all devices, as in the thesis (5.2); without devices a core copies.
        let route = (!machine.accelerators().is_empty()).then_some(Route::RoundRobin);
        Fetch { column: 1, chunks_count: usize::MAX, node, route }
    };
    Ok(Pipeline {
        columns: vec![column("a", nodes.home), column("b", nodes.of_b(variant)?)],
        stages: vec![stage("SCAN_a", 0, task_threads.scan_a), stage("AGGREGATE", 1, task_threads.aggregate)],
        cpus: nodes.home,
        groups_count: query.groups,
        chunk_bytes: query.chunk_bytes,
        fetches: match variant.is_prefetching() {
            true => vec![fetch(nodes.near.unwrap_or(nodes.home))],
            false => Vec::new(),
        },
        is_waiting: query.sync == Synchronization::Barrier,
        fairness: Fairness::default(),
    })
}

impl Modelled {
    pub(super) fn new(machine: Machine) -> Result<Modelled, ModelError> {
        let hardware = Hardware::of(&machine)?;
        Ok(Modelled { machine: Arc::new(machine), hardware })
    }

    pub(super) fn run(&self, query: &Query) -> Result<Vec<QueryMeasurement>, Skipped> {
        let mut pipeline = pipeline(&self.machine, query)?;
        let mut note = None;
        if query.variant.is_advised() {
            let (advised, advice) = pipeline.advised(&self.machine).map_err(cannot)?;
            note = Some(told(&advice));
            pipeline = advised;
        }
        let (run, hits) = match query.variant.is_cache_mode() {
            false => {
                let run = pipeline.run(&self.machine, &self.hardware).map_err(cannot)?;
                let hits = run.hit_rate();
                (run, hits)
            }
            true => {
                let (cache, hits) = self.side_cache(query)?;
                note = Some(format!(
                    "assumed, not published: node {cache} caches the memory of node {} direct-mapped, pages lie \
                     anywhere, and {:.0} % of the reads hit",
                    query.nodes.home,
                    hits * 100.0
                ));
                let hardware =
                    self.hardware.with_side_cache(query.nodes.home, cache, hits).map_err(cannot)?;
                (pipeline.run(&self.machine, &hardware).map_err(cannot)?, Some(hits))
            }
        };
        let taken = |metric, value: f64| QueryMeasurement { metric, values: vec![value], note: note.clone() };
        let mut all = vec![
            taken(QueryMetric::Total, run.total_s * 1e3),
            taken(QueryMetric::ScanA, run.stages_s[0] * 1e3),
            taken(QueryMetric::Aggregate, run.stages_s[1] * 1e3),
        ];
        if !pipeline.fetches.is_empty() {
            all.insert(2, self.scan_b(query, run.copied_s));
        }
        all.extend(hits.map(|hits| taken(QueryMetric::HitRate, hits)));
        Ok(all)
    }

    /// Time of SCAN_b, for which the model has no threads: of the submissions, or until the copies complete.
    fn scan_b(&self, query: &Query, copied_s: f64) -> QueryMeasurement {
        let metric = QueryMetric::ScanB;
        if query.sync == Synchronization::Barrier {
            let note = Some("until the last copy of all groups has arrived".to_owned());
            return QueryMeasurement { metric, values: vec![copied_s * 1e3], note };
        }
        match Offload::of(&self.hardware) {
            Ok(costs) if !self.machine.accelerators().is_empty() => {
                let of_thread =
                    query.chunks_count().div_ceil(query.groups * query.task_threads(true).scan_b.max(1))
                        as f64;
                let note = Some("submitting alone: the model knows no time that a cache takes".to_owned());
                QueryMeasurement { metric, values: vec![of_thread * costs.submit_s() * 1e3], note }
            }
            _ => {
                let note = Some("the model does not know what handing a copy to a core takes".to_owned());
                QueryMeasurement { metric, values: Vec::new(), note }
            }
        }
    }

    /// The node that caches home's memory, and the share of reads that hit.
    fn side_cache(&self, query: &Query) -> Result<(NodeId, f64), Skipped> {
        let node = |node| self.machine.node(node).map_err(|error| Skipped::Cannot(error.to_string()));
        let home = node(query.nodes.home)?;
        let Some(near) = query.nodes.near.map(node).transpose()?.filter(|near| near.cpu_node == home.id)
        else {
            return Skipped::cannot(format!(
                "node {} has no faster memory beside it that could be its cache",
                home.id
            ));
        };
        let Some(cache_bytes) = home.side_cache_bytes.or(near.memory_bytes) else {
            return Skipped::cannot(format!("the size of node {} is not known", near.id));
        };
        let hits = match query.variant {
            Variant::CacheModeCold => 0.0,
            _ => hit_share(query.column_bytes.saturating_mul(2), cache_bytes),
        };
        Ok((near.id, hits))
    }
}

/// The advice and its reason.
pub(super) fn told(advice: &Advice) -> String {
    match advice.words().join("; ") {
        words if words.is_empty() => "advice: nothing could be brought nearer".to_owned(),
        words => format!("advice: {words}"),
    }
}

fn cannot(error: ModelError) -> Skipped {
    Skipped::Cannot(error.to_string())
}
