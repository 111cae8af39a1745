//! The state file: what processes that share devices have in common.
//!
//! ```text
//! header    magic, version, options (seed and bad habits, timing, patches, trace), CPUs, when the clocks started
//! devices   generation, order, groups, engines' times, arbiters, error register, sums; queues with their rings
//! clients   who is there; per device: a word to wait on, counters
//! ```
//!
//! Plain data: atomics in `repr(C)` structs, no pointers, zero where nothing was written. A file that is all holes is
//! one with no device.
//!
//! | part | written by |
//! |---|---|
//! | header | the server, before the first client |
//! | a device's configuration | the server, while its queues concerned are closed and drained |
//! | rings, registers, times, arbiters | all, see there |
//! | a client's part | that client; the server or another client once it is dead |

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::emulator::config::{ENGINES_MAX, GROUPS_MAX, QUEUES_MAX};
use crate::emulator::counters::Counters;
use crate::emulator::queue::QueueState;
use crate::emulator::register::ErrorRegister;
use crate::emulator::ring::Line;

/// Most devices of a state file: those of four sockets.
pub const DEVICES_MAX: usize = 16;
/// Most processes that use devices at the same time.
pub const CLIENTS_MAX: usize = 512;
/// Bytes of a path to the trace, with a zero at its end: `PATH_MAX`.
pub(super) const TRACE_BYTES: usize = 4096;

/// As many CPUs as a `cpu_set_t` has.
pub(super) const CPUS_MAX: usize = libc::CPU_SETSIZE as usize;

pub(super) const ENGINES: usize = ENGINES_MAX as usize;

/// "memferry", read as a little-endian number.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"memferry");
/// Changes with each change of the layout.
pub(super) const VERSION: u64 = 4;

/// The state file.
#[repr(C)]
pub(super) struct StateFile {
    pub(super) header: Header,
    pub(super) places: [Place; CLIENTS_MAX], // apart from the rest, so that a look at all touches four pages
    pub(super) devices: [DeviceState; DEVICES_MAX],
    pub(super) clients: [ClientState; CLIENTS_MAX],
}

#[repr(C, align(4096))]
pub(super) struct Header {
    pub(super) magic: AtomicU64, // written last
    pub(super) version: AtomicU64,
    pub(super) size_bytes: AtomicU64,
    pub(super) epoch_ns: AtomicU64, // CLOCK_MONOTONIC when the devices' clocks started
    pub(super) keeps_traps: AtomicU64, // 1: call sites are not patched
    pub(super) cpus: [AtomicU64; CPUS_MAX / 64], // bit by bit, those that engines run on
    pub(super) nasty: [AtomicU64; 12],
    pub(super) timing: [AtomicU64; 9],              // all zero: none
    pub(super) trace: [AtomicU64; TRACE_BYTES / 8], // the path's bytes, then zeros
}

#[repr(C, align(4096))]
pub(super) struct DeviceState {
    pub(super) generation: AtomicU64, // one more after each change of the configuration; odd meanwhile
    pub(super) order: AtomicU32,      // an Order
    pub(super) number: AtomicU32,     // in its name
    pub(super) capabilities: AtomicU64,
    pub(super) operations: [AtomicU64; 4],
    pub(super) engine_groups: [AtomicU32; ENGINES], // the group's number plus 1; 0 without one
    pub(super) queue_groups: [AtomicU32; QUEUES_MAX], // the same, of queues that are enabled
    pub(super) portals: [PortalFile; QUEUES_MAX],
    pub(super) error: ErrorRegister,
    pub(super) times: Line<Times>,
    pub(super) retired: Counters, // of clients that are no more
    pub(super) queues: [QueueState; QUEUES_MAX],
}

/// Which file is the queue's.
#[repr(C)]
pub(super) struct PortalFile {
    pub(super) device: AtomicU64, // st_dev
    pub(super) inode: AtomicU64,  // st_ino; 0: none
}

/// What clients share of the clock of a device with a timing.
#[repr(C)]
pub(super) struct Times {
    pub(super) bandwidth: AtomicU64,          // when it is free, see `Clock`
    pub(super) engines: [AtomicU64; ENGINES], // when each is free, or who has it
    pub(super) arbiters: [AtomicU64; GROUPS_MAX],
}

/// Room for a client, and who has it. Number 0 is nobody's.
#[repr(C)]
pub(super) struct Place {
    pub(super) life: AtomicU64,     // 33:2 process, 1:0 a Life
    pub(super) started: AtomicU64,  // when the process started, in the kernel's units; 0: not known
    pub(super) stack: AtomicU64,    // where its program's stack begins; 0: not known
    pub(super) executor: AtomicU64, // the process whose engines execute for it: itself, or one that acts for it
}

/// What is told of a client stays until another one gets its place.
#[repr(C, align(4096))]
pub(super) struct ClientState {
    pub(super) process: AtomicU64,      // 0: nobody has ever had the place
    pub(super) program: [AtomicU64; 2], // the name's bytes, then zeros, as the kernel has it: 15 at most
    pub(super) devices: [ClientDevice; DEVICES_MAX],
}

/// What a client has of a device.
#[repr(C)]
pub(super) struct ClientDevice {
    /// A futex: 1 while the client's engine sleeps. Submitters look at it each time, and the engine writes the rest.
    pub(super) asleep: Line<AtomicU32>,
    pub(super) counters: Counters,
    pub(super) queues: [ClientQueue; QUEUES_MAX],
}

/// What a client has had of a queue. The client's engine writes the first three, submitters the others.
#[repr(C)]
pub(super) struct ClientQueue {
    pub(super) taken: AtomicU64,   // entries popped, or about to be
    pub(super) ended: AtomicU64,   // of these, what an engine is done with
    pub(super) settled: AtomicU64, // of these, what has its completion record, if it wants one
    pub(super) retried: AtomicU64, // times that the queue answered Retry
    pub(super) dropped: AtomicU64, // descriptors that it lost
    /// What it has accepted, once the client is gone, who then has neither taken anything nor an entry.
    pub(super) accepted: AtomicU64,
}

/// What clients do with a device's descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Order {
    /// Process them.
    Run = 0,
    /// Drop them.
    Abort = 1,
}

/// Of a client, by the two low bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(super) enum Life {
    Free = 0,
    Live = 1,
    /// Its counters are being added to the devices'.
    Dying = 2,
    /// Entries of it may be left in rings.
    Dead = 3,
}

impl Life {
    pub(super) fn of(self, process: u32) -> u64 {
        u64::from(process) << 2 | self as u64
    }
}

impl Place {
    /// Whose it is, if it is in this state.
    pub(super) fn process(&self, life: Life) -> Option<u32> {
        // ORDERING: Acquire pairs with the Release in `turn`.
        let word = self.life.load(Ordering::Acquire);
        (word & 3 == life as u64).then_some((word >> 2) as u32)
    }

    /// Goes from one state to the next; false if somebody else has done it.
    pub(super) fn turn(&self, process: u32, from: Life, to: Life) -> bool {
        let to_process = if to == Life::Free { 0 } else { process };
        let from_process = if from == Life::Free { 0 } else { process };
        let (from, to) = (from.of(from_process), to.of(to_process));
        // ORDERING: AcqRel: whoever sees a state sees what belongs to it.
        self.life.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

const _: () = assert!(QUEUES_MAX == 8 && GROUPS_MAX == 4 && ENGINES == 4, "the layout depends on them");
const _: () = assert!(CLIENTS_MAX < 1 << 12, "marks of ring slots have 12 bits for the client");
