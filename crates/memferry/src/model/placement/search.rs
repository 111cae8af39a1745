//! The search for moves, and the conditions that they must meet.

use std::collections::BTreeSet;

use crate::route::Endpoints;
use crate::topology::{Machine, Node, NodeId};

use super::super::ModelError;
use super::super::hardware::Hardware;
use super::loads::{Loads, Rates, Read, reads_of};
use super::words;
use super::{ColumnMove, PlacementAdvice, PlacementRules, PlacementVerdict, ReadHistory};

/// Times that differ by less count as equal: sums of many terms in another order.
const EQUAL_RATIO: f64 = 1e-6;

/// Two memories whose rates differ by less are of one kind, as in `Machine::faster_than`.
const SAME_RATIO: f64 = 1.1;

/// Counts for a distance that is unknown: that of another node, where 10 is the own one (ACPI).
const UNKNOWN_DISTANCE: u32 = 20;

/// Doublings of the loss that must have been seen; beyond, a column does not move.
const DOUBLINGS_MAX: u32 = 32;

pub(super) struct Search<'a> {
    history: &'a ReadHistory,
    rules: &'a PlacementRules,
    machine: &'a Machine,
    hardware: &'a Hardware,
    pub(super) rates: Rates,
    /// By window and column.
    pub(super) reads: Vec<Vec<Vec<Read>>>,
    /// Bytes of each column by position of the node.
    sizes: Vec<Vec<f64>>,
    /// Loads where the columns are.
    pub(super) loads: Vec<Loads>,
}

