//! The reasons for which the CPU executes a request.

/// The reason for which the CPU executes a request, or its rest.
///
/// ```
/// use memferry_dsa::{Client, ClientOptions, OnCpu, Request};
///
/// let client = Client::new(Vec::new(), ClientOptions::default());
/// client.run(Request::noop())?;
/// assert_eq!(client.stats().on_cpu(OnCpu::NoQueue), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
