//! Copies and operations on borrowed buffers, inside a scope that does not end before they do.
//!
//! Built like `std::thread::scope`: the closure gets a [`Scope`] whose lifetime it cannot choose, so what it
//! borrows outlives the scope; and the scope waits for its copies before it returns or unwinds, whatever became
//! of their handles.
//!
//! One thing cannot be waited for: a device that died while it could still write. An owned buffer would be
//! leaked then. A borrowed one cannot be kept from its owner, so the process is aborted rather than corrupted.

use std::fmt;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::abort;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use memferry_dsa::Request;
use memferry_dsa::request::{Ended, Outcome as Yields, Task};

use super::{CopyError, CopyOptions, CopyReport, Mover, RawRequest};

/// Where borrowed buffers can be copied. See [`Mover::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    mover: &'scope Mover,
    open: Arc<Open>,
    /// Invariant in both lifetimes, as in `std::thread::Scope`.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// The copies of a scope that are not done.
#[derive(Default)]
struct Open {
    state: Mutex<OpenState>,
    changed: Condvar,
}

#[derive(Default)]
struct OpenState {
    copies_count: usize,
    first_error: Option<CopyError>,
}

/// Runs `body`, then waits for the copies that it started. See [`Mover::scope`].
pub(super) fn run<'env, R>(
    mover: &Mover,
    body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
) -> Result<R, CopyError> {
    let scope = Scope { mover, open: Arc::new(Open::default()), scope: PhantomData, env: PhantomData };
    let outcome = catch_unwind(AssertUnwindSafe(|| body(&scope)));
    let first_error = scope.open.wait();
    match (outcome, first_error) {
        (Err(panic), _) => resume_unwind(panic),
        (Ok(_), Some(error)) => Err(error),
        (Ok(value), None) => Ok(value),
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a copy from `source` to `target`. Both stay borrowed until the scope ends.
    ///
    /// The scope ends with the error of the first copy that fails, so a handle may be dropped at once.
    pub fn copy(&'scope self, source: &'scope [u8], target: &'scope mut [u8]) -> ScopedCopy<'scope> {
        self.copy_with(source, target, CopyOptions::default())
    }

    /// As [`copy`](Scope::copy), with options.
    pub fn copy_with(
        &'scope self,
        source: &'scope [u8],
        target: &'scope mut [u8],
        options: CopyOptions,
    ) -> ScopedCopy<'scope> {
        let end = Arc::new(OnceLock::new());
        let handle = ScopedCopy { end: end.clone(), target, borrowed: PhantomData };
        let open = self.open.clone();
        open.begin();
        let done = done(open, end);
        let (source_bytes, target_bytes) = (source.len(), handle.target.len());
        if source_bytes != target_bytes {
            done(Err(CopyError::LengthMismatch { source_bytes, target_bytes }));
        } else {
            // SAFETY: both are borrowed for 'scope, the target uniquely, so they do not overlap; and `run` does
            // not let 'scope end before `open` has seen the end of this copy. Lost buffers do not outlive the
            // process.
            let copy = unsafe { RawRequest::new(source.as_ptr(), handle.target.cast(), source_bytes, done) };
            self.mover.start(self.mover.with_hints(copy, options), options.source_node, options.target_node);
        }
        handle
    }

    /// Starts an operation on borrowed memory, as [`Mover::run`](super::Mover::run) does on owned buffers.
    ///
    /// The scope ends with [`CopyError::Invalid`] if the request is wrong.
    pub fn run<O: Yields>(&'scope self, request: Request<'scope, O>) -> ScopedOperation<'scope, O> {
        let end = Arc::new(OnceLock::new());
        let handle = ScopedOperation { end: end.clone(), borrowed: PhantomData, outcome: PhantomData };
        let open = self.open.clone();
        open.begin();
        let done = done(open, end);
        // SAFETY: what the request borrows is borrowed for 'scope, and is no cells; `run` does not let 'scope end before
        // `open` has seen the end of this operation. Lost buffers do not outlive the process.
        match unsafe { Task::new(&request) } {
            Ok(task) => self.mover.start(RawRequest::of_task(task, done), None, None),
            Err(invalid) => done(Err(CopyError::Invalid(invalid))),
        }
        handle
    }
}

/// Ends an operation of a scope.
fn done<R: Copy>(
    open: Arc<Open>,
    end: Arc<OnceLock<Result<R, CopyError>>>,
) -> impl FnOnce(Result<R, CopyError>) {
    move |result| {
        if let Err(error) = result
            && error.buffers_are_lost()
        {
            // Not `eprintln!`, which panics when stderr is closed: then nothing would abort.
            let _ = writeln!(
                io::stderr(),
                "memferry: a device died while it could write to borrowed memory ({error}); aborting"
            );
            abort();
        }
        let _ = end.set(result);
        open.end(result.err());
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}

impl Open {
    fn begin(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).copies_count += 1;
    }

    fn end(&self, error: Option<CopyError>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.first_error = state.first_error.or(error);
        state.copies_count -= 1;
        if state.copies_count == 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until no copy is open; the first error, if there was one.
    fn wait(&self) -> Option<CopyError> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.changed.wait_while(state, |state| state.copies_count > 0);
        state.unwrap_or_else(PoisonError::into_inner).first_error
    }
}

/// A copy inside a scope. Dropping or forgetting it changes nothing: the scope waits for the copy all the same.
pub struct ScopedCopy<'scope> {
    end: Arc<OnceLock<Result<CopyReport, CopyError>>>,
    /// Raw, since moving a `&mut` would assert that nobody else writes there.
    target: *mut [u8],
    borrowed: PhantomData<&'scope mut [u8]>,
}

// SAFETY: it stands for a `&mut [u8]`, which is Send, that nobody uses before the copy is done.
unsafe impl Send for ScopedCopy<'_> {}

impl<'scope> ScopedCopy<'scope> {
    /// Waits for the copy and gives the target back.
    ///
    /// # Errors
    /// What went wrong with the copy; the target can be had again when the scope has ended.
    pub fn wait(self) -> Result<(&'scope mut [u8], CopyReport), CopyError> {
        let report = (*self.end.wait())?;
        // SAFETY: the engine is done with the target, which is borrowed uniquely for 'scope, by this handle alone.
        Ok((unsafe { &mut *self.target }, report))
    }

    /// Is the copy done? Never blocks.
    pub fn is_done(&self) -> bool {
        self.end.get().is_some()
    }
}

/// An operation inside a scope. Dropping or forgetting it changes nothing: the scope waits for it all the same.
pub struct ScopedOperation<'scope, O> {
    end: Arc<OnceLock<Result<(Ended, CopyReport), CopyError>>>,
    borrowed: PhantomData<&'scope mut [u8]>,
    outcome: PhantomData<fn() -> O>,
}

impl<O: Yields> ScopedOperation<'_, O> {
    /// Waits for it. What it wrote can be had again when the scope has ended.
    ///
    /// # Errors
    /// What went wrong.
    pub fn wait(self) -> Result<(O, CopyReport), CopyError> {
        let (ended, report) = (*self.end.wait())?;
        Ok((ended.outcome().expect("an operation ends as its request's type says"), report))
    }
}

impl<O> ScopedOperation<'_, O> {
    /// Is it done? Never blocks.
    pub fn is_done(&self) -> bool {
        self.end.get().is_some()
    }
}

impl<O> fmt::Debug for ScopedOperation<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedOperation").field("done", &self.is_done()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ScopedCopy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedCopy").field("done", &self.is_done()).finish_non_exhaustive()
    }
}
