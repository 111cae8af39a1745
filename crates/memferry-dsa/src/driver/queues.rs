//! The part of a driver without a lock: the thread that polls the records takes none.

use std::sync::Arc;

use super::list::{List, RecordLine};
use super::queue::Queue;
use super::{BATCH_LEN_MAX, Observer, depth};
use crate::portal::Portal;

/// The queues of one [`Driver`](super::Driver), with a completion record and a list for each of their slots.
///
/// There are as many slots as a queue has entries: more descriptors would only be refused or lost. A record is zero
/// except between its completion and [`Driver::complete`](super::Driver::complete).
pub struct Queues(pub(super) Box<[SlottedQueue]>);

pub(super) struct SlottedQueue {
    pub(super) queue: Queue,
    pub(super) records: Arc<[RecordLine]>,
    pub(super) lists: Arc<[List]>,
}

/// A slot whose record is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    pub(super) queue: usize,
    pub(super) slot: usize,
}

impl Queues {
    pub(super) fn new(portals: impl IntoIterator<Item = Arc<dyn Portal>>) -> Queues {
        let slotted = |portal: Arc<dyn Portal>| {
            let slots_count = depth(portal.work_queue());
            let lists_count = if portal.supports_batch() { slots_count } else { 0 };
            // The initialisation makes the pages present.
            SlottedQueue {
                queue: Queue::new(portal),
                records: (0..slots_count).map(|_| RecordLine::default()).collect(),
                lists: (0..lists_count).map(|_| List::new(BATCH_LEN_MAX)).collect(),
            }
        };
        Queues(portals.into_iter().map(slotted).collect())
    }

    /// Collects the slots whose records are written by now.
    pub fn poll(&self, written: &mut Vec<Written>) {
        for (number, queue) in self.0.iter().enumerate() {
            let slots = (0..queue.records.len()).filter(|slot| queue.records[*slot].0.poll().is_some());
            written.extend(slots.map(|slot| Written { queue: number, slot }));
        }
    }

    /// Asks the portals whether their devices are gone. They may read sysfs: do not call it under a lock.
    pub fn ask(&self, observer: &impl Observer) {
        self.0.iter().for_each(|queue| queue.queue.ask(observer));
    }
}

impl SlottedQueue {
    /// The device may write to records and lists at any later time.
    pub(super) fn leak(&self) {
        std::mem::forget(self.records.clone());
        std::mem::forget(self.lists.clone());
    }
}
