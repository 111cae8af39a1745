//! The query on the cores of this machine, with near copies by the cache and the mover.

use std::fmt;
use std::sync::Arc;

use memferry::cache::{Access, Cache, Region};
use memferry::internals::nodes_of_pages;
use memferry::memory::Pool;
use memferry::model::Fetch;
use memferry::mover::{DsaEngine, DsaOptions, Engine, Mover, MoverError};
use memferry::topology::{Machine, NodeId};
use memferry_dsa::WorkQueueInfo;
use memferry_dsa_emulator::{
    BATCH_MAX, DeviceConfig, Emulator, FaultPlan, GroupConfig, TRANSFER_BYTES_MAX, shared_queue,
};

use super::super::emulated::timing_of;
use super::columns::{Columns, masks};
use super::modelled::{pipeline, told};
use super::query::TaskThreads;
use super::threads::{Near, QueryRun, RunTimes, TASKS};
use super::{Measurement, Metric, Query, QueryRuns, Skipped, Variant};

/// Cores, and engines for copies; without engines cores copy.
pub(super) struct Cores {
    pub(super) machine: Arc<Machine>,
    /// The machine with the devices that copy here, for the cost model.
    planned: Machine,
    engines: Vec<Arc<dyn Engine>>,
    /// The reason why there are no engines.
    why_none: String,
    is_emulated: bool,
}

impl fmt::Debug for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engines = self.engines.iter().map(|engine| engine.name()).collect::<Vec<_>>();
        f.debug_struct("Cores").field("machine", &self.machine.name()).field("engines", &engines).finish()
    }
}

/// Nodes, copies and threads of one query.
struct Setting {
    /// Node of column b.
    of_b: NodeId,
    /// The copies, in terms of the model.
    fetch: Option<Fetch>,
    task_threads: TaskThreads,
    note: Option<String>,
}

impl Cores {
    pub(super) fn of_this_machine(machine: Machine) -> Result<Cores, Skipped> {
        let (engines, why_none) = match DsaEngine::discover(&DsaOptions::default()) {
            Ok(engines) => (engines, String::new()),
            Err(MoverError::NoDsa { why }) => (Vec::new(), why),
            Err(error) => return Err(Skipped::Failed(error.into())),
        };
        let engines = engines.into_iter().map(|engine| -> Arc<dyn Engine> { Arc::new(engine) }).collect();
        Ok(Cores::new(machine, engines, why_none, false))
    }

    fn new(machine: Machine, engines: Vec<Arc<dyn Engine>>, why_none: String, is_emulated: bool) -> Cores {
        let nodes: Vec<_> = engines.iter().map(|engine| engine.node()).collect();
        let planned = machine.clone().with_devices_on(&nodes);
        Cores { machine: Arc::new(machine), planned, engines, why_none, is_emulated }
    }

    pub(super) fn with_emulated(machine: Machine) -> Result<Cores, Skipped> {
        let mut nodes: Vec<Option<NodeId>> =
            machine.accelerators().iter().map(|device| device.node).collect();
        if nodes.is_empty() {
            if !machine.is_this_machine() {
                return Skipped::cannot(format!("{} has no DSA that could be emulated", machine.name()));
            }
            nodes.push(None);
        }
        let timing = timing_of(&machine).map_err(|error| Skipped::Cannot(error.to_string()))?;
        let engine = |node: Option<NodeId>| -> Result<Arc<dyn Engine>, Skipped> {
            let queue = WorkQueueInfo {
                transfer_bytes_max: TRANSFER_BYTES_MAX,
                batch_max: BATCH_MAX,
                ..shared_queue("wq0.0", 32)
            };
            let config =
                DeviceConfig::new(vec![GroupConfig { engines: 1, queues: vec![queue] }]).with_timing(timing);
            let config = node.map_or(config.clone(), |node| config.on_node(node.0));
            let device =
                Emulator::start(&config, FaultPlan::none()).map_err(|error| Skipped::Failed(error.into()))?;
            let engine = DsaEngine::new(vec![device.portal(0)], DsaOptions::default());
            Ok(Arc::new(engine.map_err(|error| Skipped::Failed(error.into()))?))
        };
        let engines = nodes.into_iter().map(engine).collect::<Result<_, _>>()?;
        Ok(Cores::new(machine, engines, String::new(), true))
    }

