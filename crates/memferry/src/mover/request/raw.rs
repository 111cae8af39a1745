//! The request that engines execute: addresses, a size and a callback.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use memferry_dsa::internals::panics;
use memferry_dsa::internals::request::{Ended, Task};
use memferry_dsa::{Opcode, Status};

use super::completion::{Callback, CopyReport};
use super::epoch::Epoch;
use super::read::{Demand, FileSource};
use super::transfer::CopyOptions;
use crate::copy_method::CopyMethods;
use crate::moment::Moment;
use crate::mover::error::CopyError;
use crate::route::Route;
use crate::storage::{BLOCK_BYTES, StoredFile};
use crate::topology::NodeId;

/// A request as engines see it: a copy with two addresses, a size and a callback, or another operation
/// ([`is_operation`](RawRequest::is_operation)) for engines that [support](crate::mover::Engine::supports) it. An operation
/// has no addresses, and only engines of this crate can execute it.
///
/// A read of a file ([`file`](RawRequest::file)) has the file's range in place of the source. Only engines of kind
/// [`EngineKind::Storage`](crate::mover::EngineKind::Storage) get reads, and they get nothing else.
///
/// The type ensures exactly one completion: [`finish`](RawRequest::finish) consumes the request, and dropping an
/// unfinished one completes it with [`CopyError::Abandoned`].
pub struct RawRequest {
    source: *const u8,
    target: *mut u8,
    size_bytes: usize,
    block_on_fault: bool,
    into_cache: bool,
    /// Replaces the mover's route.
    route: Option<Route>,
    requester: Option<NodeId>,
    waits: bool,
    made: Moment,
    callback: Option<Callback>,
    opcode: Opcode,
    operation: Option<Box<RawOperation>>,
    /// The source of a read; copies have an address.
    file: Option<Box<FileSource>>,
}

/// An operation other than a copy, and the place of its outcome.
pub(in crate::mover) struct RawOperation {
    /// A cell, because engines execute requests by reference. `None` once an engine has taken it.
    task: RefCell<Option<Task>>,
    /// Set before the callback is called, unless with an error.
    outcome: Arc<OnceLock<Result<Ended, Status>>>,
}

// SAFETY: the pointers are only used under the contract of `new`, which does not depend on the thread; the callback
// is Send.
unsafe impl Send for RawRequest {}

impl RawRequest {
    /// A copy of `size_bytes` from `source` to `target`.
    ///
    /// `callback` runs once, on the thread that finishes the copy, perhaps inside `submit`. It must be short, must not
    /// wait for another copy, and must take no lock that is held around `submit`. On an error whose
    /// [`buffers_are_lost`](CopyError::buffers_are_lost) it must leak the buffers. Its panics are contained.
    ///
    /// # Safety
    /// Until `callback` is called, `source` is readable and nobody writes there; `target` is writable and nobody else
    /// reads or writes there; they do not overlap. If `callback` is called with an error whose buffers are lost, or is
    /// never called, that stays so for ever.
    pub unsafe fn new(
        source: *const u8,
        target: *mut u8,
        size_bytes: usize,
        callback: impl FnOnce(Result<CopyReport, CopyError>) + Send + 'static,
    ) -> RawRequest {
        // SAFETY: passed on to the caller.
        unsafe {
            RawRequest::with_callback(source, target, size_bytes, Callback::new(callback), Moment::now())
        }
    }

    /// As [`new`](RawRequest::new), created at `made`.
    ///
    /// # Safety
    /// That of `new`.
    #[inline]
    pub(in crate::mover) unsafe fn with_callback(
        source: *const u8,
        target: *mut u8,
        size_bytes: usize,
        callback: Callback,
        made: Moment,
    ) -> RawRequest {
        RawRequest {
            source,
            target,
            size_bytes,
            block_on_fault: false,
            into_cache: false,
            route: None,
            requester: None,
            waits: false,
            made,
            callback: Some(callback),
            opcode: Opcode::Memmove,
            operation: None,
            file: None,
        }
    }

