//! Moves data between memory tiers while the program computes.
//!
//! A [`Cache`] copies frequently read ranges to a faster memory and returns the source until a copy is ready. A [`Mover`]
//! makes the copies, with CPU cores or Intel DSA devices. A [`Machine`] describes nodes, links and devices. A [`Replica`]
//! keeps a version of bytes in a file, on persistent memory for example, that a reset of the machine leaves intact.
//!
//! ```
//! use std::sync::Arc;
//!
//! use memferry::{Access, Cache, Machine, Mover};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let machine = Arc::new(Machine::discover()?);
//! let near = machine.nodes()[0].id; // a node with fast memory
//! let mover = Mover::builder(machine).build()?;
//! let cache = Cache::builder(mover).budget(near, 64 << 20).build()?;
//!
//! let column = cache.register(vec![7_u8; 1 << 20]);
//! let entry = cache.access(&column, 0..4096, Access::near(near))?; // starts a copy on a miss
//! assert_eq!(entry.as_slice(), [7; 4096]); // never blocks: the source, until the copy is ready
//! entry.wait();
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! ```text
//! cache      near copies with budgets and eviction; hits without a lock
//! replica    versions of bytes in a file that survive a reset (exported as Replica)
//!   |
//! mover      transfers and other operations; routes, splitting, engines (cores, DSA, files)
//!   |
//! model      cost of a copy or a query in virtual time; pure functions
//!   |
//! route      which engines make a copy (exported by mover)
//!   |
//! storage    open files with their identity; plain data
//!   |
//! memory     mappings and pools on a node          topology   nodes, links, devices; plain data
//! ```
//!
//! Calls go down only.
#![deny(unsafe_code)]

pub mod cache;
#[allow(unsafe_code)]
#[cfg_attr(not(feature = "internals"), allow(dead_code, unreachable_pub))]
mod copy_method;
#[cfg(feature = "internals")]
pub mod internals;
pub mod memory;
pub mod model;
mod moment;
pub mod mover;
mod replica;
#[cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
mod route;
pub mod storage;
mod sync;
pub mod topology;

pub use cache::{Access, Cache};
pub use mover::Mover;
pub use replica::{Replica, ReplicaError};
pub use topology::Machine;
