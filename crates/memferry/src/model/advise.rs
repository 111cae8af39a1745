//! Advice: whether near copies of columns of a query pay, which, how much, to which node, by which route.
//!
//! Every alternative is computed as a pipeline of one group and few chunks, which takes microseconds. That ignores that
//! groups drift apart. If they do, and columns lie on different nodes, a query without copies reads several memories at the
//! same time, and copying gains less than modelled here: 1.1 instead of 1.3 for the thesis's query
//! (`advise_distributed_own` of `validate`), but never less than nothing.
//!
//! Copies that compete with the running scan for the bandwidth of one node cost more than they gain (Fürst's thesis lost
//! 18 %), and the model shows it. A part of a column, or a column that later queries read again, may still pay.

use crate::route::{Endpoints, Route, device_shares};
use crate::topology::{Machine, NodeId};

use super::ModelError;
use super::hardware::Hardware;
use super::pipeline::{Column, Fetch, Pipeline, Run, Stage};
use super::traffic::Fairness;

/// A query before it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Its columns. Those with a near copy from an earlier query have that copy's node.
    pub columns: Vec<Column>,
    /// The stages of each group of threads, in order.
    pub stages: Vec<Stage>,
    /// The node whose CPUs run it.
    pub cpus: NodeId,
    /// Size of the copied chunks.
    pub chunk_bytes: u64,
    /// The target of copies, if fixed. The caller then ensures room, like a cache that evicts chunks after their use. `None`:
    /// the fastest memory with room.
    pub near: Option<NodeId>,
    /// Expected number of later queries that read the same columns from their near copies; 0 if unknown.
    pub reads_to_come: u32,
}

/// One way to run a plan.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Alternative {
    /// The fetches: [`Fetch::chunks_count`] counts chunks of [`Plan::chunk_bytes`], those read last.
    pub fetches: Vec<Fetch>,
    /// Copied bytes.
    pub copied_bytes: u64,
    /// Copied share of each fetched column.
    shares: Vec<f64>,
    /// Time of this query.
    pub predicted_s: f64,
    /// Speed-up of this query and the later reads against no copying; above 1 it pays.
    pub speed_up: f64,
    /// One clause for EXPLAIN.
    pub words: String,
}

/// The advice for a plan, with all alternatives.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Advice {
    /// Time without copying.
    pub baseline_s: f64,
    /// Index in `alternatives`; `None`: no copies.
    pub chosen: Option<usize>,
    /// All computed alternatives.
    pub alternatives: Vec<Alternative>,
}

/// Least speed-up of a chosen alternative: the model is off by 2 % and 7 % for the two runs of table 6.2 that it was not
/// fitted to, and a slower query must be avoided.
pub(super) const SPEED_UP_MIN: f64 = 1.05;

/// Smaller differences count as equal.
const EQUAL_RATIO: f64 = 0.99;

/// Chunks that a column is computed in.
const CHUNKS_COUNT: u64 = 8;

/// Columns that are considered, largest first: each costs a computation.
const COLUMNS_MAX: usize = 4;

/// Least ratio of a faster memory; that of `Machine::faster_than`.
const FASTER_RATIO: f64 = 1.1;

impl Alternative {
    /// Indices of the columns that are brought near ([`Plan::columns`]), each with the share of it that is.
    pub fn shares(&self) -> impl Iterator<Item = (usize, f64)> {
        self.fetches.iter().map(|fetch| fetch.column).zip(self.shares.iter().copied())
    }
}

impl Advice {
    /// The chosen fetches.
    pub fn fetches(&self) -> &[Fetch] {
        self.chosen.map_or(&[], |index| &self.alternatives[index].fetches)
    }

    /// Time of the query if the advice is followed.
    pub fn predicted_s(&self) -> f64 {
        self.chosen.map_or(self.baseline_s, |index| self.alternatives[index].predicted_s)
    }

    /// A line for each alternative, for EXPLAIN.
    pub fn words(&self) -> Vec<String> {
        let line = |(index, alternative): (usize, &Alternative)| {
            let verdict = match (self.chosen == Some(index), alternative.speed_up >= SPEED_UP_MIN) {
                (true, _) => "yes",
                (false, true) => "another pays more",
                (false, false) => "no",
            };
            format!("{}: {verdict}", alternative.words)
        };
        self.alternatives.iter().enumerate().map(line).collect()
    }
}