    /// A read of `size_bytes` bytes of `file` from `offset` on. For `callback` see [`new`](RawRequest::new).
    ///
    /// `offset` and `target` are multiples of 4096: other reads cannot bypass the page cache. The bytes behind
    /// `size_bytes` in its last block have any content afterwards.
    ///
    /// # Panics
    /// If one of them is no multiple.
    ///
    /// # Safety
    /// Until `callback` is called, `target` is writable for `size_bytes` rounded up to whole blocks, and nobody else reads or
    /// writes there. If `callback` is called with an error whose buffers are lost, or is never called, that stays so for
    /// ever.
    pub unsafe fn read(
        file: Arc<StoredFile>,
        offset: u64,
        target: *mut u8,
        size_bytes: usize,
        callback: impl FnOnce(Result<CopyReport, CopyError>) + Send + 'static,
    ) -> RawRequest {
        // SAFETY: passed on to the caller.
        unsafe { RawRequest::read_on_demand(FileSource::new(file, offset), target, size_bytes, callback) }
    }

    /// As [`read`](RawRequest::read), cancelled if nobody wants the bytes when it is about to start.
    ///
    /// # Safety
    /// That of `read`.
    pub(crate) unsafe fn read_on_demand(
        source: FileSource,
        target: *mut u8,
        size_bytes: usize,
        callback: impl FnOnce(Result<CopyReport, CopyError>) + Send + 'static,
    ) -> RawRequest {
        // SAFETY: passed on to the caller.
        unsafe { RawRequest::read_with_callback(source, target, size_bytes, Callback::new(callback)) }
    }

    /// As [`read_on_demand`](RawRequest::read_on_demand).
    ///
    /// # Safety
    /// That of `read`.
    pub(in crate::mover) unsafe fn read_with_callback(
        source: FileSource,
        target: *mut u8,
        size_bytes: usize,
        callback: Callback,
    ) -> RawRequest {
        assert!(
            source.offset.is_multiple_of(BLOCK_BYTES as u64) && target.addr().is_multiple_of(BLOCK_BYTES),
            "reads begin at multiples of {BLOCK_BYTES}, in the file and in memory"
        );
        // SAFETY: the caller promised this for the target. There is no source to be readable: nothing but this module
        // dereferences it, and only for copies.
        let mut read = unsafe {
            RawRequest::with_callback(std::ptr::null(), target, size_bytes, callback, Moment::now())
        };
        read.file = Some(Box::new(source));
        read
    }

