//! A queue's entry as a value: it is given back when the value is dropped.

use std::ops::Deref;

use super::{Portal, Submission, SubmitError};
use crate::descriptor::Descriptor;
use crate::fork;

/// An entry of a queue, held by a descriptor in flight.
///
/// Drop it when the descriptor's completion record is written. If the completion never comes, forget it
/// ([`std::mem::forget`]): the entry may still be taken.
#[derive(Debug)]
#[must_use = "dropping it says that the descriptor has ended"]
pub struct Entry<P>
where
    P: Deref,
    P::Target: Portal,
{
    portal: P,
    generation: u32,
}

/// The answer of a queue that hands out its entry.
#[derive(Debug)]
#[must_use = "a descriptor that was not accepted is not going to be processed"]
pub enum Offer<P>
where
    P: Deref,
    P::Target: Portal,
{
    /// The queue took the descriptor; drop the entry when it has ended.
    Accepted(Entry<P>),
    /// The queue is full now; nothing happened, and the portal comes back.
    Retry(P),
}

/// Submits through a portal and holds the entry: [`Portal::submit`] whose [`Portal::completed`] cannot be forgotten.
///
/// # Errors
/// As [`Portal::submit`].
///
/// # Safety
/// As [`Portal::submit`]; and the entry is dropped only after the descriptor has ended.
#[allow(unsafe_code)]
pub unsafe fn submit_held<P>(portal: P, descriptor: &Descriptor) -> Result<Offer<P>, SubmitError>
where
    P: Deref,
    P::Target: Portal,
{
    // SAFETY: passed on to the caller.
    match unsafe { portal.submit(descriptor)? } {
        Submission::Accepted => Ok(Offer::Accepted(Entry { portal, generation: fork::generation() })),
        Submission::Retry => Ok(Offer::Retry(portal)),
    }
}

impl<P> Drop for Entry<P>
where
    P: Deref,
    P::Target: Portal,
{
    fn drop(&mut self) {
        // The copy of it that a forked child has is of the parent's queue.
        if fork::generation() == self.generation {
            self.portal.completed(1);
        }
    }
}
