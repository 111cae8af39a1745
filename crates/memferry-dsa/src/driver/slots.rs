//! The slots of a queue: the items that its device has, each with its completion record.
//!
//! All submissions and completions of a driver are here. A slot keeps what it has submitted until the record is written
//! or the descriptor is lost, and a lost one is never returned.

use std::sync::Arc;
use std::time::Duration;

use super::batch;
use super::in_flight::{InFlight, Loss};
use super::item::BoxedItem;
use super::list::RecordLine;
use super::queues::{Queues, SlottedQueue};
use super::work_item::{Limits, Progress};
use super::{Event, Observer, OnCpu};
use crate::portal::Backoff;

pub(super) struct Slots {
    queues: Arc<Queues>,
    /// The number of the queue.
    number: usize,
    /// Slots without a descriptor in flight; the last used is used first, while its record is still in the cache.
    free: Vec<usize>,
    /// By slot.
    loads: Vec<Option<Load>>,
}

/// The items that a device has.
struct Load {
    items: Items,
    in_flight: InFlight,
}

enum Items {
    One(BoxedItem),
    /// A batch, in the order of its list.
    Many(Vec<BoxedItem>),
}

impl Slots {
    /// Of the queue with this number. Only one of them may exist for a queue.
    pub(super) fn new(queues: Arc<Queues>, number: usize) -> Slots {
        let slots_count = queues.0[number].records.len();
        let loads = (0..slots_count).map(|_| None).collect();
        Slots { queues, number, free: (0..slots_count).rev().collect(), loads }
    }

    #[inline]
    fn queue(&self) -> &SlottedQueue {
        &self.queues.0[self.number]
    }

    #[inline]
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Slots in use, and all slots: the load by which queues are compared.
    #[inline]
    pub(super) fn load(&self) -> Option<(usize, usize)> {
        let is_lost = self.queue().queue.facts().is_lost();
        (!is_lost).then_some((self.loads.len() - self.free.len(), self.loads.len()))
    }

    /// The slots with a descriptor in flight.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = usize> {
        (0..self.loads.len()).filter(|slot| self.loads[*slot].is_some())
    }

    /// Submits an item that the queue admits. There is a free slot.
    ///
    /// # Errors
    /// The item, and why it was not submitted.
    pub(super) fn submit(
        &mut self,
        mut item: BoxedItem,
        time: Duration,
        observer: &impl Observer,
    ) -> Result<(), (BoxedItem, OnCpu)> {
        let slot = self.free.pop().expect("there is a free slot");
        let SlottedQueue { queue, records, .. } = self.queue();
        let next = item.request.next(queue, false, observer).with_completion(&records[slot].0);
        // SAFETY: the memory is good while the item exists, see its type. Item and record stay in the slot until the record
        // is written; if it never is, the record is leaked and the loss reported, as `Task` demands.
        let submitted = unsafe { queue.submit(&next, 1, Backoff::new(0), time, observer) };
        match submitted {
            Ok(in_flight) => {
                observer.count(Event::Submitted(1));
                item.refusals_count = 0;
                self.loads[slot] = Some(Load { items: Items::One(item), in_flight });
                Ok(())
            }
            Err(why) => {
                self.free.push(slot);
                Err((item, why))
            }
        }
    }

    /// Submits items that the queue admits as members, as a batch. There is a free slot, and the queue takes batches.
    ///
    /// # Errors
    /// The items.
    pub(super) fn submit_batch(
        &mut self,
        mut items: Vec<BoxedItem>,
        time: Duration,
        observer: &impl Observer,
    ) -> Result<(), Vec<BoxedItem>> {
        let slot = self.free.pop().expect("there is a free slot");
        let SlottedQueue { queue, records, lists } = self.queue();
        let members = items.iter_mut().map(|item| &mut item.request);
        let batch = batch::write(members, queue, &lists[slot], observer).with_completion(&records[slot].0);
        let count = items.len() as u64;
        // SAFETY: as in `submit`; the list is the slot's as the record is.
        match unsafe { queue.submit(&batch, count + 1, Backoff::new(0), time, observer) } {
            Ok(in_flight) => {
                observer.count(Event::Submitted(count));
                observer.count(Event::Batch(count));
                self.loads[slot] = Some(Load { items: Items::Many(items), in_flight });
                Ok(())
            }
            Err(_) => {
                self.free.push(slot);
                Err(items)
            }
        }
    }

    /// Completes a slot if its record is written. Its items go to `completed`, with their completed bytes and next steps.
    pub(super) fn complete(
        &mut self,
        slot: usize,
        limits: &Limits,
        observer: &impl Observer,
        mut completed: impl FnMut(BoxedItem, u64, Progress),
    ) {
        let Slots { queues, number, free, loads } = self;
        let SlottedQueue { queue, records, lists } = &queues.0[*number];
        let Some(completion) = records.get(slot).and_then(|line| line.0.poll()) else { return };
        records[slot].0.reset();
        // None: the descriptor had been given up. The slot stays out of use, as the queue does.
        let Some(Load { items, in_flight }) = loads[slot].take() else { return };
        in_flight.complete(queue);
        let on = (*number, queue);
        match items {
            Items::One(mut item) => {
                // SAFETY: the record of the item's descriptor was written.
                let (bytes, progress) =
                    unsafe { item.request.complete(&completion, on, false, limits, observer) };
                completed(item, bytes, progress);
            }
            Items::Many(items) => {
                let batch = batch::Completed::new(completion, &lists[slot], items.len(), on, observer);
                for (index, mut item) in items.into_iter().enumerate() {
                    // SAFETY: the record of the batch was written, and these are its members in order.
                    let (bytes, progress) =
                        unsafe { batch.member(index, &mut item.request, limits, observer) };
                    completed(item, bytes, progress);
                }
            }
        }
        free.push(slot);
    }

    /// Gives up a slot if its descriptor is lost. The caller has read `was_gone` before it read the record, which was not
    /// written. The jobs of the items go to `lost`.
    pub(super) fn give_up(
        &mut self,
        slot: usize,
        was_gone: bool,
        (time, timeout): (Duration, Duration),
        observer: &impl Observer,
        mut lost: impl FnMut(u32, Loss),
    ) {
        let slotted = &self.queues.0[self.number];
        let Some(load) = &mut self.loads[slot] else { return };
        let members: &[RecordLine] = match &load.items {
            Items::One(_) => &[],
            Items::Many(items) => slotted.lists[slot].records(items.len()),
        };
        let Some(loss) = load.in_flight.loss(was_gone, &slotted.queue, members, time, timeout) else {
            return;
        };
        slotted.queue.lose(observer);
        slotted.leak();
        let items = self.loads[slot].take().map(|load| load.items);
        let jobs: Vec<u32> = match &items {
            Some(Items::One(item)) => vec![item.job],
            Some(Items::Many(items)) => items.iter().map(|item| item.job).collect(),
            None => Vec::new(),
        };
        observer.count(Event::Lost(jobs.len() as u64));
        jobs.into_iter().for_each(|job| lost(job, loss));
    }

    /// Leaks the records and lists if a device may write to them. Returns whether it may.
    pub(super) fn leak(&self) -> bool {
        let has_flights = self.in_flight().next().is_some();
        if has_flights {
            self.queue().leak();
        }
        has_flights
    }
}
