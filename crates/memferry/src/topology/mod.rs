//! Which memories, CPUs and accelerators there are, and how far apart.
//!
//! A [`Machine`] is plain data with pure questions on it. It comes from one of three places, and says which
//! ([`Origin`]):
//!
//! ```text
//! Machine::discover()          sysfs and procfs of this machine
//! Machine::discover_at(root)   a recorded tree: root/sys, root/proc
//! Machine::from_profile(name)  machines/NAME.json, every figure with its source
//! ```
//!
//! Only memory of the first kind can be bound to nodes; the other two are for planning, models and tests.
//!
//! Source: Linux `Documentation/ABI/stable/sysfs-devices-node`, `Documentation/admin-guide/mm/numaperf.rst`.

mod error;
pub(crate) mod list;
mod machine;
pub(crate) mod meminfo;
mod node_set;
mod profile;
mod sysfs;

pub use error::TopologyError;
pub use machine::{Accelerator, Fact, Link, Machine, Node, NodeId, Origin, Tier};
pub use node_set::NodeSet;
