//! The topology of a machine: memories, CPUs, accelerators, and the links between them.
//!
//! A [`Machine`] is plain data with pure queries. It has one of three sources:
//!
//! ```text
//! Machine::discover()          sysfs and procfs of this machine
//! Machine::discover_at(path)   a recorded one: a directory with sys and proc, or a JSON file of them
//! Machine::from_profile(name)  machines/NAME.json, every figure with its source
//! ```
//!
//! Only memory of the first kind can be bound to nodes; the other two are for planning, models and tests. A profile
//! supplies the rates that the kernel does not report ([`Machine::with_profile`]).
//!
//! [`Machine::memories_near`] orders memories for the CPUs of a node.
//!
//! ```
//! use memferry::topology::{Machine, NodeId, NodeSet, Tier};
//!
//! let machine = Machine::from_profile("xeon-max-9468-2s-flat")?;
//! let ddr = machine.node(NodeId(0))?;
//! let hbm = machine.nearest_faster(ddr.id).expect("each domain has HBM");
//! assert_eq!((hbm.tier, hbm.cpu_node), (Tier::Hbm, ddr.id));
//! let link = machine.link(ddr.id, hbm.id); // from the CPUs of one to the memory of the other
//! println!("{:?}", link.read_latency_ns); // None if unknown
//! let with_device: NodeSet = machine.accelerators().iter().filter_map(|device| device.node).collect();
//! assert!(with_device.contains(ddr.id));
//! assert!(machine.node(NodeId(99)).is_err()); // a TopologyError
//! # Ok::<(), memferry::topology::TopologyError>(())
//! ```
//!
//! Source: Linux `Documentation/ABI/stable/sysfs-devices-node`, `Documentation/admin-guide/mm/numaperf.rst`.

mod allowed;
#[cfg(feature = "internals")]
pub(crate) mod domain;
mod error;
#[cfg_attr(not(feature = "internals"), allow(dead_code))]
mod files;
#[cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
pub(crate) mod list;
#[cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
pub(crate) mod machine;
#[cfg(feature = "internals")]
pub(crate) mod measured;
pub(crate) mod meminfo;
mod near;
mod node_set;
mod overlay;
#[cfg_attr(not(feature = "internals"), allow(dead_code, unreachable_pub))]
pub(crate) mod parameter;
mod profile;
#[cfg(feature = "internals")]
mod recorder;
#[cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
pub(crate) mod recording;
mod storage;
pub(crate) mod sysfs;

pub use error::TopologyError;
pub use machine::{Accelerator, Link, Machine, Node, NodeId, Tier};
pub use node_set::NodeSet;
pub use storage::{ReadRate, Storage};
