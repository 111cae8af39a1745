//! Why a call did not do what it should.

use std::time::Duration;

use crate::completion::Completion;
use crate::request::{Invalid, Unfit};

/// Why the CPU did a request, or its rest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, thiserror::Error)]
pub enum OnCpu {
    /// The client has no queue.
    #[error("there is no queue")]
    NoQueue,
    /// The device lacks the operation, or this form of it.
    #[error("no queue has the operation")]
    Operation,
    /// The operation is newer than the device.
    #[error("the operation needs a newer device")]
    Version,
    /// The request is larger than a queue takes, and cannot be cut.
    #[error("the request is larger than a queue takes; configure a larger max_transfer_size")]
    Size,
    /// The room left for a delta record is less than devices take.
    #[error("the room left for the delta record is less than a device takes")]
    DeltaRoom,
    /// All queues are lost.
    #[error("all devices are gone")]
    Gone,
    /// The portals refused the descriptor.
    #[error("the portal refused the descriptor")]
    Refused,
    /// All queues stayed full.
    #[error("all queues were full; use more queues, or fewer submitters")]
    QueueFull,
    /// Too many page faults.
    #[error("too many page faults; populate the memory before")]
    Faults,
}

impl OnCpu {
    /// Every reason, in the order of the numbers.
    pub const ALL: [OnCpu; 9] = [
        OnCpu::NoQueue,
        OnCpu::Operation,
        OnCpu::Version,
        OnCpu::Size,
        OnCpu::DeltaRoom,
        OnCpu::Gone,
        OnCpu::Refused,
        OnCpu::QueueFull,
        OnCpu::Faults,
    ];
}

const _: () = {
    let mut number = 0;
    while number < OnCpu::ALL.len() {
        assert!(OnCpu::ALL[number] as usize == number);
        number += 1;
    }
};

impl From<Unfit> for OnCpu {
    fn from(unfit: Unfit) -> OnCpu {
        match unfit {
            Unfit::Operation => OnCpu::Operation,
            Unfit::Version => OnCpu::Version,
            Unfit::Size => OnCpu::Size,
            Unfit::DeltaRoom => OnCpu::DeltaRoom,
        }
    }
}

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
