//! What every engine is to its users: something that takes a [`RawCopy`] and finishes it once.
//!
//! One conformance suite, `tests/engines.rs`, is run by every engine there is.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use memferry_dsa::request::{Ended, Task};
use memferry_dsa::{Opcode, Status};
use serde::Serialize;

use super::{CopyError, CopyMethods, CopyReport, EngineStats};
use crate::topology::NodeId;

/// What an engine copies with.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EngineKind {
    /// CPU cores.
    Cpu,
    /// Intel Data Streaming Accelerators.
    Dsa,
}

/// Something that copies.
///
/// Every copy that [`submit`](Engine::submit) accepts is finished exactly once, whatever happens to the engine:
/// dropping an engine first finishes what it accepted. Engines never block in `submit`, and finish copies in
/// any order, on any thread.
pub trait Engine: fmt::Debug + Send + Sync {
    /// What reports call it.
    fn name(&self) -> &str;

    /// What it copies with.
    fn kind(&self) -> EngineKind;

    /// The node it is on, where one is known.
    fn node(&self) -> Option<NodeId>;

    /// How many copies it works on at once, at least 1: a copy that is split has at least as many pieces.
    fn width(&self) -> usize {
        1
    }

    /// Whether it takes operations of this kind, which are more than a copy. Nobody submits them to an engine that does
    /// not.
    fn supports(&self, _opcode: Opcode) -> bool {
        false
    }

    /// Copies that it has: of equal engines the one with the least is asked first.
    fn load(&self) -> usize {
        0
    }

    /// Takes several copies, and returns those that it does not take. As if each was submitted, but cheaper where the
    /// engine knows a way.
    fn submit_all(&self, copies: Vec<RawCopy>) -> Vec<Rejected> {
        copies.into_iter().filter_map(|copy| self.submit(copy).err()).collect()
    }

    /// Takes a copy, or hands it back untouched. Never blocks.
    ///
    /// The copy may be finished before this returns, on this thread: hold no lock that its `done` needs.
    ///
    /// # Errors
    /// [`Rejected`], with the copy in it.
    fn submit(&self, copy: RawCopy) -> Result<(), Rejected>;

    /// What it did so far.
    fn stats(&self) -> EngineStats;
}

/// A copy that an engine did not take.
#[derive(Debug)]
pub struct Rejected {
    /// The copy, as it was.
    pub copy: RawCopy,
    /// Why.
    pub why: Refusal,
}

/// Why an engine does not take a copy.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not now: its queue is full.
    Full,
    /// Never again: it is shut down, or its device died.
    Gone,
}

/// The callback of a copy.
pub(super) type Done = Box<dyn FnOnce(Result<CopyReport, CopyError>) + Send>;

/// A copy as engines see it: two addresses, a size, and what to call in the end.
///
/// Or an operation ([`is_operation`](RawCopy::is_operation)), for engines that [support](Engine::supports) it: then there
/// are no addresses, and the mover's own engines know what to do.
///
/// It is finished exactly once, which the type sees to: finishing consumes it, and one that is dropped unfinished
/// finishes with [`CopyError::Abandoned`].
pub struct RawCopy {
    source: *const u8,
    target: *mut u8,
    size_bytes: usize,
    block_on_fault: bool,
    into_cache: bool,
    made: Instant,
    done: Option<Done>,
    opcode: Opcode,
    operation: Option<Box<RawOperation>>,
}

/// An operation that is more than a copy, and where its end goes.
pub(super) struct RawOperation {
    /// A cell, since engines have copies by reference.
    task: RefCell<Task>,
    /// Set before `done` is called, unless with an error.
    end: Arc<OnceLock<Result<Ended, Status>>>,
}

// SAFETY: the pointers are only used under the contract of `new`, which does not depend on the thread; `done`
// is Send.
unsafe impl Send for RawCopy {}

impl RawCopy {
    /// A copy of `size_bytes` from `source` to `target`.
    ///
    /// `done` runs once, on whatever thread finishes the copy, perhaps inside `submit`. It must be short, must
    /// not wait for another copy, and takes no lock that is held around `submit`. When its error says
    /// [`buffers_are_lost`](CopyError::buffers_are_lost), it must leak the buffers. If it panics, the panic
    /// ends there.
    ///
    /// # Safety
    /// Until `done` is called, `source` is readable and nobody writes there; `target` is writable and nobody else
    /// reads or writes there; they do not overlap. If `done` is called with an error whose buffers are lost, that
    /// stays so for ever. A `done` that is never called means for ever, too.
    pub unsafe fn new(
        source: *const u8,
        target: *mut u8,
        size_bytes: usize,
        done: impl FnOnce(Result<CopyReport, CopyError>) + Send + 'static,
    ) -> RawCopy {
        let done: Done = Box::new(done);
        RawCopy {
            source,
            target,
            size_bytes,
            block_on_fault: false,
            into_cache: false,
            made: Instant::now(),
            done: Some(done),
            opcode: Opcode::Memmove,
            operation: None,
        }
    }

    /// An operation that need not be a copy. What it yields is told to `done`, which otherwise is that of
    /// [`new`](RawCopy::new); the memory is that of the task, as was promised when it was made.
    pub(super) fn of_task(
        task: Task,
        done: impl FnOnce(Result<(Ended, CopyReport), CopyError>) + Send + 'static,
    ) -> RawCopy {
        let size_bytes = usize::try_from(task.size_bytes()).expect("sizes of requests are 32 bits");
        let opcode = task.opcode();
        let end = Arc::new(OnceLock::new());
        let operation = RawOperation { task: RefCell::new(task), end: end.clone() };
        let done: Done = Box::new(move |result| {
            done(result.and_then(|report| match end.get() {
                Some(Ok(ended)) => Ok((*ended, report)),
                Some(Err(status)) => Err(CopyError::Device { status: status.code() }),
                None => Err(CopyError::Abandoned),
            }))
        });
        RawCopy {
            source: std::ptr::null(),
            target: std::ptr::null_mut(),
            size_bytes,
            block_on_fault: false,
            into_cache: false,
            made: Instant::now(),
            done: Some(done),
            opcode,
            operation: Some(Box::new(operation)),
        }
    }

