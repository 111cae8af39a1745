//! Calls that own their memory, and can leave it to a device that does not answer.

use super::error::ClientError;
use super::waiting::Memory;
use super::{Batch, Client, Outcome, Outcomes, Request};
use crate::request::bytes_of;

/// The buffers of a call that owned them, and its outcome.
type Owned<B, R> = Result<(Box<B>, R), OwnedError<B>>;

/// A call with owned buffers has no outcome.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct OwnedError<B> {
    /// Why.
    #[source]
    pub error: ClientError,
    /// The buffers; `None` if a device may still access them, so that they are leaked.
    pub buffers: Option<Box<B>>,
}

impl Client {
    /// Executes a request on buffers that it owns until it is done.
    ///
    /// The same as [`run`](Self::run), but a silent device costs the buffers and not the process. Not so if the request
    /// names cells, which may be somebody else's as well, leaked or not.
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
    /// [`OwnedError`]: why, and the buffers unless they are leaked, which is counted.
    pub fn run_owned<B, O, M>(&self, buffers: Box<B>, make: M) -> Result<(Box<B>, O), OwnedError<B>>
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

    /// Executes a batch on buffers that it owns until it is done, as [`run_owned`](Self::run_owned) does. What `make`
    /// returns next to the batch, its tickets, is handed back.
    ///
    /// # Errors
    /// As [`run_owned`](Self::run_owned).
    pub fn run_batch_owned<B, T, M>(
        &self,
        buffers: Box<B>,
        make: M,
    ) -> Result<(Box<B>, (Outcomes, T)), OwnedError<B>>
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

    /// `call` says how many bytes of the buffers a device may access, and how the call ended.
    fn owned<B, R>(
        &self,
        buffers: Box<B>,
        call: impl FnOnce(&mut B) -> (u64, Result<R, ClientError>),
    ) -> Owned<B, R> {
        let owner = Owner(Box::into_raw(buffers));
        // SAFETY: the pointer is of a box, and nobody else has it.
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

/// Slices that outlive the call are the buffers', or nobody else writes them. Cells, in contrast, may be `'static` or
/// counted, and in the caller's hands.
fn memory(has_cells: bool) -> Memory {
    if has_cells { Memory::Borrowed } else { Memory::Owned }
}

/// Owns buffers as a pointer, since a box that is moved would claim that nobody else accesses them; frees them when a
/// panic passes, which a flight lets through only when the device is done.
struct Owner<B>(*mut B);

impl<B> Drop for Owner<B> {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw`, and freed nowhere else: who takes the box forgets this.
        drop(unsafe { Box::from_raw(self.0) });
    }
}
