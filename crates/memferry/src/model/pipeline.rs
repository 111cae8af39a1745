//! A query as stages that read columns, with concurrent near copies of columns, in virtual time.
//!
//! Rows are divided among groups of threads. A group goes through the stages one after another and reads its part of a
//! stage's columns; groups do not wait for each other. Copies of whole chunks are submitted at the start of the query, in
//! the order of their reads. A chunk whose copy is complete is read from the near memory (a hit), any other from its home:
//! groups do not wait, unless [`Pipeline::is_waiting`] is set.
//!
//! ```text
//! group 0   | scan a ....... | aggregate b: chunk 0 near, 1 near, 2 home, ...
//! group 1   | scan a ... | aggregate b ...
//! devices   | b0 of group 0, b0 of group 1, ... b1 of group 0, ...
//! ```
//!
//! Source: Fürst, "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator" (2024), 5.2 and 6.1.

use std::collections::VecDeque;

use crate::route::{Endpoints, Route, device_shares};
use crate::topology::{Machine, NodeId};

use super::ModelError;
use super::hardware::Hardware;
use super::traffic::{Fairness, Mover, Traffic};

/// A column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Its name in reports.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// The node of reads without a near copy: its home, or the node of a copy from an earlier query.
    pub node: NodeId,
}

/// A stage of each group of threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Its name in reports.
    pub name: String,
    /// Columns it reads, one after another: indices in the columns of the plan.
    pub reads: Vec<usize>,
    /// Threads over all groups.
    pub threads_count: usize,
    /// The most that a thread processes, in bytes per second, because it also computes; infinite if memory alone limits
    /// it.
    pub thread_rate_max: f64,
}

/// A near copy of a column, or of the part of it that is read last.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetch {
    /// Index in the columns of the plan.
    pub column: usize,
    /// Number of chunks of each group, from the end of the column; a larger number than there are means all.
    pub chunks_count: usize,
    /// The target.
    pub node: NodeId,
    /// The route of the devices; without a route, and on a machine without devices, one thread of the stages' CPUs copies.
    pub route: Option<Route>,
}

/// A query to be computed on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// The columns.
    pub columns: Vec<Column>,
    /// The stages, in order.
    pub stages: Vec<Stage>,
    /// The node whose CPUs run the threads.
    pub cpus: NodeId,
    /// Groups that the threads are divided into; positive.
    pub groups_count: usize,
    /// Size of the copied pieces; positive.
    pub chunk_bytes: u64,
    /// The near copies.
    pub fetches: Vec<Fetch>,
    /// Whether a group waits before a stage until its copies have arrived.
    pub is_waiting: bool,
    /// How memories are shared.
    pub fairness: Fairness,
}

/// The result of a pipeline.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Run {
    /// From the start to the end of the last group.
    pub total_s: f64,
    /// Chunks of fetched columns that were near when they were read, and all that were read.
    pub hits: (usize, usize),
    /// For each stage the time of a group in it, averaged over the groups.
    pub stages_s: Vec<f64>,
    /// The completion of the last copy; 0 without copies.
    pub copied_s: f64,
}

impl Run {
    /// Share of hits, if anything was fetched.
    pub fn hit_rate(&self) -> Option<f64> {
        (self.hits.1 > 0).then(|| self.hits.0 as f64 / self.hits.1 as f64)
    }
}

/// Limit of the pieces of a column plus the groups: more would take minutes to compute.
const PIECES_MAX: u64 = 1 << 17;

impl Pipeline {
    /// Chunks that a group reads of a column.
    pub(super) fn chunks_of(&self, column: usize) -> usize {
        let part = self.columns[column].size_bytes as f64 / self.groups_count as f64;
        (part / self.chunk_bytes as f64).ceil().max(1.0) as usize
    }

    /// Computes the query.
    ///
    /// # Errors
    /// [`ModelError::Unknown`] for an unknown rate, [`Node`](ModelError::Node), [`Scenario`](ModelError::Scenario) for
    /// contradictions.
    pub fn run(&self, machine: &Machine, hardware: &Hardware) -> Result<Run, ModelError> {
        self.check(hardware)?;
        Simulation::new(self, machine, hardware)?.run()
    }

    fn check(&self, hardware: &Hardware) -> Result<(), ModelError> {
        let wrong = |what: String| Err(ModelError::Scenario { what });
        if self.groups_count == 0 || self.chunk_bytes == 0 || self.stages.is_empty() {
            return wrong("it needs a stage, a group and chunks of at least one byte".into());
        }
        let largest = self.columns.iter().map(|column| column.size_bytes).max().unwrap_or(0);
        if (self.groups_count as u64).saturating_add(largest / self.chunk_bytes) > PIECES_MAX {
            return wrong(format!(
                "it has more than {PIECES_MAX} chunks; make them larger, or the groups fewer"
            ));
        }
        for Stage { name, threads_count, thread_rate_max, .. } in &self.stages {
            if *threads_count == 0 || thread_rate_max.is_nan() || *thread_rate_max <= 0.0 {
                return wrong(format!("stage {name} has no thread, or threads that get nothing done"));
            }
        }
        let fetched = self.fetches.iter().map(|fetch| fetch.column);
        if self
            .stages
            .iter()
            .flat_map(|stage| stage.reads.iter().copied())
            .chain(fetched)
            .any(|i| i >= self.columns.len())
        {
            return wrong("a stage reads a column that is not there".into());
        }
        let cpus = hardware.position(self.cpus)?;
        if hardware.memories[cpus].cpus_count == 0 {
            return wrong(format!("node {} has no CPUs", self.cpus));
        }
        for column in &self.columns {
            hardware.memory_rate(hardware.position(column.node)?)?;
        }
        for fetch in &self.fetches {
            hardware.memory_rate(hardware.position(fetch.node)?)?;
            hardware.check_copier(fetch.route.is_some())?;
        }
        Ok(())
    }
}

