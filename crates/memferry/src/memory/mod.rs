//! Memory on chosen nodes: mappings, and pools of them.
//!
//! The only module that talks to the kernel about pages. The idea is never to bind strictly: a page fault
//! that finds a strictly bound node full calls the OOM killer. Instead
//!
//! ```text
//! is there room on the node, with something to spare?      no: NoRoom
//! mbind(PREFERRED), populate step by step                  the fall-back of "preferred" is another node, not death
//! where are the pages? (move_pages query)                  all on the node: done
//! move_pages those that are elsewhere, look again          still elsewhere: give all back, Misplaced
//! ```
//!
//! so that [`Binding::Bind`] means all pages or none, and pages that the kernel drops and faults in again
//! later cannot kill anybody either. Other bindings say where pages should come first; none of them is
//! strict. All bindings look first whether the pages fit into what this process can reach at all: the
//! machine, its cpuset, and the memory limits of its cgroups. After `mlockall(MCL_FUTURE)`, which would bring
//! all pages with the addresses, they are locked as they come.
//!
//! All of it goes step by step, over what is there: addresses may be many more than any machine has memory.
//!
//! Pages stay where they are as long as nobody moves them. Automatic NUMA balancing leaves memory with a
//! policy of its own alone. Swapping, demotion to slower tiers (`/sys/kernel/mm/numa/demotion_enabled`) and
//! an administrator who changes `cpuset.mems` do not; [`pages_per_node`] tells, and [`Mapping::rebind`]
//! brings pages back.
//!
//! On a machine that is not this one ([`Origin`](crate::topology::Origin)) nodes are checked against its
//! description, and the memory is unbound.
//!
//! Source: mbind(2), move_pages(2), madvise(2); `__alloc_pages_may_oom` in Linux mm/page_alloc.c (no OOM kill
//! for allocations tied to one node by `__GFP_THISNODE`, as migration makes them); `vma_policy_mof` in
//! mm/mempolicy.c (what balancing leaves alone).

mod binding;
mod cgroups;
mod error;
mod extents;
#[allow(unsafe_code)]
mod mapping;
mod moving;
mod near;
#[allow(unsafe_code)]
mod pagemap;
mod placement;
#[allow(unsafe_code)]
mod pool;
#[allow(unsafe_code)]
mod populating;
#[allow(unsafe_code)]
mod reservation;
mod room;
#[allow(unsafe_code)]
mod syscall;
mod weights;

pub use binding::Binding;
pub use error::{MemoryError, PoolError};
pub use mapping::{HugePages, Mapping, MappingOptions};
pub use moving::Moved;
pub use near::{fastest_with_room, free_bytes};
pub use placement::{Placement, nodes_of_pages, pages_per_node};
pub use pool::{Block, IDLE_BYTES_MAX, Pool, PoolStats};
pub use weights::interleave_weights;
