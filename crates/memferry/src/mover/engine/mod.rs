//! The contract of engines: [`Engine`] takes a [`RawRequest`] and finishes it once.
//!
//! All engines pass the conformance suite `tests/integration/engines.rs`: a new one is an entry in its `calm_subjects`.
//! `docs/common-changes.md` names the other files of a new engine.

mod cpu;
mod dsa;
#[cfg(feature = "internals")]
pub(crate) mod faulty;
pub(in crate::mover) mod halt_poll;
#[cfg(all(test, memferry_loom))]
mod loom_queue;
pub(in crate::mover) mod queue;
pub(crate) mod storage;

use std::fmt;

use memferry_dsa::Opcode;

use super::request::RawRequest;
use super::stats::EngineStats;
use crate::route::EngineKind;
use crate::topology::NodeId;

pub use cpu::{CpuEngine, CpuOptions};
pub use dsa::{DsaEngine, DsaOptions};
pub use storage::{StorageEngine, StorageOptions};

/// An executor of copies.
///
/// The contract:
///
/// 1. An engine finishes every request that [`submit`](Engine::submit) accepts exactly once, in any order, on any thread.
/// 2. `submit` never blocks. It hands back what it does not accept, unchanged.
/// 3. Dropping an engine finishes the accepted requests first.
/// 4. A request whose memory a device may still write ends with an error that [keeps its
///    buffers](crate::mover::CopyError::buffers_are_lost).
/// 5. A forked child has none of the parent's threads. There the engine is [gone](Refusal::Gone), or starts its own.
/// 6. [`stats`](Engine::stats) adds up: accepted requests are finished, failed or in progress.
///
/// The trait is safe to implement, because memory safety does not depend on it. An engine that finishes a copy without
/// making it leaves wrong bytes in initialised buffers. If an engine hands back another request than it got, the mover
/// treats the original as accepted. To access the buffers an engine needs unsafe code, which must have stopped using
/// them before it finishes the request.
pub trait Engine: fmt::Debug + Send + Sync {
    /// Its name in reports.
    fn name(&self) -> &str;

    /// Its kind of hardware. Engines of kind [`EngineKind::Storage`] get the reads of files, and nothing else.
    fn kind(&self) -> EngineKind;

    /// Its node, if known.
    fn node(&self) -> Option<NodeId>;

    /// The number of copies it works on at once, at least 1. A split copy has at least as many work items.
    fn width(&self) -> usize {
        1
    }

    /// Whether it supports the operation. The default supports copies only ([`Opcode::Memmove`]). A mover submits only
    /// supported operations.
    fn supports(&self, opcode: Opcode) -> bool {
        opcode == Opcode::Memmove
    }

    /// The number of requests it has. Of equal engines the mover asks the one with the least load first.
    fn load(&self) -> usize {
        0
    }

    /// Submits several requests and returns the rejected ones. Engines may override it with a cheaper way.
    fn submit_all(&self, copies: Vec<RawRequest>) -> Vec<Rejected> {
        copies.into_iter().filter_map(|copy| self.submit(copy).err()).collect()
    }

    /// Accepts a request, or hands it back unchanged. Never blocks.
    ///
    /// The request may be finished before this returns, on this thread: hold no lock that its callback takes.
    ///
    /// # Errors
    /// [`Rejected`], with the request in it.
    fn submit(&self, copy: RawRequest) -> Result<(), Rejected>;

    /// Its statistics so far.
    fn stats(&self) -> EngineStats;
}

/// A request that an engine rejected.
#[derive(Debug)]
pub struct Rejected {
    /// The request, unchanged.
    pub copy: RawRequest,
    /// The reason.
    pub why: Refusal,
}

/// The reason for a rejection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full; retry later.
    Full,
    /// The engine is shut down, or its device is lost; do not retry.
    Gone,
}
