//! Transfers: operations in flight.

use std::ffi::c_void;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake};

use crate::error::{self, Error, mf_status};
use crate::handles::{Object, remove};
use crate::operation::mf_result;
use crate::thread::{call, contained, in_completion};

/// An operation in flight, or complete. 0 is none. Free it with `mf_transfer_free`.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_transfer {
    /// The handle.
    pub id: u64,
}

/// A completion callback, called once, on the thread that completes the operation; for a small one also within the call
/// that submits it. `result` is valid during the callback.
///
/// It may submit operations and call other functions that do not wait. It must be quick, because the engine's thread runs
/// it, and must not throw.
pub type mf_callback = Option<unsafe extern "C-unwind" fn(context: *mut c_void, result: *const mf_result)>;

/// The completion of an operation as a future.
pub(crate) type Finish = Pin<Box<dyn Future<Output = Result<mf_result, Error>> + Send>>;

/// Polls an operation whenever it is woken; so it completes without a waiting thread.
///
/// The lock of `state` covers polls: those of operations store the waker and never call it. The callback is called without
/// the lock.
pub(crate) struct Transfer {
    state: Mutex<State>,
    completed: Condvar,
    callback: Callback,
}

enum State {
    InFlight(Finish),
    /// The error explains the status.
    Complete(mf_result, Option<Error>),
}

struct Callback(mf_callback, *mut c_void);

// SAFETY: the caller passes a function and a context for whatever thread completes the operation.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

impl Object for Arc<Transfer> {
    const KIND: u64 = 4;
    const NAME: &'static str = "transfer";
}

impl Transfer {
    /// A transfer that nobody polls before [`advance`](Transfer::advance).
    pub(crate) fn new(finish: Finish, callback: mf_callback, context: *mut c_void) -> Arc<Transfer> {
        let state = Mutex::new(State::InFlight(finish));
        let callback = Callback(callback, context);
        Arc::new(Transfer { state, completed: Condvar::new(), callback })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the operation, and announces its completion: here, or when the operation wakes it.
    pub(crate) fn advance(self: &Arc<Self>) {
        let mut state = self.lock();
        let State::InFlight(finish) = &mut *state else { return };
        let waker = self.clone().into();
        // A panic would leave the engine's thread, and a transfer without an end.
        let poll = || finish.as_mut().poll(&mut Context::from_waker(&waker));
        let polled = catch_unwind(AssertUnwindSafe(poll))
            .unwrap_or_else(|payload| Poll::Ready(Err(contained(payload))));
        let Poll::Ready(ended) = polled else { return };
        let error = ended.as_ref().err().cloned();
        let result = ended.unwrap_or_else(|error| mf_result::failed(error.status()));
        *state = State::Complete(result, error.clone());
        drop(state);
        self.completed.notify_all();
        if let Callback(Some(callback), context) = self.callback {
            if let Some(error) = error {
                // For the callback.
                error::keep(&error);
            }
            // SAFETY: the caller of `submit` passed a function with this context; the result lives as long as the call.
            in_completion(|| unsafe { callback(context, &result) });
        }
    }

    fn is_complete(&self) -> bool {
        matches!(&*self.lock(), State::Complete(..))
    }

    /// Writes the result, unless `out` is NULL. Returns false if the operation is in flight.
    ///
    /// # Errors
    /// That of the operation.
    ///
    /// # Safety
    /// `out` is NULL or valid for a write.
    unsafe fn result(&self, out: *mut mf_result) -> Result<bool, Error> {
        let State::Complete(result, error) = &*self.lock() else { return Ok(false) };
        if !out.is_null() {
            // SAFETY: promised by the caller.
            unsafe { out.write(*result) };
        }
        error.clone().map_or(Ok(true), Err)
    }

    /// Blocks until the operation is complete. Writes the result, unless `out` is NULL.
    ///
    /// # Errors
    /// That of the operation.
    ///
    /// # Safety
    /// `out` is NULL or valid for a write.
    pub(crate) unsafe fn wait(self: &Arc<Self>, out: *mut mf_result) -> Result<(), Error> {
        // In a forked child nobody wakes; a poll notices.
        self.advance();
        let mut state = self.lock();
        while matches!(&*state, State::InFlight(_)) {
            state = self.completed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        // SAFETY: promised by the caller.
        unsafe { self.result(out) }.map(drop)
    }
}

impl Wake for Transfer {
    fn wake(self: Arc<Self>) {
        self.advance();
    }
}

/// Waits until an operation is complete. Writes its result, unless `result` is NULL, and returns its status.
///
/// Any number of threads may wait. Not in a completion callback.
///
/// # Safety
/// `result` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_transfer_wait(transfer: mf_transfer, result: *mut mf_result) -> mf_status {
    call(|call| {
        let transfer = call.get::<Arc<Transfer>>(transfer.id)?;
        if !transfer.is_complete() {
            call.may_block()?;
        }
        // SAFETY: promised by the caller.
        unsafe { transfer.wait(result) }
    })
}

/// Like `mf_transfer_wait`, but returns `MF_PENDING` instead of waiting. It sets no message then.
///
/// # Safety
/// `result` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_transfer_poll(transfer: mf_transfer, result: *mut mf_result) -> mf_status {
    let mut is_pending = false;
    let status = call(|call| {
        // SAFETY: promised by the caller.
        is_pending = !unsafe { call.get::<Arc<Transfer>>(transfer.id)?.result(result) }?;
        Ok(())
    });
    if is_pending { mf_status::MF_PENDING } else { status }
}

/// Frees a transfer.
///
/// An operation in flight without a callback is refused with `MF_BUSY`: nobody would know when its buffers may be freed.
/// One with a callback goes on.
#[unsafe(no_mangle)]
pub extern "C" fn mf_transfer_free(transfer: mf_transfer) -> mf_status {
    call(|_| {
        remove::<Arc<Transfer>>(transfer.id, |transfer| {
            let is_unobserved = transfer.callback.0.is_none() && !transfer.is_complete();
            is_unobserved.then(|| {
                Error::new(
                    mf_status::MF_BUSY,
                    "the operation is in flight and has no callback; wait for it, then free it",
                )
            })
        })
        .map(drop)
    })
}

/// Waits like `mf_transfer_wait` for each of `count` transfers and frees them. Writes their results, unless `results` is
/// NULL. Returns the first status that is not `MF_OK`.
///
/// # Safety
/// `transfers` is valid for `count` elements, `results` is NULL or valid for `count` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_transfers_finish(
    transfers: *const mf_transfer,
    count: usize,
    results: *mut mf_result,
) -> mf_status {
    if transfers.is_null() && count > 0 {
        return call(|_| Err(Error::argument("transfers is NULL; pass an array")));
    }
    let mut first = mf_status::MF_OK;
    for index in 0..count {
        // SAFETY: the arrays have `count` elements.
        let status = unsafe {
            let transfer = *transfers.add(index);
            let result = if results.is_null() { results } else { results.add(index) };
            let status = mf_transfer_wait(transfer, result);
            match mf_transfer_free(transfer) {
                mf_status::MF_OK => status,
                refused if status == mf_status::MF_OK => refused,
                _ => status,
            }
        };
        if first == mf_status::MF_OK {
            first = status;
        }
    }
    first
}
