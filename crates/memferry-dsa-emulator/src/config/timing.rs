//! The modelled durations of a device.
//!
//! ```text
//! submit ──▶ queue ──▶ engine: occupancy, bytes at the device's bandwidth ──▶ record
//!  cost     dispatch   (batch: list fetch; page request: response of the OS)   latency
//! ```
//!
//! The engine is free for the next descriptor when its bytes have passed; the latency overlaps with that. All engines
//! of a device share its bandwidth. Data moves when an engine executes a piece; only completions wait for the clock,
//! and come no earlier than modelled. A measurement of such a device is marked `emulated`.

/// The costs of a device are the parameters of its timing.
pub use memferry_dsa::costs::DeviceCosts as Timing;
