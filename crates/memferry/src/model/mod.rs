//! The cost model: times of copies, plans and benchmarks on a machine, in virtual time.
//!
//! ```text
//! Machine ──▶ Hardware      rates and costs, from links and parameters (machines/*.json)
//!               │
//!    fluid ──▶ traffic      streams over memories, links, CPUs and devices; max-min fair
//!               │
//!    offload   pipeline   clients       a copy; a query with columns brought near; closed-loop scans
//!    cores     copiers                  copies and reads by cores; copiers that work at the same time
//!    side_cache           tasks         memory behind a cache in hardware; scans as tasks in queues of domains
//!                         cluster       queries on several machines with a network between them
//!         └────────┼────────┘
//!    advise                whether near copies of columns pay: which, how much, to which node, by which route
//!    storage ──▶ file_scan  how far a scan of files reads ahead, how long it takes; and again when it sees other times
//!    placement             whether columns should move to other nodes, by the reads that were measured
//! ```
//!
//! ```
//! use memferry::Machine;
//! use memferry::model::{Column, Plan, Stage};
//! use memferry::topology::NodeId;
//!
//! let machine = Machine::from_profile("xeon-max-9468-2s-flat")?;
//! let column = |name: &str| Column { name: name.into(), size_bytes: 4 << 30, node: NodeId(0) };
//! let stage = |name: &str, column| Stage {
//!     name: name.into(),
//!     reads: vec![column],
//!     threads_count: 12,
//!     thread_rate_max: f64::INFINITY,
//! };
//! let plan = Plan {
//!     columns: vec![column("a"), column("b")],
//!     stages: vec![stage("filter", 0), stage("sum", 1)], // b is read late
//!     cpus: NodeId(0),
//!     chunk_bytes: 8 << 20,
//!     near: None,
//!     reads_to_come: 3, // later queries that find b near
//! };
//! let advice = plan.advise(&machine)?;
//! let chosen = &advice.alternatives[advice.chosen.expect("it pays with so many readers")];
//! assert!(chosen.speed_up > 1.0);
//! assert_eq!(chosen.fetches[0].column, 1); // b
//! # Ok::<(), memferry::model::ModelError>(())
//! ```
//!
//! Everything is a pure function of a [`Machine`](crate::topology::Machine): no clock, no thread, no I/O.
//! Its results are *modelled*.

mod advise;
#[cfg(feature = "internals")]
pub(crate) mod clients;
#[cfg(feature = "internals")]
pub(crate) mod cluster;
#[cfg(feature = "internals")]
pub(crate) mod copiers;
#[cfg(feature = "internals")]
pub(crate) mod cores;
mod error;
mod file_scan;
mod fluid;
#[cfg_attr(not(feature = "internals"), allow(dead_code, unreachable_pub))]
pub(crate) mod hardware;
#[cfg_attr(not(feature = "internals"), allow(dead_code, unreachable_pub))]
pub(crate) mod offload;
#[cfg_attr(not(feature = "internals"), allow(dead_code, unreachable_pub))]
pub(crate) mod pipeline;
mod placement;
#[cfg(feature = "internals")]
pub(crate) mod side_cache;
mod storage;
#[cfg(feature = "internals")]
pub(crate) mod tasks;
#[cfg_attr(not(feature = "internals"), allow(dead_code, unreachable_pub))]
pub(crate) mod traffic;

pub use advise::{Advice, Alternative, Plan};
pub use error::ModelError;
pub use file_scan::{FileScan, FileScanAdvice, Forecast, Observed};
pub use pipeline::{Column, Fetch, Stage};
pub use placement::{
    ColumnMove, HomeRead, PlacedColumn, PlacementAdvice, PlacementRules, PlacementVerdict, ReadHistory,
    ReadWindow,
};
pub use storage::ReadRates;
