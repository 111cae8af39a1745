//! The query in the model: the pipelines of `scenarios/table-6.2.toml`, with the numbers of a [`Query`].

use std::sync::Arc;

use memferry::internals::{Fairness, Hardware, Offload, Pipeline, hit_share};
use memferry::model::{Advice, Column, Fetch, ModelError, Stage};
use memferry::mover::Route;
use memferry::topology::{Machine, NodeId};

use super::{Measurement, Metric, Query, Skipped, Synchronization, Variant};

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

    pub(super) fn run(&self, query: &Query) -> Result<Vec<Measurement>, Skipped> {
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
        let taken = |metric, value: f64| Measurement::new(metric, vec![value]).with_note(note.clone());
        let mut all = vec![
            taken(Metric::TOTAL, run.total_s * 1e3),
            taken(Metric::SCAN_A, run.stages_s[0] * 1e3),
            taken(Metric::AGGREGATE, run.stages_s[1] * 1e3),
        ];
        if !pipeline.fetches.is_empty() {
            all.insert(2, self.scan_b(query, run.copied_s));
        }
        all.extend(hits.map(|hits| taken(Metric::HIT_RATE, hits)));
        Ok(all)
    }

    /// Time of SCAN_b, for which the model has no threads: of the submissions, or until the copies complete.
    fn scan_b(&self, query: &Query, copied_s: f64) -> Measurement {
        let (values, note) = match Offload::of(&self.hardware) {
            _ if query.sync == Synchronization::Barrier => {
                (vec![copied_s], "until the last copy of all groups has arrived")
            }
            Ok(costs) if !self.machine.accelerators().is_empty() => {
                let threads_count = query.groups * query.task_threads(true).scan_b.max(1);
                let of_thread = query.chunks_count().div_ceil(threads_count) as f64;
                let note = "submitting alone: the model knows no time that a cache takes";
                (vec![of_thread * costs.submit_s()], note)
            }
            _ => (Vec::new(), "the model does not know what handing a copy to a core takes"),
        };
        let values = values.into_iter().map(|seconds| seconds * 1e3).collect();
        Measurement::new(Metric::SCAN_B, values).with_note(Some(note.to_owned()))
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