    /// A request for any operation. `callback` gets its outcome; the rest of the contract is that of
    /// [`new`](RawRequest::new). The task's constructor holds the promise about its memory.
    pub(in crate::mover) fn of_task(
        task: Task,
        callback: impl FnOnce(Result<(Ended, CopyReport), CopyError>) + Send + 'static,
    ) -> RawRequest {
        let size_bytes = usize::try_from(task.size_bytes()).expect("sizes of requests are 32 bits");
        let opcode = task.opcode();
        let outcome = Arc::new(OnceLock::new());
        let operation = RawOperation { task: RefCell::new(Some(task)), outcome: outcome.clone() };
        let callback = Callback::new(move |result: Result<CopyReport, CopyError>| {
            callback(result.and_then(|report| match outcome.get() {
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
            requester: None,
            waits: false,
            made: Moment::now(),
            callback: Some(callback),
            opcode,
            operation: Some(Box::new(operation)),
            file: None,
        }
    }

    /// Lets a device write the target of a copy to the last-level cache instead of memory, if it can. Other operations
    /// have the flag in their task.
    #[inline]
    pub fn with_cache_control(mut self, into_cache: bool) -> RawRequest {
        self.into_cache = into_cache;
        self
    }

    /// Lets a device wait on page faults, if its queue allows that, instead of stopping there.
    #[inline]
    pub fn with_block_on_fault(mut self, block_on_fault: bool) -> RawRequest {
        self.block_on_fault = block_on_fault;
        self
    }

    /// Sets a route in place of the mover's.
    #[inline]
    pub fn with_route(mut self, route: Option<Route>) -> RawRequest {
        self.route = route;
        self
    }

    /// Applies the options that choose its engines.
    #[inline]
    pub(in crate::mover) fn with_choice(mut self, options: CopyOptions) -> RawRequest {
        (self.route, self.requester, self.waits) = (options.route, options.requester, options.waits);
        self
    }

    /// The opcode: [`Opcode::Memmove`] for a copy.
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The file and the offset in it that a read begins at; `None` for copies and operations.
    pub fn file(&self) -> Option<(&Arc<StoredFile>, u64)> {
        self.file.as_deref().map(|source| (&source.file, source.offset))
    }

    /// Whether this is a read of a file.
    pub fn is_read(&self) -> bool {
        self.file.is_some()
    }

    /// Whether a read shall start: false if nobody wants its bytes any more. Called once, by its engine.
    pub(in crate::mover) fn starts(&self) -> bool {
        self.file.as_deref().and_then(|source| source.demand.as_deref()).is_none_or(Demand::start)
    }

    /// The address of the source, valid until the copy is finished; null for reads and other operations.
    #[inline]
    pub fn source(&self) -> *const u8 {
        self.source
    }

    /// The address of the target, valid until the copy is finished; null for other operations.
    #[inline]
    pub fn target(&self) -> *mut u8 {
        self.target
    }

    /// The size.
    #[inline]
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Whether a device may wait on page faults.
    pub fn block_on_fault(&self) -> bool {
        self.block_on_fault
    }

    /// Whether a device should write to the last-level cache.
    pub fn into_cache(&self) -> bool {
        self.into_cache
    }

    /// The route in place of the mover's.
    pub fn route(&self) -> Option<Route> {
        self.route
    }

    /// The node whose CPUs asked for it, if known.
    pub fn requester(&self) -> Option<NodeId> {
        self.requester
    }

    /// Whether the thread that asked for it waits at once.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Whether this is an operation other than a copy: without addresses, and never split.
    pub fn is_operation(&self) -> bool {
        self.operation.is_some()
    }

    /// The task of this copy or operation, for an engine that keeps the request until the task has completed. The engine
    /// then [stores](RawRequest::store_outcome) the outcome and finishes the request. Called once.
    pub(in crate::mover) fn take_task(&mut self) -> Task {
        let taken = self.operation.as_mut().map(|operation| operation.task.get_mut().take());
        taken.map(|task| task.expect("a task is taken once")).unwrap_or_else(|| {
            assert!(self.file.is_none(), "only storage engines get reads");
            // SAFETY: `new`'s caller promised this until the callback is called, or for ever if its error says that the
            // buffers are lost, or it is never called.
            let mut task = unsafe { Task::copy(self.source, self.target, self.size_bytes) };
            task.add_hints(self.into_cache, self.block_on_fault);
            task
        })
    }

    /// Stores the outcome of the task. Call it before the request is finished without an error.
    pub(in crate::mover) fn store_outcome(&self, ended: Ended) {
        if let Some(operation) = &self.operation {
            operation.store(Ok(ended));
        }
    }

    /// Joins the epoch, whose drain then waits for this request. Returns true on the first call.
    pub(in crate::mover) fn join_epoch(&mut self, epoch: impl FnOnce() -> Arc<Epoch>) -> bool {
        self.callback.as_mut().is_some_and(|callback| callback.join_epoch(epoch))
    }

    /// Leaves the epoch: no engine took the request.
    pub(in crate::mover) fn leave_epoch(&mut self) {
        if let Some(callback) = &mut self.callback {
            callback.leave_epoch();
        }
    }

    /// Sets the creation time: copies of a batch begin with its submission.
    #[inline]
    pub(in crate::mover) fn set_made(&mut self, made: Moment) {
        self.made = made;
    }

    /// The creation time: the begin of its latency.
    pub(in crate::mover) fn made(&self) -> Moment {
        self.made
    }

    /// Executes the request on the calling thread. The result is for [`finish`](RawRequest::finish).
    ///
    /// # Errors
    /// [`CopyError::Abandoned`], if the operation panics: requests queued behind it must not fail with it.
    pub(in crate::mover) fn copy_on_this_cpu(&self, methods: &CopyMethods) -> Result<CopyReport, CopyError> {
        let report = CopyReport { cpu_bytes: self.size_bytes as u64, ..CopyReport::default() };
        if let Some(operation) = &self.operation {
            return panics::contain(|| operation.execute()).map(|()| report).ok_or(CopyError::Abandoned);
        }
        assert!(!self.is_read(), "only storage engines get reads");
        // SAFETY: `new`'s caller promised that both ranges are valid, unshared and apart until `finish`, which
        // has not happened, since it would have consumed `self`.
        unsafe { methods.copy_raw(self.source, self.target, self.size_bytes) };
        Ok(report)
    }

    /// Makes the operation panic.
    #[cfg(all(test, not(memferry_loom)))]
    pub(in crate::mover) fn poison(&self) {
        std::mem::forget(self.operation.as_ref().expect("an operation").task.borrow_mut());
    }

    /// Completes the request: calls back with `result`. The caller may use the buffers from here on.
    pub fn finish(mut self, result: Result<CopyReport, CopyError>) {
        self.call_back(result);
    }

    /// A part of this copy as a copy of its own.
    ///
    /// # Safety
    /// `bytes` lies within this copy, and overlaps no other part whose callback has not been called. This copy is not
    /// finished before its parts are; if a part completed with an error whose buffers are lost, this copy finishes with
    /// such an error.
    pub(in crate::mover) unsafe fn part(&self, bytes: Range<usize>, callback: Callback) -> RawRequest {
        assert!(!self.is_operation() && !self.is_read(), "only copies are split");
        debug_assert!(bytes.start <= bytes.end && bytes.end <= self.size_bytes);
        // SAFETY: the caller says that this is inside of both ranges.
        let (source, target) = unsafe { (self.source.add(bytes.start), self.target.add(bytes.start)) };
        // SAFETY: this request's `new`, and the caller, promised for this part what `with_callback` requires.
        let part = unsafe { RawRequest::with_callback(source, target, bytes.len(), callback, Moment::now()) };
        part.with_block_on_fault(self.block_on_fault).with_cache_control(self.into_cache)
    }

    /// A key that differs between live requests of at least one byte: targets of copies do not overlap, and each
    /// operation has its own box. It shows whether an engine, which is safe code, hands back the request that it got.
    pub(in crate::mover) fn identity(&self) -> (*const (), usize) {
        match &self.operation {
            Some(operation) => (std::ptr::from_ref::<RawOperation>(operation).cast(), 0),
            None => (self.target.cast_const().cast(), self.size_bytes),
        }
    }

    /// Drops it without calling back: for a part that no engine took.
    pub(in crate::mover) fn cancel(mut self) {
        self.callback = None;
    }

    /// Replaces the callback, for a decorator that calls the old one itself.
    #[cfg(feature = "internals")]
    pub(in crate::mover) fn replace_callback(&mut self, callback: Callback) -> Callback {
        self.callback.replace(callback).expect("only finishing takes it, and that consumes the request")
    }

    fn call_back(&mut self, result: Result<CopyReport, CopyError>) {
        if let Some(callback) = self.callback.take() {
            callback.call(result);
        }
    }
}

impl RawOperation {
    /// Stores the outcome. Call it before the request is finished.
    fn store(&self, outcome: Result<Ended, Status>) {
        // The outcome comes out of the task, which yields it once.
        let _ = self.outcome.set(outcome);
    }

    /// Executes it on the calling thread.
    fn execute(&self) {
        let mut task = self.task.borrow_mut();
        let task = task.as_mut().expect("an engine that takes the task does not execute the operation");
        // SAFETY: the operation has one owner, the calling engine: no device has it.
        self.store(unsafe { task.execute() });
    }
}

impl fmt::Debug for RawOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.task.fmt(f)
    }
}

impl Drop for RawRequest {
    fn drop(&mut self) {
        self.call_back(Err(CopyError::Abandoned));
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
