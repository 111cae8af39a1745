//! Devices that several processes share: one queue with one order and one threshold for all of them, as silicon has it.
//!
//! ```text
//!                            ┌ Board: options, configuration, who is there   written by the server
//! server: Server ── hands out ┼ Order: whose turn it is in each queue         written by all
//!    └ Clients: its own      └ ClientMemory: entries and counters of one client      written by that client
//!
//! process A: Devices::connect, Devices::join ─▶ Client: submits; its engine executes what is A's
//! process B: the same
//! ```
//!
//! Descriptors name the memory of the process that submitted them, so each process executes its own: an *engine* of a
//! [`Client`] is the whole device, over the memory of one process, and takes entries of that one only. What the
//! processes have in common is the order of the entries, and under a timing when each engine and the bandwidth are free
//! and whose turn it is among the queues of a group.
//!
//! Without a timing each process executes as fast as it can, and its own entries share no engine with those of
//! others. An entry at the head of a queue waits for its owner in any case: a process that is stopped (by a debugger,
//! say) stops the queues that it has entries in, until it goes on or is gone.
//!
//! # Who can do what to whom
//!
//! Processes of several users may share devices, and the server may be root's. All memory is sealed against being cut, so
//! that nobody's access ends in SIGBUS.
//!
//! | memory | a client can | so another client | and the server |
//! |---|---|---|---|
//! | `Board` | read it | | is the only one who writes it |
//! | `Order` | write anything | is late, or out of order; executes what it has submitted, once, and nothing else | makes sense of it again within seconds |
//! | `ClientMemory` | write anything in its own | cannot see it | reads counts that are wrong |
//!
//! A client that means harm can therefore fill a queue, stop it as long as it lives, spoil what devices count and report
//! as errors, and append lines to the trace. It cannot have a device access memory, or execute a descriptor, that the
//! submitting process has not named; read others' descriptors; open or cut files; or end or stop the server. The server
//! takes a client's process and user from the kernel (`SO_PEERCRED`).
//!
//! A process that dies leaves entries, engines and counters behind; the server [removes](Server::reap) them. There is no
//! moment at which it could die and leave something that cannot be attributed to it.

mod client;
mod clients;
mod control;
mod devices;
mod engine;
mod futex;
mod layout;
mod maintenance;
mod memory;
mod options;
mod report;
mod server;
mod shape;
mod shared_device;
mod socket;
mod trace;

pub use client::Client;
pub use clients::JoinError;
pub use control::DeviceSetup;
pub use devices::Devices;
pub use engine::ClientEngine;
pub use layout::{CLIENTS_MAX, DEVICES_MAX};
pub use options::Options;
pub use report::{ClientReport, QueueReport, Submitted};
pub use server::Server;
pub(crate) use shared_device::SharedDevice;
pub use socket::{ConnectError, Connected, Listener};
pub(crate) use trace::{RecordFate, Trace};

/// The request of `ioctl(2)` by which a process asks whether it has opened a queue's file itself: `EPERM` if not.
///
/// Source: `_IO('M', 0)` of Linux' `asm-generic/ioctl.h`; the real driver has no requests.
pub const IS_OPENERS: u32 = (b'M' as u32) << 8;

/// A work queue of a device that processes share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueAt {
    /// The number of the device, below [`DEVICES_MAX`].
    pub device: usize,
    /// The number of the queue in the device, below [`QUEUES_MAX`](super::QUEUES_MAX).
    pub queue: usize,
}

impl QueueAt {
    /// The queue with this number, if there can be one.
    pub fn new(device: usize, queue: usize) -> Option<QueueAt> {
        (device < DEVICES_MAX && queue < super::QUEUES_MAX).then_some(QueueAt { device, queue })
    }
}
