//! Waiting for completion records.
//!
//! | [`Wait`] | method | core | added latency |
//! |---|---|---|---|
//! | `Spin` | polls the status without pauses | busy | none |
//! | `Pause` | polls with PAUSE in between, which leaves more to the hyperthread | busy | below 1 us |
//! | `Umwait` | sleeps until the record's line is written | idle, but not given up | below 1 us |
//! | `Block` | sleeps; the process' [`Completer`] polls | given up | up to a quarter, at most about 1 ms |
//!
//! Linux gives user space no interrupt when a descriptor completes, so a thread always polls memory. The device never
//! writes some errors to the record, so every wait has a timeout. After a timeout the descriptor may still be in flight:
//! ask [`Portal::is_gone`](crate::Portal::is_gone), and do not use its memory.
//!
//! Source: DSA specification 5.8 (errors that reach no record); SDM, UMONITOR and UMWAIT.

#[cfg(not(memferry_loom))]
#[allow(unsafe_code)]
mod completer;
mod gate;
#[cfg(not(memferry_loom))]
mod kinds;
#[cfg_attr(memferry_loom, allow(dead_code))]
mod pace;
mod patience;
// The models use less of it than the completer.
#[cfg_attr(memferry_loom, allow(dead_code))]
mod table;
#[allow(unsafe_code)]
mod timers;
#[cfg(not(memferry_loom))]
#[allow(unsafe_code)]
mod umwait;

#[cfg(not(memferry_loom))]
pub use completer::{Completer, CompleterOptions, CompleterStats, Full, Watch, thread_cpu_time};
#[cfg(not(memferry_loom))]
pub use kinds::Wait;
pub use pace::poll_interval;
pub(crate) use patience::{AttendedTime, Patience};
pub use table::TimedOut;
pub use timers::{reduce_timer_slack, request_short_slices};
