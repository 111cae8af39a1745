//! A request from its check to its outcome: the [driver](crate::driver), pumped by the calling thread, which waits.

use std::cell::Cell;

use super::error::ClientError;
use super::waiting::{Memory, Waiting};
use super::{Client, SUBMITTED};
use crate::completion::Completion;
use crate::driver::queue::Queue;
use crate::driver::work_item::{Limits, Progress, WorkItem};
use crate::driver::{Event, Loss, Observer, OnCpu, RecordLine};
use crate::request::{Ended, Request, Work};

thread_local! {
    /// The record of this thread's last descriptor. Allocating one for each took a third of what a call costs besides
    /// the device.
    static SPARE: Cell<Option<Box<RecordLine>>> = const { Cell::new(None) };
}

impl Client {
    pub(super) fn limits(&self) -> Limits {
        Limits { faults_max: self.options.faults_max, version: self.options.version }
    }

    /// Executes a request.
    pub(super) fn drive(&self, item: &mut WorkItem<'_>, memory: Memory) -> Result<Ended, ClientError> {
        loop {
            let (number, completion) = match self.execute_next(item, memory)? {
                Ok(completed) => completed,
                Err(why) => return self.finish_on_cpu(item, why),
            };
            let on = (number, &self.queues[number]);
            // SAFETY: the device has completed what `next` returned for this queue.
            let (_, progress) = unsafe { item.complete(&completion, on, false, &self.limits(), &self.stats) };
            match progress {
                Progress::Ended(end) => return Ok(end),
                Progress::Submit => {}
                // SAFETY: the device has stopped at the fault, and nothing was submitted since.
                Progress::Fault(completion) => unsafe { item.touch(&completion, &self.stats) },
                Progress::Failed(completion) => {
                    return Err(ClientError::Failed { queue: on.1.name(), completion });
                }
            }
        }
    }

    /// Executes the rest of a request on the CPU. No device has any of it.
    fn finish_on_cpu(&self, item: &mut WorkItem<'_>, why: OnCpu) -> Result<Ended, ClientError> {
        if !self.options.may_use_cpu {
            return Err(ClientError::NoDevice(why));
        }
        self.stats.count(Event::OnCpu(why, item.work().left_bytes().into()));
        // SAFETY: no device has the request: the caller says so, and nothing is submitted meanwhile.
        unsafe { item.finish() }
            .map_err(|completion| ClientError::Failed { queue: "the CPU".to_owned(), completion })
    }

    /// Submits the next descriptor to the first queue that takes it, and waits for it. Returns the number of the queue, or
    /// the reason why no queue took it.
    fn execute_next(
        &self,
        item: &mut WorkItem<'_>,
        memory: Memory,
    ) -> Result<Result<(usize, Completion), OnCpu>, ClientError> {
        let mut why = OnCpu::NoQueue;
        for number in self.turns() {
            match self.execute_on(number, item, memory)? {
                Ok(completion) => return Ok(Ok((number, completion))),
                Err(reason) => why = why.max(reason),
            }
        }
        Ok(Err(why))
    }

    /// Submits the next descriptor to a queue and waits for it. Returns the completion, or the reason for the refusal.
    fn execute_on(
        &self,
        number: usize,
        item: &mut WorkItem<'_>,
        memory: Memory,
    ) -> Result<Result<Completion, OnCpu>, ClientError> {
        let queue = &self.queues[number];
        if let Err(why) = item.admits(number, queue, false, &self.limits()) {
            return Ok(Err(why));
        }
        let line = SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default();
        line.0.reset();
        let next = item.next(queue, false, &self.stats).with_completion(&line.0);
        // SAFETY: the request was checked and borrows the memory that the descriptor names, and `wait` neither returns nor
        // unwinds while the device may access it, unless the memory is owned, which is then leaked; so is the record.
        let submitted = unsafe { queue.submit(&next, 1, self.options.backoff, SUBMITTED, &self.stats) };
        let in_flight = match submitted {
            Ok(in_flight) => in_flight,
            Err(why) => {
                keep(line);
                return Ok(Err(why));
            }
        };
        self.stats.count(Event::Submitted(1));
        let waiting = Waiting::new(in_flight, queue, &line.0, &[]);
        match waiting.wait(self.options.wait, self.options.timeout, memory, &self.stats) {
            Ok(completion) => {
                keep(line);
                Ok(Ok(completion))
            }
            Err(loss) => {
                // The device may still write to the record, whoever owns the rest.
                self.stats.leaked_bytes.add(size_of_val(&*line) as u64);
                std::mem::forget(line);
                Err(self.lost(queue, loss, 1))
            }
        }
    }

    /// The error of a queue that is lost with so many descriptors in it.
    pub(super) fn lost(
        &self,
        queue: &Queue,
        (loss, waited): (Loss, std::time::Duration),
        count: u64,
    ) -> ClientError {
        self.stats.count(Event::Lost(count));
        queue.lose(&self.stats);
        match loss {
            Loss::Gone => ClientError::Gone { queue: queue.name() },
            Loss::Silent => ClientError::Silent { queue: queue.name(), waited },
        }
    }

    /// Waits for all descriptors of a queue. A queue that takes no drain counts as drained if its device is gone.
    pub(super) fn drain<O>(
        &self,
        number: usize,
        request: &Request<'_, O>,
        memory: Memory,
    ) -> Result<(), ClientError> {
        let queue = &self.queues[number];
        let mut item = WorkItem::new(Work::new(request));
        let completion = match self.execute_on(number, &mut item, memory)? {
            Ok(completion) => completion,
            Err(OnCpu::Gone) if queue.portal().is_gone() => return Ok(()),
            Err(why) => return Err(ClientError::NoDevice(why)),
        };
        // SAFETY: the device has completed the drain, which has no memory of its own.
        let (_, progress) =
            unsafe { item.complete(&completion, (number, queue), false, &self.limits(), &self.stats) };
        match progress {
            Progress::Ended(_) => Ok(()),
            _ => Err(ClientError::Failed { queue: queue.name(), completion }),
        }
    }
}

/// Keeps a record that no device has for the next call of this thread.
fn keep(line: Box<RecordLine>) {
    // A thread that is ending has no thread-locals.
    let _ = SPARE.try_with(|spare| spare.set(Some(line)));
}
