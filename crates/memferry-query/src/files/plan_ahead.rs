//! Reading ahead across the scans of a plan: the beginning of the scan that comes next, before DataFusion opens it.
//!
//! ```text
//! build side   ─ reads ───────────────────┐ nothing left to read ahead
//!              ─ decodes ─────────────────┼──────────── hash table ─┐
//! probe side                              └ first row groups        └ opens, decodes
//! ```
//!
//! A scan is begun when a partition of the scan before it has started all of its reads, so the scan that runs comes first.
//! Of each partition one row group is read: while it is decoded, the partition reads the next ones itself. If this is all of
//! the scan, the next one is begun as well, up to the window of one partition over the whole plan.
//!
//! Nothing is read of a scan that a limit may end before it starts, or whose row groups a filter may exclude that is not known
//! yet (see `Demand::may_exclude_later`). When the filter is known, reads of row groups that it excludes are dropped. The
//! reads of a scan are dropped with its last stream, that is, with the query at the latest.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use datafusion::physical_plan::ExecutionPlan;

use super::factory::Readers;
use super::order::{Turn, scans_in_order};

/// The place of a scan in its plan.
#[derive(Debug)]
pub(super) struct InPlan {
    pub(super) turn: Turn,
    /// Its position among the scans of files.
    index: usize,
    plan: Arc<PlanAhead>,
}

/// The scans of files of one plan, and how far they are read ahead.
pub(super) struct PlanAhead {
    /// In the order of need.
    scans: Vec<Scan>,
    /// One for each scan.
    steps: Mutex<Vec<Step>>,
    /// Bytes of reads that no scan has taken over. Relaxed: a bound for reads to come, which guards no other memory.
    held_bytes: AtomicU64,
}

struct Scan {
    stage: usize,
    ends_early: bool,
    /// Of the scan's node, which refers to this.
    readers: Weak<Readers>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// `is_due`: the scans before have started all of their reads, and this one was not executed yet.
    Waiting { is_due: bool },
    /// `pending_count` files are being begun. `is_whole`: those that are not pending have no further read to start.
    Begun { pending_count: usize, is_whole: bool },
}

/// Bytes of the window that reads take until their scan takes them over.
pub(super) struct Held {
    plan: Arc<PlanAhead>,
    bytes: u64,
}

/// Tells the scans of `plan` their places in it. Scans that have one keep it. `reads_ahead`: whether scans are begun before
/// DataFusion opens them.
pub(super) fn annotate(plan: &Arc<dyn ExecutionPlan>, reads_ahead: bool) {
    let scans = scans_in_order(plan);
    let ahead = Arc::new(PlanAhead {
        scans: match reads_ahead {
            true => scans.iter().map(Scan::of).collect(),
            false => vec![],
        },
        // A scan that waits for none of files is due when it is executed.
        steps: Mutex::new(match reads_ahead {
            true => scans
                .iter()
                .enumerate()
                .map(|(index, (turn, _))| Step::Waiting { is_due: index == 0 && turn.stage > 0 })
                .collect(),
            false => vec![],
        }),
        held_bytes: AtomicU64::new(0),
    });
    for (index, (turn, readers)) in scans.into_iter().enumerate() {
        let _keeps_its_own = readers.in_plan.set(InPlan { turn, index, plan: Arc::clone(&ahead) });
    }
}

impl Scan {
    fn of((turn, readers): &(Turn, &Arc<Readers>)) -> Self {
        Self { stage: turn.stage, ends_early: turn.ends_early, readers: Arc::downgrade(readers) }
    }
}

impl InPlan {
    /// The scan is executed. Begins it if it is due: an operator may start its build side before it executes its probe side.
    pub(super) fn executed(&self) {
        // Tasks need a runtime, which a caller of `execute` may not have yet.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let mut steps = self.plan.lock();
        if steps.get(self.index) == Some(&Step::Waiting { is_due: true }) {
            self.plan.begin(self.index, 1, &mut steps);
        }
    }

    /// A partition of the scan has started all of its reads.
    pub(super) fn all_started(&self) {
        self.plan.go_on(self.index + 1);
    }

    /// Whether the scan may be begun before it is opened.
    pub(super) fn may_begin(&self) -> bool {
        !self.plan.scans.is_empty() && self.turn.stage > 0 && !self.turn.ends_early
    }
}

impl PlanAhead {
    fn lock(&self) -> MutexGuard<'_, Vec<Step>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the scans of the next stage that has not started all of its reads, from the scan `from` on.
    fn go_on(self: &Arc<Self>, from: usize) {
        let mut steps = self.lock();
        let is_whole = |step: &Step| *step == Step::Begun { pending_count: 0, is_whole: true };
        let Some(first) = (from..steps.len()).find(|&index| !is_whole(&steps[index])) else { return };
        let is_next = |index: &usize| self.scans[*index].stage == self.scans[first].stage;
        // A scan that is open, or begun in part, goes on itself.
        let waits = |index: &usize| matches!(steps[*index], Step::Waiting { .. });
        let waiting: Vec<usize> = (first..steps.len()).take_while(is_next).filter(waits).collect();
        for (begun_count, &index) in waiting.iter().enumerate() {
            steps[index] = Step::Waiting { is_due: true };
            self.begin(index, waiting.len() - begun_count, &mut steps);
        }
    }

    /// Begins a scan, one of `sharers_count` that share what is left of the window.
    fn begin(self: &Arc<Self>, index: usize, sharers_count: usize, steps: &mut [Step]) {
        let Scan { ends_early: false, readers, .. } = &self.scans[index] else { return };
        let Some(readers) = readers.upgrade() else { return };
        let free_bytes = readers.window_bytes.saturating_sub(self.held_bytes.load(Ordering::Relaxed));
        let window_bytes = free_bytes / sharers_count as u64;
        // It cannot be called before the steps are unlocked.
        let plan = Arc::clone(self);
        let begun = move |is_whole| plan.begun(index, is_whole);
        let pending_count = readers.next.begin_before_open(&readers, self, window_bytes, begun);
        if pending_count > 0 {
            steps[index] = Step::Begun { pending_count, is_whole: true };
        }
    }

    /// A file of the scan `index` is begun. `is_whole`: it has no further read to start, and the scan no further file.
    fn begun(self: &Arc<Self>, index: usize, is_whole: bool) {
        let mut steps = self.lock();
        if let Step::Begun { pending_count, is_whole: is_whole_so_far } = &mut steps[index] {
            *pending_count -= 1;
            *is_whole_so_far &= is_whole;
        }
        let goes_on = steps[index] == Step::Begun { pending_count: 0, is_whole: true };
        drop(steps);
        if goes_on {
            self.go_on(index + 1);
        }
    }

    /// Takes `bytes` of the window.
    pub(super) fn hold(self: &Arc<Self>, bytes: u64) -> Held {
        self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        Held { plan: Arc::clone(self), bytes }
    }
}

impl Held {
    /// Gives back what is more than `bytes`.
    pub(super) fn shrink(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.plan.held_bytes.fetch_sub(less, Ordering::Relaxed);
        self.bytes -= less;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.plan.held_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for PlanAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanAhead").field("scans", &self.scans.len()).finish_non_exhaustive()
    }
}
