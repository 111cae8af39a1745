//! A request from its check to its outcome.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use super::error::{ClientError, OnCpu};
use super::flight::{Entered, Flight, Landed, Memory};
use super::{Client, Queue};
use crate::completion::{Completion, CompletionRecord};
use crate::descriptor::Descriptor;
use crate::flags::Flags;
use crate::portal::{BackoffError, SubmitError, submit_with_backoff};
use crate::request::{End, HINTS, Request, Step, Work};

/// A record in a line of its own, and so that it can be leaked.
#[derive(Default)]
#[repr(align(64))]
struct Line(CompletionRecord);

thread_local! {
    /// The record of this thread's last descriptor. Allocating one for each took a third of what a call costs besides
    /// the device.
    static SPARE: Cell<Option<Box<Line>>> = const { Cell::new(None) };
}

/// Where a descriptor was submitted, or why nowhere.
enum Placed {
    On(usize, Completion),
    Nowhere(OnCpu),
}

impl Client {
    /// Does all of a request.
    pub(super) fn drive(&self, work: &mut Work<'_>, memory: Memory) -> Result<End, ClientError> {
        let mut faults = 0;
        let mut excluded = Vec::new();
        let mut why_cpu = None;
        loop {
            let placed = match why_cpu {
                Some(why) => Placed::Nowhere(why),
                None => self.place(work, &excluded, memory)?,
            };
            let (queue, completion) = match placed {
                Placed::On(queue, completion) => (queue, completion),
                Placed::Nowhere(why) => return self.finish_on_cpu(work, why),
            };
            // SAFETY: the device has completed what `next` returned to `place`.
            let step = unsafe { work.absorb(&completion) };
            self.count(&step);
            match step {
                Step::Ended(end) => return Ok(end),
                Step::Next => {}
                Step::Fault => {
                    self.touch(work, &completion);
                    faults += 1;
                    if faults > self.options.faults_max {
                        why_cpu = Some(OnCpu::Faults);
                    }
                }
                Step::NotTaken(flags) => {
                    if !self.learn(work, &self.queues[queue], flags) {
                        excluded.push(queue);
                    }
                }
                Step::Failed => {
                    return Err(ClientError::Failed { queue: self.queues[queue].name(), completion });
                }
            }
        }
    }

    /// Does what is left of a request on the CPU. No device has any of it.
    pub(super) fn finish_on_cpu(&self, work: &mut Work<'_>, why: OnCpu) -> Result<End, ClientError> {
        if !self.options.may_use_cpu {
            return Err(ClientError::NoDevice(why));
        }
        self.stats.count_on_cpu(why);
        // SAFETY: no device has the request: the caller says so, and nothing is submitted meanwhile.
        unsafe { work.finish() }
            .map_err(|completion| ClientError::Failed { queue: "the CPU".to_owned(), completion })
    }

    /// Submits what comes next to the first queue that takes it, and waits for it.
    fn place(&self, work: &mut Work<'_>, excluded: &[usize], memory: Memory) -> Result<Placed, ClientError> {
        let mut why = OnCpu::NoQueue;
        for index in self.turns() {
            let queue = &self.queues[index];
            let info = queue.portal.work_queue();
            if excluded.contains(&index) {
                why = why.max(OnCpu::Operation);
            } else if queue.is_lost() {
                why = why.max(OnCpu::Gone);
            } else if let Err(unfit) = work.fits(info, self.options.version, true) {
                why = why.max(unfit.into());
            } else {
                self.drop_hints(work, queue);
                let next = work.next(info.transfer_bytes_max);
                match self.fly(queue, &next, memory)? {
                    Ok(completion) => return Ok(Placed::On(index, completion)),
                    Err(nowhere) => why = why.max(nowhere),
                }
            }
        }
        Ok(Placed::Nowhere(why))
    }

    /// Leaves out the hints that a queue does not take.
    pub(super) fn drop_hints(&self, work: &mut Work<'_>, queue: &Queue) {
        let mut hints = Flags::NONE;
        if !queue.portal.work_queue().block_on_fault {
            hints |= Flags::BLOCK_ON_FAULT;
        }
        if queue.lacks_cache_control.load(Ordering::Relaxed) {
            hints |= Flags::CACHE_CONTROL;
        }
        if work.has_any(hints) {
            self.stats.hints_dropped.add(1);
            work.drop_flags(hints);
        }
    }

    /// Submits a descriptor and waits for its end; or why it was not submitted here.
    fn fly(
        &self,
        queue: &Queue,
        descriptor: &Descriptor,
        memory: Memory,
    ) -> Result<Result<Completion, OnCpu>, ClientError> {
        let line = SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default();
        line.0.reset();
        let descriptor = descriptor.with_completion(&line.0);
        // SAFETY: the request was checked and borrows the memory that the descriptor names, and `land` neither returns
        // nor unwinds while the device may access it, unless the memory is owned, which is then leaked; so is the
        // record.
        let entered = match unsafe { self.submit(queue, &descriptor, 1) } {
            Ok(entered) => entered,
            Err(nowhere) => return Ok(Err(nowhere)),
        };
        self.stats.submitted.add(1);
        let flight = Flight::new(&*queue.portal, &queue.traffic, &entered, &line.0, &[]);
        let landed = flight.land(self.options.wait, self.options.timeout, memory);
        if matches!(landed, Landed::Completed(_)) {
            // A thread that ends has no place for it any more.
            let _ = SPARE.try_with(|spare| spare.set(Some(line)));
        } else {
            // The device may still write to the record, whoever owns the rest.
            std::mem::forget(line);
            self.stats.leaked_bytes.add(size_of::<Line>() as u64);
        }
        self.landed(queue, landed, 1).map(Ok)
    }