    pub(super) fn run(&self, query: &Query, effort: QueryRuns) -> Result<Vec<Measurement>, Skipped> {
        let mut setting = self.setting(query)?;
        self.check_room(query, &setting)?;
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| Skipped::Failed(error);
        let column_bytes = query.column_bytes as usize;
        let columns = Columns::new(&self.machine, (query.nodes.home, setting.of_b), column_bytes)
            .map_err(|error| Skipped::Cannot(error.to_string()))?;
        let answer = columns.answer();
        let masks = masks(column_bytes);
        let cached = match &setting.fetch {
            Some(fetch) => Some(self.cached(&columns, setting.of_b, fetch, query).map_err(failed)?),
            None => None,
        };
        let near = || {
            let ((cache, region), fetch) = cached.as_ref().zip(setting.fetch.as_ref())?;
            Some(Near { cache, region, node: fetch.node, chunks_count: fetch.chunks_count })
        };
        let cpus = match self.machine.is_this_machine() {
            true => {
                &self.machine.node(query.nodes.home).map_err(|error| failed(error.into()))?.allowed_cpus[..]
            }
            // The CPU numbers of another machine mean nothing here.
            false => &[],
        };
        let mut seen = Vec::with_capacity(effort.runs);
        let mut pages_near = 0;
        for _ in 0..effort.warm_ups + effort.runs {
            let run = QueryRun {
                columns: &columns,
                masks: &masks,
                near: near(),
                groups: query.groups,
                task_threads: setting.task_threads,
                chunk_bytes: query.chunk_bytes as usize,
                sync: query.sync,
                cpus,
            };
            let once = run.once()?;
            if once.sum != answer {
                let what = format!("the answer is {} and should be {answer}: a copy went wrong", once.sum);
                return Err(Skipped::Failed(what.into()));
            }
            seen.push(once);
            // Each run starts with an empty cache and no copy in flight.
            if let Some(near) = near() {
                near.region.drain();
                pages_near = self.pages_near(&near, query)?;
                near.cache.clear();
            }
        }
        if let Some(Fetch { node, .. }) = setting.fetch
            && pages_near > 0
        {
            let place = format!("the kernel says that all {pages_near} pages of copies lie on node {node}");
            setting.note = Some(setting.note.map_or(place.clone(), |note| format!("{note}; {place}")));
        }
        Ok(self.taken(&setting, &seen[effort.warm_ups..]))
    }

    /// The setting of a variant.
    fn setting(&self, query: &Query) -> Result<Setting, Skipped> {
        let home = self.machine.node(query.nodes.home).map_err(|error| Skipped::Cannot(error.to_string()))?;
        let of_b = query.nodes.of_b(query.variant)?;
        let mut notes = Vec::new();
        if query.variant.is_cache_mode() {
            if home.side_cache_bytes.is_none() || !self.machine.is_this_machine() {
                return Skipped::cannot(format!(
                    "node {} has no faster memory as its cache (HBM in cache mode); a machine so configured has it, \
                     and --machine PROFILE computes it",
                    home.id
                ));
            }
            if query.variant == Variant::CacheModeCold {
                return Skipped::cannot("what is in a cache in hardware cannot be taken out of it");
            }
        } else if home.side_cache_bytes.is_some() {
            notes.push(format!("the memory of node {} is cached in hardware", home.id));
        }
        let mut pipeline = pipeline(&self.planned, query)?;
        if query.variant.is_prefetching() && query.nodes.near.is_none() {
            notes.push("no faster memory is known: copies go to the home node, and cannot gain".to_owned());
        }
        if query.variant.is_advised() {
            let advised = pipeline.advised(&self.planned);
            let advised = advised.map_err(|error| Skipped::Cannot(format!("there is no advice: {error}")))?;
            notes.push(told(&advised.1));
            pipeline = advised.0;
        }
        // The query has one late column.
        let fetch = pipeline.fetches.pop();
        if self.is_emulated {
            notes.push(
                match fetch {
                    Some(_) => {
                        "scans by this machine's cores, copies by emulated devices with the time of silicon"
                    }
                    None => "scans by this machine's cores; no device takes part",
                }
                .to_owned(),
            );
            if !self.machine.is_this_machine() {
                notes.push(format!("nodes are those of {}, memory is this machine's", self.machine.name()));
            }
        } else if fetch.is_some() && self.engines.is_empty() {
            notes.push(format!("copies by cores: {}", self.why_none));
        }
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        Ok(Setting { of_b, task_threads: query.task_threads(fetch.is_some()), fetch, note })
    }

