//! An item of a driver: a request in progress, or a part of a copy, which no device has.
//!
//! [`Slots`](super::slots::Slots) take an item away when a device accepts it, and give it back when the device has
//! completed it. So the owner of an item may touch its memory: the promise was made to [`Task::new`] and [`Task::copy`],
//! parts of one copy do not overlap, and a job, with its memory, is not over before its last item is.

use super::work_item::WorkItem;
use super::{BATCHED_BYTES_MAX, Observer, OnCpu};
use crate::completion::Completion;
use crate::operation::Opcode;
use crate::request::{Ended, Task};

/// An item in a box, because it changes its owner several times.
pub(super) type BoxedItem = Box<Item>;

/// Two cache lines, which the submitting thread writes and the completing thread reads.
#[repr(align(64))]
pub(super) struct Item {
    pub(super) request: WorkItem<'static>,
    /// Key of the job that it belongs to.
    pub(super) job: u32,
    /// Times in a row that all queues refused it.
    pub(super) refusals_count: u32,
    /// The thread that submitted it.
    pub(super) submitter: u32,
    /// Bytes of the copy behind it, which are cut off it when a slot is free.
    beyond_bytes: u64,
}

const _: () = assert!(size_of::<Item>() == 128);

// SAFETY: an item is made of a task, which may go to any thread.
unsafe impl Send for Item {}

impl Item {
    #[inline]
    pub(super) fn new(task: Task, job: u32, submitter: u32) -> Item {
        let (work, beyond_bytes) = task.into_work();
        Item { request: WorkItem::new(work), job, refusals_count: 0, submitter, beyond_bytes }
    }

    /// The remaining bytes.
    #[inline]
    pub(super) fn left_bytes(&self) -> u64 {
        u64::from(self.request.work().left_bytes()) + self.beyond_bytes
    }

    /// Whether it is a copy of no bytes.
    #[inline]
    pub(super) fn is_empty_copy(&self) -> bool {
        self.request.work().opcode() == Some(Opcode::Memmove) && self.left_bytes() == 0
    }

    /// Whether it may be a member of a batch.
    #[inline]
    pub(super) fn is_small(&self) -> bool {
        self.request.may_join() && self.left_bytes() <= BATCHED_BYTES_MAX as u64
    }

    /// Cuts a copy so that this item has at most `bytes_max`. Returns the rest, if there is one.
    #[inline]
    pub(super) fn split(&mut self, bytes_max: u32) -> Option<Item> {
        if self.left_bytes() <= bytes_max.into() {
            return None;
        }
        let (rest, beyond_bytes) = self.request.work_mut().split_copy(self.beyond_bytes, bytes_max)?;
        self.beyond_bytes = 0;
        let (job, submitter) = (self.job, self.submitter);
        Some(Item { request: WorkItem::new(rest), job, refusals_count: 0, submitter, beyond_bytes })
    }
}

/// An item after a page fault.
pub struct Faulted {
    /// The number of its driver.
    pub(super) driver: u64,
    pub(super) item: BoxedItem,
    pub(super) completion: Completion,
}

impl Faulted {
    /// Touches the page. The kernel may have to find memory: do not call it under a lock.
    pub fn touch(&mut self, observer: &impl Observer) {
        // SAFETY: no device has the item.
        unsafe { self.item.request.touch(&self.completion, observer) };
    }
}

/// An item for the CPU.
pub struct CpuWork {
    /// The number of its driver.
    pub(super) driver: u64,
    pub(super) item: BoxedItem,
    pub(super) why: OnCpu,
    pub(super) size_bytes: u64,
    end: Option<Result<Ended, Completion>>,
}

impl CpuWork {
    pub(super) fn new(driver: u64, item: BoxedItem, why: OnCpu) -> CpuWork {
        CpuWork { driver, size_bytes: item.left_bytes(), item, why, end: None }
    }

    /// The bytes that the CPU executes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Executes it. Do not call it under a lock.
    pub fn execute(&mut self) {
        let _ = self.end();
    }

    /// Its outcome; executes it if `execute` was not called.
    pub(super) fn end(&mut self) -> Result<Ended, Completion> {
        // SAFETY: no device has the item.
        *self.end.get_or_insert_with(|| unsafe { self.item.request.finish() })
    }
}