    /// Submits with pauses.
    ///
    /// `count` is that of its descriptors, with the members of a batch.
    ///
    /// # Safety
    /// As [`Portal::submit`](crate::Portal::submit) if the answer is `Ok`.
    pub(super) unsafe fn submit(
        &self,
        queue: &Queue,
        descriptor: &Descriptor,
        count: u64,
    ) -> Result<Entered, OnCpu> {
        let entered = queue.traffic.enter(count);
        let mut backoff = self.options.backoff;
        backoff.reset();
        // SAFETY: passed on to the caller.
        let submitted = unsafe { submit_with_backoff(&*queue.portal, descriptor, backoff) };
        if submitted.is_err() {
            queue.traffic.leave(&entered);
        }
        match submitted {
            Ok(retries) => {
                self.stats.retries.add(retries.into());
                Ok(entered)
            }
            Err(BackoffError::Exhausted(exhausted)) => {
                self.stats.retries.add(exhausted.retries.into());
                self.stats.queues_full.add(1);
                Err(OnCpu::QueueFull)
            }
            Err(BackoffError::Portal(SubmitError::Refused(_))) => {
                self.stats.portal_refusals.add(1);
                Err(OnCpu::Refused)
            }
            // Gone, or not to be opened again in this process.
            Err(_) => {
                self.lose(queue);
                Err(OnCpu::Gone)
            }
        }
    }

    /// The completion, or the error of a queue that is lost with `descriptors` in it.
    pub(super) fn landed(
        &self,
        queue: &Queue,
        landed: Landed,
        descriptors: u64,
    ) -> Result<Completion, ClientError> {
        let error = match landed {
            Landed::Completed(completion) => return Ok(completion),
            Landed::Gone => ClientError::Gone { queue: queue.name() },
            Landed::Silent(waited) => ClientError::Silent { queue: queue.name(), waited },
        };
        self.stats.lost.add(descriptors);
        self.lose(queue);
        Err(error)
    }

    fn lose(&self, queue: &Queue) {
        if !queue.is_lost.swap(true, Ordering::Relaxed) {
            self.stats.queues_lost.add(1);
        }
    }

    /// Counts how a descriptor ended.
    pub(super) fn count(&self, step: &Step) {
        match step {
            Step::Ended(_) | Step::Next => self.stats.succeeded.add(1),
            Step::Fault => self.stats.partial.add(1),
            Step::NotTaken(_) => self.stats.not_taken.add(1),
            Step::Failed => self.stats.failed.add(1),
        }
    }

    pub(super) fn touch(&self, work: &Work<'_>, completion: &Completion) {
        // SAFETY: the device has stopped at the fault, and nothing was submitted since.
        if unsafe { work.touch(completion) } {
            self.stats.pages_touched.add(1);
        } else {
            self.stats.strange_faults.add(1);
        }
    }

    /// Learns from a refusal, and leaves out the hints that it was about; whether it was about any.
    pub(super) fn learn(&self, work: &mut Work<'_>, queue: &Queue, refused: Flags) -> bool {
        let hints = Flags::from_bits(refused.bits() & HINTS.bits());
        if hints.contains(Flags::CACHE_CONTROL) {
            queue.lacks_cache_control.store(true, Ordering::Relaxed);
        }
        if hints.is_empty() {
            return false;
        }
        self.stats.hints_dropped.add(1);
        work.drop_flags(hints);
        true
    }

    /// Waits for all that was submitted to a queue. One that takes no drain is drained if its device is gone.
    pub(super) fn drain<O>(
        &self,
        index: usize,
        request: &Request<'_, O>,
        memory: Memory,
    ) -> Result<(), ClientError> {
        let queue = &self.queues[index];
        let lost = || match queue.portal.is_gone() {
            true => Ok(()),
            false => Err(ClientError::NoDevice(OnCpu::Gone)),
        };
        if queue.is_lost() {
            return lost();
        }
        if let Err(unfit) = request.fits(queue.portal.work_queue(), self.options.version) {
            return Err(ClientError::NoDevice(unfit.into()));
        }
        match self.fly(queue, &request.descriptor, memory)? {
            Err(OnCpu::Gone) => lost(),
            Err(why) => Err(ClientError::NoDevice(why)),
            // SAFETY: the device has completed the drain, which has no memory of its own.
            Ok(completion) => match unsafe { Work::new(request).absorb(&completion) } {
                step @ Step::Ended(_) => {
                    self.count(&step);
                    Ok(())
                }
                _ => {
                    self.count(&Step::Failed);
                    Err(ClientError::Failed { queue: queue.name(), completion })
                }
            },
        }
    }
}
