//! Devices that several processes share: one queue with one order and one threshold for all of them, as silicon has it.
//!
//! ```text
//! server: State::create, enable_device, enable_queue ... ──▶ ┌────────────┐ ◀── process A: State::attach, Client::join
//!         sums, error registers, burying the dead            │ state file │       submits; its engine takes what is A's
//!                                                            └────────────┘ ◀── process B: the same
//! ```
//!
//! Descriptors name the memory of the process that submitted them, so each process executes its own: an *engine* of a
//! [`Client`] is the whole device, over the memory of one process, and takes entries of that one only. What the
//! processes have in common is in the state file: the entries in their order, and under a timing when each engine and
//! the bandwidth are free and whose turn it is among the queues of a group.
//!
//! Without a timing each process executes as fast as it can, and its own entries share no engine with those of
//! others. An entry at the head of a queue waits for its owner in any case: a process that is stopped (by a debugger,
//! say) stops the queues that it has entries in, until it goes on or is gone.
//!
//! A process that dies leaves entries, engines and counters behind; whoever notices calls
//! [`State::bury`](State::bury) or [`State::reap`](State::reap). There is no moment at which it could die and leave
//! something that cannot be attributed to it.

mod burial;
mod client;
mod common;
mod control;
mod engine;
mod futex;
mod layout;
mod mapping;
mod options;
mod report;
mod shape;
mod trace;

pub use client::{Client, JoinError};
pub use control::DeviceSetup;
pub use engine::ClientEngine;
pub use layout::{CLIENTS_MAX, DEVICES_MAX};
pub use options::Options;
pub use report::{ClientReport, QueueReport, Submitted};

pub(super) use common::Common;
pub(super) use trace::{RecordFate, Trace};

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use self::layout::{CPUS_MAX, DeviceState, MAGIC, StateFile, VERSION};
use self::mapping::{Mapping, SIZE_BYTES};
use super::held::Held;
use super::monotonic::monotonic_ns;
use crate::affinity;

/// The request of `ioctl(2)` by which a process asks whether it has opened a queue's file itself: `EPERM` if not.
///
/// Source: `_IO('M', 0)` of Linux' `asm-generic/ioctl.h`; the real driver has no requests.
pub const IS_OPENERS: u32 = (b'M' as u32) << 8;

/// A state file that is mapped.
#[derive(Clone)]
pub struct State(Arc<Mapping>);

/// A work queue of a state file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueAt {
    /// The number of the device in the file, below [`DEVICES_MAX`].
    pub device: usize,
    /// The number of the queue in the device, below [`QUEUES_MAX`](super::QUEUES_MAX).
    pub queue: usize,
}

/// A file that is no state file of this version.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The file cannot be mapped.
    #[error("cannot map the state file: {0}")]
    Map(#[source] io::Error),
    /// Something else, or made by another version.
    #[error(
        "this is no state file of this version of memferry: use the command and the library of one build"
    )]
    NotOurs,
}

impl State {
    /// Makes an empty or new file a state file, without devices. The clocks start now, and engines run on the CPUs that
    /// this thread may run on.
    ///
    /// # Errors
    /// Those of `ftruncate(2)` and `mmap(2)`; `InvalidInput` if the options do not fit.
    pub fn create(file: &File, options: &Options) -> io::Result<State> {
        file.set_len(0)?;
        file.set_len(SIZE_BYTES as u64)?;
        let state = State(Arc::new(Mapping::new(file)?));
        let header = &state.file().header;
        options.write(header)?;
        // Not known where there are more than a `cpu_set_t` has.
        for cpu in affinity::allowed().unwrap_or_default() {
            header.cpus[cpu as usize / 64].fetch_or(1 << (cpu % 64), Ordering::Relaxed);
        }
        header.epoch_ns.store(monotonic_ns(), Ordering::Relaxed);
        header.size_bytes.store(SIZE_BYTES as u64, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        // ORDERING: Release pairs with the Acquire in `attach`: who sees the magic sees the header.
        header.magic.store(MAGIC, Ordering::Release);
        Ok(state)
    }

    /// Maps a state file that a server has made. The descriptor can be closed afterwards.
    ///
    /// # Errors
    /// [`AttachError`]
    pub fn attach(file: &File) -> Result<State, AttachError> {
        let mapping = Mapping::new(file).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => AttachError::NotOurs,
            _ => AttachError::Map(error),
        })?;
        let header = &mapping.get().header;
        // ORDERING: Acquire pairs with the Release in `create`.
        let is_ours = header.magic.load(Ordering::Acquire) == MAGIC
            && header.version.load(Ordering::Relaxed) == VERSION
            && header.size_bytes.load(Ordering::Relaxed) == SIZE_BYTES as u64;
        if is_ours { Ok(State(Arc::new(mapping))) } else { Err(AttachError::NotOurs) }
    }

    /// What the server has chosen for all.
    pub fn options(&self) -> Options {
        Options::read(&self.file().header)
    }

    /// The CPUs that engines run on, whatever their program is confined to: it would confine a device, else. Empty if
    /// they are not known.
    pub fn cpus(&self) -> Vec<u32> {
        let words = &self.file().header.cpus;
        let is_in = |cpu: &u32| words[*cpu as usize / 64].load(Ordering::Relaxed) >> (cpu % 64) & 1 == 1;
        (0..CPUS_MAX as u32).filter(is_in).collect()
    }

    /// The queue whose file this is, by `st_dev` and `st_ino`.
    pub fn queue_of(&self, file_device: u64, inode: u64) -> Option<QueueAt> {
        let file = self.file();
        (0..DEVICES_MAX).find_map(|device| {
            let portals = file.devices[device].portals.iter();
            let mut numbered = portals.enumerate();
            let (queue, _) = numbered.find(|(_, portal)| {
                inode != 0
                    && portal.inode.load(Ordering::Acquire) == inode
                    && portal.device.load(Ordering::Relaxed) == file_device
            })?;
            Some(QueueAt { device, queue })
        })
    }

    fn file(&self) -> &StateFile {
        self.0.get()
    }

    fn device(&self, device: usize) -> &DeviceState {
        &self.file().devices[device]
    }

    /// A part of the file that keeps the file.
    fn hold<T: Send + Sync + 'static>(&self, part: impl FnOnce(&StateFile) -> &T) -> Held<T> {
        Held::part_of(Arc::clone(&self.0), |mapping| part(mapping.get()))
    }

    /// When the clocks started.
    fn epoch_ns(&self) -> u64 {
        self.file().header.epoch_ns.load(Ordering::Relaxed)
    }

    /// The clock of devices with a timing, and that of stamps.
    fn now_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.epoch_ns())
    }
}

impl QueueAt {
    /// The queue with this number, if there can be one.
    pub fn new(device: usize, queue: usize) -> Option<QueueAt> {
        (device < DEVICES_MAX && queue < super::QUEUES_MAX).then_some(QueueAt { device, queue })
    }
}
