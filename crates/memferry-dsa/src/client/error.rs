//! The errors of calls.

use std::time::Duration;

use crate::completion::Completion;
use crate::driver::OnCpu;
use crate::request::Invalid;

/// The error of a call.
///
/// ```
/// use memferry_dsa::{Client, ClientError, ClientOptions, Request};
///
/// let client = Client::new(Vec::new(), ClientOptions::default());
/// let error = client.run(Request::copy(&[1u8; 4], &mut [0u8; 5])).unwrap_err();
/// assert!(matches!(error, ClientError::Invalid(_)), "{error}");
/// ```
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The request is invalid. Nothing was submitted or written.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A member of the batch is invalid. Nothing was submitted or written.
    #[error("member {member} of the batch: {invalid}")]
    InvalidMember {
        /// Its number.
        member: usize,
        /// Its error.
        invalid: Invalid,
    },
    /// No device could execute it, and the CPU may not be used
    /// ([`ClientOptions::may_use_cpu`](crate::ClientOptions::may_use_cpu)), or cannot drain a queue. Part of the target
    /// may be written.
    #[error("no device can execute the request: {0}")]
    NoDevice(OnCpu),
    /// The device failed. The content of the target is unspecified.
    #[error("{queue}: the device failed: {}", .completion.status)]
    Failed {
        /// The queue.
        queue: String,
        /// Its completion.
        completion: Completion,
    },
    /// The device was disabled, or stopped, with the request in it. The content of the target is unspecified; the device
    /// writes no more.
    #[error("{queue}: the device stopped with this request in it; the content of the target is unspecified")]
    Gone {
        /// The queue.
        queue: String,
    },
    /// The device was silent for too long. Only for owned buffers, which are leaked: the device may still write to them.
    #[error(
        "{queue}: no completion from the device for {waited:?}; the buffers are leaked, since it may still use them"
    )]
    Silent {
        /// The queue.
        queue: String,
        /// The duration of the wait.
        waited: Duration,
    },
}
