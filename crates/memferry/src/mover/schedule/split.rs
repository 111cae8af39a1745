//! Split copies: several engines copy shares of one copy, and fast engines steal from slow ones.
//!
//! ```text
//!   copy ── shares ──▶ lane: the rest of its share ── a work item from its front ──▶ engine ──▶ completion
//!                        ▲   empty: steal the back half of the longest rest                        │
//!                        ├───────────────────────────── the next work item ◀───────────────────────┤
//!                        └── redo: items that an engine failed or refused ◀────────────────────────┘
//! ```
//!
//! Items get smaller towards the end of a share, so that engines of different, unknown speeds finish together. This is
//! guided self-scheduling, with stealing instead of one common pool because a share is a run of memory.
//!
//! An engine that fails an item gets no more of this copy, and the others do the item again. When no engine is left, the
//! copy completes with the first error. When all are full, or gone without an error, the mover takes over one item and
//! asks them again. A lost device may still write to the target: then nothing is done again, and the copy completes with
//! that error once the other engines are done.
//!
//! A split has no thread of its own: the thread that begins the copy and the engines' completions drive it.
//!
//! Source: Polychronopoulos and Kuck, "Guided Self-Scheduling: A Practical Scheduling Scheme for Parallel
//! Supercomputers" (1987).

use std::ops::Range;
use std::sync::Arc;

use crate::mover::engine::{Refusal, Rejected};
use crate::mover::error::CopyError;
use crate::mover::request::{Callback, CopyReport, CopyResult, RawRequest};
use crate::mover::stats::Counter;
use crate::sync::{Mutex, MutexGuard, lock};

/// The engines of a split copy.
pub(in crate::mover) trait SplitEngines: Send + Sync + 'static {
    /// [`Engine::submit`](crate::mover::Engine::submit) to the engine of this index.
    fn submit(&self, engine: usize, item: RawRequest) -> Result<(), Rejected>;

    /// Takes an item that all engines of the copy refused. Never refuses.
    fn take_over(&self, item: RawRequest);

    /// The counters of split copies.
    fn counters(&self) -> &SplitCounters;
}

/// Counters of split copies; relaxed, written by any thread.
#[derive(Debug, Default)]
pub(in crate::mover) struct SplitCounters {
    pub(in crate::mover) operations: Counter,
    pub(in crate::mover) redone: Counter,
    pub(in crate::mover) taken_over: Counter,
    pub(in crate::mover) leaked_bytes: Counter,
}

/// Sizes of work items, in bytes.
#[derive(Copy, Clone, Debug)]
pub(in crate::mover) struct Cut {
    /// Minimum, except at the end of a share.
    pub(in crate::mover) min: usize,
    /// Maximum.
    pub(in crate::mover) max: usize,
    /// Items end at multiples of this address in the target.
    pub(in crate::mover) grain: usize,
}

/// The sizes of the mover.
///
/// At 30 GB/s a device needs 4 us for the smallest item, and has the next one queued, so it does not wait for
/// submissions. Kuper et al. (2024), section 4.2, reach full speed with several 4 KiB descriptors in flight. A larger
/// maximum would need several descriptors (Linux' default for `max_transfer_size`). Items do not share pages, so that a
/// page fault stops one engine only.
pub(in crate::mover) const CUT: Cut = Cut { min: 128 << 10, max: 2 << 20, grain: 4096 };

/// The part of one engine in a split copy.
#[derive(Debug)]
pub(in crate::mover) struct Lane {
    engine: usize,
    /// Number of items the engine works on at once.
    width: usize,
    /// The rest of its share, or of a stolen one.
    todo: Range<usize>,
    /// Items in flight on it.
    in_flight_count: usize,
    /// The engine failed an item or is gone: it gets no more.
    is_out: bool,
    /// A thread is submitting to it; other threads leave the next item to that one. So an engine that completes inside
    /// `submit` recurses once, not once per item.
    is_fed: bool,
}

impl Lane {
    pub(in crate::mover) fn new(engine: usize, width: usize, share: Range<usize>) -> Lane {
        let width = width.max(1);
        Lane { engine, width, todo: share, in_flight_count: 0, is_out: false, is_fed: false }
    }

    /// One item for each of its workers, and one more queued for each.
    fn has_room(&self) -> bool {
        !self.is_out && self.in_flight_count < 2 * self.width
    }
}

/// A split copy in flight, shared by the callbacks of its items.
///
/// `state` is the lock of all mutable data. It is never held during a call of an engine or a callback.
pub(in crate::mover) struct Split<C> {
    engines: C,
    cut: Cut,
    state: Mutex<SplitState>,
}

