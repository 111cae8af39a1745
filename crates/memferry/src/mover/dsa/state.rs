//! The books of a DSA engine: which copies it has, into which pieces they are cut, and which slot each piece
//! flies in. Everything here happens under the engine's one lock, and nothing here waits or runs foreign code.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry_dsa::{
    Completion, CompletionRecord, Descriptor, Portal, QueueMode, Status, Submission, SubmitError,
};
use slab::Slab;

use super::super::stats::Counters;
use super::super::{CopyError, CopyReport, RawCopy};
use super::DsaOptions;
use super::piece::Piece;

/// The most that the time between two checks counts. Checks come every few milliseconds, so more than this means
/// that this process did not run, or its machine was suspended, and that the device may have stood still as well.
const ATTENDED_MAX: Duration = Duration::from_millis(100);

/// One completion record in a cache line of its own, so that the device's write to one disturbs no poll of
/// another.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct RecordLine(pub(super) CompletionRecord);

/// A work queue, as far as it needs no lock: the completer polls `records` without.
///
/// There are as many slots, each with a record, as the queue has entries: more would only be refused (shared)
/// or lost (dedicated). A record is zero except between its completion and the completer's reading it.
pub(super) struct Queue {
    pub(super) portal: Arc<dyn Portal>,
    pub(super) records: Arc<[RecordLine]>,
}

impl Queue {
    pub(super) fn new(portal: Arc<dyn Portal>) -> Queue {
        let info = portal.work_queue();
        let slots_count = match info.mode {
            QueueMode::Dedicated => info.size,
            QueueMode::Shared => info.size.min(info.threshold),
        };
        // Writing the records here also makes their pages present.
        let records = (0..slots_count.max(1)).map(|_| RecordLine::default()).collect();
        Queue { portal, records }
    }
}

/// What the lock protects.
#[derive(Debug)]
pub(super) struct State {
    jobs: Slab<Job>,
    /// Pieces that wait for a slot, first come first served. The front may be most of a large copy: pieces are
    /// cut when there is a slot for them.
    backlog: VecDeque<Piece>,
    queues: Vec<QueueState>,
    /// The queue to try first: queues take turns.
    turn: usize,
    /// The most that every queue takes in one descriptor, so that a piece can go to any of them.
    piece_bytes_max: usize,
    /// Set when all queues refused: nothing is submitted before.
    backoff_until: Option<Instant>,
    /// Time that the completer has attended to devices: the age of descriptors is counted in it.
    clock: Duration,
    /// Pieces that the CPU shall do: work for the completer.
    pub(super) for_cpu: Vec<Piece>,
    /// Copies that are at their end: the completer tells.
    pub(super) finished: Vec<(RawCopy, Result<CopyReport, CopyError>)>,
    /// The completer sleeps on the condition and wants to be woken by a submission.
    pub(super) completer_sleeps: bool,
    /// Raised with each submission, so that the completer knows when to be attentive again.
    pub(super) submissions_count: u64,
    pub(super) closing: bool,
}

#[derive(Debug)]
struct Job {
    copy: RawCopy,
    /// Pieces of it, wherever they are. The copy ends when there are none.
    pieces_count: usize,
    report: CopyReport,
    error: Option<CopyError>,
}

#[derive(Debug)]
struct QueueState {
    /// Slots without a descriptor in flight; the last used is used first, while its record is still in the cache.
    free: Vec<usize>,
    /// By slot.
    flights: Vec<Option<Flight>>,
    /// It gets no more work: its device died, it lost a descriptor, or it could not be opened in this process.
    gone: bool,
}

impl QueueState {
    fn give_up(&mut self, counters: &Counters) {
        counters.queues_gone.add(u64::from(!std::mem::replace(&mut self.gone, true)));
    }
}

/// A descriptor in flight.
#[derive(Debug)]
struct Flight {
    piece: Piece,
    descriptor: Descriptor,
    /// The clock when it was submitted.
    since: Duration,
}

/// Why no queue took a piece; of several reasons, the greatest.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unsent {
    /// No queue takes work any more, or none would take this.
    Never,
    /// All slots are in use: a completion will free one.
    NoSlot,
    /// There is a slot, and the queue answered that it is full.
    Full,
}

