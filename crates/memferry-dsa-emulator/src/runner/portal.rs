//! The portal of a device in a thread of its own.

#![allow(unsafe_code)]

use std::sync::Arc;

use memferry_dsa::internals::fork;
use memferry_dsa::{Descriptor, Portal, PortalCounters, PortalKind, Submission, SubmitError, WorkQueueInfo};

use super::threaded::{DeviceHandle, Emulator, QueueAccount};

/// The one address space of the descriptors of this process.
const PASID: u32 = 1;

/// A portal that keeps its device alive.
pub(super) struct EmulatedPortal {
    pub(super) handle: Arc<DeviceHandle>,
    pub(super) queue: usize,
    pub(super) is_counted: bool,
    pub(super) _emulator: Arc<Emulator>,
}

impl EmulatedPortal {
    fn account(&self) -> &QueueAccount {
        &self.handle.accounts[self.queue]
    }
}

// SAFETY: the device follows the specification, writes records last, and accesses no memory after its worker, as its
// last action, has marked it as gone. It has no part in a forked child, whose memory it does not reach.
unsafe impl Portal for EmulatedPortal {
    fn work_queue(&self) -> &WorkQueueInfo {
        &self.handle.interface.queues[self.queue].info
    }

    fn kind(&self) -> PortalKind {
        PortalKind::Emulated
    }

    unsafe fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError> {
        let QueueAccount { credits, cells } = self.account();
        let generation = self.handle.generation;
        if !self.handle.is_of_this_process() {
            return cells.count(Err(SubmitError::Gone));
        }
        if self.is_counted && !self.is_gone() && !credits.take(generation) {
            return cells.count(Ok(Submission::Retry));
        }
        let answer = self.handle.interface.submit(self.queue, descriptor, PASID);
        if answer == Ok(Submission::Accepted) {
            self.handle.wake();
        } else if self.is_counted {
            credits.release(generation, 1);
        }
        cells.count(answer)
    }

    fn completed(&self, count: u32) {
        if self.is_counted && self.handle.is_of_this_process() {
            self.account().credits.release(self.handle.generation, count);
        }
    }

    fn is_gone(&self) -> bool {
        self.handle.is_gone()
    }

    fn counters(&self) -> PortalCounters {
        let QueueAccount { credits, cells } = self.account();
        cells.snapshot(credits.taken(fork::generation()))
    }
}
