//! What every engine is to its users: something that takes a [`RawRequest`] and finishes it once.
//!
//! One conformance suite, `tests/engines.rs`, is run by every engine there is.

use std::fmt;

use memferry_dsa::Opcode;
use serde::Serialize;

use super::{EngineStats, RawRequest};
use crate::topology::NodeId;

/// What an engine copies with.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EngineKind {
    /// CPU cores.
    Cpu,
    /// Intel Data Streaming Accelerators.
    Dsa,
}

/// Something that copies.
///
/// Every copy that [`submit`](Engine::submit) accepts is finished exactly once, whatever happens to the engine:
/// dropping an engine first finishes what it accepted. Engines never block in `submit`, and finish copies in
/// any order, on any thread.
///
/// The trait is safe to implement, because no memory depends on its word. An engine that finishes a copy which it did not
/// make leaves wrong bytes in initialised buffers. An engine that hands back another request than the one it was given is
/// taken to keep the latter. To read or write the buffers it needs unsafe code, which answers for having ended before it
/// finishes the copy.
pub trait Engine: fmt::Debug + Send + Sync {
    /// What reports call it.
    fn name(&self) -> &str;

    /// What it copies with.
    fn kind(&self) -> EngineKind;

    /// The node it is on, where one is known.
    fn node(&self) -> Option<NodeId>;

    /// How many copies it works on at once, at least 1: a copy that is split has at least as many pieces.
    fn width(&self) -> usize {
        1
    }

    /// Whether it does operations of this kind; copies are [`Opcode::Memmove`], and all that it does by default. A mover
    /// submits nothing else to it.
    fn supports(&self, opcode: Opcode) -> bool {
        opcode == Opcode::Memmove
    }

    /// Copies that it has: of equal engines the one with the least is asked first.
    fn load(&self) -> usize {
        0
    }

    /// Takes several copies, and returns those that it does not take. As if each was submitted, but cheaper where the
    /// engine knows a way.
    fn submit_all(&self, copies: Vec<RawRequest>) -> Vec<Rejected> {
        copies.into_iter().filter_map(|copy| self.submit(copy).err()).collect()
    }

    /// Takes a copy, or hands it back untouched. Never blocks.
    ///
    /// The copy may be finished before this returns, on this thread: hold no lock that its `done` needs.
    ///
    /// # Errors
    /// [`Rejected`], with the copy in it.
    fn submit(&self, copy: RawRequest) -> Result<(), Rejected>;

    /// What it did so far.
    fn stats(&self) -> EngineStats;
}

/// A copy that an engine did not take.
#[derive(Debug)]
pub struct Rejected {
    /// The copy, as it was.
    pub copy: RawRequest,
    /// Why.
    pub why: Refusal,
}

/// Why an engine does not take a copy.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not now: its queue is full.
    Full,
    /// Never again: it is shut down, or its device died.
    Gone,
}
