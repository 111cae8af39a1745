//! One copy by several engines: each begins with its share, and who is done takes over from who is not.
//!
//! ```text
//!   copy ── shares ──▶ lane: what is left of its share ── a piece from its front ──▶ engine ──▶ landed
//!                        ▲   none left: the back half of what the slowest lane has left            │
//!                        ├───────────────────────────── the next piece ◀───────────────────────────┤
//!                        └── redo: pieces that an engine failed, or refused ◀──────────────────────┘
//! ```
//!
//! Pieces get smaller towards the end of a share, so that engines of different speed end together without
//! anybody knowing their speeds beforehand: guided self-scheduling, with stealing instead of one common pool
//! because a share is a run of memory.
//!
//! An engine that fails a piece gets no more of this copy, and the others do the piece again. When none is
//! left, the copy ends with the first error. When all are full, or gone without an error, the mover takes one
//! piece elsewhere and asks them again. When a device is lost, it may still write to the target: then nothing
//! is done again, and the copy ends with that error once the other engines are done.
//!
//! Nothing here has a thread: the work is done by whoever begins the copy, and by the engines as they finish pieces.
//!
//! Source: Polychronopoulos and Kuck, "Guided Self-Scheduling: A Practical Scheduling Scheme for Parallel
//! Supercomputers" (1987).

use std::ops::Range;
use std::sync::Arc;

use super::done::Done;
use super::stats::Counter;
use super::{CopyError, CopyReport, RawRequest, Refusal, Rejected};
use crate::sync::{Mutex, MutexGuard, lock};

/// Who does the pieces.
pub(super) trait Crew: Send + Sync + 'static {
    /// As [`Engine::submit`](super::Engine::submit), to the engine of this index.
    fn submit(&self, engine: usize, piece: RawRequest) -> Result<(), Rejected>;

    /// Takes a piece that all engines of the copy refused. Refuses nothing.
    fn take_over(&self, piece: RawRequest);

    /// Where split copies are counted.
    fn counters(&self) -> &SplitCounters;
}

/// What became of split copies.
#[derive(Debug, Default)]
pub(super) struct SplitCounters {
    pub(super) operations: Counter,
    pub(super) redone: Counter,
    pub(super) taken_over: Counter,
    pub(super) leaked_bytes: Counter,
}

/// Which pieces a copy is cut into, in bytes.
#[derive(Copy, Clone, Debug)]
pub(super) struct Cut {
    /// Pieces are no smaller, except where a share ends.
    pub(super) min: usize,
    /// Pieces are no larger.
    pub(super) max: usize,
    /// Pieces end at multiples of this in the target.
    pub(super) grain: usize,
}

/// A device needs 4 us for the smallest piece, at 30 GB/s, and has the next one waiting: it is not kept waiting by
/// whoever submits. Kuper et al. (2024), section 4.2, need 4 KiB with several in flight for full speed. More than
/// the largest takes a work queue more than one descriptor (Linux' default for `max_transfer_size`). Pages are
/// not shared, so that a page that is missing stops one engine only.
pub(super) const CUT: Cut = Cut { min: 128 << 10, max: 2 << 20, grain: 4096 };

/// An engine's part in a copy.
#[derive(Debug)]
pub(super) struct Lane {
    engine: usize,
    /// Pieces it works on at once.
    width: usize,
    /// What is left of its share, or of what it took over.
    todo: Range<usize>,
    /// Pieces it has.
    flying_count: usize,
    /// It failed a piece, or is gone: it gets no more.
    is_out: bool,
    /// Somebody is submitting to it; whoever finds that leaves the next piece to them. So an engine that finishes
    /// copies inside of `submit` recurses once, not once for each piece.
    is_fed: bool,
}

impl Lane {
    pub(super) fn new(engine: usize, width: usize, share: Range<usize>) -> Lane {
        let width = width.max(1);
        Lane { engine, width, todo: share, flying_count: 0, is_out: false, is_fed: false }
    }

    /// One piece for each of its workers and one to go on with.
    fn has_room(&self) -> bool {
        !self.is_out && self.flying_count < 2 * self.width
    }
}

/// A copy under way. Everything is under the lock, which is never held while an engine, or `done`, is called.
pub(super) struct Split<C> {
    crew: C,
    cut: Cut,
    state: Mutex<State>,
}

