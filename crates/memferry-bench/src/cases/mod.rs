//! Case studies: programs whose movement a DSA takes over. `memferry bench cases`.
//!
//! ```text
//! workload    digests  packets  cache_server  messages  gradients
//!    │  its other work             Host::work
//!    │  its movement               Mover: the core itself, or a client of DSA queues
//!    ▼
//! Host        the clock: of this machine, or virtual
//! ```
//!
//! A workload runs on a [`Host`]. On this machine its other work and its movement are executed and timed: measured. In
//! virtual time a core and an emulated device with the costs of the profile `spr-56c` execute them: the bytes are real,
//! and the clock counts what each part takes on that machine. Each run checks the bytes that it has moved.
//!
//! Source: Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming Accelerator in Intel 4th Gen Xeon
//! Scalable Processors" (2024), section 6.4 and appendices A to C.

mod cache_server;
mod digests;
mod gradients;
mod host;
mod messages;
mod movers;
mod packets;
mod percentile;
mod queues;
mod study;
#[allow(unsafe_code)]
mod virtual_time;

pub use cache_server::{Latencies, Mix, serve};
pub use digests::{StorageTarget, cores_with_device};
pub use gradients::{Gradients, zeroed};
pub use host::{CaseError, Host, Samples};
pub use messages::{all_reduce, ping_pong};
pub use movers::{Copies, Core, Mover};
pub use packets::forwarded;
pub use percentile::{PERCENTILES, percentile};
pub use queues::{full_gain_cores, gain_by_cores};
pub use study::{CASES, Study};

/// The profile of the publication's machine.
pub const PROFILE: &str = "spr-56c";