/// A piece of a copy for one device.
#[derive(Copy, Clone)]
struct Descriptor {
    fetch: usize,
    group: usize,
    chunk: usize,
    bytes: f64,
}

#[derive(Copy, Clone)]
enum Event {
    /// A group has finished its read.
    Read { group: usize },
    /// The first descriptor of a queue, or the next one after its due time, begins.
    Begin { queue: usize },
    /// A queue's descriptor is done.
    Copied { queue: usize, descriptor: Descriptor },
}

/// The progress of a group.
#[derive(Clone, Default)]
struct Progress {
    stage: usize,
    /// Which of the stage's columns.
    read: usize,
    chunk: usize,
    stage_begin_s: f64,
    is_waiting: bool,
}

struct Simulation<'a> {
    plan: &'a Pipeline,
    hardware: &'a Hardware,
    traffic: Traffic<Event>,
    cpus: usize,
    /// Position of each column's memory.
    homes: Vec<usize>,
    groups: Vec<Progress>,
    /// `shares_left[fetch][group][chunk]`: 0 when it has arrived, none where it is not fetched.
    shares_left: Vec<Vec<Vec<Option<usize>>>>,
    /// One per device, and a last one for CPUs.
    queues: Vec<VecDeque<Descriptor>>,
    run: Run,
}