    /// Checks that the query takes at most half of the free memory; the rest remains for other programs.
    fn check_room(&self, query: &Query, setting: &Setting) -> Result<(), Skipped> {
        let mut wanted = vec![query.nodes.home, setting.of_b];
        wanted.extend(setting.fetch.as_ref().map(|fetch| fetch.node));
        for node in wanted.clone() {
            // Nodes of another machine share the memory of this one.
            let is_here = |it: &&NodeId| **it == node || !self.machine.is_this_machine();
            let columns_count = wanted.iter().filter(is_here).count() as u64;
            let bytes = query.column_bytes.saturating_mul(columns_count);
            let free = self.machine.free_bytes(node).map_err(|error| Skipped::Cannot(error.to_string()))?;
            if bytes > free / 2 {
                return Skipped::cannot(format!(
                    "this takes {} MiB of node {node}, where {} MiB are free, of which half may be taken; make \
                     columns smaller (--sizes)",
                    bytes >> 20,
                    free >> 20
                ));
            }
        }
        Ok(())
    }

    /// Checks that all pages of near copies are on that node, if the kernel reports it.
    fn pages_near(&self, near: &Near, query: &Query) -> Result<usize, Skipped> {
        if !self.machine.is_this_machine() {
            return Ok(0);
        }
        let mut pages_count = 0;
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| Skipped::Failed(error);
        let (chunk_bytes, column_bytes) = (query.chunk_bytes as usize, query.column_bytes as usize);
        for begin in (0..column_bytes).step_by(chunk_bytes) {
            let range = begin..(begin + chunk_bytes).min(column_bytes);
            let entry = near.cache.access_weak(near.region, range, Access::near(near.node));
            let Some(entry) = entry.map_err(|error| failed(error.into()))? else { continue };
            if !entry.is_ready() {
                continue;
            }
            // A kernel without NUMA has one node and reports none.
            let Ok(nodes) = nodes_of_pages(entry.as_slice()) else { return Ok(0) };
            pages_count += nodes.len();
            if let Some(node) = nodes.iter().find(|node| **node != Some(near.node)) {
                let place = node.map_or("nowhere".to_owned(), |node| format!("on node {node}"));
                let what = format!("a copy for node {} is {place}; see `memferry topology`", near.node);
                return Err(failed(what.into()));
            }
        }
        Ok(pages_count)
    }

    fn cached(
        &self,
        columns: &Columns,
        of_b: NodeId,
        fetch: &Fetch,
        query: &Query,
    ) -> Result<(Cache, Region), Box<dyn std::error::Error + Send + Sync>> {
        let mut builder = Mover::builder(self.machine.clone());
        for engine in &self.engines {
            builder = builder.engine(engine.clone());
        }
        if let Some(route) = fetch.route {
            builder = builder.route(route);
        }
        let pool = Pool::new(self.machine.clone(), fetch.node, columns.b.len())?;
        // Pages are present before they are needed, as in the thesis, from the second run on.
        pool.keep_idle(columns.b.len());
        let cache = Cache::builder(builder.build()?).pool(pool).build()?;
        let region = cache.register_chunked(columns.b.clone(), Some(of_b), query.chunk_bytes as usize);
        Ok((cache, region))
    }

    fn taken(&self, setting: &Setting, seen: &[RunTimes]) -> Vec<Measurement> {
        let taken = |metric, value: &dyn Fn(&RunTimes) -> f64| {
            Measurement::new(metric, seen.iter().map(value).collect()).with_note(setting.note.clone())
        };
        let mut all = vec![taken(Metric::TOTAL, &|seen| seen.total_s * 1e3)];
        for (index, task) in TASKS.into_iter().enumerate() {
            if task != Metric::SCAN_B || setting.fetch.is_some() {
                all.push(taken(task, &|seen| seen.tasks_s[index] * 1e3));
            }
        }
        if setting.fetch.is_some() {
            all.push(taken(Metric::HIT_RATE, &|seen| seen.hits.0 as f64 / seen.hits.1.max(1) as f64));
        }
        all
    }
}