struct SplitState {
    /// `None` once it is finished.
    copy: Option<RawRequest>,
    /// Address of the target.
    target: usize,
    lanes: Vec<Lane>,
    /// Items that no lane has.
    redo: Vec<Range<usize>>,
    /// Items that are in flight or being submitted.
    in_flight_count: usize,
    accepted_count: usize,
    /// A thread is inside `take_over`, and continues the split afterwards.
    is_taken_over: bool,
    report: CopyReport,
    /// The first failure of an engine; another engine may repeat the item.
    failure: Option<CopyError>,
    /// The error that the copy completes with.
    error: Option<CopyError>,
    lost_bytes: usize,
}

/// The executor of an item.
#[derive(Copy, Clone)]
enum Executor {
    Lane(usize),
    TakeOver,
}

impl<C: SplitEngines> Split<C> {
    /// Begins a copy whose bytes are divided among the lanes. Finishes it once, or hands it back.
    ///
    /// # Errors
    /// [`Rejected`], if no engine accepted an item.
    pub(in crate::mover) fn begin(
        engines: C,
        copy: RawRequest,
        mut lanes: Vec<Lane>,
        cut: Cut,
    ) -> Result<(), Rejected> {
        let target = copy.target().addr();
        for index in 1..lanes.len() {
            let at = align(target, lanes[index].todo.start, cut.grain).max(lanes[index - 1].todo.start);
            lanes[index - 1].todo.end = at;
            lanes[index].todo.start = at;
        }
        let lanes_count = lanes.len();
        let state = SplitState {
            copy: Some(copy),
            target,
            lanes,
            redo: Vec::new(),
            in_flight_count: 0,
            accepted_count: 0,
            is_taken_over: false,
            report: CopyReport::default(),
            failure: None,
            error: None,
            lost_bytes: 0,
        };
        let split = Arc::new(Split { engines, cut, state: Mutex::new(state) });
        (0..lanes_count).for_each(|lane| split.feed(lane));
        let mut state = lock(&split.state);
        if state.accepted_count == 0 {
            let all_gone = state.lanes.iter().all(|lane| lane.is_out);
            let why = if all_gone { Refusal::Gone } else { Refusal::Full };
            let copy = state.copy.take().expect("only accepted items can finish it");
            return Err(Rejected { copy, why });
        }
        split.engines.counters().operations.add(1);
        split.advance(state);
        Ok(())
    }

    /// Submits items to a lane while it has room.
    fn feed(self: &Arc<Self>, lane: usize) {
        let mut state = lock(&self.state);
        if state.lanes[lane].is_fed {
            return;
        }
        while let Some(bytes) = state.claim(lane, self.cut) {
            state.lanes[lane].is_fed = true;
            let engine = state.lanes[lane].engine;
            let item = self.item(&state, Executor::Lane(lane), bytes.clone());
            let offered = item.identity();
            drop(state);
            let submission = self.engines.submit(engine, item);
            state = lock(&self.state);
            state.lanes[lane].is_fed = false;
            match submission {
                Ok(()) => state.accepted_count += 1,
                // The engine keeps the item; the other request completes as abandoned.
                Err(Rejected { copy, .. }) if copy.identity() != offered => {
                    state.accepted_count += 1;
                    drop(state);
                    drop(copy);
                    state = lock(&self.state);
                }
                Err(Rejected { copy, why }) => {
                    state.give_back(lane, bytes, why);
                    drop(state);
                    copy.cancel();
                    return;
                }
            }
        }
    }

    /// Submits items to idle lanes: failed, refused or stolen ones.
    fn feed_idle(self: &Arc<Self>) {
        let lanes_count = lock(&self.state).lanes.len();
        for lane in 0..lanes_count {
            if lock(&self.state).lanes[lane].in_flight_count == 0 {
                self.feed(lane);
            }
        }
    }

    /// A range of the copy as a request of its own.
    fn item(self: &Arc<Self>, state: &SplitState, executor: Executor, bytes: Range<usize>) -> RawRequest {
        let split = self.clone();
        let copy = state.copy.as_ref().expect("not finished while bytes are left");
        let range = bytes.clone();
        let callback = Callback::new(move |result| split.complete_item(executor, range, result));
        // SAFETY: every byte is in one place at a time: in a lane's `todo`, in `redo`, or in one item, until that is
        // complete; so items do not overlap. `advance` finishes the copy when nothing is in flight, and with an error
        // whose buffers are lost if an item's were.
        unsafe { copy.part(bytes, callback) }
    }

    /// Takes the result of an item.
    fn complete_item(self: &Arc<Self>, executor: Executor, bytes: Range<usize>, result: CopyResult) {
        let mut state = lock(&self.state);
        state.in_flight_count -= 1;
        if let Executor::Lane(lane) = executor {
            state.lanes[lane].in_flight_count -= 1;
        }
        match result {
            Ok(report) => state.report += report,
            Err(error) if error.buffers_are_lost() => {
                state.error = Some(error);
                state.lost_bytes += bytes.len();
            }
            Err(error) => {
                state.failure.get_or_insert(error);
                match executor {
                    Executor::Lane(lane) => state.lanes[lane].is_out = true,
                    Executor::TakeOver => _ = state.error.get_or_insert(error),
                }
                state.redo.push(bytes);
                self.engines.counters().redone.add(1);
            }
        }
        drop(state);
        if let Executor::Lane(lane) = executor {
            self.feed(lane);
        }
        self.feed_idle();
        self.advance(lock(&self.state));
    }

