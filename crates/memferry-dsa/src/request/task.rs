//! A request without the borrow of its memory, for a [`Driver`](crate::driver::Driver).
//!
//! A client borrows memory while it waits. A caller that submits now and looks for the completion later, on another
//! thread, keeps the memory by other means.

use super::check::has_option;
use super::outcome::Ended;
use super::work::Work;
use super::{Invalid, Outcome, Request};
use crate::completion::Status;
use crate::descriptor::Descriptor;
use crate::flags::Flags;
use crate::operation::Opcode;

/// A checked operation on memory that the caller keeps.
pub struct Task {
    opcode: Opcode,
    work: Work<'static>,
    /// Bytes of a copy behind the ones that a descriptor can name.
    beyond_bytes: u64,
}

// SAFETY: a task is addresses and numbers. The contracts of `new` and `copy` allow the use of its memory on any thread. It has
// no cells, which keep requests in their thread.
unsafe impl Send for Task {}

impl Task {
    /// The task of a request.
    ///
    /// # Errors
    /// As [`Request::check`]; [`Invalid::Cells`] for memory that came as cells; [`Invalid::DrainAsTask`].
    ///
    /// # Safety
    /// Until the task has ended, or is dropped while no device has it, the memory of the request is valid on every
    /// thread; no other code writes its sources or accesses its targets. This holds for ever if a driver reports that the
    /// task is lost in a silent device, or is dropped with the task in it.
    pub unsafe fn new<O: Outcome>(request: &Request<'_, O>) -> Result<Task, Invalid> {
        request.check()?;
        let descriptor = request.descriptor;
        let opcode = descriptor.opcode().unwrap_or(Opcode::Noop);
        match opcode {
            Opcode::Drain => Err(Invalid::DrainAsTask),
            _ if request.has_cells() => Err(Invalid::Cells(opcode)),
            _ => Ok(Task { opcode, work: Work::of(descriptor), beyond_bytes: 0 }),
        }
    }

    /// A copy of any size, also of none. A driver cuts it into parts that several queues execute at once.
    ///
    /// # Safety
    /// As [`new`](Self::new), for `size_bytes` from `source`, which are read, and as many from `target`, which are
    /// written. They do not overlap.
    #[inline]
    pub unsafe fn copy(source: *const u8, target: *mut u8, size_bytes: usize) -> Task {
        let named_bytes = u32::try_from(size_bytes).unwrap_or(u32::MAX);
        let work = Work::of(Descriptor::memmove(source, target, named_bytes));
        Task { opcode: Opcode::Memmove, work, beyond_bytes: size_bytes as u64 - u64::from(named_bytes) }
    }

    /// The operation.
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The size that its descriptor names: of the source, or of the target where there is none.
    pub fn size_bytes(&self) -> u64 {
        u64::from(self.work.left_bytes()) + self.beyond_bytes
    }

    /// Adds these hints if the operation has them: the target in the last-level cache, waiting for absent pages.
    #[inline]
    pub fn add_hints(&mut self, into_cache: bool, block_on_fault: bool) {
        for (is_wanted, hint) in [(into_cache, Flags::CACHE_CONTROL), (block_on_fault, Flags::BLOCK_ON_FAULT)]
        {
            if is_wanted && has_option(self.opcode, hint) {
                self.work.add_flags(hint);
            }
        }
    }

    /// Executes it on the CPU.
    ///
    /// # Errors
    /// The status of an operation that the CPU does not have; checked requests have none.
    ///
    /// # Safety
    /// The contract of [`new`](Self::new) or [`copy`](Self::copy) holds until this returns.
    pub unsafe fn execute(&mut self) -> Result<Ended, Status> {
        loop {
            let rest = self.work.split_copy(self.beyond_bytes, u32::MAX);
            // SAFETY: passed on to the caller; no device has the task.
            let end = unsafe { self.work.finish() }.map_err(|completion| completion.status);
            match rest {
                Some(rest) if end.is_ok() => (self.work, self.beyond_bytes) = rest,
                _ => return end,
            }
        }
    }

    /// The work, and the bytes of a copy behind it.
    #[inline]
    pub(crate) fn into_work(self) -> (Work<'static>, u64) {
        (self.work, self.beyond_bytes)
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("opcode", &self.opcode).field("size_bytes", &self.size_bytes()).finish()
    }
}