struct State {
    /// Taken when it is finished.
    copy: Option<RawRequest>,
    /// Address of the target.
    target: usize,
    lanes: Vec<Lane>,
    /// Pieces that no lane has.
    redo: Vec<Range<usize>>,
    /// Pieces that somebody has, or is being offered.
    flying_count: usize,
    accepted_count: usize,
    /// Somebody waits for `take_over` to return, and goes on then.
    is_relieved: bool,
    report: CopyReport,
    /// The first failure of an engine; others may make up for it.
    failure: Option<CopyError>,
    /// What the copy ends with.
    error: Option<CopyError>,
    lost_bytes: usize,
}

/// Who has a piece.
#[derive(Copy, Clone)]
enum Doer {
    Lane(usize),
    Crew,
}

impl<C: Crew> Split<C> {
    /// Begins a copy, of which the lanes have all bytes. Finishes it once, unless it hands it back.
    ///
    /// # Errors
    /// [`Rejected`], when no engine took anything.
    pub(super) fn begin(crew: C, copy: RawRequest, mut lanes: Vec<Lane>, cut: Cut) -> Result<(), Rejected> {
        let target = copy.target().addr();
        for index in 1..lanes.len() {
            let at = align(target, lanes[index].todo.start, cut.grain).max(lanes[index - 1].todo.start);
            lanes[index - 1].todo.end = at;
            lanes[index].todo.start = at;
        }
        let lanes_count = lanes.len();
        let state = State {
            copy: Some(copy),
            target,
            lanes,
            redo: Vec::new(),
            flying_count: 0,
            accepted_count: 0,
            is_relieved: false,
            report: CopyReport::default(),
            failure: None,
            error: None,
            lost_bytes: 0,
        };
        let split = Arc::new(Split { crew, cut, state: Mutex::new(state) });
        (0..lanes_count).for_each(|lane| split.feed(lane));
        let mut state = lock(&split.state);
        if state.accepted_count == 0 {
            let all_gone = state.lanes.iter().all(|lane| lane.is_out);
            let why = if all_gone { Refusal::Gone } else { Refusal::Full };
            let copy = state.copy.take().expect("only pieces that were accepted can finish it");
            return Err(Rejected { copy, why });
        }
        split.crew.counters().operations.add(1);
        split.settle(state);
        Ok(())
    }

