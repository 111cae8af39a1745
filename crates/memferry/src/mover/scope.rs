//! Scopes: copies and operations on borrowed buffers.
//!
//! The design is that of `std::thread::scope`. The closure gets a [`Scope`] whose lifetime it cannot choose, so its
//! borrows outlive the scope. The scope waits for its copies before it returns or unwinds, also for those whose handles
//! are gone.
//!
//! If a device is lost that could still write to a buffer, waiting does not help. The mover leaks an owned buffer then.
//! A borrowed one goes back to its owner, so the process aborts instead.

use std::fmt;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::abort;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use memferry_dsa::internals::request::{Ended, Task};
use memferry_dsa::{Outcome as Yields, Request};

use super::{CopyError, CopyOptions, CopyReport, Mover, RawRequest};

/// A scope in which borrowed buffers can be copied. See [`Mover::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    mover: &'scope Mover,
    in_flight: Arc<InFlight>,
    /// Invariant in both lifetimes, as in `std::thread::Scope`.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// The requests of a scope that are in flight. The scope's thread starts and awaits them, any thread completes them;
/// `state` is the lock.
#[derive(Default)]
struct InFlight {
    state: Mutex<InFlightState>,
    changed: Condvar,
}

#[derive(Default)]
struct InFlightState {
    count: usize,
    first_error: Option<CopyError>,
}

/// Runs `body`, then waits for the copies that it started. See [`Mover::scope`].
pub(super) fn run<'env, R>(
    mover: &Mover,
    body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
) -> Result<R, CopyError> {
    let scope =
        Scope { mover, in_flight: Arc::new(InFlight::default()), scope: PhantomData, env: PhantomData };
    let outcome = catch_unwind(AssertUnwindSafe(|| body(&scope)));
    let first_error = scope.in_flight.wait();
    match (outcome, first_error) {
        (Err(panic), _) => resume_unwind(panic),
        (Ok(_), Some(error)) => Err(error),
        (Ok(value), None) => Ok(value),
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a copy from `source` to `target`. Both stay borrowed until the end of the scope.
    ///
    /// The scope returns the error of the first copy that fails, so the handle may be dropped at once.
    pub fn copy(
        &'scope self,
        source: &'scope [u8],
        target: &'scope mut [u8],
    ) -> ScopedOperation<'scope, &'scope mut [u8]> {
        self.copy_with(source, target, CopyOptions::default())
    }

    /// As [`copy`](Scope::copy), with options.
    pub fn copy_with(
        &'scope self,
        source: &'scope [u8],
        target: &'scope mut [u8],
        options: CopyOptions,
    ) -> ScopedOperation<'scope, &'scope mut [u8]> {
        let result = Arc::new(OnceLock::new());
        // SAFETY: `wait` calls it after the copy: the engine is done with the target, which only the handle borrows, uniquely,
        // for 'scope.
        let outcome = |_, target: *mut [u8]| unsafe { &mut *target };
        let handle = ScopedOperation { result: result.clone(), target, outcome, borrowed: PhantomData };
        let callback = self.callback(result);
        let callback =
            move |result: Result<_, _>| callback(result.map(|report: CopyReport| (Ended::Done, report)));
        let (source_bytes, target_bytes) = (source.len(), handle.target.len());
        if source_bytes != target_bytes {
            callback(Err(CopyError::LengthMismatch { source_bytes, target_bytes }));
        } else {
            // SAFETY: both are borrowed for 'scope, the target uniquely, so they do not overlap; and `run` does
            // not let 'scope end before `in_flight` has seen the completion of this copy. Lost buffers do not outlive
            // the process.
            let copy =
                unsafe { RawRequest::new(source.as_ptr(), handle.target.cast(), source_bytes, callback) };
            self.mover.start(self.mover.with_hints(copy, options), options.source_node, options.target_node);
        }
        handle
    }

    /// Starts an operation on borrowed memory; [`Mover::run`] does so on owned buffers.
    ///
    /// The scope returns [`CopyError::Invalid`] if the request breaks a rule.
    pub fn run<O: Yields>(&'scope self, request: Request<'scope, O>) -> ScopedOperation<'scope, O> {
        let result = Arc::new(OnceLock::new());
        let outcome = |ended: Ended, _| ended.outcome().expect("the request's type names the outcome");
        let target: *mut [u8] = &mut [];
        let handle = ScopedOperation { result: result.clone(), target, outcome, borrowed: PhantomData };
        let callback = self.callback(result);
        // SAFETY: the memory of the request is borrowed for 'scope, and contains no cells; `run` does not let 'scope end
        // before `in_flight` has seen the completion of this operation. Lost buffers do not outlive the process.
        match unsafe { Task::new(&request) } {
            Ok(task) => self.mover.start(RawRequest::of_task(task, callback), None, None),
            Err(invalid) => callback(Err(CopyError::Invalid(invalid))),
        }
        handle
    }

    /// Counts a request as in flight. Returns the callback that completes it.
    fn callback(&self, place: Arc<OnceLock<Ending>>) -> impl FnOnce(Ending) + Send + use<> {
        let in_flight = self.in_flight.clone();
        in_flight.add();
        move |result| {
            if let Err(error) = result
                && error.buffers_are_lost()
            {
                // `eprintln!` panics if stderr is closed: then nothing would abort.
                let _ = writeln!(
                    io::stderr(),
                    "memferry: a device was lost that could write to borrowed memory ({error}); aborting"
                );
                abort();
            }
            let _ = place.set(result);
            in_flight.complete(result.err());
        }
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}

impl InFlight {
    fn add(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).count += 1;
    }

    fn complete(&self, error: Option<CopyError>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.first_error = state.first_error.or(error);
        state.count -= 1;
        if state.count == 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until nothing is in flight. Returns the first error.
    fn wait(&self) -> Option<CopyError> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.changed.wait_while(state, |state| state.count > 0);
        state.unwrap_or_else(PoisonError::into_inner).first_error
    }
}

/// The result of a request.
type Ending = Result<(Ended, CopyReport), CopyError>;

/// The handle of a copy or another operation in a scope, with its outcome `O`: of a copy, the target. The scope waits for it
/// even if the handle is dropped or forgotten.
pub struct ScopedOperation<'scope, O> {
    result: Arc<OnceLock<Ending>>,
    /// Of a copy. Raw, because moving a `&mut` would assert that nothing else writes there.
    target: *mut [u8],
    outcome: fn(Ended, *mut [u8]) -> O,
    borrowed: PhantomData<&'scope mut [u8]>,
}

// SAFETY: the target represents a `&mut [u8]`, which is Send, and which nobody uses before the copy is done.
unsafe impl<O> Send for ScopedOperation<'_, O> {}

impl<O> ScopedOperation<'_, O> {
    /// Waits for it. Targets that its outcome does not return are accessible again after the scope.
    ///
    /// # Errors
    /// The error of the operation.
    pub fn wait(self) -> Result<(O, CopyReport), CopyError> {
        let (ended, report) = (*self.result.wait())?;
        Ok(((self.outcome)(ended, self.target), report))
    }

    /// Whether it is done. Never blocks.
    pub fn is_done(&self) -> bool {
        self.result.get().is_some()
    }
}

impl<O> fmt::Debug for ScopedOperation<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedOperation").field("done", &self.is_done()).finish_non_exhaustive()
    }
}
