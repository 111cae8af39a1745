//! Waiting for completion records.
//!
//! | [`Wait`] | how | core | adds to the transfer |
//! |---|---|---|---|
//! | `Spin` | loads the status again and again | all of it | nothing |
//! | `Pause` | with PAUSE in between, which leaves more to the hyperthread | all of it | below 1 us |
//! | `Umwait` | sleeps until the record's line is written | idle, but not given away | below 1 us |
//! | `Block` | sleeps; the process' [`Completer`] looks | given away | up to a quarter, at most about 1 ms |
//!
//! Linux gives user space no interrupt when a descriptor completes, so somebody always looks at memory. And somebody
//! always looks at the clock: some errors are never written to the record, hence a time-out everywhere. After one the
//! descriptor may still be in flight: ask [`Portal::is_gone`](crate::Portal::is_gone), and do not use its memory.
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
pub use kinds::{Wait, self_polled_count};
pub use pace::poll_interval;
#[doc(hidden)]
pub use patience::{ATTENDED_MAX, Patience};
pub use table::TimedOut;
pub use timers::reduce_timer_slack;
