//! The books of a DSA engine: which copies it has, into which pieces they are cut, and which slot each piece
//! flies in. Everything here happens under the engine's one lock, and nothing here waits or runs foreign code.

mod feeding;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use memferry_dsa::wait::{ATTENDED_MAX, Patience};
use memferry_dsa::{Completion, Descriptor, Flags, Status, SubmitError};
use slab::Slab;

use super::super::stats::{Counter, Counters};
use super::super::{CopyError, CopyReport, RawRequest};
use super::DsaOptions;
use super::piece::{Landed, Piece};
use super::slots::Queue;

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
    pub(super) finished: Vec<(RawRequest, Result<CopyReport, CopyError>)>,
    /// The completer sleeps on the condition and wants to be woken by a submission.
    pub(super) completer_sleeps: bool,
    /// Raised with each submission, so that the completer knows when to be attentive again.
    pub(super) submissions_count: u64,
    pub(super) closing: bool,
}

#[derive(Debug)]
struct Job {
    copy: RawRequest,
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
    /// Descriptors that have completed.
    landed: u64,
    /// It gets no more work: its device died, it lost a descriptor, or it could not be opened in this process.
    gone: bool,
    /// Hints that its device has refused.
    refused: Flags,
    /// Its device has refused a batch.
    refuses_batches: bool,
}

impl QueueState {
    /// Slots in use, and all slots: what is compared when a queue is chosen.
    fn load(&self) -> Option<(usize, usize)> {
        (!self.gone).then_some((self.in_use(), self.flights.len()))
    }

