//! Memory on a chosen node: mappings, and pools of them.
//!
//! The only module that talks to the kernel about pages. The idea is never to bind strictly: a page fault
//! that finds a strictly bound node full calls the OOM killer. Instead
//!
//! ```text
//! is there room on the node, with something to spare?      no: NoRoom
//! mbind(PREFERRED), populate                               the fall-back of "preferred" is another node, not death
//! where are the pages? (move_pages query)                  all on the node: done
//! move_pages those that are elsewhere, look again          still elsewhere: give all back, Misplaced
//! ```
//!
//! so that [`Binding::Bind`] means all pages or none, and pages that the kernel drops and faults in again
//! later cannot kill anybody either. On a machine that is not this one ([`Origin`](crate::topology::Origin))
//! nodes are checked against its description, and the memory is unbound.
//!
//! Source: mbind(2), move_pages(2), madvise(2); `__alloc_pages_may_oom` in Linux mm/page_alloc.c (no OOM kill
//! for allocations tied to one node by `__GFP_THISNODE`, as migration makes them).

mod error;
mod extents;
#[allow(unsafe_code)]
mod mapping;
#[allow(unsafe_code)]
mod pool;
#[allow(unsafe_code)]
mod reservation;
mod room;
#[allow(unsafe_code)]
mod syscall;

pub use error::{MemoryError, PoolError};
pub use mapping::{Mapping, nodes_of_pages};
pub use pool::{Block, Pool, PoolStats};

use crate::topology::NodeId;

/// Where the pages of a mapping shall lie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Binding {
    /// Wherever the kernel puts them.
    #[default]
    Any,
    /// On this node, all of them, or there is no mapping.
    Bind(NodeId),
    /// On this node as far as there is room; [`nodes_of_pages`] tells how far.
    Prefer(NodeId),
}

impl Binding {
    /// The node it is about.
    pub fn node(&self) -> Option<NodeId> {
        match *self {
            Binding::Any => None,
            Binding::Bind(node) | Binding::Prefer(node) => Some(node),
        }
    }
}
