//! Devices that several processes share. As on silicon, each queue has one order and one threshold for all of them.
//!
//! ```text
//!                     ┌ Board: options, configuration, live clients              written by the server
//! Server ── creates ──┼ Order: order of the entries of each queue                written by all
//!    └ Clients        └ ClientMemory: entries and counters of one client         written by that client
//!
//! process A: Devices::connect, Connected::join ─▶ Client: submits; its ClientEngine executes A's descriptors
//! process B: the same
//! ```
//!
//! Descriptors name the memory of the process that submitted them, so each process executes its own descriptors: a
//! [`ClientEngine`] is the whole device over the memory of one process, and dispatches entries of this process only.
//! The processes share the order of the entries. Under a timing they also share the times at which each engine and the
//! bandwidth are free, and the arbiter of each group.
//!
//! Without a timing, each process executes as fast as it can and shares no engine with other processes. In any case, an
//! entry at the head of a queue waits for its owner: a stopped process (for example in a debugger) stops the queues
//! that hold its entries, until it continues or ends.
//!
//! ```
//! use memferry_dsa::{Descriptor, Submission};
//! use memferry_dsa_emulator::shared::{DeviceSetup, Options, QueueAt, Server};
//! use memferry_dsa_emulator::{Capabilities, OPERATIONS, shared_queue};
//!
//! let server = Server::create(&Options::default())?;
//! let engine_groups = [Some(0), None, None, None];
//! let setup = DeviceSetup { number: 0, operations: OPERATIONS, capabilities: Capabilities::ALL, engine_groups };
//! server.enable_device(0, &setup);
//! let queue = QueueAt { device: 0, queue: 0 };
//! server.enable_queue(queue, 0, &shared_queue("", 8))?;
//!
//! let client = server.join(std::process::id())?;
//! assert_eq!(client.enqcmd(queue, &mut Descriptor::noop().to_words()), Submission::Accepted);
//! assert_eq!(server.queue_report(queue).occupancy, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Security
//!
//! Processes of several users may share devices, and the server may run as root. All memory is sealed against
//! truncation, so that no access causes SIGBUS.
//!
//! | memory | a hostile client can | effect on another client | effect on the server |
//! |---|---|---|---|
//! | `Board` | read it | none | none: only the server writes it |
//! | `Order` | write anything | delay, other order; it executes its own descriptors only, each once | repairs it within seconds |
//! | `ClientMemory` | write anything in its own | none: others cannot map it | reads wrong counts |
//!
//! A hostile client can therefore fill a queue, stop it while it lives, falsify counters and error registers, and
//! append lines to the trace. It cannot make a device access memory, or execute a descriptor, that the submitting
//! process has not named; read other clients' descriptors; open or truncate files; or end or stop the server. The
//! server gets a client's process and user from the kernel (`SO_PEERCRED`).
//!
//! A process that dies leaves entries, engines and counters behind, which the server [reaps](Server::reap). At no
//! moment can it die and leave something that cannot be attributed to it.

mod client;
mod clients;
mod control;
mod devices;
mod engine;
mod futex;
mod layout;
mod linger;
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
use layout::DEVICES_MAX;
pub use options::Options;
pub use report::{ClientReport, QueueReport, Submitted};
pub use server::Server;
pub(crate) use shared_device::SharedDevice;
pub use socket::{ConnectError, Connected, Listener};
pub(crate) use trace::{RecordFate, Trace};

/// The request of `ioctl(2)` with which a process asks whether it has opened a queue's file itself: `EPERM` if not.
///
/// Source: `_IO('M', 0)` of Linux' `asm-generic/ioctl.h`; the real driver has no ioctl requests.
pub const IS_OPENERS: u32 = (b'M' as u32) << 8;

/// The number of a work queue of a shared device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueAt {
    /// The number of the device, below 16.
    pub device: usize,
    /// The number of the queue in the device, below [`QUEUES_MAX`](super::QUEUES_MAX).
    pub queue: usize,
}

impl QueueAt {
    /// The queue with these numbers, if they are valid.
    pub fn new(device: usize, queue: usize) -> Option<QueueAt> {
        (device < DEVICES_MAX && queue < super::QUEUES_MAX).then_some(QueueAt { device, queue })
    }
}
