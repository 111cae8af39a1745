//! Waiting for completion records.
//!
//! | [`Wait`] | method | core | added latency |
//! |---|---|---|---|
//! | `Spin` | polls the status without pauses | busy | none |
//! | `Pause` | polls with PAUSE in between, which leaves more to the hyperthread | busy | below 1 us |
//! | `Umwait` | sleeps until the record's line is written | idle, but not given up | below 1 us |
//! | `Block` | sleeps between polls | given up | up to a quarter, at most about 1 ms |
//!
//! Linux gives user space no interrupt when a descriptor completes, so a thread always polls memory. The device never
//! writes some errors to the record, so every wait has a timeout. After a timeout the descriptor may still be in flight:
//! ask [`Portal::is_gone`](crate::Portal::is_gone), and do not use its memory.
//!
//! Source: DSA specification 5.8 (errors that reach no record); SDM, UMONITOR and UMWAIT.

#[cfg(not(memferry_loom))]
mod kinds;
mod patience;
#[allow(unsafe_code)]
mod timers;
#[cfg(not(memferry_loom))]
#[allow(unsafe_code)]
mod umwait;

use std::time::Duration;

#[cfg(not(memferry_loom))]
pub use kinds::Wait;
pub(crate) use patience::{AttendedTime, Patience};
pub use timers::{poll_interval, reduce_timer_slack, request_short_slices, thread_cpu_time};

/// No completion within the timeout. The descriptor may still be in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no completion after {waited:?}: ask whether the device is gone, see its errors in sysfs, and do not use the \
     descriptor's memory"
)]
pub struct TimedOut {
    /// The duration of the wait.
    pub waited: Duration,
}
