//! The time that a device takes: the one model behind the emulated device and the cost model.
//!
//! ```text
//! submit ──▶ queue ──▶ engine: prepare, then move bytes ──▶ record
//!  cost     dispatch   occupancy      device's bandwidth    latency
//!           batch unit: fetch a list
//! ```
//!
//! An engine is a pipeline of two stages: it prepares a descriptor while the bytes of the one before move. The batch unit
//! fetches a list while the members of the batch before run. All engines share the bandwidth. The durations are those of
//! [`DeviceCosts`](crate::DeviceCosts). A group may have fewer read buffers than the device's rate needs
//! ([`rate_of_buffers`]), and writes to the last-level cache may exceed the part of it that devices have ([`CachePart`]).
//!
//! [`EngineTime`], [`Bandwidth`] and [`Turns`] are the rules; the emulated device applies them to descriptors that it
//! executes, and [`run`] to a load that it only counts. There is neither a thread nor a clock here.

mod engine;
mod limits;
mod load;
mod turns;

pub use engine::{Bandwidth, EngineTime};
pub use limits::{CachePart, READ_BUFFERS, SUBMIT_WRITE_NS, rate_of_buffers};
pub use load::{AbsentPages, DeviceLoad, QueueLoad, SubmitterLoad, SubmitterTime, run};
pub use turns::Turns;
