//! The layout of the memory that processes share.
//!
//! ```text
//! Board         options (fault plan, timing, patches), CPUs, start of the clocks, live clients;
//!               devices: generation, command, groups, configuration and file of each queue
//! Order         devices: error register, engines' times, arbiters; queues: order of their entries, counts
//!               clients, per device: a futex
//! ClientMemory  of one client, per device: counters; queues: its entries and counts
//! ```
//!
//! Plain data: atomics in `repr(C)` structs, no pointers, zero where nothing was written.
//!
//! | memory | written by | read by |
//! |---|---|---|
//! | [`Board`] | the server; the configuration of a queue while it is closed and drained | all |
//! | [`Order`] | all; see its structs | all, which trust no value |
//! | [`ClientMemory`] | its client | its client; the server, which trusts no value |

use std::sync::atomic::{AtomicU32, AtomicU64};

use super::memory::Plain;
use crate::config::{ENGINES_MAX, GROUPS_MAX, QUEUES_MAX};
use crate::device::counters::Counters;
use crate::device::error_register::ErrorRegister;
use crate::queue::ring::{CacheLine, Entries};
use crate::queue::{QueueConfig, QueueOrder};

/// Maximum number of devices: those of four sockets.
pub(crate) const DEVICES_MAX: usize = 16;
/// Number of client numbers; no client has the number 0.
pub(super) const CLIENTS_MAX: usize = 512;

/// Maximum number of CPUs: those of a `cpu_set_t`.
pub(super) const CPUS_MAX: usize = libc::CPU_SETSIZE as usize;

pub(super) const ENGINES: usize = ENGINES_MAX as usize;

/// "memferry", read as a little-endian number.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"memferry");
/// Changes with each change of the layout.
pub(super) const VERSION: u64 = 5;

/// The memory that only the server writes.
#[repr(C)]
pub(super) struct Board {
    pub(super) header: Header,
    pub(super) live: [AtomicU32; CLIENTS_MAX], // 1: the client has joined; number 0 is unused
    pub(super) devices: [DeviceBoard; DEVICES_MAX],
}

/// Version, options and clock; the server writes them before it has clients.
#[repr(C, align(4096))]
pub(super) struct Header {
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU64,
    pub(super) epoch_ns: AtomicU64, // CLOCK_MONOTONIC when the devices' clocks started
    pub(super) keeps_traps: AtomicU64, // 1: call sites are not patched
    pub(super) traces: AtomicU64,   // 1: descriptors are traced
    pub(super) cpus: [AtomicU64; CPUS_MAX / 64], // bit by bit, those that engines run on
    pub(super) fault_plan: [AtomicU64; 12],
    pub(super) timing: [AtomicU64; 9], // all zero: none
}

/// The configuration of a device. The server writes it under the sequence lock `generation`, except for `command` and
/// `portals`.
#[repr(C, align(4096))]
pub(super) struct DeviceBoard {
    pub(super) generation: AtomicU64, // one more after each change of the configuration; odd meanwhile
    pub(super) command: AtomicU32,    // a Command
    pub(super) number: AtomicU32,     // in its name
    pub(super) capabilities: AtomicU64,
    pub(super) operations: [AtomicU64; 4],
    pub(super) engine_groups: [AtomicU32; ENGINES], // the group's number plus 1; 0 without one
    pub(super) queue_groups: [AtomicU32; QUEUES_MAX], // the same for enabled queues
    pub(super) portals: [PortalFile; QUEUES_MAX],
    pub(super) queues: [QueueConfig; QUEUES_MAX],
}

/// The file of a queue.
#[repr(C)]
pub(super) struct PortalFile {
    pub(super) device: AtomicU64, // st_dev
    pub(super) inode: AtomicU64,  // st_ino; 0: none
}

/// The memory that all clients write: the order of entries, and futexes.
#[repr(C)]
pub(super) struct Order {
    pub(super) devices: [DeviceOrder; DEVICES_MAX],
    pub(super) sleepers: [[CacheLine<AtomicU32>; DEVICES_MAX]; CLIENTS_MAX], // see futex.rs
}

/// The state of a device that all clients write.
#[repr(C, align(4096))]
pub(super) struct DeviceOrder {
    pub(super) error: ErrorRegister,
    pub(super) times: CacheLine<Times>,
    pub(super) queues: [QueueOrder; QUEUES_MAX],
}

/// The words with which clients share a device with a timing.
#[repr(C)]
pub(super) struct Times {
    pub(super) bandwidth: AtomicU64, // the time at which it is free, see `Clock`
    pub(super) engines: [AtomicU64; ENGINES], // the time at which each is free, or its client
    pub(super) arbiters: [AtomicU64; GROUPS_MAX],
}

/// The memory that only one client writes.
#[repr(C)]
pub(super) struct ClientMemory {
    pub(super) devices: [ClientDevice; DEVICES_MAX],
}

/// A client's counters and entries of one device.
#[repr(C, align(4096))]
pub(super) struct ClientDevice {
    pub(super) counters: Counters,
    pub(super) queues: [CacheLine<ClientQueue>; QUEUES_MAX],
    pub(super) entries: [Entries; QUEUES_MAX],
}

/// A client's counts of a queue. The client's engine writes the first three, its submitters the others; the server
/// reads them.
#[repr(C)]
pub(super) struct ClientQueue {
    pub(super) dispatched: AtomicU64, // entries popped, or about to be
    pub(super) executed: AtomicU64,   // of these, executed by an engine
    pub(super) completed: AtomicU64,  // of these, with a completion record or without need of one
    pub(super) retried: AtomicU64,    // Retry answers
    pub(super) dropped: AtomicU64,    // descriptors lost in a full dedicated queue
}

#[allow(unsafe_code)]
// SAFETY: all three consist of atomics.
unsafe impl Plain for Board {}
#[allow(unsafe_code)]
// SAFETY: as above.
unsafe impl Plain for Order {}
#[allow(unsafe_code)]
// SAFETY: as above.
unsafe impl Plain for ClientMemory {}

/// The server's command to the clients of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Command {
    /// Process descriptors.
    Run = 0,
    /// Drop descriptors.
    Abort = 1,
}

const _: () = assert!(QUEUES_MAX == 8 && GROUPS_MAX == 4 && ENGINES == 4, "the layout depends on them");
const _: () = assert!(CLIENTS_MAX < 1 << 12, "marks of ring slots have 12 bits for the client");
