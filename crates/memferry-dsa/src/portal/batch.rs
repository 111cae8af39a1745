//! Asking the device itself whether it takes batches.
//!
//! Linux leaves Batch out of `op_cap` for devices of version 1.0, and refuses to submit one by `write(2)`, since
//! INTEL-SA-01084. The hardware still knows it, so a mapped portal may; two no-ops tell.
//!
//! Source: Linux' `drivers/dma/idxd` since 6.9.1 (INTEL-SA-01084).

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use super::{Backoff, BackoffError, Portal, SubmitError, submit_with_backoff};
use crate::completion::{CompletionRecord, Status};
use crate::descriptor::Descriptor;

/// What became of the question whether a device takes batches.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BatchProbe {
    /// A batch ended with success.
    Works,
    /// A batch ended with something else: with [`Status::BadOpcode`] if the device does not know it.
    Fails(Status),
    /// The portal does not submit batches.
    Refused(SubmitError),
    /// The queue was full until the end: ask again.
    QueueFull,
    /// Nothing was heard of the batch in time. Its memory is leaked, since the device may still use it.
    Silent,
}

/// The batch, its members and their records, in one piece that can be leaked.
#[derive(Default)]
#[repr(C, align(64))]
struct Question {
    members: [Descriptor; 2],
    record: CompletionRecord,
}

/// Submits a batch of two no-ops and waits for it, at most about `timeout`.
pub fn probe_batch(portal: &dyn Portal, timeout: Duration) -> BatchProbe {
    let start = Instant::now();
    let mut question = Box::<Question>::default();
    question.members = [Descriptor::noop(); 2];
    let list = &raw const question.members;
    let batch = Descriptor::batch(list.cast::<Descriptor>(), 2).with_completion(&question.record);
    loop {
        // SAFETY: the members and the record stay until the record is written, or for ever if it is not; nobody
        // else knows them.
        match unsafe { submit_with_backoff(portal, &batch, Backoff::default()) } {
            Ok(_) => break,
            Err(BackoffError::Portal(error)) => return BatchProbe::Refused(error),
            Err(_) if start.elapsed() >= timeout => return BatchProbe::QueueFull,
            Err(_) => std::thread::yield_now(),
        }
    }
    loop {
        if let Some(completion) = question.record.poll() {
            portal.completed(1);
            return match completion.status {
                Status::Success => BatchProbe::Works,
                // Pages that are there can fault all the same; the batch was understood.
                Status::BatchListFault => BatchProbe::Works,
                other => BatchProbe::Fails(other),
            };
        }
        if start.elapsed() >= timeout {
            std::mem::forget(question);
            return BatchProbe::Silent;
        }
        std::thread::yield_now();
    }
}
