//! The cost model: times of copies, plans and benchmarks on a machine, in virtual time.
//!
//! ```text
//! Machine ──▶ Hardware      rates and costs, from links and parameters (machines/*.json)
//!               │
//!    fluid ──▶ traffic      streams over memories, links, CPUs and devices; max-min fair
//!               │
//!    offload   pipeline   clients       a copy; a query with columns brought near; closed-loop scans
//!    cores                              copies and reads by cores
//!    side_cache                         memory behind a cache in hardware
//!         └────────┼────────┘
//!    advise                whether near copies of columns pay: which, how much, to which node, by which route
//! ```
//!
//! Everything is a pure function of a [`Machine`](crate::topology::Machine): no clock, no thread, no I/O.
//! Its results are *modelled*.

mod advise;
#[cfg(feature = "internals")]
pub(crate) mod clients;
#[cfg(any(test, feature = "internals"))]
#[cfg_attr(not(feature = "internals"), allow(dead_code, unreachable_pub))]
pub(crate) mod cores;
mod error;
mod fluid;
mod hardware;
mod offload;
mod pipeline;
#[cfg(any(test, feature = "internals"))]
#[cfg_attr(not(feature = "internals"), allow(dead_code, unreachable_pub))]
pub(crate) mod side_cache;
mod traffic;

pub use advise::{Advice, Alternative, Plan, advise};
pub use error::ModelError;
pub use hardware::{Hardware, NodeMemory, PARAMETERS};
pub use offload::{Offload, copy_s};
pub use pipeline::{Column, Fetch, Pipeline, Run, Stage};
pub use traffic::Fairness;