impl<'a> Simulation<'a> {
    fn new(
        plan: &'a Pipeline,
        machine: &Machine,
        hardware: &'a Hardware,
    ) -> Result<Simulation<'a>, ModelError> {
        let mut simulation = Simulation {
            plan,
            hardware,
            traffic: Traffic::new(hardware, plan.fairness),
            cpus: hardware.position(plan.cpus)?,
            homes: plan
                .columns
                .iter()
                .map(|column| hardware.position(column.node))
                .collect::<Result<_, _>>()?,
            groups: vec![Progress::default(); plan.groups_count],
            shares_left: Vec::new(),
            queues: vec![VecDeque::new(); hardware.device_rates.len() + 1],
            run: Run { total_s: 0.0, hits: (0, 0), stages_s: vec![0.0; plan.stages.len()], copied_s: 0.0 },
        };
        for fetch in 0..plan.fetches.len() {
            simulation.submit(machine, fetch);
        }
        Ok(simulation)
    }

    /// Queues the copies of a fetch in the order in which the groups will read them.
    fn submit(&mut self, machine: &Machine, fetch: usize) {
        let Fetch { column, chunks_count, node, route } = self.plan.fetches[fetch];
        let chunks = self.plan.chunks_of(column);
        let first = chunks.saturating_sub(chunks_count);
        let bytes = self.chunk_bytes(column);
        let mut left = vec![vec![None; chunks]; self.plan.groups_count];
        let endpoints = |turn| Endpoints {
            source_node: Some(self.plan.columns[column].node),
            target_node: Some(node),
            size_bytes: bytes as usize,
            turn,
        };
        let devices = |turn| route.map_or(Vec::new(), |route| device_shares(route, machine, endpoints(turn)));
        let mut shares = devices(0);
        let mut turn = 0;
        for chunk in first..chunks {
            for (group, left) in left.iter_mut().enumerate() {
                if route == Some(Route::RoundRobin) {
                    // The others do not depend on whose turn it is.
                    shares = devices(turn);
                    turn += 1;
                }
                left[chunk] = Some(shares.len().max(1));
                for share in &shares {
                    let bytes = share.bytes.len() as f64;
                    self.queues[share.engine].push_back(Descriptor { fetch, group, chunk, bytes });
                }
                if shares.is_empty() {
                    let cpus = self.queues.len() - 1;
                    self.queues[cpus].push_back(Descriptor { fetch, group, chunk, bytes });
                }
            }
        }
        self.shares_left.push(left);
    }

    fn chunk_bytes(&self, column: usize) -> f64 {
        let part = self.plan.columns[column].size_bytes as f64 / self.plan.groups_count as f64;
        part / self.plan.chunks_of(column) as f64
    }

    fn run(mut self) -> Result<Run, ModelError> {
        for queue in 0..self.queues.len() {
            let is_device = queue + 1 < self.queues.len();
            if !self.queues[queue].is_empty() {
                let begin_s =
                    if is_device { self.hardware.device.offload_s() } else { self.hardware.worker_wake_s };
                self.traffic.after(begin_s, Event::Begin { queue });
            }
        }
        for group in 0..self.groups.len() {
            self.go_on(group);
        }
        while self.groups.iter().any(|group| group.stage < self.plan.stages.len()) {
            match self.traffic.next() {
                Some(Event::Read { group }) => self.go_on(group),
                Some(Event::Begin { queue }) => self.begin(queue)?,
                Some(Event::Copied { queue, descriptor }) => self.copied(queue, descriptor),
                None => {
                    let what = "a stage waits for a copy that nobody does".into();
                    return Err(ModelError::Scenario { what });
                }
            }
        }
        self.run.stages_s.iter_mut().for_each(|stage| *stage /= self.groups.len() as f64);
        Ok(self.run)
    }

    fn begin(&mut self, queue: usize) -> Result<(), ModelError> {
        let Some(descriptor) = self.queues[queue].pop_front() else { return Ok(()) };
        let Fetch { column, node, .. } = self.plan.fetches[descriptor.fetch];
        let (source, target) = (self.homes[column], self.hardware.position(node)?);
        let mover = match queue + 1 < self.queues.len() {
            true => Mover::Device(queue),
            false => Mover::Cpus {
                node: self.cpus,
                threads_count: 1.0,
                speed: 1.0,
                rate_max: self.hardware.thread_copy_rate_between(self.cpus, source, target),
            },
        };
        let event = Event::Copied { queue, descriptor };
        self.traffic.copy(mover, source, target, descriptor.bytes, event);
        Ok(())
    }

    fn copied(&mut self, queue: usize, Descriptor { fetch, group, chunk, .. }: Descriptor) {
        if let Some(left) = &mut self.shares_left[fetch][group][chunk] {
            *left -= 1;
        }
        self.run.copied_s = self.traffic.now_s();
        if !self.queues[queue].is_empty() {
            // Large copies follow each other without a gap; small ones at the pace of descriptors.
            self.traffic.after(self.hardware.device.descriptor_s(), Event::Begin { queue });
        }
        if self.groups[group].is_waiting {
            self.groups[group].is_waiting = false;
            self.go_on(group);
        }
    }

    /// Lets a group read on: the next chunk, the next column or the next stage.
    fn go_on(&mut self, group: usize) {
        let Progress { stage, read, chunk, .. } = self.groups[group];
        let Some(Stage { reads, threads_count, thread_rate_max, .. }) = self.plan.stages.get(stage) else {
            return;
        };
        if self.must_wait(group) {
            self.groups[group].is_waiting = true;
            return;
        }
        let Some(&column) = reads.get(read) else {
            let now_s = self.traffic.now_s();
            self.run.stages_s[stage] += now_s - self.groups[group].stage_begin_s;
            self.run.total_s = now_s;
            self.groups[group] = Progress { stage: stage + 1, stage_begin_s: now_s, ..Progress::default() };
            return self.go_on(group);
        };
        let fetch = self.plan.fetches.iter().position(|fetch| fetch.column == column);
        let chunks = fetch.map_or(1, |_| self.plan.chunks_of(column));
        let progress = &mut self.groups[group];
        (progress.chunk, progress.read) = if chunk + 1 < chunks { (chunk + 1, read) } else { (0, read + 1) };
        let bytes =
            self.plan.columns[column].size_bytes as f64 / self.plan.groups_count as f64 / chunks as f64;
        let near = fetch.filter(|&fetch| self.shares_left[fetch][group][chunk] == Some(0));
        if fetch.is_some() {
            self.run.hits.0 += usize::from(near.is_some());
            self.run.hits.1 += 1;
        }
        let memory = match near.map(|fetch| self.hardware.position(self.plan.fetches[fetch].node)) {
            Some(Ok(near)) => near,
            _ => self.homes[column],
        };
        let threads_count = *threads_count as f64 / self.plan.groups_count as f64;
        let mover = Mover::Cpus {
            node: self.cpus,
            threads_count,
            speed: self.speed(group),
            rate_max: threads_count * thread_rate_max,
        };
        self.traffic.read(mover, memory, bytes, Event::Read { group });
    }

    fn must_wait(&self, group: usize) -> bool {
        let Progress { stage, read, chunk, .. } = self.groups[group];
        let reads = &self.plan.stages[stage].reads;
        let is_missing = |column: &usize| {
            (self.plan.fetches.iter().zip(&self.shares_left))
                .filter(|(fetch, _)| fetch.column == *column)
                .any(|(_, left)| left[group].iter().flatten().any(|&left| left > 0))
        };
        self.plan.is_waiting && read == 0 && chunk == 0 && reads.iter().any(is_missing)
    }

    fn speed(&self, group: usize) -> f64 {
        let last = self.groups.len() - 1;
        match last {
            0 => 1.0,
            _ => 1.0 + self.hardware.thread_skew * (2.0 * group as f64 / last as f64 - 1.0),
        }
    }
}
