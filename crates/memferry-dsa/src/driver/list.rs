//! The memory that a device reads and writes besides the data: completion records, and the lists of batches.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::address::Address;
use crate::completion::CompletionRecord;
use crate::descriptor::Descriptor;

/// A completion record in a cache line of its own, so that the device's write to one disturbs no poll of another.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct RecordLine(pub CompletionRecord);

/// A descriptor as a device reads it.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct DescriptorLine([AtomicU64; 8]);

const _: () = assert!(size_of::<DescriptorLine>() == size_of::<Descriptor>());

/// The members of a batch, and their records.
///
/// Its owner writes the list while no device has it. The device reads it and writes the records until the record of the
/// batch is written.
#[derive(Debug)]
pub struct List {
    descriptors: Box<[DescriptorLine]>,
    records: Box<[RecordLine]>,
}

impl List {
    /// A list with room for `members_max`. Its initialisation makes the pages present.
    pub fn new(members_max: usize) -> List {
        let descriptors = (0..members_max).map(|_| DescriptorLine::default()).collect();
        List { descriptors, records: (0..members_max).map(|_| RecordLine::default()).collect() }
    }

    /// Writes the list: the members, each with its record. Returns the batch of them, without a record.
    pub fn write(&self, members: impl Iterator<Item = Descriptor>) -> Descriptor {
        let mut count = 0;
        for ((member, line), record) in members.zip(&self.descriptors).zip(&self.records) {
            for (word, value) in line.0.iter().zip(member.with_completion(&record.0).to_words()) {
                // ORDERING: Relaxed: the submission that follows publishes it to the device.
                word.store(value, Ordering::Relaxed);
            }
            count += 1;
        }
        Descriptor::batch(self.descriptors.as_ptr().cast::<Descriptor>(), count)
    }

    /// The records of the first members.
    pub(crate) fn records(&self, members_count: usize) -> &[RecordLine] {
        &self.records[..members_count]
    }

    /// Reads from the page of a fault. Returns false if no part of the list is on that page.
    pub(crate) fn touch(&self, fault: Address) -> bool {
        let page = fault.page();
        let is_there = |line: &&DescriptorLine| Address::from(std::ptr::from_ref(*line)).page() == page;
        let line = self.descriptors.iter().find(is_there);
        line.is_some_and(|line| {
            // The compiler keeps an atomic load.
            std::hint::black_box(line.0[0].load(Ordering::Relaxed));
            true
        })
    }

    /// Its size, for counts of leaked memory.
    pub(crate) fn bytes(&self) -> u64 {
        (size_of_val(&*self.descriptors) + size_of_val(&*self.records)) as u64
    }
}
