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
//! pages; [`Placement::of`] shows them, and [`Mapping::rebind`] moves them back.
//!
//! For a machine that is not this one ([`is_this_machine`](crate::topology::Machine::is_this_machine)), nodes are checked
//! against its description, and the memory is unbound.
//!
//! ```
//! # use std::sync::Arc;
//! use memferry::Machine;
//! use memferry::memory::{Binding, HugePages, Mapping, MappingOptions, Pool};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let machine = Arc::new(Machine::discover()?);
//! let node = machine.nodes()[0].id;
//! assert!(machine.free_bytes(node)? > 4 << 20);
//!
//! let mut table = Mapping::new(&machine, 1 << 20, Binding::Prefer(node))?;
//! table[0] = 7;
//! let options = MappingOptions { huge_pages: HugePages::Never, ..MappingOptions::default() };
//! let small_pages = Mapping::with(&machine, 1 << 20, options)?;
//! assert_eq!(small_pages.len(), table.len());
//!
//! let pool = Pool::new(machine, node, 2 << 20)?; // a budget
//! let block = pool.allocate(4096)?;
//! assert_eq!((block.len(), block.node(), pool.used_bytes()), (4096, node, 4096));
//! assert!(pool.allocate(4 << 20).is_err()); // MemoryError::TooLarge
//! # Ok(())
//! # }
//! ```
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
#[cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
pub(crate) mod placement;
#[allow(unsafe_code)]
#[cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
pub(crate) mod pool;
#[allow(unsafe_code)]
mod populating;
#[allow(unsafe_code)]
mod reservation;
mod room;
#[allow(unsafe_code)]
mod syscall;
#[cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
pub(crate) mod weights;

pub(crate) use syscall::page_bytes;

pub use binding::Binding;
pub use error::MemoryError;
pub use mapping::{HugePages, Mapping, MappingOptions};
pub use moving::Moved;
pub use placement::Placement;
pub use pool::{Block, Pool, PoolMemory, PoolStats};
