//! What a device reads and writes besides the data: completion records and lists of batches, as many as a queue has
//! entries, made once.
//!
//! There is no pool of them for each thread: an engine's slots are under its lock, which who submits takes anyway, and
//! the last used is used first, while its lines are still in the cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memferry_dsa::{CompletionRecord, Descriptor, Portal};

use super::super::guidelines::{self, BATCH_LEN_MAX};

/// One completion record in a cache line of its own, so that the device's write to one disturbs no poll of
/// another.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(in crate::mover) struct RecordLine(pub(in crate::mover) CompletionRecord);

/// A descriptor as a device reads it.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct DescriptorLine([AtomicU64; 8]);

const _: () = assert!(size_of::<DescriptorLine>() == size_of::<Descriptor>());

/// The members of a batch, and their records. Whoever has the slot writes the list while no device has it; the device
/// reads it and writes the records until the record of the batch is written.
#[derive(Debug, Default)]
pub(in crate::mover) struct List {
    descriptors: [DescriptorLine; BATCH_LEN_MAX],
    pub(super) records: [RecordLine; BATCH_LEN_MAX],
}

impl List {
    /// Writes the list. The members with their records, and the batch of them.
    pub(in crate::mover) fn write(&self, members: &mut [Descriptor]) -> Descriptor {
        for ((member, line), record) in members.iter_mut().zip(&self.descriptors).zip(&self.records) {
            *member = member.with_completion(&record.0);
            for (word, value) in line.0.iter().zip(member.to_words()) {
                // ORDERING: Relaxed: the submission that follows publishes it to the device.
                word.store(value, Ordering::Relaxed);
            }
        }
        let list = (&raw const self.descriptors).cast::<Descriptor>();
        Descriptor::batch(list, members.len().min(BATCH_LEN_MAX) as u32)
    }
}

/// A work queue, as far as it needs no lock: the completer polls `records` without.
///
/// There are as many slots, each with a record and a list, as the queue has entries ([`guidelines::depth`]): more would
/// only be refused or lost. A record is zero except between its completion and the completer's reading it.
pub(super) struct Queue {
    pub(super) portal: Arc<dyn Portal>,
    pub(super) records: Arc<[RecordLine]>,
    pub(super) lists: Arc<[List]>,
}

impl Queue {
    pub(super) fn new(portal: Arc<dyn Portal>) -> Queue {
        let slots_count = guidelines::depth(portal.work_queue());
        // Writing them here also makes their pages present.
        let records = (0..slots_count).map(|_| RecordLine::default()).collect();
        let lists_count = if portal.supports_batch() { slots_count } else { 0 };
        let lists = (0..lists_count).map(|_| List::default()).collect();
        Queue { portal, records, lists }
    }

    /// The device may write to them, too, whenever it likes.
    pub(super) fn leak(&self) {
        std::mem::forget(self.records.clone());
        std::mem::forget(self.lists.clone());
    }
}
