//! Advice on the places of columns: which columns should move to which nodes, by the reads that were measured.
//!
//! ```text
//! reads of each window: (CPUs of a node, column, node, bytes)
//!    │ loads        seconds of each memory, and of the CPUs of each node; the longest is the time of the window
//!    │ search       moves of whole columns, each the best next one; those without an effect are removed
//!    ▼ judge        does it gain enough, does it pay, has the loss been seen for long enough, does the last window agree?
//! move, wait or keep
//! ```
//!
//! The CPUs of a node read their memories one after the other, and those of different nodes at the same time. So a memory that
//! many CPUs read is relieved by moves, and CPUs that read slow or remote memory are. Spreading columns over equal memories for
//! the CPUs of one node gains nothing here: threads that drift apart would gain, and the model does not count on it.
//!
//! **Hysteresis.** A move must pay within [`payback_s`](PlacementRules::payback_s) of such windows, and the loss that was
//! seen since the last change must have reached the cost of the move, as a skier who rents until the rent has reached the price of
//! skis. Each further move of a column needs twice the loss that the one before needed. After each move a column rests: until the
//! rest is over, it moves only back to places that it left, and each move back doubles the rests after it. So a column leaves a
//! place that has become bad as soon as the loss says so, and does not try that place again soon. Source of the idea: Psaroudakis
//! et al., *Scaling Up Concurrent Main-Memory Column-Store Scans: Towards Adaptive NUMA-aware Data and Task Placement*, VLDB 2015,
//! by way of Greinsmark 2020, chapter 6; the rest is the exponential back-off of Metcalfe and Boggs, *Ethernet*, CACM 1976.
//!
//! Not modelled: copies to near memory that read the homes, writes, other programs, and CPUs that would begin to read when rows
//! come near them.

mod loads;
mod search;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use crate::topology::{Machine, NodeId};

use self::search::Search;
use super::ModelError;
use super::advise::SPEED_UP_MIN;
use super::hardware::Hardware;

/// Bytes of a column that the CPUs of a node read from a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeRead {
    /// The node of the CPUs.
    pub cpus: NodeId,
    /// Index of the column.
    pub column: usize,
    /// The node of the memory.
    pub node: NodeId,
    /// The bytes.
    pub size_bytes: u64,
}

/// Reads of a span of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadWindow {
    /// The span, with the time in which nothing was read.
    pub seconds: f64,
    /// The reads; several of the same column, CPUs and node are added.
    pub reads: Vec<HomeRead>,
}

/// A column and its places.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlacedColumn {
    /// Its name.
    pub name: String,
    /// Its bytes by node.
    pub size_bytes: BTreeMap<NodeId, u64>,
    /// Number of moves of this column that are remembered. Each doubles the loss that must have been seen before another one.
    pub moves_count: u32,
    /// Time since the last move, or since one was forgotten.
    pub quiet_s: f64,
    /// The nodes that it had before, the oldest first. Those since a place to which it moved back are left out.
    pub former: Vec<BTreeSet<NodeId>>,
    /// Number of moves back that are remembered. Each doubles the rests.
    pub returns_count: u32,
}

impl PlacedColumn {
    /// The time in which it still only moves back, with rests that begin at [`rest_s`](PlacementRules::rest_s).
    fn resting_s(&self, rest_s: f64) -> f64 {
        match self.moves_count {
            0 => 0.0,
            _ => (rest_s * f64::from(self.returns_count.min(REST_DOUBLINGS_MAX)).exp2() - self.quiet_s)
                .max(0.0),
        }
    }

    /// Its nodes.
    fn nodes(&self) -> BTreeSet<NodeId> {
        self.size_bytes.iter().filter(|(_, bytes)| **bytes > 0).map(|(&node, _)| node).collect()
    }
}

/// Doublings of the rest: five minutes become 40, less than [`FORGET_S`], so that no move is forgotten during a rest.
const REST_DOUBLINGS_MAX: u32 = 3;

/// Windows that are kept. With windows of 10 s they cover the ten minutes of [`PlacementRules::payback_s`].
const WINDOWS_MAX: usize = 60;

/// Time in which a column does not move, and one of its moves is forgotten: what was true an hour ago need not be so now.
const FORGET_S: f64 = 3600.0;

/// The reads of columns, as measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadHistory {
    /// The columns.
    pub columns: Vec<PlacedColumn>,
    /// Their reads since they lie there, the last window last.
    pub windows: Vec<ReadWindow>,
}

/// Conditions of a move.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementRules {
    /// Least speed-up of the reads. The default is that of prefetching, 1.05: the model is off by 2 to 7 %.
    pub speed_up_min: f64,
    /// A move costs at most the time that it saves within this time.
    pub payback_s: f64,
    /// The loss that must have been seen, in costs of the move; 0 moves on the first window.
    pub evidence: f64,
    /// Rest of a column after a move; each move back doubles those after it, up to 8 times this. 0: none.
    pub rest_s: f64,
    /// The nodes that may take columns, each with the bytes that it may take.
    pub room_bytes: BTreeMap<NodeId, u64>,
}

