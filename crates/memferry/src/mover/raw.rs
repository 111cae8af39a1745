//! A copy, or another operation, as engines see it: addresses and sizes, and what to call in the end.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use memferry_dsa::request::{Ended, Task};
use memferry_dsa::{Opcode, Status, panics};

use super::done::Done;
use super::drain::Epoch;
use super::moment::Moment;
use super::{CopyError, CopyMethods, CopyReport, Route};

/// A copy as engines see it: two addresses, a size, and what to call in the end.
///
/// Or an operation ([`is_operation`](RawRequest::is_operation)), for engines that
/// [support](super::Engine::supports) it: then there are no addresses, and the mover's own engines know what to do.
///
/// It is finished exactly once, which the type sees to: finishing consumes it, and one that is dropped unfinished
/// finishes with [`CopyError::Abandoned`].
pub struct RawRequest {
    source: *const u8,
    target: *mut u8,
    size_bytes: usize,
    block_on_fault: bool,
    into_cache: bool,
    /// In place of the mover's.
    route: Option<Route>,
    made: Moment,
    done: Option<Done>,
    opcode: Opcode,
    operation: Option<Box<RawOperation>>,
}

/// An operation that is more than a copy, and where its end goes.
pub(super) struct RawOperation {
    /// A cell, since engines have copies by reference. `None` when an engine has taken it.
    task: RefCell<Option<Task>>,
    /// Set before `done` is called, unless with an error.
    end: Arc<OnceLock<Result<Ended, Status>>>,
}

// SAFETY: the pointers are only used under the contract of `new`, which does not depend on the thread; `done`
// is Send.
unsafe impl Send for RawRequest {}

