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
//!    scenario              the same as TOML (scenarios/*.toml), with rows as results
//!    validate  calibrate   against what was published (published/*.csv), and where parameters come from
//!    advise                does bringing columns near pay? which, how much, where to, by which route?
//! ```
//!
//! Everything is a pure function of a [`Machine`](crate::topology::Machine): no clock, no thread, no I/O but for
//! scenario files. Every number it puts out is *modelled*, and says which published rows it was fitted to.

mod advise;
mod calibrate;
mod clients;
mod cores;
mod dispositions;
mod error;
pub mod fluid;
mod hardware;
mod offload;
mod pipeline;
mod predictions;
mod published;
mod row;
mod scenario;
mod side_cache;
mod tables;
mod traffic;
mod validate;

pub use advise::{Advice, Alternative, Plan, advise};
pub use calibrate::{Calibrated, Thesis, kuper, thesis};
pub use clients::{Part, queries_per_s};
pub use cores::{copies_s, reads_s, worker_copy_s};
pub use dispositions::{Disposition, Why};
pub use error::ModelError;
pub use hardware::{Hardware, PARAMETERS};
pub use offload::{Offload, copy_s};
pub use pipeline::{Column, Fetch, Pipeline, Run, Stage};
pub use predictions::Prediction;
pub use published::{Figure, figures};
pub use row::{How, Row};
pub use scenario::{Scenario, scenario, scenarios};
pub use side_cache::hit_share;
pub use traffic::Fairness;
pub use validate::{Validation, validate, variants};
