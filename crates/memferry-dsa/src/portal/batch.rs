//! A probe for batch support.
//!
//! Since INTEL-SA-01084, Linux leaves Batch out of `op_cap` for devices of version 1.0, and refuses batches in
//! `write(2)`. The hardware still has the operation, so a mapped portal may accept it: the probe submits two no-ops.
//!
//! Source: Linux' `drivers/dma/idxd` since 6.9.1 (INTEL-SA-01084).

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use super::{Backoff, BackoffError, Portal, SubmitError, submit_with_backoff};
use crate::completion::{CompletionRecord, Status};
use crate::descriptor::Descriptor;

/// The result of a batch probe.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BatchProbe {
    /// The batch succeeded.
    Works,
    /// The batch completed with another status: [`Status::BadOpcode`] if the device lacks the operation.
    Fails(Status),
    /// The portal refused to submit the batch.
    Refused(SubmitError),
    /// The queue was full until the time limit; probe again.
    QueueFull,
    /// The batch did not complete in time. Its memory is leaked, since the device may still use it.
    Silent,
}

/// The members of the batch and its completion record, in one allocation that can be leaked.
#[derive(Default)]
#[repr(C, align(64))]
struct Probe {
    members: [Descriptor; 2],
    record: CompletionRecord,
}

/// Submits a batch of two no-ops and waits for its completion, for at most about `timeout`.
pub fn probe_batch(portal: &dyn Portal, timeout: Duration) -> BatchProbe {
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
            Err(BackoffError::Portal(error)) => return BatchProbe::Refused(error),
            Err(_) if start.elapsed() >= timeout => return BatchProbe::QueueFull,
            Err(_) => std::thread::yield_now(),
        }
    }
    loop {
        if let Some(completion) = probe.record.poll() {
            portal.completed(1);
            return match completion.status {
                Status::Success => BatchProbe::Works,
                // The device understood the batch. Resident pages can fault as well.
                Status::BatchListFault => BatchProbe::Works,
                other => BatchProbe::Fails(other),
            };
        }
        if start.elapsed() >= timeout {
            std::mem::forget(probe);
            return BatchProbe::Silent;
        }
        std::thread::yield_now();
    }
}