/// A move of a column to these positions.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) column: usize,
    pub(super) targets: Vec<usize>,
    /// Bytes that come to each of the targets.
    arriving: Vec<f64>,
    /// Of the targets from the CPUs that read the column.
    mean_distance: f64,
    cost_s: f64,
    /// The cost, doubled by each earlier move of the column.
    weighted_cost_s: f64,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        history: &'a ReadHistory,
        rules: &'a PlacementRules,
        machine: &'a Machine,
        hardware: &'a Hardware,
    ) -> Result<Search<'a>, ModelError> {
        let rates = Rates::of(hardware);
        let reads = reads_of(history, &rates, machine, hardware)?;
        let count = machine.nodes().len();
        let mut sizes = Vec::with_capacity(history.columns.len());
        for column in &history.columns {
            let mut by_node = vec![0.0; count];
            for (&node, &size_bytes) in &column.size_bytes {
                by_node[hardware.position(node)?] += size_bytes as f64;
            }
            sizes.push(by_node);
        }
        let loads_of = |by_column: &Vec<Vec<Read>>| {
            let mut loads = Loads::new(count);
            by_column.iter().for_each(|reads| loads.add(1.0, reads, None, &rates));
            loads
        };
        let loads = reads.iter().map(loads_of).collect();
        Ok(Search { history, rules, machine, hardware, rates, reads, sizes, loads })
    }

    /// The time of each window, where the columns are.
    pub(super) fn seconds(&self) -> Vec<f64> {
        self.loads.iter().map(Loads::seconds).collect()
    }

    pub(super) fn advise(&self) -> Result<PlacementAdvice, ModelError> {
        let mut steps = self.without_idle(self.steps());
        let mut waiting = None;
        while !steps.is_empty() {
            match self.judge(&steps) {
                Some(PlacementVerdict::Move) => return Ok(self.advice(&steps, PlacementVerdict::Move)),
                Some(verdict) if waiting.is_none() => waiting = Some((steps.clone(), verdict)),
                _ => {}
            }
            let weakest = self.weakest(&steps);
            steps.remove(weakest);
        }
        Ok(match waiting {
            Some((steps, verdict)) => self.advice(&steps, verdict),
            None => self.advice(&[], PlacementVerdict::Keep),
        })
    }

    pub(super) fn speed_up_min(&self) -> f64 {
        self.rules.speed_up_min
    }

    /// The columns that are read and rest, by name, and the longest of these rests.
    pub(super) fn resting(&self) -> (Vec<&'a str>, f64) {
        let is_read = |column: usize| self.reads.iter().any(|by_column| !by_column[column].is_empty());
        let resting = self.history.columns.iter().enumerate().filter(|(column, _)| is_read(*column));
        let resting = resting.map(|(_, it)| (it.name.as_str(), it.resting_s(self.rules.rest_s)));
        let (names, rests): (Vec<&str>, Vec<f64>) = resting.filter(|(_, rest_s)| *rest_s > 0.0).unzip();
        (names, rests.into_iter().fold(0.0, f64::max))
    }

    /// Time of all windows: what was measured, or the modelled time if that is longer.
    pub(super) fn windows_s(&self) -> f64 {
        let windows = self.history.windows.iter().zip(&self.loads);
        windows.map(|(window, loads)| window.seconds.max(loads.seconds())).sum()
    }

    /// What saved seconds of the windows are worth until the cost must be paid back.
    fn worth(&self) -> f64 {
        let windows_s = self.windows_s();
        if windows_s > 0.0 { self.rules.payback_s / windows_s } else { 0.0 }
    }

    /// Moves, each the best after those before it.
    fn steps(&self) -> Vec<Step> {
        let worth = self.worth();
        let mut loads = self.loads.clone();
        let mut steps: Vec<Step> = Vec::new();
        let mut candidates: Vec<Step> =
            (0..self.history.columns.len()).flat_map(|column| self.candidates(column)).collect();
        // Of equals the first is taken: the nearest.
        candidates.sort_by(|one, other| {
            let nearer = one.mean_distance.total_cmp(&other.mean_distance);
            nearer.then(one.targets.len().cmp(&other.targets.len()))
        });
        loop {
            let scores: Vec<f64> = loads.iter().map(Loads::score).collect();
            let score: f64 = scores.iter().sum();
            let mut scratch = Loads::new(self.machine.nodes().len());
            let is_open = |step: &&Step| {
                !steps.iter().any(|taken| taken.column == step.column) && self.fits(step, &steps)
            };
            let mut best: Option<(f64, &Step)> = None;
            for step in candidates.iter().filter(is_open) {
                let mut after = 0.0;
                for ((loads, by_column), score) in loads.iter().zip(&self.reads).zip(&scores) {
                    let reads = &by_column[step.column];
                    after += match reads.is_empty() {
                        true => *score,
                        false => self.exchange(loads, step, reads, &mut scratch).score(),
                    };
                }
                let benefit = (score - after) * worth - step.cost_s;
                let is_better = best.is_none_or(|(most, _)| benefit > most * (1.0 + EQUAL_RATIO));
                if after < score * (1.0 - EQUAL_RATIO) && benefit > 0.0 && is_better {
                    best = Some((benefit, step));
                }
            }
            let Some((_, step)) = best else { return steps };
            loads = self.after(&loads, step);
            steps.push(step.clone());
        }
    }

    /// The loads of a window after a move of a column that is where it was measured, in memory of the caller.
    fn exchange<'s>(&self, loads: &Loads, step: &Step, reads: &[Read], scratch: &'s mut Loads) -> &'s Loads {
        scratch.copy_from(loads);
        scratch.add(-1.0, reads, None, &self.rates);
        scratch.add(1.0, reads, Some(&step.targets), &self.rates);
        scratch
    }

    /// The same of all windows.
    fn after(&self, loads: &[Loads], step: &Step) -> Vec<Loads> {
        let of_window = |(loads, by_column): (&Loads, &Vec<Vec<Read>>)| {
            let mut after = Loads::new(self.machine.nodes().len());
            self.exchange(loads, step, &by_column[step.column], &mut after);
            after
        };
        loads.iter().zip(&self.reads).map(of_window).collect()
    }

    pub(super) fn loads_after(&self, steps: &[Step]) -> Vec<Loads> {
        let mut loads = self.loads.clone();
        for step in steps {
            loads = self.after(&loads, step);
        }
        loads
    }

    fn total_s(&self, steps: &[Step]) -> f64 {
        self.loads_after(steps).iter().map(Loads::seconds).sum()
    }

    /// Places that a column could have: one memory, those beside its readers, and all of the kind that it has now. While it
    /// rests, those that it left.
    fn candidates(&self, column: usize) -> Vec<Step> {
        let reads = || self.reads.iter().flat_map(move |by_column| &by_column[column]);
        if reads().next().is_none() {
            return Vec::new();
        }
        let nodes = self.machine.nodes();
        let usable = |position: usize| -> bool {
            let node: &Node = &nodes[position];
            node.is_allowed
                && node.has_memory()
                && self.rates.memories[position].is_some()
                && self.rules.room_bytes.contains_key(&node.id)
        };
        let position = |id: NodeId| nodes.iter().position(|node| node.id == id);
        let placed = &self.history.columns[column];
        if placed.resting_s(self.rules.rest_s) > 0.0 {
            let left =
                placed.former.iter().map(|place| place.iter().filter_map(|&node| position(node)).collect());
            let back = left.filter(|targets: &Vec<usize>| targets.iter().all(|&target| usable(target)));
            return back.map(|targets| self.step(column, targets)).collect();
        }
        let mut places: BTreeSet<Vec<usize>> =
            (0..nodes.len()).filter(|&it| usable(it)).map(|it| vec![it]).collect();
        let readers: BTreeSet<usize> = reads().map(|read| read.cpus).collect();
        let near: BTreeSet<usize> = readers.iter().copied().filter(|&it| usable(it)).collect();
        let fastest = |&cpus: &usize| -> Option<usize> {
            let faster = self.machine.faster_than(nodes[cpus].id);
            faster.into_iter().filter_map(|node| position(node.id)).find(|&it| usable(it))
        };
        places.insert(near.into_iter().collect());
        places.insert(readers.iter().filter_map(fastest).collect::<BTreeSet<_>>().into_iter().collect());
        let most = (0..nodes.len()).max_by(|&one, &other| {
            self.sizes[column][one].total_cmp(&self.sizes[column][other]).then(other.cmp(&one))
        });
        if let Some(rate) = most.and_then(|most| self.rates.memories[most]) {
            let is_same = |&it: &usize| {
                let other = self.rates.memories[it].unwrap_or(0.0);
                usable(it) && other * SAME_RATIO > rate && rate * SAME_RATIO > other
            };
            places.insert((0..nodes.len()).filter(is_same).collect());
        }
        let steps = places.into_iter().filter(|targets| !targets.is_empty());
        steps.map(|targets| self.step(column, targets)).collect()
    }

    /// How far the targets are from the CPUs that read the column, as a mean over its bytes.
    fn mean_distance(&self, column: usize, targets: &[usize]) -> f64 {
        let (mut sum, mut bytes) = (0.0, 0.0);
        for read in self.reads.iter().flat_map(|by_column| &by_column[column]) {
            sum +=
                read.bytes * targets.iter().map(|&it| self.far(read, it)).sum::<f64>() / targets.len() as f64;
            bytes += read.bytes;
        }
        if bytes > 0.0 { sum / bytes } else { 0.0 }
    }

    /// How far a memory is from the CPUs of a read: by distance, and of equal distances the memory beside them first.
    fn far(&self, read: &Read, memory: usize) -> f64 {
        let (cpus, memory) = (&self.machine.nodes()[read.cpus], &self.machine.nodes()[memory]);
        let distance = self.machine.link(cpus.id, memory.id).distance.unwrap_or(UNKNOWN_DISTANCE);
        f64::from(distance) + if memory.cpu_node == cpus.id { 0.0 } else { 0.5 }
    }

    fn step(&self, column: usize, targets: Vec<usize>) -> Step {
        let sizes = &self.sizes[column];
        let share = sizes.iter().sum::<f64>() / targets.len() as f64;
        let share_of = |position: usize| if targets.contains(&position) { share } else { 0.0 };
        let arriving: Vec<f64> = targets.iter().map(|&target| (share - sizes[target]).max(0.0)).collect();
        let arriving_bytes: f64 = arriving.iter().sum();
        let mut cost_s = 0.0;
        for (source, &size) in sizes.iter().enumerate() {
            let leaving = (size - share_of(source)).max(0.0);
            for (&target, arriving) in targets.iter().zip(&arriving) {
                if leaving > 0.0 && *arriving > 0.0 {
                    cost_s += leaving * arriving / arriving_bytes / self.copy_rate(source, target);
                }
            }
        }
        let doublings = self.history.columns[column].moves_count.min(DOUBLINGS_MAX);
        let weighted_cost_s = cost_s * f64::from(doublings).exp2();
        let mean_distance = self.mean_distance(column, &targets);
        Step { column, targets, arriving, mean_distance, cost_s, weighted_cost_s }
    }

    /// Rate of a copy at full pace: of all devices, or of one thread.
    fn copy_rate(&self, source: usize, target: usize) -> f64 {
        let nodes = self.machine.nodes();
        let devices: Vec<usize> = (0..self.machine.accelerators().len()).collect();
        let endpoints = Endpoints {
            source_node: Some(nodes[source].id),
            target_node: Some(nodes[target].id),
            size_bytes: 0,
            turn: 0,
        };
        let by_devices = self.hardware.copy_rate(&devices, endpoints);
        let cpus = nodes.iter().position(|node| node.id == nodes[source].cpu_node).unwrap_or(source);
        let by_thread = || self.hardware.thread_copy_rate_between(cpus, source, target);
        let memories = [source, target].into_iter().filter_map(|it| self.rates.memories[it]);
        memories.fold(by_devices.unwrap_or_else(by_thread), f64::min)
    }

    /// Whether the targets have room beside the other moves. Memory that they free is not counted: it is freed after the
    /// last query that reads it.
    fn fits(&self, step: &Step, others: &[Step]) -> bool {
        step.targets.iter().zip(&step.arriving).all(|(&target, &arriving)| {
            let of_others = others.iter().flat_map(|other| other.targets.iter().zip(&other.arriving));
            let taken: f64 = of_others.filter(|(it, _)| **it == target).map(|(_, bytes)| bytes).sum();
            let room = self.rules.room_bytes.get(&self.machine.nodes()[target].id).copied().unwrap_or(0);
            arriving <= 0.0 || arriving + taken <= room as f64
        })
    }

    /// The moves without those that change nothing once the others are made.
    fn without_idle(&self, mut steps: Vec<Step>) -> Vec<Step> {
        for index in (0..steps.len()).rev() {
            let mut without = steps.clone();
            without.remove(index);
            if self.total_s(&without) <= self.total_s(&steps) * (1.0 + EQUAL_RATIO) {
                steps = without;
            }
        }
        steps
    }

    /// The move without which the others are worth most.
    fn weakest(&self, steps: &[Step]) -> usize {
        let worth = self.worth();
        let value = |index: usize| {
            let mut without = steps.to_vec();
            let step = without.remove(index);
            (self.total_s(&without) - self.total_s(steps)) * worth - step.weighted_cost_s
        };
        (0..steps.len()).min_by(|&one, &other| value(one).total_cmp(&value(other))).unwrap_or(0)
    }

    /// Whether these moves are made now or later; `None`: they do not pay.
    fn judge(&self, steps: &[Step]) -> Option<PlacementVerdict> {
        let before: f64 = self.loads.iter().map(Loads::seconds).sum();
        let after = self.loads_after(steps);
        let after_s: f64 = after.iter().map(Loads::seconds).sum();
        let saved_s = before - after_s;
        let cost_s: f64 = steps.iter().map(|step| step.cost_s).sum();
        let is_enough = before >= self.rules.speed_up_min * after_s && saved_s > 0.0;
        if !is_enough || cost_s > saved_s * self.worth() {
            return None;
        }
        // What was seen before the workload changed is no reason for a move.
        let read = (0..self.loads.len()).rev().find(|&window| self.loads[window].seconds() > 0.0)?;
        if self.loads[read].seconds() < self.rules.speed_up_min * after[read].seconds() {
            return None;
        }
        let needed_s = self.rules.evidence * steps.iter().map(|step| step.weighted_cost_s).sum::<f64>();
        Some(match saved_s >= needed_s {
            true => PlacementVerdict::Move,
            false => PlacementVerdict::Wait { seen_s: saved_s, needed_s },
        })
    }

    fn advice(&self, steps: &[Step], verdict: PlacementVerdict) -> PlacementAdvice {
        let nodes = self.machine.nodes();
        let column_move = |step: &Step| ColumnMove {
            column: step.column,
            nodes: step.targets.iter().map(|&target| nodes[target].id).collect(),
            size_bytes: step.arriving.iter().sum::<f64>().round() as u64,
            cost_s: step.cost_s,
            reason: words::of_move(self, step, nodes),
        };
        PlacementAdvice {
            before_s: self.seconds().iter().sum(),
            after_s: self.total_s(steps),
            windows_s: self.windows_s(),
            moves: steps.iter().map(column_move).collect(),
            verdict,
            reason: words::of_advice(self, verdict, nodes),
        }
    }
}