impl Plan {
    /// Computes the alternatives and chooses the best.
    ///
    /// The machine's devices are those that would copy; without any, a thread of the plan's CPUs does. Where others copy
    /// than it has, it is first to be made one [with these](Machine::with_devices_on).
    ///
    /// Considered are the columns that no thread reads from the start, have a faster memory near the plan's CPUs, and
    /// room there, each alone and all together; and of those that cannot arrive before their stage begins, the part that
    /// can: copying the rest would compete with reading it.
    ///
    /// # Errors
    /// [`ModelError::Unknown`] if the rate of a memory, or of the cores or devices that would copy, is unknown: then there is
    /// no advice, and not copying is the safe choice. [`Node`](ModelError::Node), [`Scenario`](ModelError::Scenario).
    pub fn advise(&self, machine: &Machine) -> Result<Advice, ModelError> {
        let hardware = Hardware { thread_skew: 0.0, ..Hardware::of(machine)? };
        let advisor = Advisor { machine, hardware: &hardware, plan: self };
        let baseline = advisor.run(&[])?;
        let baseline_s = baseline.total_s;
        let mut advice = Advice { baseline_s, chosen: None, alternatives: Vec::new() };
        let candidates = advisor.candidates()?;
        let together = (candidates.len() > 1).then(|| candidates.clone());
        for fetches in candidates.iter().map(|fetch| vec![fetch.clone()]).chain(together) {
            let part = advisor.part(&fetches, &baseline);
            for fetches in [Some(fetches), part].into_iter().flatten() {
                advice.alternatives.push(advisor.alternative(fetches, baseline_s)?);
            }
        }
        let best = advice.alternatives.iter().map(|alternative| alternative.speed_up).fold(0.0, f64::max);
        if best >= SPEED_UP_MIN {
            // Of equals the first: a whole column comes before a part of it.
            advice.chosen = advice.alternatives.iter().position(|it| it.speed_up >= best * EQUAL_RATIO);
        }
        Ok(advice)
    }
}

#[cfg(feature = "internals")]
impl Pipeline {
    /// This query with its fetches replaced by what [`Plan::advise`] says about it, for all groups; and what that was.
    ///
    /// # Errors
    /// As [`Plan::advise`].
    pub fn advised(&self, machine: &Machine) -> Result<(Pipeline, Advice), ModelError> {
        let plan = Plan {
            columns: self.columns.clone(),
            stages: self.stages.clone(),
            cpus: self.cpus,
            chunk_bytes: self.chunk_bytes,
            near: None,
            reads_to_come: 0,
        };
        let advice = plan.advise(machine)?;
        // Advice counts the chunks of a column, a pipeline those of each group.
        let of_group = |fetch: &Fetch| {
            let chunks_count = fetch.chunks_count.div_ceil(self.groups_count.max(1));
            Fetch { chunks_count, ..fetch.clone() }
        };
        let fetches = advice.fetches().iter().map(of_group).collect();
        Ok((Pipeline { fetches, ..self.clone() }, advice))
    }
}

struct Advisor<'a> {
    machine: &'a Machine,
    hardware: &'a Hardware,
    plan: &'a Plan,
}

