//! Memory on chosen nodes: mappings and pools.
//!
//! Only this module makes system calls on pages. It never binds strictly: a page fault on a full, strictly bound node
//! calls the OOM killer. Instead:
//!
//! ```text
//! check the free memory of the node, with a spare          too little: NoRoom
//! mbind(PREFERRED), populate step by step                  "preferred" falls back to another node
//! query the nodes of the pages (move_pages)                all on the node: done
//! move the others (move_pages), query again                still elsewhere: free all pages, Misplaced
//! ```
//!
//! So [`Binding::Bind`] means all pages or none, and pages that the kernel drops and faults in again never call the OOM
//! killer either. The other bindings are preferences. Every binding first checks that the pages fit into the memory that
//! this process can use: the machine, its cpuset, and the limits of its cgroups. `mlockall(MCL_FUTURE)` would populate a
//! mapping at once; pages are locked as they are populated instead.
//!
//! All loops go step by step over existing pages: a range may have many more addresses than a machine has memory.
//!
//! Pages stay on their node unless the kernel moves them. Automatic NUMA balancing ignores memory with a policy of its
//! own. Swapping, demotion to slower tiers (`/sys/kernel/mm/numa/demotion_enabled`) and changes of `cpuset.mems` do move
//! pages; [`pages_per_node`] shows them, and [`Mapping::rebind`] moves them back.
//!
//! For a machine that is not this one ([`Origin`](crate::topology::Origin)), nodes are checked against its description,
//! and the memory is unbound.
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
