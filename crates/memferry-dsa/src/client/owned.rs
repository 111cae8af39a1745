//! Calls that own their memory, and can leak it if a device is silent.

use super::error::ClientError;
use super::waiting::Memory;
use super::{Batch, Client, Outcome, Outcomes, Request};
use crate::request::bytes_of;

/// The buffers of a call that owned them, and its outcome.
type Owned<B, R> = Result<(Box<B>, R), OwnedError<B>>;

/// The error of a call with owned buffers.
///
/// ```
/// use memferry_dsa::{Client, ClientOptions, Request};
///
/// let client = Client::new(Vec::new(), ClientOptions::default());
/// let result = client.run_owned(Box::new([0u8; 0]), |empty| Request::fill(0, &mut empty[..]));
/// let error = result.expect_err("no bytes");
/// assert!(error.buffers.is_some(), "{error}");
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct OwnedError<B> {
    /// The cause.
    #[source]
    pub error: ClientError,
    /// The buffers; `None` if a device may still access them, so that they are leaked.
    pub buffers: Option<Box<B>>,
}

impl Client {
    /// Executes a request on buffers that the call owns until it is complete.
    ///
    /// The same as [`run`](Self::run), except that a silent device leaks the buffers instead of ending the process. A request
    /// with cells still ends the process, since other code may have the cells.
    ///
    /// ```
    /// use memferry_dsa::{Client, ClientOptions, Request};
    /// let client = Client::new(Vec::new(), ClientOptions::default());
    /// let buffers = Box::new((vec![1u8; 100], vec![0u8; 100]));
    /// let (buffers, ()) = client.run_owned(buffers, |(source, target)| Request::copy(&*source, target))?;
    /// assert_eq!(buffers.0, buffers.1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`OwnedError`]: the cause, and the buffers unless they are leaked, which is counted.
    pub fn run_owned<B, O, M>(&self, buffers: Box<B>, make: M) -> Owned<B, O>
    where
        B: 'static,
        O: Outcome,
        M: for<'a> FnOnce(&'a mut B) -> Request<'a, O>,
    {
        self.owned(buffers, |buffers| {
            let request = make(buffers);
            let bytes = bytes_of(&request.descriptor);
            let memory = memory(request.has_cells());
            (bytes, self.counted(|| self.run_in(request, memory)))
        })
    }

    /// Executes a batch on buffers that the call owns, as [`run_owned`](Self::run_owned) does. Returns the tickets that `make`
    /// returned with the batch.
    ///
    /// # Errors
    /// As [`run_owned`](Self::run_owned).
    pub fn run_batch_owned<B, T, M>(&self, buffers: Box<B>, make: M) -> Owned<B, (Outcomes, T)>
    where
        B: 'static,
        M: for<'a> FnOnce(&'a mut B) -> (Batch<'a>, T),
    {
        self.owned(buffers, |buffers| {
            let (batch, tickets) = make(buffers);
            let bytes = batch.bytes();
            let memory = memory(batch.has_cells());
            let outcomes = self.counted(|| self.run_batch_in(batch, memory));
            (bytes, outcomes.map(|outcomes| (outcomes, tickets)))
        })
    }

    /// `call` returns the number of bytes that a device may access, and the result.
    fn owned<B, R>(
        &self,
        buffers: Box<B>,
        call: impl FnOnce(&mut B) -> (u64, Result<R, ClientError>),
    ) -> Owned<B, R> {
        let owner = Owner(Box::into_raw(buffers));
        // SAFETY: the pointer is from a box, and no other code has it.
        let (bytes, result) = call(unsafe { &mut *owner.0 });
        let pointer = owner.0;
        std::mem::forget(owner);
        if let Err(error @ ClientError::Silent { .. }) = result {
            self.stats.leaked_bytes.add(bytes);
            return Err(OwnedError { error, buffers: None });
        }
        // SAFETY: from `Box::into_raw`, and not freed since; no device accesses it.
        let buffers = unsafe { Box::from_raw(pointer) };
        match result {
            Ok(outcome) => Ok((buffers, outcome)),
            Err(error) => Err(OwnedError { error, buffers: Some(buffers) }),
        }
    }
}

/// Slices that outlive the call belong to the buffers, or no code writes them. Cells may be `'static` or counted, and the
/// caller may have them.
fn memory(has_cells: bool) -> Memory {
    if has_cells { Memory::Borrowed } else { Memory::Owned }
}

/// Owns buffers as a pointer, since moving a box asserts that no other pointer accesses them. A panic frees them; `Waiting`
/// lets it pass only after the device has completed.
struct Owner<B>(*mut B);

impl<B> Drop for Owner<B> {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw`; the only other owner of the box forgets this value first.
        drop(unsafe { Box::from_raw(self.0) });
    }
}
