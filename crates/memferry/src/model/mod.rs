//! What a copy, a plan or a benchmark costs on a machine, computed in virtual time.
//!
//! ```text
//! Machine ──▶ Hardware      rates and costs, from links and parameters (machines/*.json)
//!               │
//!    fluid ──▶ traffic      streams over memories, ways, CPUs and devices; max-min fair
//!               │
//!    offload   pipeline   clients       a copy; a query with columns brought near; closed-loop scans
//!    cores                              copies and reads by cores
//!    side_cache                         memory behind a cache in hardware
//!         └────────┼────────┘
//!    advise                does bringing columns near pay? which, how much, where to, by which route?
//! ```
//!
//! Everything is a pure function of a [`Machine`](crate::topology::Machine): no clock, no thread, no I/O.
//! Every number it puts out is *modelled*.

mod advise;
mod clients;
mod cores;
mod error;
pub mod fluid;
mod hardware;
mod offload;
mod pipeline;
mod side_cache;
mod traffic;

pub use advise::{Advice, Alternative, Plan, advise};
pub use clients::{Part, queries_per_s};
pub use cores::{copies_s, reads_s, worker_copy_s};
pub use error::ModelError;
pub use hardware::{Hardware, NodeMemory, PARAMETERS};
pub use offload::{Offload, copy_s};
pub use pipeline::{Column, Fetch, Pipeline, Run, Stage};
pub use side_cache::hit_share;
pub use traffic::Fairness;