impl RawRequest {
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
    ) -> RawRequest {
        // SAFETY: passed on to the caller.
        unsafe { RawRequest::told(source, target, size_bytes, Done::call(done), Moment::now()) }
    }

    /// As [`new`](RawRequest::new), made at `made`.
    ///
    /// # Safety
    /// That of `new`.
    pub(super) unsafe fn told(
        source: *const u8,
        target: *mut u8,
        size_bytes: usize,
        done: Done,
        made: Moment,
    ) -> RawRequest {
        RawRequest {
            source,
            target,
            size_bytes,
            block_on_fault: false,
            into_cache: false,
            route: None,
            made,
            done: Some(done),
            opcode: Opcode::Memmove,
            operation: None,
        }
    }

    /// An operation that need not be a copy. What it yields is told to `done`, which otherwise is that of
    /// [`new`](RawRequest::new); the memory is that of the task, as was promised when it was made.
    pub(super) fn of_task(
        task: Task,
        done: impl FnOnce(Result<(Ended, CopyReport), CopyError>) + Send + 'static,
    ) -> RawRequest {
        let size_bytes = usize::try_from(task.size_bytes()).expect("sizes of requests are 32 bits");
        let opcode = task.opcode();
        let end = Arc::new(OnceLock::new());
        let operation = RawOperation { task: RefCell::new(Some(task)), end: end.clone() };
        let done = Done::call(move |result: Result<CopyReport, CopyError>| {
            done(result.and_then(|report| match end.get() {
                Some(Ok(ended)) => Ok((*ended, report)),
                Some(Err(status)) => Err(CopyError::Device { status: status.code() }),
                None => Err(CopyError::Abandoned),
            }))
        });
        RawRequest {
            source: std::ptr::null(),
            target: std::ptr::null_mut(),
            size_bytes,
            block_on_fault: false,
            into_cache: false,
            route: None,
            made: Moment::now(),
            done: Some(done),
            opcode,
            operation: Some(Box::new(operation)),
        }
    }

    /// Lets a device write the target to the last-level cache instead of memory, if it can. Operations that are no
    /// copies say so in their request.
    pub fn with_cache_control(mut self, into_cache: bool) -> RawRequest {
        self.into_cache = into_cache;
        self
    }

    /// Lets a device wait for the pages it misses, where its queue allows that, instead of stopping there.
    pub fn with_block_on_fault(mut self, block_on_fault: bool) -> RawRequest {
        self.block_on_fault = block_on_fault;
        self
    }

    /// Who does it, if that is not for the mover's own route to say.
    pub fn with_route(mut self, route: Option<Route>) -> RawRequest {
        self.route = route;
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

    /// Who does it, if that was said.
    pub fn route(&self) -> Option<Route> {
        self.route
    }

    /// It is no plain copy, but an operation, which has no addresses and cannot be cut into parts.
    pub fn is_operation(&self) -> bool {
        self.operation.is_some()
    }

    /// The task of this copy or operation, for an engine that keeps the request until the task has ended: then it
    /// [tells](RawRequest::tell) the end of the task and finishes the request. Once.
    pub(super) fn take_task(&mut self) -> Task {
        let taken = self.operation.as_mut().map(|operation| operation.task.get_mut().take());
        taken.map(|task| task.expect("a task is taken once")).unwrap_or_else(|| {
            // SAFETY: `new`'s caller promised this until `done` is called, or for ever if its error says that the buffers
            // are lost, or it is never called.
            let mut task = unsafe { Task::copy(self.source, self.target, self.size_bytes) };
            task.add_hints(self.into_cache, self.block_on_fault);
            task
        })
    }

    /// Says how the task ended, before the request is finished without an error.
    pub(super) fn tell(&self, ended: Ended) {
        if let Some(operation) = &self.operation {
            operation.end(Ok(ended));
        }
    }

    /// It has begun, unless it had before: drains of this epoch wait for it. Whether it had not.
    pub(super) fn begin_in(&mut self, epoch: impl FnOnce() -> Arc<Epoch>) -> bool {
        self.done.as_mut().is_some_and(|done| done.begin_in(epoch))
    }

    /// It has not begun after all: nobody took it.
    pub(super) fn leave_epoch(&mut self) {
        if let Some(done) = &mut self.done {
            done.leave_epoch();
        }
    }

    /// Sets when it was made: a copy of a batch begins with the batch.
    pub(super) fn set_made(&mut self, made: Moment) {
        self.made = made;
    }

    /// When it was made: the begin of its latency.
    pub(super) fn made(&self) -> Moment {
        self.made
    }

    /// Copies, or does the operation, here and now. The result is for [`finish`](RawRequest::finish).
    ///
    /// # Errors
    /// [`CopyError::Abandoned`], if the operation panics: whoever waits behind it is not to blame.
    pub(super) fn copy_on_this_cpu(&self, methods: &CopyMethods) -> Result<CopyReport, CopyError> {
        let report = CopyReport { cpu_bytes: self.size_bytes as u64, dsa_bytes: 0 };
        if let Some(operation) = &self.operation {
            return panics::contain(|| operation.execute()).map(|()| report).ok_or(CopyError::Abandoned);
        }
        // SAFETY: `new`'s caller promised that both ranges are valid, unshared and apart until `finish`, which
        // has not happened, since it would have consumed `self`.
        unsafe { methods.copy_raw(self.source, self.target, self.size_bytes) };
        Ok(report)
    }

    /// Makes the operation panic.
    #[cfg(all(test, not(memferry_loom)))]
    pub(super) fn poison(&self) {
        std::mem::forget(self.operation.as_ref().expect("an operation").task.borrow_mut());
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
    pub(super) unsafe fn part(&self, bytes: Range<usize>, done: Done) -> RawRequest {
        assert!(!self.is_operation(), "an operation is done whole");
        debug_assert!(bytes.start <= bytes.end && bytes.end <= self.size_bytes);
        // SAFETY: the caller says that this is inside of both ranges.
        let (source, target) = unsafe { (self.source.add(bytes.start), self.target.add(bytes.start)) };
        // SAFETY: this request's `new`, and the caller, promised for this part what `told` asks for.
        let part = unsafe { RawRequest::told(source, target, bytes.len(), done, Moment::now()) };
        part.with_block_on_fault(self.block_on_fault).with_cache_control(self.into_cache)
    }

    /// A key that differs between live requests, unless they move no byte: targets of copies do not overlap, and each
    /// operation is in a box. It tells whether an engine, which is safe code, hands back the request that it was given.
    pub(super) fn identity(&self) -> (*const (), usize) {
        match &self.operation {
            Some(operation) => (std::ptr::from_ref::<RawOperation>(operation).cast(), 0),
            None => (self.target.cast_const().cast(), self.size_bytes),
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
            done.tell(result);
        }
    }
}

impl RawOperation {
    /// Says how it ended. Before the copy that it came from is finished.
    fn end(&self, end: Result<Ended, Status>) {
        // Whoever ends it has taken it out of its task, which ends once.
        let _ = self.end.set(end);
    }

    /// Executes it here and now.
    fn execute(&self) {
        let mut task = self.task.borrow_mut();
        let task = task.as_mut().expect("an engine that takes the task does not execute the operation");
        // SAFETY: the owner of the operation is its only user: no device has it.
        self.end(unsafe { task.execute() });
    }
}

impl fmt::Debug for RawOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.task.fmt(f)
    }
}

impl Drop for RawRequest {
    fn drop(&mut self) {
        self.call_done(Err(CopyError::Abandoned));
    }
}

impl fmt::Debug for RawRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawRequest")
            .field("source", &self.source)
            .field("target", &self.target)
            .field("size_bytes", &self.size_bytes)
            .finish_non_exhaustive()
    }
}