    /// If nothing is in flight and no thread is submitting: finishes the copy, or hands an item over.
    ///
    /// Every thread calls this after a submission and after a completion; the last one acts.
    fn advance<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, SplitState>) {
        while state.in_flight_count == 0
            && !state.is_taken_over
            && !state.lanes.iter().any(|lane| lane.is_fed)
        {
            let Some(bytes) = state.claim_refused(self.cut) else {
                let Some(copy) = state.copy.take() else { return };
                let result = state.error.map_or(Ok(state.report), Err);
                let lost_bytes = state.lost_bytes;
                drop(state);
                if lost_bytes > 0 {
                    // Engines count their items; the rest of the buffers is leaked with them.
                    self.engines.counters().leaked_bytes.add((copy.size_bytes() - lost_bytes) as u64);
                }
                return copy.finish(result);
            };
            state.is_taken_over = true;
            let item = self.item(&state, Executor::TakeOver, bytes);
            drop(state);
            self.engines.counters().taken_over.add(1);
            self.engines.take_over(item);
            lock(&self.state).is_taken_over = false;
            self.feed_idle();
            state = lock(&self.state);
        }
    }
}

impl SplitState {
    /// The next item for a lane, if it has room and there is one.
    fn claim(&mut self, lane: usize, cut: Cut) -> Option<Range<usize>> {
        if self.error.is_some() || !self.lanes[lane].has_room() {
            return None;
        }
        let item = self.redo.pop().or_else(|| {
            if self.lanes[lane].todo.is_empty() {
                self.lanes[lane].todo = self.steal(cut)?;
            }
            Some(self.cut_from(lane, cut))
        })?;
        self.lanes[lane].in_flight_count += 1;
        self.in_flight_count += 1;
        Some(item)
    }

    /// The back half of the longest rest of a share; all of it if it is short or its engine is out.
    fn steal(&mut self, cut: Cut) -> Option<Range<usize>> {
        let longest = (0..self.lanes.len()).max_by_key(|&lane| self.lanes[lane].todo.len())?;
        let victim = &mut self.lanes[longest];
        if victim.todo.is_empty() {
            return None;
        }
        let middle = victim.todo.start + victim.todo.len() / 2;
        let at = if victim.is_out || victim.todo.len() < 2 * cut.min {
            victim.todo.start
        } else {
            align(self.target, middle, cut.grain).max(victim.todo.start)
        };
        let stolen = at..victim.todo.end;
        victim.todo.end = at;
        Some(stolen)
    }

    /// An item from the front of a lane's share, which is not empty. Its size falls with the rest of the share, so that
    /// the workers of the lane finish together.
    fn cut_from(&mut self, lane: usize, cut: Cut) -> Range<usize> {
        let Lane { todo, width, .. } = &mut self.lanes[lane];
        let start = todo.start;
        let wanted = (todo.len() / (2 * *width)).clamp(cut.min, cut.max);
        // A rest below the minimum joins this item.
        let end = if todo.len() < wanted + cut.min { todo.end } else { start + wanted };
        let aligned = if end == todo.end { end } else { align(self.target, end, cut.grain) };
        todo.start = if aligned > start { aligned } else { end };
        start..todo.start
    }

    /// Takes back an item that an engine refused.
    fn give_back(&mut self, lane: usize, bytes: Range<usize>, why: Refusal) {
        self.in_flight_count -= 1;
        self.lanes[lane].in_flight_count -= 1;
        self.lanes[lane].is_out |= why == Refusal::Gone;
        self.redo.push(bytes);
    }

    /// An item that no lane takes, when nothing is in flight. `None` if the copy is done or has failed.
    fn claim_refused(&mut self, cut: Cut) -> Option<Range<usize>> {
        let share = (0..self.lanes.len()).find(|&lane| !self.lanes[lane].todo.is_empty());
        let is_left = share.is_some() || !self.redo.is_empty();
        if is_left && self.lanes.iter().all(|lane| lane.is_out) {
            self.error = self.error.or(self.failure);
        }
        if self.error.is_some() {
            return None;
        }
        let item = self.redo.pop().or_else(|| Some(self.cut_from(share?, cut)))?;
        self.in_flight_count += 1;
        Some(item)
    }
}

/// The last place at or before `offset` where the target's address is a multiple of `grain`; 0 if that would be before
/// the target.
fn align(target: usize, offset: usize, grain: usize) -> usize {
    offset.saturating_sub((target + offset) % grain)
}