    fn in_use(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// The queue has accepted what `slot` was taken for.
    fn accept(&mut self, slot: usize, load: Load, clock: Duration) {
        let ahead = self.in_use() as u64 - 1;
        self.flights[slot] = Some(Flight { load, patience: Patience::new(ahead, self.landed, clock) });
    }

    /// A descriptor could not be submitted.
    fn refuse(&mut self, error: &SubmitError, counters: &Counters) {
        counters.refused.add(1);
        // The kernel has something against this descriptor, and perhaps not against others.
        if !matches!(error, SubmitError::Refused(_)) {
            self.give_up(counters);
        }
    }

    fn give_up(&mut self, counters: &Counters) {
        counters.queues_gone.add(u64::from(!std::mem::replace(&mut self.gone, true)));
    }
}

/// A descriptor in flight.
#[derive(Debug)]
struct Flight {
    load: Load,
    patience: Patience,
}

/// What a slot was given, with the descriptors of the pieces.
#[derive(Debug)]
enum Load {
    One(Piece, Descriptor),
    /// A batch, in the order of its list.
    Many(Vec<(Piece, Descriptor)>),
}

impl Load {
    fn into_pieces(self) -> Vec<Piece> {
        match self {
            Load::One(piece, _) => vec![piece],
            Load::Many(members) => members.into_iter().map(|(piece, _)| piece).collect(),
        }
    }
}

impl State {
    pub(super) fn new(queues: &[Queue]) -> State {
        let limits = queues.iter().map(|queue| queue.portal.work_queue().transfer_bytes_max);
        let piece_bytes_max = limits.min().map_or(1, |limit| limit.max(1) as usize);
        let queues = queues.iter().map(|queue| QueueState {
            free: (0..queue.records.len()).rev().collect(),
            flights: queue.records.iter().map(|_| None).collect(),
            landed: 0,
            gone: false,
            refused: Flags::NONE,
            refuses_batches: false,
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

    /// Enters a copy, whose size is not zero, or an operation.
    pub(super) fn begin(&mut self, mut copy: RawRequest) {
        let entry = self.jobs.vacant_entry();
        self.backlog.push_back(Piece::of(entry.key(), &mut copy));
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

    /// The CPU did a piece, of so many bytes.
    pub(super) fn done_by_cpu(&mut self, piece: Piece, size_bytes: u64, counters: &Counters) {
        counters.fallbacks.add(1);
        counters.fallback_bytes.add(size_bytes);
        self.jobs[piece.job].report.cpu_bytes += size_bytes;
        self.close(piece, counters);
    }

    /// A descriptor has completed. What page faults cut short goes to `cut_short`, with what tells the page: it is to be
    /// touched without the lock, then to be [resumed](State::resume).
    pub(super) fn land(
        &mut self,
        queue: &Queue,
        index: usize,
        slot: usize,
        completion: &Completion,
        cut_short: &mut Vec<(Piece, Completion)>,
        counters: &Counters,
    ) {
        queue.records[slot].0.reset();
        queue.portal.completed(1);
        let slots = &mut self.queues[index];
        // None: the descriptor had been given up. The slot stays out of use, as the queue does.
        let Some(Flight { load, .. }) = slots.flights[slot].take() else { return };
        slots.free.push(slot);
        slots.landed += 1;
        let members = match load {
            Load::One(piece, descriptor) => {
                cut_short.extend(self.land_piece(index, piece, &descriptor, completion, counters));
                return;
            }
            Load::Many(members) => members,
        };
        slots.refuses_batches |= completion.status == Status::BadOpcode;
        let mut skipped = Vec::new();
        for ((mut piece, descriptor), record) in members.into_iter().zip(&queue.lists[slot].records) {
            match record.0.poll() {
                Some(completion) => {
                    record.0.reset();
                    cut_short.extend(self.land_piece(index, piece, &descriptor, &completion, counters));
                }
                None => {
                    counters.descriptors_skipped.add(1);
                    piece.is_loner = true;
                    skipped.push(piece);
                }
            }
        }
        skipped.into_iter().rev().for_each(|piece| self.backlog.push_front(piece));
    }

    /// A descriptor of a piece has ended. The piece, if a page fault cut it short.
    fn land_piece(
        &mut self,
        index: usize,
        mut piece: Piece,
        descriptor: &Descriptor,
        completion: &Completion,
        counters: &Counters,
    ) -> Option<(Piece, Completion)> {
        let job = &mut self.jobs[piece.job];
        let mut count = |ended: &Counter, bytes| {
            ended.add(1);
            counters.bytes.add(bytes);
            job.report.dsa_bytes += bytes;
        };
        match piece.absorb(descriptor, completion) {
            Landed::Done(bytes) => {
                count(&counters.descriptors_done, bytes);
                self.close(piece, counters);
            }
            Landed::Next(bytes) => {
                count(&counters.descriptors_done, bytes);
                self.backlog.push_front(piece);
            }
            Landed::Fault(bytes) => {
                count(&counters.faults_resumed, bytes);
                return Some((piece, *completion));
            }
            Landed::HintRefused(hints) => {
                counters.descriptors_failed.add(1);
                counters.hints_dropped.add(1);
                self.queues[index].refused |= hints;
                self.backlog.push_front(piece);
            }
            Landed::NotTaken => {
                counters.descriptors_failed.add(1);
                self.for_cpu.push(piece);
            }
            Landed::Failed(status) => {
                counters.descriptors_failed.add(1);
                job.error.get_or_insert(CopyError::Device { status: status.code() });
                self.close(piece, counters);
            }
        }
        None
    }

    /// The queue's device is gone, and none of its completions was overlooked: there will be no more.
    pub(super) fn give_up_all(&mut self, queue: &Queue, index: usize, counters: &Counters) {
        self.queues[index].give_up(counters);
        self.give_up(queue, index, |_| true, counters);
    }

    /// Gives up the descriptors that have waited for `timeout` without progress of the queue.
    pub(super) fn give_up_lost(
        &mut self,
        queue: &Queue,
        index: usize,
        timeout: Duration,
        counters: &Counters,
    ) {
        let (clock, landed, info) = (self.clock, self.queues[index].landed, queue.portal.work_queue());
        self.give_up(queue, index, |patience| patience.is_over(landed, clock, info, timeout), counters);
    }

    /// Gives up the descriptors that `are_lost`. A queue that loses any gets no more work.
    fn give_up(
        &mut self,
        queue: &Queue,
        index: usize,
        are_lost: impl Fn(&mut Patience) -> bool,
        counters: &Counters,
    ) {
        for slot in 0..queue.records.len() {
            let slots = &mut self.queues[index];
            let Some(flight) = slots.flights[slot].take_if(|flight| are_lost(&mut flight.patience)) else {
                continue;
            };
            slots.give_up(counters);
            queue.leak();
            for piece in flight.load.into_pieces() {
                counters.descriptors_lost.add(1);
                self.jobs[piece.job].error = Some(CopyError::DeviceLost);
                self.close(piece, counters);
            }
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
        counters.end(copy.made(), result);
        self.finished.push((copy, result));
    }
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