impl State {
    pub(super) fn new(queues: &[Queue]) -> State {
        let limits = queues.iter().map(|queue| queue.portal.work_queue().transfer_bytes_max);
        let piece_bytes_max = limits.min().map_or(1, |limit| limit.max(1) as usize);
        let queues = queues.iter().map(|queue| QueueState {
            free: (0..queue.records.len()).rev().collect(),
            flights: queue.records.iter().map(|_| None).collect(),
            gone: false,
        });
        State {
            jobs: Slab::new(),
            backlog: VecDeque::new(),
            queues: queues.collect(),
            turn: 0,
            piece_bytes_max,
            backoff_until: None,
            clock: Duration::ZERO,
            for_cpu: Vec::new(),
            finished: Vec::new(),
            completer_sleeps: false,
            submissions_count: 0,
            closing: false,
        }
    }

    /// Nothing is left to be done.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.finished.is_empty()
    }

    /// No queue takes work any more.
    pub(super) fn all_gone(&self) -> bool {
        self.queues.iter().all(|queue| queue.gone)
    }

    /// Pieces that wait for a slot.
    pub(super) fn backlog_len(&self) -> usize {
        self.backlog.len()
    }

    /// When something waits for a time to come, that time.
    pub(super) fn backoff_until(&self) -> Option<Instant> {
        self.backoff_until
    }

    /// Time has passed since the completer last looked at the age of descriptors.
    pub(super) fn attend(&mut self, elapsed: Duration) {
        self.clock += elapsed.min(ATTENDED_MAX);
    }

    /// Enters a copy, whose size is not zero.
    pub(super) fn begin(&mut self, copy: RawCopy) {
        let entry = self.jobs.vacant_entry();
        self.backlog.push_back(Piece::of(entry.key(), &copy));
        entry.insert(Job { copy, pieces_count: 1, report: CopyReport::default(), error: None });
        self.submissions_count += 1;
    }

    /// Puts a piece that was cut short first in the line again.
    pub(super) fn resume(&mut self, piece: Piece, options: &DsaOptions) {
        if piece.faults_count > options.faults_max {
            self.for_cpu.push(piece)
        } else {
            self.backlog.push_front(piece)
        }
    }

    /// The CPU did a piece.
    pub(super) fn done_by_cpu(&mut self, piece: Piece, counters: &Counters) {
        counters.fallbacks.add(1);
        counters.fallback_bytes.add(piece.size_bytes as u64);
        self.jobs[piece.job].report.cpu_bytes += piece.size_bytes as u64;
        self.close(piece, counters);
    }

    /// Submits as much of the backlog as there are slots for.
    pub(super) fn feed(&mut self, queues: &[Queue], options: &DsaOptions, counters: &Counters) {
        if self.backoff_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        self.backoff_until = None;
        while let Some(mut piece) = self.backlog.pop_front() {
            if self.jobs[piece.job].error.is_some() {
                self.close(piece, counters);
                continue;
            }
            if let Some(rest) = piece.split(self.piece_bytes_max) {
                self.jobs[piece.job].pieces_count += 1;
                self.backlog.push_front(rest);
            }
            match self.send(piece, queues, counters) {
                Ok(()) => {}
                Err((piece, Unsent::Never)) => self.for_cpu.push(piece),
                Err((piece, Unsent::NoSlot)) => return self.backlog.push_front(piece),
                Err((mut piece, Unsent::Full)) => {
                    piece.refusals_count += 1;
                    if piece.refusals_count > options.retries_max {
                        self.for_cpu.push(piece);
                        continue;
                    }
                    counters.backoffs.add(1);
                    self.backoff_until = Some(Instant::now() + backoff(piece.refusals_count));
                    return self.backlog.push_front(piece);
                }
            }
        }
    }

    /// Offers a piece to each queue once.
    fn send(
        &mut self,
        mut piece: Piece,
        queues: &[Queue],
        counters: &Counters,
    ) -> Result<(), (Piece, Unsent)> {
        let mut why = Unsent::Never;
        let mut passed_by = false;
        for step in 0..queues.len() {
            let index = (self.turn + step) % queues.len();
            let (queue, slots) = (&queues[index], &mut self.queues[index]);
            if slots.gone {
                continue;
            }
            let Some(slot) = slots.free.pop() else {
                why = why.max(Unsent::NoSlot);
                passed_by = true;
                continue;
            };
            let (descriptor, submission) = piece.submit(&*queue.portal, &queue.records[slot].0);
            match submission {
                Ok(Submission::Accepted) => {
                    piece.refusals_count = 0;
                    slots.flights[slot] = Some(Flight { piece, descriptor, since: self.clock });
                    counters.descriptors.add(1);
                    counters.diverted.add(u64::from(passed_by));
                    self.turn = index + 1;
                    return Ok(());
                }
                Ok(Submission::Retry) => {
                    counters.retries.add(1);
                    why = Unsent::Full;
                }
                Err(error) => {
                    counters.refused.add(1);
                    // The kernel has something against this descriptor, and perhaps not against others.
                    if !matches!(error, SubmitError::Refused(_)) {
                        slots.give_up(counters);
                    }
                }
            }
            slots.free.push(slot);
            passed_by = true;
        }
        Err((piece, why))
    }

    /// A descriptor has completed. If a page fault cut it short, what is left of its piece is the caller's: to
    /// touch the page without the lock, then to [`resume`](State::resume).
    pub(super) fn land(
        &mut self,
        queue: &Queue,
        index: usize,
        slot: usize,
        completion: &Completion,
        counters: &Counters,
    ) -> Option<Piece> {
        queue.records[slot].0.reset();
        queue.portal.settled(1);
        let slots = &mut self.queues[index];
        // None: the descriptor had been given up. The slot stays out of use, as the queue does.
        let Flight { piece, descriptor, .. } = slots.flights[slot].take()?;
        slots.free.push(slot);
        let job = &mut self.jobs[piece.job];
        if completion.status == Status::Success {
            counters.descriptors_done.add(1);
            counters.bytes.add(piece.size_bytes as u64);
            job.report.dsa_bytes += piece.size_bytes as u64;
        } else if let Some(rest) = descriptor.resumed(completion) {
            counters.faults_resumed.add(1);
            counters.bytes.add(u64::from(completion.bytes_completed));
            job.report.dsa_bytes += u64::from(completion.bytes_completed);
            return Some(piece.after(&descriptor, &rest));
        } else {
            counters.descriptors_failed.add(1);
            job.error.get_or_insert(CopyError::Device { status: completion.status.code() });
        }
        self.close(piece, counters);
        None
    }

    /// The queue's device is gone, and none of its completions was overlooked: there will be no more.
    pub(super) fn give_up_all(&mut self, queue: &Queue, index: usize, counters: &Counters) {
        self.queues[index].give_up(counters);
        self.give_up(queue, index, |_| true, counters);
    }

    /// Gives up the descriptors of an age, in attended time, that `is_lost`. A queue that loses any gets no more work.
    pub(super) fn give_up(
        &mut self,
        queue: &Queue,
        index: usize,
        is_lost: impl Fn(Duration) -> bool,
        counters: &Counters,
    ) {
        let clock = self.clock;
        for slot in 0..queue.records.len() {
            let slots = &mut self.queues[index];
            let Some(flight) = slots.flights[slot].take_if(|flight| is_lost(clock - flight.since)) else {
                continue;
            };
            slots.give_up(counters);
            counters.descriptors_lost.add(1);
            // The device may write to the records, too, whenever it likes.
            std::mem::forget(queue.records.clone());
            self.jobs[flight.piece.job].error = Some(CopyError::DeviceLost);
            self.close(flight.piece, counters);
        }
    }

    /// A piece is at its end, and so, perhaps, its copy.
    fn close(&mut self, piece: Piece, counters: &Counters) {
        let job = &mut self.jobs[piece.job];
        job.pieces_count -= 1;
        if job.pieces_count > 0 {
            return;
        }
        let Job { copy, report, error, .. } = self.jobs.remove(piece.job);
        if error == Some(CopyError::DeviceLost) {
            counters.leaked_bytes.add(copy.size_bytes() as u64);
        }
        let result = error.map_or(Ok(report), Err);
        counters.end(result);
        self.finished.push((copy, result));
    }
}

/// How long to wait after so many refusals in a row: 2 us, doubled each time, up to a millisecond.
fn backoff(refusals_count: u32) -> Duration {
    Duration::from_micros(1 << refusals_count.min(10))
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    /// Once ten seconds of Ctrl-Z lost every descriptor in flight, and with it the device.
    #[test]
    fn a_stopped_process_ages_nothing() {
        let mut state = State::new(&[]);
        state.attend(Duration::from_millis(5));
        state.attend(Duration::from_secs(3600));
        assert_eq!(state.clock, Duration::from_millis(5) + ATTENDED_MAX);
    }
}
