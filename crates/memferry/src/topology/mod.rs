//! The topology of a machine: memories, CPUs, accelerators, and the links between them.
//!
//! A [`Machine`] is plain data with pure queries. It has one of three sources ([`Origin`]):
//!
//! ```text
//! Machine::discover()          sysfs and procfs of this machine
//! Machine::discover_at(path)   a recorded one: a directory with sys and proc, or the JSON of a Recording
//! Machine::from_profile(name)  machines/NAME.json, every figure with its source
//! ```
//!
//! Only memory of the first kind can be bound to nodes; the other two are for planning, models and tests. A profile
//! supplies the rates that the kernel does not report ([`Machine::with_profile`]).
//!
//! CPUs with the memory that belongs to them are a [`Domain`]; the domains of a package are a [`Socket`].
//! [`Machine::memories_near`] orders memories for the CPUs of a node.
//!
//! Source: Linux `Documentation/ABI/stable/sysfs-devices-node`, `Documentation/admin-guide/mm/numaperf.rst`.

mod allowed;
mod domain;
mod dsa;
mod error;
#[cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
pub(crate) mod list;
mod machine;
mod measured;
pub(crate) mod meminfo;
mod near;
mod node_set;
mod overlay;
mod parameter;
mod profile;
mod recorder;
mod recording;
pub(crate) mod sysfs;
mod tree;

pub use domain::{Domain, Socket};
pub use dsa::DsaFiles;
pub use error::TopologyError;
pub use machine::{Accelerator, Fact, Link, Machine, Node, NodeId, NumaBalancing, Origin, Tier};
pub use measured::Measured;
pub use node_set::NodeSet;
pub use parameter::{Basis, Parameter};
pub use recording::Recording;
pub use tree::{Directory, Tree};
