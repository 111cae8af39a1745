//! The mapped page of a queue: 64 places to write 64 bytes to, all of which lead into the same queue.
//!
//! Two MOVDIR64B to the same address may wait for each other in the core, so successive submissions take successive
//! places; the device looks only at the page. Writes to different addresses may overtake each other, though: who
//! needs descriptors to arrive in the order in which one thread submits them stays with one place.
//!
//! Source: DSA specification 3.9 (ordering) and 9.3 (portals); SDM, MOVDIR64B.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Platform, Submission};
use crate::PAGE_BYTES;
use crate::descriptor::Descriptor;
use crate::instructions;

/// Where in the page descriptors are written.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Slots {
    /// At the next 64 bytes each time.
    #[default]
    Rotating,
    /// Always at the first 64 bytes: descriptors of one thread arrive in order.
    One,
}

/// A page that was mapped from a queue's file.
pub(super) struct Mapping {
    page: NonNull<u8>,
    slots: Slots,
    next: AtomicUsize, // submissions so far; counted only to choose the place
}

// SAFETY: the page is never read or written as memory: the instructions write 64 bytes at once to a device, which
// takes them from any thread and core.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(page: NonNull<u8>, slots: Slots) -> Mapping {
        Mapping { page, slots, next: AtomicUsize::new(0) }
    }

    pub(super) fn page(&self) -> NonNull<u8> {
        self.page
    }

    /// Submits to a shared queue.
    ///
    /// # Safety
    /// As [`Portal::submit`](super::Portal::submit); the page is mapped in this process, and the CPU has ENQCMD.
    pub(super) unsafe fn enqcmd(&self, platform: &impl Platform, descriptor: &Descriptor) -> Submission {
        // The instruction faults if the first four bytes are not zero, and puts the submitter there itself.
        let descriptor = descriptor.submitted_by(0);
        instructions::sfence();
        // SAFETY: `slot` is in the page, the rest is passed on to the caller.
        if unsafe { platform.enqcmd(self.slot(), &descriptor) } {
            Submission::Accepted
        } else {
            Submission::Retry
        }
    }

    /// Submits to a dedicated queue, which must have room.
    ///
    /// # Safety
    /// As [`Portal::submit`](super::Portal::submit); the page is mapped in this process, and the CPU has MOVDIR64B.
    pub(super) unsafe fn movdir64b(&self, platform: &impl Platform, descriptor: &Descriptor) {
        instructions::sfence();
        // SAFETY: `slot` is in the page, the rest is passed on to the caller.
        unsafe { platform.movdir64b(self.slot(), descriptor) }
    }

    fn slot(&self) -> NonNull<u8> {
        let offset = match self.slots {
            Slots::One => 0,
            // ORDERING: Relaxed: two threads with the same place would only be a little slower.
            Slots::Rotating => self.next.fetch_add(1, Ordering::Relaxed) * 64 % PAGE_BYTES as usize,
        };
        // SAFETY: the offset is less than the page that was mapped.
        unsafe { self.page.add(offset) }
    }
}
