//! Why a call did not do what it should.

use std::time::Duration;

use crate::completion::Completion;
use crate::driver::OnCpu;
use crate::request::Invalid;

/// A call has no outcome.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The request is wrong. Nothing was submitted or written.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A member of the batch is wrong. Nothing was submitted or written.
    #[error("member {member} of the batch: {invalid}")]
    InvalidMember {
        /// Its number.
        member: usize,
        /// What is wrong.
        invalid: Invalid,
    },
    /// No device could do it, and the CPU was not to
    /// ([`ClientOptions::may_use_cpu`](crate::ClientOptions::may_use_cpu)), or cannot drain a queue. Part of the target
    /// may be written.
    #[error("no device does this: {0}")]
    NoDevice(OnCpu),
    /// The device failed. What should have been written is unspecified.
    #[error("{queue}: the device failed: {}", .completion.status)]
    Failed {
        /// The queue.
        queue: String,
        /// What the device said.
        completion: Completion,
    },
    /// The device was disabled, or died, with the work in it. What should have been written is unspecified; the device
    /// writes no more.
    #[error("{queue}: the device has gone with this work in it; its target is unspecified")]
    Gone {
        /// The queue.
        queue: String,
    },
    /// Nothing was heard of the work in time. Only for owned buffers, which are leaked: the device may still write to
    /// them.
    #[error(
        "{queue}: nothing was heard of the device for {waited:?}; the buffers are leaked, since it may still use them"
    )]
    Silent {
        /// The queue.
        queue: String,
        /// How long.
        waited: Duration,
    },
}
