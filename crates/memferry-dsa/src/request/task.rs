//! A request without the borrow of its memory, for those who drive devices themselves.
//!
//! A client borrows memory while it waits. Who submits now and looks for the completion later, on another thread, keeps
//! the memory by other means, and does with a task what a client does:
//!
//! ```text
//! fits?  next ──▶ a device ──▶ absorb: Ended, or Next, or Fault: touch; or NotTaken: another queue, or ──▶ execute
//! ```

use super::check::has_option;
use super::outcome::Ended;
use super::work::{HINTS, Step, Work};
use super::{Invalid, Outcome, Request, Unfit};
use crate::completion::{Completion, Status};
use crate::descriptor::Descriptor;
use crate::flags::Flags;
use crate::operation::Opcode;
use crate::portal::WorkQueueInfo;
use crate::system::Version;

/// A checked operation on its way: pieces, page faults, and parts done by the CPU are all in it.
pub struct Task {
    opcode: Opcode,
    size_bytes: u32,
    work: Work<'static>,
}

// SAFETY: a task is addresses and numbers. That its memory may be used from any thread is what `new` demands; it takes
// no cells, which are why requests stay in their thread.
unsafe impl Send for Task {}

/// What a completion means for a task.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Progress {
    /// It has ended.
    Ended(Ended),
    /// A piece is done; submit the next.
    Next,
    /// A page fault: [`touch`](Task::touch) the page, then submit the rest.
    Fault,
    /// The device does not know these hints. They are left out from now on; submit it again.
    HintRefused(Flags),
    /// The device does not take it: go elsewhere.
    NotTaken,
    /// The device failed, or tells what cannot be. What should have been written is unspecified.
    Failed(Status),
}

impl Task {
    /// A task that does what `request` says.
    ///
    /// # Errors
    /// As [`Request::check`]; [`Invalid::Cells`] for memory that came as cells; [`Invalid::DrainAsTask`].
    ///
    /// # Safety
    /// Until the task has [`Ended`](Progress::Ended), or is dropped while no device has it, the memory of the request
    /// is valid on every thread; nobody writes what it reads, and nobody else accesses what it writes.
    pub unsafe fn new<O: Outcome>(request: &Request<'_, O>) -> Result<Task, Invalid> {
        request.check()?;
        let descriptor = request.descriptor;
        let opcode = descriptor.opcode().unwrap_or(Opcode::Noop);
        match opcode {
            Opcode::Drain => Err(Invalid::DrainAsTask),
            _ if request.has_cells() => Err(Invalid::Cells(opcode)),
            _ => Ok(Task { opcode, size_bytes: descriptor.size(), work: Work::of(descriptor) }),
        }
    }

    /// The operation.
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The size that its descriptor names: of the source, or of the target where there is none.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.into()
    }

    /// How much of [`size_bytes`](Self::size_bytes) is left. Apply Delta has all left until its end.
    pub fn left_bytes(&self) -> u64 {
        self.work.left_bytes().into()
    }

    /// Whether a queue of a device of `version` takes what is left; in pieces, if they `may_cut` it.
    ///
    /// # Errors
    /// [`Unfit`]: why not.
    pub fn fits(&self, queue: &WorkQueueInfo, version: Version, may_cut: bool) -> Result<(), Unfit> {
        self.work.fits(queue, version, may_cut)
    }

    /// Asks for these hints as far as the operation has them: data in the last-level cache, waiting for absent pages. Only
    /// before the first [`next`](Self::next).
    pub fn add_hints(&mut self, into_cache: bool, block_on_fault: bool) {
        for (is_wanted, hint) in [(into_cache, Flags::CACHE_CONTROL), (block_on_fault, Flags::BLOCK_ON_FAULT)]
        {
            if is_wanted && has_option(self.opcode, hint) {
                self.work.add_flags(hint);
            }
        }
    }

    /// Leaves out hints: flags without which the outcome is the same.
    pub fn drop_hints(&mut self, hints: Flags) {
        self.work.drop_flags(Flags::from_bits(hints.bits() & HINTS.bits()));
    }

    /// What to submit next, at most `bytes_max` of it if it can be cut. It has no completion record.
    pub fn next(&mut self, bytes_max: u32) -> Descriptor {
        self.work.next(bytes_max)
    }

    /// Takes in how what [`next`](Self::next) returned has ended.
    ///
    /// # Safety
    /// `completion` is that of a device which executed what `next` last returned and accesses its memory no more.
    pub unsafe fn absorb(&mut self, completion: &Completion) -> Progress {
        // SAFETY: passed on to the caller.
        match unsafe { self.work.absorb(completion) } {
            Step::Ended(end) => Progress::Ended(Ended(end)),
            Step::Next => Progress::Next,
            Step::Fault => Progress::Fault,
            Step::NotTaken(flags) => {
                let hints = Flags::from_bits(flags.bits() & HINTS.bits());
                if hints.is_empty() {
                    return Progress::NotTaken;
                }
                self.work.drop_flags(hints);
                Progress::HintRefused(hints)
            }
            Step::Failed => Progress::Failed(completion.status),
        }
    }

    /// Touches the page that a fault was about, as its owner would. Whether it was one of the task's.
    ///
    /// # Safety
    /// No device has the task.
    pub unsafe fn touch(&self, completion: &Completion) -> bool {
        // SAFETY: passed on to the caller.
        unsafe { self.work.touch(completion) }
    }

    /// Does all that is left on the CPU.
    ///
    /// # Errors
    /// A status that says what the CPU cannot do; there is none that requests pass the check with.
    ///
    /// # Safety
    /// No device has the task.
    pub unsafe fn execute(&mut self) -> Result<Ended, Status> {
        // SAFETY: passed on to the caller.
        unsafe { self.work.finish() }.map(Ended).map_err(|completion| completion.status)
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let left_bytes = self.left_bytes();
        f.debug_struct("Task").field("opcode", &self.opcode).field("left_bytes", &left_bytes).finish()
    }
}
