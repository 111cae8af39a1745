//! Several requests in one submission.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use super::outcome::{Ended, Outcome};
use super::work::Work;
use super::{Invalid, Request};
use crate::completion::Completion;
use crate::operation::Opcode;

/// Requests that are submitted together and run in any order, except for fences.
///
/// Members may share memory through cells ([`Source`](super::Source)). Bytes that one member writes and another accesses
/// are unspecified unless a fence is between the two.
///
/// ```
/// use memferry_dsa::{Batch, Client, ClientOptions, Request};
/// use std::cell::Cell;
///
/// let (source, mut copy) = (*b"123456789", [0u8; 9]);
/// let cells = Cell::from_mut(&mut copy[..]).as_slice_of_cells();
/// let mut batch = Batch::new();
/// batch.add(Request::copy(&source, cells));
/// batch.fence();
/// let crc = batch.add(Request::crc(0, cells));
/// let outcomes = Client::new(Vec::new(), ClientOptions::default()).run_batch(batch)?;
/// assert_eq!(outcomes.get(&crc)?, 0xe306_9283);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Cells belong to one thread, and so do requests and batches:
///
/// ```compile_fail
/// fn send(_: impl Send) {}
/// send(memferry_dsa::Batch::new());
/// ```
///
/// Source: DSA specification 3.8 and 8.3.2.
#[must_use = "a batch does nothing until a client runs it"]
pub struct Batch<'a> {
    id: u64,
    members: Vec<Added<'a>>,
    has_fence: bool,
    has_cells: bool,
    problem: Option<(usize, Invalid)>,
}

struct Added<'a> {
    work: Work<'a>,
    has_fence: bool,
}

/// A member of a batch, for [`Outcomes::get`]; see the example of [`Batch`].
#[derive(Debug)]
pub struct Ticket<O> {
    batch: u64,
    index: usize,
    outcome: PhantomData<fn() -> O>,
}

/// The outcomes of a batch; see the example of [`Batch`].
#[derive(Debug)]
pub struct Outcomes {
    batch: u64,
    members: Vec<Result<Ended, MemberError>>,
}

/// The reason why a member has no outcome.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// A member in front of a fence did not succeed, so this one was not executed.
    #[error("not executed, because a member in front of a fence did not succeed: see its outcome")]
    Abandoned,
    /// The device failed. The content of its target is unspecified.
    #[error("the device failed with {}: its memory is unspecified", .0.status)]
    Failed(Completion),
    /// The ticket is of another batch.
    #[error("the ticket is of another batch")]
    Foreign,
}

static BATCHES: AtomicU64 = AtomicU64::new(0);

impl<'a> Batch<'a> {
    /// A batch without members.
    pub fn new() -> Batch<'a> {
        let id = BATCHES.fetch_add(1, Ordering::Relaxed);
        Batch { id, members: Vec::new(), has_fence: false, has_cells: false, problem: None }
    }

    /// Adds a member.
    pub fn add<O: Outcome>(&mut self, request: Request<'a, O>) -> Ticket<O> {
        let index = self.members.len();
        let checked = match request.descriptor.opcode() {
            Ok(Opcode::Drain) => Err(Invalid::DrainInBatch),
            _ => request.check(),
        };
        if let Err(invalid) = checked {
            self.problem.get_or_insert((index, invalid));
        }
        self.has_cells |= request.has_cells();
        let has_fence = std::mem::take(&mut self.has_fence);
        self.members.push(Added { work: Work::new(&request), has_fence });
        Ticket { batch: self.id, index, outcome: PhantomData }
    }

    /// Adds a fence: later members wait for all earlier ones, and run only if those succeed, with good data integrity
    /// fields, with the expected result, and without an error.
    pub fn fence(&mut self) {
        self.has_fence = !self.members.is_empty();
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Checks all members as [`Request::check`] does.
    ///
    /// # Errors
    /// The number of the first invalid member, and its error.
    pub fn check(&self) -> Result<(), (usize, Invalid)> {
        self.problem.map_or(Ok(()), Err)
    }

    /// The bytes of the members' memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.members.iter().map(|member| member.work.bytes()).sum()
    }

    /// Whether some of that memory is cells, which other code may access.
    pub(crate) fn has_cells(&self) -> bool {
        self.has_cells
    }

    /// Its number, and its members, each with whether a fence is before it.
    pub(crate) fn into_members(self) -> (u64, impl Iterator<Item = (Work<'a>, bool)>) {
        (self.id, self.members.into_iter().map(|Added { work, has_fence }| (work, has_fence)))
    }
}

impl Default for Batch<'_> {
    fn default() -> Self {
        Batch::new()
    }
}

impl Outcomes {
    /// The outcomes of the batch with this number.
    pub(crate) fn new(batch: u64, members: Vec<Result<Ended, MemberError>>) -> Outcomes {
        Outcomes { batch, members }
    }

    /// The outcome of a member.
    ///
    /// # Errors
    /// [`MemberError`]: it has none.
    pub fn get<O: Outcome>(&self, ticket: &Ticket<O>) -> Result<O, MemberError> {
        if ticket.batch != self.batch {
            return Err(MemberError::Foreign);
        }
        let end = self.members.get(ticket.index).copied().ok_or(MemberError::Foreign)??;
        end.outcome().ok_or(MemberError::Foreign)
    }

    /// Whether every member has an outcome.
    pub fn all_ended(&self) -> bool {
        self.members.iter().all(Result::is_ok)
    }
}
