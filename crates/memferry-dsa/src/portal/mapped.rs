//! The mapped page of a queue: 64 slots of 64 bytes, all of which lead into the same queue.
//!
//! Two MOVDIR64B to the same address may wait for each other in the core, so successive submissions use successive
//! slots; the device decodes only the page. Writes to different addresses may overtake each other: use one slot if
//! descriptors must arrive in the order in which a thread submits them.
//!
//! Source: DSA specification 3.9 (ordering) and 9.3 (portals); SDM, MOVDIR64B.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Platform, Submission};
use crate::address::PAGE_BYTES;
use crate::descriptor::Descriptor;
use crate::instructions;

/// The slots of the page that descriptors are written to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Slots {
    /// The next 64 bytes each time.
    #[default]
    Rotating,
    /// Always the first 64 bytes: descriptors of one thread arrive in order.
    One,
}

/// The mapped page of a queue's file. Submitters increment `next` (Relaxed); the other fields never change.
pub(super) struct Mapping {
    page: NonNull<u8>,
    slots: Slots,
    next: AtomicUsize, // submissions so far, to choose the slot
}

// SAFETY: the page is never read or written as memory: the instructions write 64 bytes at once to a device, which
// accepts them from any thread and core.
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
        // The instruction faults if the first four bytes are not zero, and writes the PASID there itself.
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
            // Relaxed: two threads in the same slot are only a little slower.
            Slots::Rotating => self.next.fetch_add(1, Ordering::Relaxed) * 64 % PAGE_BYTES as usize,
        };
        // SAFETY: the offset is less than the page that was mapped.
        unsafe { self.page.add(offset) }
    }
}
