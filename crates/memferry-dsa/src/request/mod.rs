//! Every operation of DSA 1.0 as a request: typed, checked before its submission, and with a borrow of its memory.
//!
//! ```text
//! Request<'a, O>   a descriptor and the borrow 'a of its memory; O is its outcome
//!   check          rules of the operation: sizes, alignment, overlap, options     Invalid: wrong on every device
//!   fits           limits of a queue: operations, version, sizes                  OnCpu: another queue, or the CPU
//! Batch<'a>        requests with fences between them; a Ticket<O> for each outcome
//! Work<'a>         a request in progress: pieces, page faults, parts that the CPU executes
//! Task             the same without the borrow, for a driver whose owner keeps the memory
//! ```
//!
//! # Page faults
//!
//! A device stops at an absent page and reports the completed bytes. An ordinary access to the request's own memory
//! touches the page, so that the kernel places it by the memory policy of its range. Then *the rest is submitted again*,
//! because a fault usually concerns one page of many, and the caller has asked for a device. After a number of faults
//! ([`ClientOptions::faults_max`](crate::ClientOptions::faults_max)) the CPU executes the rest: with many faults each page
//! costs a submission, and faults of the CPU are cheaper. The outcome is always that of a request without faults, to the
//! bit.
//!
//! A request that is larger than the limit of its queue is cut into pieces, which follow each other like parts between
//! faults. A request that cannot be cut (Apply Delta, members of a batch, blocks larger than the limit) does not fit.
//!
//! # Newer than 1.0
//!
//! [`Request::fill_16`] is for devices of version 2.0. With devices of version 1.0, the CPU executes it.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3.

#[cfg(not(memferry_loom))] // where there is no client
mod batch;
mod check;
mod execute;
mod make;
mod memory;
mod on_cpu;
mod outcome;
mod resume;
#[allow(unsafe_code)]
mod task;
#[cfg(all(test, not(memferry_loom)))]
mod tests;
#[allow(unsafe_code)]
mod work;

use std::cell::Cell;
use std::marker::PhantomData;

#[cfg(not(memferry_loom))]
pub use batch::{Batch, MemberError, Outcomes, Ticket};
pub use check::{DELTA_ROOM_BYTES_MIN, Invalid};
#[cfg(not(memferry_loom))]
pub(crate) use execute::bytes_of;
pub use execute::touch;
pub use memory::{Source, Target};
pub use on_cpu::OnCpu;
pub use outcome::{Ended, Outcome};
pub use task::Task;
pub(crate) use work::{HINTS, Step, Work};

use crate::completion::DeltaResult;
use crate::descriptor::Descriptor;
use crate::flags::Flags;
use crate::software::Delta;

/// An operation on borrowed memory with an outcome `O`.
///
/// Constructors such as [`copy`](Request::copy) and [`fill`](Request::fill) make it; a [`Client`](crate::Client) runs it,
/// alone or in a [`Batch`].
///
/// ```
/// use memferry_dsa::{Client, ClientOptions, Request};
///
/// let client = Client::new(Vec::new(), ClientOptions::default()); // without queues: the CPU
/// assert_eq!(client.run(Request::compare(b"near", b"neat"))?, Some(3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a request does nothing until a client runs it"]
#[derive(Debug)]
pub struct Request<'a, O> {
    pub(crate) descriptor: Descriptor,
    problem: Option<Invalid>,
    has_cells: bool,
    borrow: PhantomData<&'a Cell<u8>>, // not to be sent: the memory may be cells
    outcome: PhantomData<fn() -> O>,
}

impl<O> Request<'_, O> {
    /// Puts the target's lines into the last-level cache instead of memory: for data that is read soon and fits.
    ///
    /// A hint: a device without it gets the request without the hint, which the client counts.
    pub fn into_cache(self) -> Self {
        self.with_flags(Flags::CACHE_CONTROL)
    }

    /// Lets the device ask the operating system for absent pages and wait for them, instead of stopping there.
    ///
    /// A hint: a queue that does not allow it stops as usual, which the client counts. Other descriptors of the engine
    /// wait as well, and the device resolves faults more slowly than the CPU.
    pub fn block_on_fault(self) -> Self {
        self.with_flags(Flags::BLOCK_ON_FAULT)
    }

    fn with_flags(self, flags: Flags) -> Self {
        Request { descriptor: self.descriptor.with_flags(flags), ..self }
    }

    /// Checks the rules that hold for every device.
    ///
    /// # Errors
    /// [`Invalid`]: the violated rule and the remedy.
    pub fn check(&self) -> Result<(), Invalid> {
        match self.problem {
            Some(problem) => Err(problem),
            None => check::check(&self.descriptor),
        }
    }

    /// Whether some of its memory is cells, to which others may have access.
    pub(crate) fn has_cells(&self) -> bool {
        self.has_cells
    }
}

impl Request<'_, Option<usize>> {
    /// In a batch: members behind a fence run only if the regions are equal.
    pub fn expecting_equal(self) -> Self {
        Request { descriptor: self.descriptor.with_expected_result(0), ..self }
    }

    /// In a batch: members behind a fence run only if the regions differ.
    pub fn expecting_difference(self) -> Self {
        Request { descriptor: self.descriptor.with_expected_result(1), ..self }
    }
}

impl Request<'_, Delta> {
    /// In a batch: members behind a fence run only if the result is one of these.
    pub fn expecting(self, results: &[DeltaResult]) -> Self {
        let expected = outcome::delta_results(results);
        Request { descriptor: self.descriptor.with_expected_result(expected), ..self }
    }
}