impl Default for PlacementRules {
    /// No node has room.
    fn default() -> Self {
        Self {
            speed_up_min: SPEED_UP_MIN,
            // Ten minutes: a session of queries, and short beside the time that a table stays in memory.
            payback_s: 600.0,
            evidence: 1.0,
            // Half of that, and so all of it after the first move back: a place that had to be left is not tried again before a
            // move would have paid.
            rest_s: 300.0,
            room_bytes: BTreeMap::new(),
        }
    }
}

/// A proposed move of all rows of a column.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ColumnMove {
    /// Index of the column.
    pub column: usize,
    /// Its new nodes; several take its rows in turns.
    pub nodes: Vec<NodeId>,
    /// Bytes that come to other nodes.
    pub size_bytes: u64,
    /// Time of the copy at full pace.
    pub cost_s: f64,
    /// Why, as a sentence without its full stop.
    pub reason: String,
}

/// The decision about [`PlacementAdvice::moves`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum PlacementVerdict {
    /// They pay.
    Move,
    /// They would pay if the workload lasts; too little of it has been seen.
    Wait {
        /// The time that they would have saved so far ...
        seen_s: f64,
        /// ... and the time that it must reach.
        needed_s: f64,
    },
    /// There is none that pays.
    Keep,
}

/// The advice about the places of columns.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PlacementAdvice {
    /// Modelled time of the reads of all windows.
    pub before_s: f64,
    /// The same after the moves.
    pub after_s: f64,
    /// The time that the windows lasted, or the modelled one if that is longer.
    pub windows_s: f64,
    /// The moves, which belong together.
    pub moves: Vec<ColumnMove>,
    /// Whether to make them.
    pub verdict: PlacementVerdict,
    /// Why it is so, as a sentence without its full stop.
    pub reason: String,
}

impl PlacementAdvice {
    /// Speed-up of the reads by the moves.
    pub fn speed_up(&self) -> f64 {
        if self.after_s > 0.0 { self.before_s / self.after_s } else { 1.0 }
    }

    /// Time of the copies at full pace.
    pub fn cost_s(&self) -> f64 {
        self.moves.iter().map(|it| it.cost_s).sum()
    }

    /// The time of such a workload in which the moves save their cost; infinite if they save nothing.
    pub fn pays_after_s(&self) -> f64 {
        let saved_s = self.before_s - self.after_s;
        if saved_s > 0.0 { self.cost_s() / saved_s * self.windows_s } else { f64::INFINITY }
    }
}

impl ReadHistory {
    /// Appends a window. The oldest one is dropped if there are more than 60.
    pub fn record(&mut self, window: ReadWindow) {
        for column in &mut self.columns {
            column.quiet_s += window.seconds;
            while column.quiet_s >= FORGET_S {
                column.quiet_s -= FORGET_S;
                column.moves_count = column.moves_count.saturating_sub(1);
                column.returns_count = column.returns_count.saturating_sub(1);
                let forgotten = column.former.len().saturating_sub(column.moves_count as usize);
                column.former.drain(..forgotten);
            }
        }
        if self.windows.len() >= WINDOWS_MAX {
            self.windows.remove(0);
        }
        self.windows.push(window);
    }

    /// The columns `moved` have these places now, and rest. What was read before is forgotten, since it was read elsewhere.
    ///
    /// # Panics
    /// If a column is not there.
    pub fn moved(&mut self, moved: impl IntoIterator<Item = (usize, BTreeMap<NodeId, u64>)>) {
        for (column, size_bytes) in moved {
            let column = &mut self.columns[column];
            let left = column.nodes();
            (column.size_bytes, column.quiet_s) = (size_bytes, 0.0);
            column.moves_count = column.moves_count.saturating_add(1);
            let nodes = column.nodes();
            match column.former.iter().position(|place| *place == nodes) {
                Some(place) => {
                    column.former.truncate(place);
                    column.returns_count = column.returns_count.saturating_add(1);
                }
                None if nodes != left => column.former.push(left),
                None => {}
            }
        }
        self.windows.clear();
    }

    /// Proposes moves, or says why there are none.
    ///
    /// Deterministic. Cost: for each move, the number of columns times that of nodes and reads; a millisecond for a table of
    /// 16 columns on 16 nodes.
    ///
    /// # Errors
    /// [`ModelError::Unknown`] if the rate of a memory that is read is unknown: then there is no advice, and leaving columns where
    /// they are is the safe choice. [`Node`](ModelError::Node) for a node that the machine does not have.
    ///
    /// # Panics
    /// If a read names a column that is not there.
    pub fn advise(&self, rules: &PlacementRules, machine: &Machine) -> Result<PlacementAdvice, ModelError> {
        let hardware = Hardware::of(machine)?;
        Search::new(self, rules, machine, &hardware)?.advise()
    }

    /// Modelled time of the reads of each window, where the columns are.
    ///
    /// # Errors
    /// As [`advise`](Self::advise).
    pub fn seconds(&self, machine: &Machine) -> Result<Vec<f64>, ModelError> {
        let hardware = Hardware::of(machine)?;
        let rules = PlacementRules::default();
        Ok(Search::new(self, &rules, machine, &hardware)?.seconds())
    }
}
