//! From the backlog into queues: alone, or several small items as a batch of the device.

use std::time::Duration;

use super::{BoxedItem, CpuWork, Driver, Event, Observer, OnCpu};
use crate::driver::{BATCH_LEN_MAX, BATCH_LEN_MIN, batch_len, least_loaded};

/// The reason why no queue took an item.
enum Unsent {
    /// No queue takes it at any time.
    Never(OnCpu),
    /// All slots are in use: a completion will free one.
    NoSlot,
    /// There is a slot, and the queue answered that it is full.
    Full,
}

impl<T> Driver<T> {
    /// Submits items of the backlog while there are free slots. Never waits. Calls `now` only in a back-off.
    pub fn feed(&mut self, now: impl Fn() -> Duration, observer: &impl Observer) {
        if self.backoff_until.is_some_and(|until| now() < until) {
            return;
        }
        self.backoff_until = None;
        while self.feed_batch(observer) {}
        while let Some(mut item) = self.backlog.pop_front() {
            if self.jobs[item.job as usize].failure.is_some() {
                self.close(item);
                continue;
            }
            if let Some(rest) = item.split(self.item_bytes_max) {
                self.jobs[item.job as usize].items_count += 1;
                let rest = self.boxed(rest);
                self.backlog.push_front(rest);
            }
            match self.send(item, observer) {
                Ok(()) => while self.feed_batch(observer) {},
                Err((item, Unsent::Never(why))) => self.for_cpu.push(CpuWork::new(self.number, item, why)),
                Err((item, Unsent::NoSlot)) => return self.backlog.push_front(item),
                Err((mut item, Unsent::Full)) => {
                    item.refusals_count += 1;
                    if item.refusals_count > self.options.retries_max {
                        self.for_cpu.push(CpuWork::new(self.number, item, OnCpu::QueueFull));
                        continue;
                    }
                    observer.count(Event::Backoff);
                    self.backoff_until = Some(now() + backoff(item.refusals_count));
                    return self.backlog.push_front(item);
                }
            }
        }
    }

    /// Submits the front of the backlog as a batch, if enough items are small and a queue takes the batch.
    fn feed_batch(&mut self, observer: &impl Observer) -> bool {
        if self.backlog.len() < BATCH_LEN_MIN {
            return false;
        }
        let jobs = &self.jobs;
        let front = self.backlog.iter().take(BATCH_LEN_MAX);
        let is_member = |item: &&BoxedItem| item.is_small() && jobs[item.job as usize].failure.is_none();
        let small_count = front.take_while(is_member).count();
        if small_count < BATCH_LEN_MIN {
            return false;
        }
        let first = self.first_queue(self.backlog.front().map(|item| item.submitter as usize));
        let limits = self.options.limits();
        for number in (first..self.slots.len()).chain(0..first) {
            let queue = &self.queues.0[number].queue;
            let len_max = self.options.batch_len_max.min(queue.portal().work_queue().batch_max as usize);
            let Some(len) = batch_len(small_count, len_max) else { continue };
            let mut members = self.backlog.iter().take(len);
            let admits = |item: &BoxedItem| item.request.admits(number, queue, true, &limits).is_ok();
            if !queue.takes_batches() || !self.slots[number].has_free() || !members.all(admits) {
                continue;
            }
            let members = self.backlog.drain(..len).collect();
            match self.slots[number].submit_batch(members, self.time.now(), observer) {
                Ok(()) => {
                    self.turn = number + 1;
                    return true;
                }
                Err(members) => members.into_iter().rev().for_each(|item| self.backlog.push_front(item)),
            }
        }
        false
    }

    /// Offers an item to each queue once.
    fn send(&mut self, mut item: BoxedItem, observer: &impl Observer) -> Result<(), (BoxedItem, Unsent)> {
        let (mut why, mut has_no_slot, mut is_passed_by) = (OnCpu::NoQueue, false, false);
        let first = self.first_queue(item.is_small().then_some(item.submitter as usize));
        let limits = self.options.limits();
        for number in (first..self.slots.len()).chain(0..first) {
            if let Err(reason) = item.request.admits(number, &self.queues.0[number].queue, false, &limits) {
                why = why.max(reason);
                continue;
            }
            if !self.slots[number].has_free() {
                (has_no_slot, is_passed_by) = (true, true);
                continue;
            }
            match self.slots[number].submit(item, self.time.now(), observer) {
                Ok(()) => {
                    if is_passed_by {
                        observer.count(Event::Diverted);
                    }
                    self.turn = number + 1;
                    return Ok(());
                }
                Err((refused, reason)) => (item, why) = (refused, why.max(reason)),
            }
            is_passed_by = true;
        }
        Err((
            item,
            match why {
                OnCpu::QueueFull => Unsent::Full,
                _ if has_no_slot => Unsent::NoSlot,
                why => Unsent::Never(why),
            },
        ))
    }

    /// The queue to try first. Small items go to the queue of their submitter, unless the load of another is a whole batch
    /// less. Other items go to the queue with the least load; on a tie, queues take turns.
    fn first_queue(&self, small_of: Option<usize>) -> usize {
        let count = self.slots.len();
        if count == 1 {
            return 0;
        }
        let (first, unit) = match small_of {
            Some(submitter) => (submitter, BATCH_LEN_MAX),
            None => (self.turn, 1),
        };
        let load = |number: usize| self.slots[number].load().map(|(has, size)| (has / unit, size));
        least_loaded(first % count.max(1), count, load)
    }
}

/// The pause after so many refusals in a row: 2 us, doubled each time, up to a millisecond.
fn backoff(refusals_count: u32) -> Duration {
    Duration::from_micros(1 << refusals_count.min(10))
}