    /// Gives a lane as many pieces as it has room for.
    fn feed(self: &Arc<Self>, lane: usize) {
        let mut state = lock(&self.state);
        if state.lanes[lane].is_fed {
            return;
        }
        while let Some(bytes) = state.claim(lane, self.cut) {
            state.lanes[lane].is_fed = true;
            let engine = state.lanes[lane].engine;
            let piece = self.piece(&state, Doer::Lane(lane), bytes.clone());
            let offered = piece.identity();
            drop(state);
            let submission = self.crew.submit(engine, piece);
            state = lock(&self.state);
            state.lanes[lane].is_fed = false;
            match submission {
                Ok(()) => state.accepted_count += 1,
                // The engine keeps the piece; the other request ends as abandoned.
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

    /// Lanes that have nothing can take what others failed, refused or left.
    fn feed_idle(self: &Arc<Self>) {
        let lanes_count = lock(&self.state).lanes.len();
        for lane in 0..lanes_count {
            if lock(&self.state).lanes[lane].flying_count == 0 {
                self.feed(lane);
            }
        }
    }

    /// Bytes of the copy as a copy of its own.
    fn piece(self: &Arc<Self>, state: &State, doer: Doer, bytes: Range<usize>) -> RawRequest {
        let split = self.clone();
        let copy = state.copy.as_ref().expect("not finished while there are bytes to do");
        let range = bytes.clone();
        let done = Done::call(move |result| split.landed(doer, range, result));
        // SAFETY: every byte is in one place at a time: in a lane's `todo`, in `redo`, or in one piece, until that
        // has landed; so pieces do not overlap. `settle` finishes the copy when nothing is flying, and with an
        // error whose buffers are lost if a piece's were.
        unsafe { copy.part(bytes, done) }
    }

    /// A piece is at its end.
    fn landed(self: &Arc<Self>, doer: Doer, bytes: Range<usize>, result: Result<CopyReport, CopyError>) {
        let mut state = lock(&self.state);
        state.flying_count -= 1;
        if let Doer::Lane(lane) = doer {
            state.lanes[lane].flying_count -= 1;
        }
        match result {
            Ok(report) => state.report += report,
            Err(error) if error.buffers_are_lost() => {
                state.error = Some(error);
                state.lost_bytes += bytes.len();
            }
            Err(error) => {
                state.failure.get_or_insert(error);
                match doer {
                    Doer::Lane(lane) => state.lanes[lane].is_out = true,
                    Doer::Crew => _ = state.error.get_or_insert(error),
                }
                state.redo.push(bytes);
                self.crew.counters().redone.add(1);
            }
        }
        drop(state);
        if let Doer::Lane(lane) = doer {
            self.feed(lane);
        }
        self.feed_idle();
        self.settle(lock(&self.state));
    }

    /// If nothing is flying, and nobody is about to submit: finishes the copy, or finds somebody for what is left.
    ///
    /// Whoever submits comes here afterwards, and so does whoever ends a piece: the last of them does it.
    fn settle<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>) {
        while state.flying_count == 0 && !state.is_relieved && !state.lanes.iter().any(|lane| lane.is_fed) {
            let Some(bytes) = state.claim_unwanted(self.cut) else {
                let Some(copy) = state.copy.take() else { return };
                let result = state.error.map_or(Ok(state.report), Err);
                let lost_bytes = state.lost_bytes;
                drop(state);
                if lost_bytes > 0 {
                    // Engines count their pieces; the rest of the buffers is leaked with them.
                    self.crew.counters().leaked_bytes.add((copy.size_bytes() - lost_bytes) as u64);
                }
                return copy.finish(result);
            };
            state.is_relieved = true;
            let piece = self.piece(&state, Doer::Crew, bytes);
            drop(state);
            self.crew.counters().taken_over.add(1);
            self.crew.take_over(piece);
            lock(&self.state).is_relieved = false;
            self.feed_idle();
            state = lock(&self.state);
        }
    }
}

impl State {
    /// The next piece for a lane, if it has room and there is one.
    fn claim(&mut self, lane: usize, cut: Cut) -> Option<Range<usize>> {
        if self.error.is_some() || !self.lanes[lane].has_room() {
            return None;
        }
        let piece = self.redo.pop().or_else(|| {
            if self.lanes[lane].todo.is_empty() {
                self.lanes[lane].todo = self.steal(cut)?;
            }
            Some(self.cut_from(lane, cut))
        })?;
        self.lanes[lane].flying_count += 1;
        self.flying_count += 1;
        Some(piece)
    }

    /// The back half of the longest share that is left, or all of one that is short or that nobody works on.
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

    /// A piece from the front of a lane's share, which is not empty: the fewer bytes are left, the smaller, so that
    /// the workers of the lane end together.
    fn cut_from(&mut self, lane: usize, cut: Cut) -> Range<usize> {
        let Lane { todo, width, .. } = &mut self.lanes[lane];
        let start = todo.start;
        let wanted = (todo.len() / (2 * *width)).clamp(cut.min, cut.max);
        // What would be left is no piece of its own.
        let end = if todo.len() < wanted + cut.min { todo.end } else { start + wanted };
        let aligned = if end == todo.end { end } else { align(self.target, end, cut.grain) };
        todo.start = if aligned > start { aligned } else { end };
        start..todo.start
    }

    /// An engine refused a piece.
    fn give_back(&mut self, lane: usize, bytes: Range<usize>, why: Refusal) {
        self.flying_count -= 1;
        self.lanes[lane].flying_count -= 1;
        self.lanes[lane].is_out |= why == Refusal::Gone;
        self.redo.push(bytes);
    }

    /// A piece that no lane takes; nothing is flying. None if all is done, or if the copy has failed.
    fn claim_unwanted(&mut self, cut: Cut) -> Option<Range<usize>> {
        let share = (0..self.lanes.len()).find(|&lane| !self.lanes[lane].todo.is_empty());
        let is_left = share.is_some() || !self.redo.is_empty();
        if is_left && self.lanes.iter().all(|lane| lane.is_out) {
            self.error = self.error.or(self.failure);
        }
        if self.error.is_some() {
            return None;
        }
        let piece = self.redo.pop().or_else(|| Some(self.cut_from(share?, cut)))?;
        self.flying_count += 1;
        Some(piece)
    }
}

/// The last place at or before `offset` where the target's address is a multiple of `grain`; 0 if that would be before
/// the target.
fn align(target: usize, offset: usize, grain: usize) -> usize {
    offset.saturating_sub((target + offset) % grain)
}