impl Advisor<'_> {
    /// Columns that could be brought near, whole or as far as there is room, largest first.
    fn candidates(&self) -> Result<Vec<Fetch>, ModelError> {
        let Some((first, late)) = self.plan.stages.split_first() else { return Ok(Vec::new()) };
        let mut fetches = Vec::new();
        for (column, Column { size_bytes, node, .. }) in self.plan.columns.iter().enumerate() {
            let is_late =
                late.iter().any(|stage| stage.reads.contains(&column)) && !first.reads.contains(&column);
            let target = if is_late { self.faster_memory(*node)? } else { None };
            let Some(target) = target else { continue };
            // Half at least has to fit, or it is not the same question.
            let amounts = [*size_bytes, size_bytes / 2];
            let Some(bytes) = amounts.into_iter().find(|&bytes| self.has_room(target, bytes)) else {
                continue;
            };
            let chunks_count = bytes.div_ceil(self.plan.chunk_bytes.max(1)) as usize;
            let route = self.route(*node, target);
            fetches.push(Fetch { column, chunks_count, node: target, route });
        }
        fetches.sort_by_key(|fetch| std::cmp::Reverse(self.plan.columns[fetch.column].size_bytes));
        fetches.truncate(COLUMNS_MAX);
        Ok(fetches)
    }

    fn has_room(&self, node: NodeId, bytes: u64) -> bool {
        self.plan.near.is_some()
            || self.machine.node(node).is_ok_and(|node| node.is_allowed && node.has_room(bytes))
    }

    /// The memory from which the plan's CPUs read fastest, of those that are considered, if that is faster than home;
    /// the nearest of equals.
    fn faster_memory(&self, home: NodeId) -> Result<Option<NodeId>, ModelError> {
        let (cpus, home) = (self.hardware.position(self.plan.cpus)?, self.hardware.position(home)?);
        let own = self.hardware.read_rate(cpus, home)?;
        let is_near = |memory: usize| self.machine.nodes()[memory].cpu_node == self.plan.cpus;
        let considered = match self.plan.near {
            Some(node) => {
                // Without its rate it is unknown whether it is faster.
                let memory = self.hardware.position(node)?;
                self.hardware.read_rate(cpus, memory)?;
                memory..memory + 1
            }
            None => 0..self.hardware.memories.len(),
        };
        let known =
            considered.filter_map(|memory| Some((memory, self.hardware.read_rate(cpus, memory).ok()?)));
        let best = known.filter(|(_, rate)| *rate > own * FASTER_RATIO).max_by(|one, other| {
            one.1.total_cmp(&other.1).then(is_near(one.0).cmp(&is_near(other.0))).then(other.0.cmp(&one.0))
        });
        Ok(best.map(|(memory, _)| self.hardware.memories[memory].node))
    }

    /// The fewest devices that copy about as fast as all; none if there are none.
    fn route(&self, source: NodeId, target: NodeId) -> Option<Route> {
        if self.machine.accelerators().is_empty() {
            return None;
        }
        let endpoints = self.endpoints(source, target);
        let rate = |route| self.route_rate(route, endpoints);
        let most = rate(Route::RoundRobin);
        let few = [Route::Single, Route::PushPull].into_iter().find(|&route| rate(route) >= 0.95 * most);
        few.or(Some(Route::RoundRobin))
    }

    fn endpoints(&self, source: NodeId, target: NodeId) -> Endpoints {
        let size_bytes = self.plan.chunk_bytes as usize;
        Endpoints { source_node: Some(source), target_node: Some(target), size_bytes, turn: 0 }
    }

    /// Of many chunks, as far as the rates are known that they depend on.
    fn route_rate(&self, route: Route, endpoints: Endpoints) -> f64 {
        let devices: Vec<usize> = match route {
            // Each chunk has one device, and all devices have chunks.
            Route::RoundRobin => (0..self.machine.accelerators().len()).collect(),
            route => {
                device_shares(route, self.machine, endpoints).into_iter().map(|share| share.engine).collect()
            }
        };
        self.hardware.copy_rate(&devices, endpoints).unwrap_or(0.0)
    }

    fn fetch_rate(&self, fetch: &Fetch) -> f64 {
        let endpoints = self.endpoints(self.plan.columns[fetch.column].node, fetch.node);
        match fetch.route {
            None => self.hardware.thread_copy_rate(),
            Some(route) => self.route_rate(route, endpoints),
        }
    }

    /// The query with these fetches, in few chunks.
    fn run(&self, fetches: &[Fetch]) -> Result<Run, ModelError> {
        let largest = self.plan.columns.iter().map(|column| column.size_bytes).max().unwrap_or(1);
        let chunk_bytes = largest.div_ceil(CHUNKS_COUNT).max(self.plan.chunk_bytes).max(1);
        let coarse = |fetch: &Fetch| {
            let chunks = (fetch.chunks_count as u64).saturating_mul(self.plan.chunk_bytes);
            Fetch { chunks_count: chunks.div_ceil(chunk_bytes) as usize, ..fetch.clone() }
        };
        let pipeline = Pipeline {
            columns: self.plan.columns.clone(),
            stages: self.plan.stages.clone(),
            cpus: self.plan.cpus,
            groups_count: 1,
            chunk_bytes,
            fetches: fetches.iter().map(coarse).collect(),
            is_waiting: false,
            fairness: Fairness::default(),
        };
        pipeline.run(self.machine, self.hardware)
    }

    fn alternative(&self, fetches: Vec<Fetch>, baseline_s: f64) -> Result<Alternative, ModelError> {
        let predicted_s = self.run(&fetches)?.total_s;
        let later = f64::from(self.plan.reads_to_come);
        let near_s = if later > 0.0 { self.near_s(&fetches)? } else { 0.0 };
        let speed_up = baseline_s * (1.0 + later) / (predicted_s + later * near_s);
        let copied_bytes = fetches.iter().map(|fetch| self.bytes(fetch)).sum();
        let shares = fetches.iter().map(|fetch| self.share(fetch)).collect();
        let words = self.words(&fetches, speed_up);
        Ok(Alternative { fetches, copied_bytes, shares, predicted_s, speed_up, words })
    }

    /// Time of a later query, which finds these columns near; a part of a column counts as its share of the gain.
    fn near_s(&self, fetches: &[Fetch]) -> Result<f64, ModelError> {
        let mut plan = self.plan.clone();
        let mut share: f64 = 1.0;
        for fetch in fetches {
            share = share.min(self.share(fetch));
            plan.columns[fetch.column].node = fetch.node;
        }
        let near_s = Advisor { plan: &plan, ..*self }.run(&[])?.total_s;
        Ok(share * near_s + (1.0 - share) * self.run(&[])?.total_s)
    }

    fn bytes(&self, fetch: &Fetch) -> u64 {
        let whole = self.plan.columns[fetch.column].size_bytes;
        (fetch.chunks_count as u64).saturating_mul(self.plan.chunk_bytes).min(whole)
    }

    fn share(&self, fetch: &Fetch) -> f64 {
        self.bytes(fetch) as f64 / self.plan.columns[fetch.column].size_bytes.max(1) as f64
    }

    /// The part of these fetches that can arrive before the stages that read it, if it is not all of them.
    fn part(&self, fetches: &[Fetch], baseline: &Run) -> Option<Vec<Fetch>> {
        let mut is_whole = true;
        let mut earlier_bytes = 0.0;
        let mut parts = Vec::with_capacity(fetches.len());
        for fetch in fetches {
            let stage = self.plan.stages.iter().position(|stage| stage.reads.contains(&fetch.column))?;
            let before_s: f64 = baseline.stages_s[..stage].iter().sum();
            let arrived = before_s * self.fetch_rate(fetch) - earlier_bytes;
            let chunks_count = fetch.chunks_count.min((arrived / self.plan.chunk_bytes as f64) as usize);
            is_whole &= chunks_count == fetch.chunks_count;
            let part = Fetch { chunks_count, ..fetch.clone() };
            earlier_bytes += self.bytes(&part) as f64;
            parts.push(part);
        }
        parts.retain(|fetch| fetch.chunks_count > 0);
        (!is_whole && !parts.is_empty()).then_some(parts)
    }

    fn words(&self, fetches: &[Fetch], speed_up: f64) -> String {
        let mut text = String::new();
        for fetch in fetches {
            let column = &self.plan.columns[fetch.column];
            let stage = self.plan.stages.iter().position(|stage| stage.reads.contains(&fetch.column));
            let route = match fetch.route {
                None => "the CPU",
                Some(Route::Single) => "one device",
                Some(Route::PushPull) => "push-pull",
                Some(_) => "all devices in turn",
            };
            let before = stage.and_then(|stage| self.plan.stages.get(stage.checked_sub(1)?));
            let before = before.map_or("", |stage| stage.name.as_str());
            let (amount, node) = (amount(self.bytes(fetch)), fetch.node);
            let separator = if text.is_empty() { "" } else { "; " };
            text += &format!(
                "{separator}{}, {amount}, read after {before}, to node {node} by {route}",
                column.name
            );
        }
        let scans = self.plan.stages.first().map_or(&[][..], |stage| &stage.reads);
        let competes = fetches.iter().any(|fetch| {
            scans.iter().any(|&scan| self.plan.columns[scan].node == self.plan.columns[fetch.column].node)
        });
        let why = if competes { ", same node as the running scan" } else { "" };
        let effect = match speed_up {
            gain if gain >= SPEED_UP_MIN => format!("pays {gain:.2}x"),
            gain if gain >= 1.0 => format!("would gain {:.0} % only", (gain - 1.0) * 100.0),
            loss => format!("would cost {:.0} %", (1.0 - loss) * 100.0),
        };
        format!("{text}{why}, {effect}")
    }
}

/// `46 MiB`; less than one in KiB.
fn amount(bytes: u64) -> String {
    let (unit, name) = if bytes < 1 << 20 { (1 << 10, "KiB") } else { (1 << 20, "MiB") };
    format!("{:.0} {name}", bytes as f64 / f64::from(unit))
}