    /// Lets a device write the target to the last-level cache instead of memory, if it can. Operations that are no copies
    /// say so in their request.
    pub fn with_cache_control(mut self, into_cache: bool) -> RawCopy {
        self.into_cache = into_cache;
        self
    }

    /// Lets a device wait for the pages it misses, where its queue allows that, instead of stopping there.
    pub fn with_block_on_fault(mut self, block_on_fault: bool) -> RawCopy {
        self.block_on_fault = block_on_fault;
        self
    }

    /// The operation: [`Opcode::Memmove`] for a copy.
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// Where to read. Good until the copy is finished; null for what is no copy.
    pub fn source(&self) -> *const u8 {
        self.source
    }

    /// Where to write. Good until the copy is finished; null for what is no copy.
    pub fn target(&self) -> *mut u8 {
        self.target
    }

    /// How much.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Whether a device may wait for pages.
    pub fn block_on_fault(&self) -> bool {
        self.block_on_fault
    }

    /// Whether a device shall write to the last-level cache.
    pub fn into_cache(&self) -> bool {
        self.into_cache
    }

    /// It is no plain copy, but an operation, which has no addresses and cannot be cut into parts.
    pub fn is_operation(&self) -> bool {
        self.operation.is_some()
    }

    /// The operation, for an engine that does it in its own way. What is left is to be finished.
    pub(super) fn take_operation(&mut self) -> Option<Box<RawOperation>> {
        self.operation.take()
    }

    /// When it was made: the begin of its latency.
    pub fn made(&self) -> Instant {
        self.made
    }

    /// Copies, or does the operation, here and now. The report is for [`finish`](RawCopy::finish).
    pub(super) fn copy_on_this_cpu(&self, methods: &CopyMethods) -> CopyReport {
        let report = CopyReport { cpu_bytes: self.size_bytes as u64, dsa_bytes: 0 };
        if let Some(operation) = &self.operation {
            operation.execute();
            return report;
        }
        // SAFETY: `new`'s caller promised that both ranges are valid, unshared and apart until `finish`, which
        // has not happened, since it would have consumed `self`.
        unsafe { methods.copy_raw(self.source, self.target, self.size_bytes) };
        report
    }

    /// Reports the end of the copy to whoever asked for it. From here on the buffers are theirs again.
    pub fn finish(mut self, result: Result<CopyReport, CopyError>) {
        self.call_done(result);
    }

    /// A part of this copy as a copy of its own.
    ///
    /// # Safety
    /// `bytes` lies within this copy, and overlaps no other part whose `done` has not been called. This copy is not
    /// finished before its parts are, and if one of them ended with an error whose buffers are lost, with such an
    /// error.
    pub(super) unsafe fn part(&self, bytes: Range<usize>, done: Done) -> RawCopy {
        assert!(!self.is_operation(), "an operation is done whole");
        debug_assert!(bytes.start <= bytes.end && bytes.end <= self.size_bytes);
        // SAFETY: the caller says that this is inside of both ranges.
        let (source, target) = unsafe { (self.source.add(bytes.start), self.target.add(bytes.start)) };
        RawCopy {
            source,
            target,
            size_bytes: bytes.len(),
            block_on_fault: self.block_on_fault,
            into_cache: self.into_cache,
            made: Instant::now(),
            done: Some(done),
            opcode: Opcode::Memmove,
            operation: None,
        }
    }

    /// Ends it without calling `done`: for a part that nobody has taken.
    pub(super) fn cancel(mut self) {
        self.done = None;
    }

    /// Puts `done` in the place of the callback, for a decorator that calls the old one itself.
    pub(super) fn replace_done(&mut self, done: Done) -> Done {
        self.done.replace(done).expect("only finishing takes it away, and that consumes the copy")
    }

    fn call_done(&mut self, result: Result<CopyReport, CopyError>) {
        if let Some(done) = self.done.take() {
            call_done(done, result);
        }
    }
}

impl RawOperation {
    /// Its task, for an engine that has it alone.
    pub(super) fn task(&mut self) -> &mut Task {
        self.task.get_mut()
    }

    /// Says how it ended. Before the copy that it came from is finished.
    pub(super) fn end(&self, end: Result<Ended, Status>) {
        // Whoever ends it has taken it out of its task, which ends once.
        let _ = self.end.set(end);
    }

    /// Does what is left of it here and now.
    pub(super) fn execute(&self) {
        // SAFETY: whoever has the operation has it alone: no device does.
        let end = unsafe { self.task.borrow_mut().execute() };
        self.end(end);
    }
}

impl fmt::Debug for RawOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.task.fmt(f)
    }
}

/// Calls back. A panic in there has been printed by the panic hook; it must not take an engine's thread with
/// it, since the copies behind this one are not to blame.
pub(super) fn call_done(done: Done, result: Result<CopyReport, CopyError>) {
    let _ = catch_unwind(AssertUnwindSafe(|| done(result)));
}

impl Drop for RawCopy {
    fn drop(&mut self) {
        self.call_done(Err(CopyError::Abandoned));
    }
}

impl fmt::Debug for RawCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawCopy")
            .field("source", &self.source)
            .field("target", &self.target)
            .field("size_bytes", &self.size_bytes)
            .finish_non_exhaustive()
    }
}
