//! From the backlog into queues: alone, or several small pieces as a batch of the device.

use std::time::{Duration, Instant};

use memferry_dsa::portal::Refused;
use memferry_dsa::{Submission, SubmitError};

use super::{Load, State};
use crate::mover::dsa::DsaOptions;
use crate::mover::dsa::piece::Piece;
use crate::mover::dsa::slots::Queue;
use crate::mover::guidelines;
use crate::mover::stats::Counters;

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
    /// Submits as much of the backlog as there are slots for.
    pub(in crate::mover::dsa) fn feed(
        &mut self,
        queues: &[Queue],
        options: &DsaOptions,
        counters: &Counters,
    ) {
        if self.backoff_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        self.backoff_until = None;
        while self.feed_batch(queues, options, counters) {}
        while let Some(mut piece) = self.backlog.pop_front() {
            if self.jobs[piece.job].error.is_some() {
                self.close(piece, counters);
                continue;
            }
            if let Some(rest) = piece.split(self.piece_bytes_max) {
                self.jobs[piece.job].pieces_count += 1;
                self.backlog.push_front(rest);
            }
            match self.send(piece, queues, options, counters) {
                Ok(()) => while self.feed_batch(queues, options, counters) {},
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

    /// Submits what is at the front of the backlog as a batch, if there is enough of it and a queue takes it.
    fn feed_batch(&mut self, queues: &[Queue], options: &DsaOptions, counters: &Counters) -> bool {
        let jobs = &self.jobs;
        let front = self.backlog.iter_mut().take(guidelines::BATCH_LEN_MAX);
        let is_member = |piece: &mut Piece| piece.is_small() && jobs[piece.job].error.is_none();
        let small_count = front.map(is_member).take_while(|is_member| *is_member).count();
        if small_count < guidelines::BATCH_LEN_MIN {
            return false;
        }
        let first = self.first_queue(self.backlog.front().map(|piece| piece.thread_number));
        for step in 0..queues.len() {
            let index = (first + step) % queues.len();
            let (queue, slots) = (&queues[index], &mut self.queues[index]);
            let info = queue.portal.work_queue();
            let len_max = options.batch_len_max.min(info.batch_max as usize);
            let Some(len) = guidelines::batch_len(small_count, len_max) else { continue };
            let mut members = self.backlog.iter_mut().take(len);
            let fits = |piece: &mut Piece| piece.fits(info, options.version, true);
            if slots.gone || slots.refuses_batches || queue.lists.is_empty() || !members.all(fits) {
                continue;
            }
            let Some(slot) = slots.free.pop() else { continue };
            let members = self.backlog.iter_mut().take(len);
            let mut descriptors: Vec<_> =
                members.map(|piece| piece.descriptor(info, slots.refused)).collect();
            let batch = queue.lists[slot].write(&mut descriptors);
            let submission = Piece::submit_batch(&*queue.portal, &batch, &queue.records[slot].0);
            match submission {
                Ok(Submission::Accepted) => {
                    let members = self.backlog.drain(..len).zip(descriptors).collect();
                    slots.accept(slot, Load::Many(members), self.clock);
                    counters.descriptors.add(len as u64);
                    counters.batches.add(1);
                    counters.batch_members.add(len as u64);
                    self.turn = index + 1;
                    return true;
                }
                Ok(Submission::Retry) => counters.retries.add(1),
                Err(error) => {
                    slots.refuses_batches |= error == SubmitError::Refused(Refused::Batch);
                    slots.refuse(&error, counters);
                }
            }
            slots.free.push(slot);
            // Alone they find out what is in the way, and it is counted.
            return false;
        }
        false
    }

    /// Offers a piece to each queue once.
    fn send(
        &mut self,
        mut piece: Piece,
        queues: &[Queue],
        options: &DsaOptions,
        counters: &Counters,
    ) -> Result<(), (Piece, Unsent)> {
        let mut why = Unsent::Never;
        let mut passed_by = false;
        let small_of = piece.is_small().then_some(piece.thread_number);
        let first = self.first_queue(small_of);
        for step in 0..queues.len() {
            let index = (first + step) % queues.len();
            let (queue, slots) = (&queues[index], &mut self.queues[index]);
            if slots.gone || !piece.fits(queue.portal.work_queue(), options.version, false) {
                continue;
            }
            let Some(slot) = slots.free.pop() else {
                why = why.max(Unsent::NoSlot);
                passed_by = true;
                continue;
            };
            let (descriptor, submission) =
                piece.submit(&*queue.portal, slots.refused, &queue.records[slot].0);
            match submission {
                Ok(Submission::Accepted) => {
                    piece.refusals_count = 0;
                    slots.accept(slot, Load::One(piece, descriptor), self.clock);
                    counters.descriptors.add(1);
                    counters.diverted.add(u64::from(passed_by));
                    self.turn = index + 1;
                    return Ok(());
                }
                Ok(Submission::Retry) => {
                    counters.retries.add(1);
                    why = Unsent::Full;
                }
                Err(error) => slots.refuse(&error, counters),
            }
            slots.free.push(slot);
            passed_by = true;
        }
        Err((piece, why))
    }

    /// The queue to be tried first. What is small goes to that of its thread, unless another has a whole batch less to do;
    /// other pieces to the queue with the least to do, of equals to the one whose turn it is.
    fn first_queue(&self, small_of: Option<usize>) -> usize {
        let count = self.queues.len();
        let (first, unit) = match small_of {
            Some(thread_number) => (thread_number, guidelines::BATCH_LEN_MAX),
            None => (self.turn, 1),
        };
        let load = |index: usize| self.queues[index].load().map(|(has, size)| (has / unit, size));
        guidelines::least_loaded(first % count.max(1), count, load)
    }
}

/// How long to wait after so many refusals in a row: 2 us, doubled each time, up to a millisecond.
fn backoff(refusals_count: u32) -> Duration {
    Duration::from_micros(1 << refusals_count.min(10))
}
