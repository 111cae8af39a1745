//! A probe for batch support.
//!
//! Since INTEL-SA-01084, Linux leaves Batch out of `op_cap` for devices of version 1.0, and refuses batches in
//! `write(2)`. The hardware still has the operation, so a mapped portal may accept it: the probe submits two no-ops.
//!
//! Source: Linux' `drivers/dma/idxd` since 6.9.1 (INTEL-SA-01084).

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use super::{Backoff, BackoffError, Portal, submit_with_backoff};
use crate::completion::{CompletionRecord, Status};
use crate::descriptor::Descriptor;

/// The members of the batch and its completion record, in one allocation that can be leaked.
#[derive(Default)]
#[repr(C, align(64))]
struct Probe {
    members: [Descriptor; 2],
    record: CompletionRecord,
}

/// Whether the device executes batches: submits a batch of two no-ops and waits for its completion, for at most about
/// `timeout`. The memory of a batch that does not complete in time is leaked, since the device may still use it.
pub fn executes_batches(portal: &dyn Portal, timeout: Duration) -> bool {
    let start = Instant::now();
    let mut probe = Box::<Probe>::default();
    probe.members = [Descriptor::noop(); 2];
    let list = &raw const probe.members;
    let batch = Descriptor::batch(list.cast::<Descriptor>(), 2).with_completion(&probe.record);
    loop {
        // SAFETY: the members and the record stay until the record is written, or for ever if it is not; no other code
        // has a reference to them.
        match unsafe { submit_with_backoff(portal, &batch, Backoff::default()) } {
            Ok(_) => break,
            Err(BackoffError::Portal(_)) => return false,
            Err(_) if start.elapsed() >= timeout => return false,
            Err(_) => std::thread::yield_now(),
        }
    }
    loop {
        if let Some(completion) = probe.record.poll() {
            portal.completed(1);
            // A device that reports a fault of the list understood the batch; resident pages can fault as well.
            return matches!(completion.status, Status::Success | Status::BatchListFault);
        }
        if start.elapsed() >= timeout {
            std::mem::forget(probe);
            return false;
        }
        std::thread::yield_now();
    }
}
