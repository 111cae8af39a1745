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
//! [`DeviceCosts`](crate::DeviceCosts).
//!
//! [`EngineTime`], [`Bandwidth`] and [`Turns`] are the rules; the emulated device applies them to descriptors that it
//! executes, and [`run`] to a load that it only counts. There is neither a thread nor a clock here.

mod engine;
mod load;
mod turns;

pub use engine::{Bandwidth, EngineTime};
pub use load::{AbsentPages, DeviceLoad, QueueLoad, SubmitterLoad, SubmitterTime, run};
pub use turns::Turns;
