//! Applies a configuration through sysfs.
//!
//! ```text
//! Plan::new(&config, &state, options)     everything is checked; nothing is touched
//!    1. disable      unbind queues and device, where asked for
//!    2. reset        what is left over from earlier: sizes, groups of queues and engines
//!    3. set          device, engines, queues, groups
//!    4. enable       clear cmd_status, bind devices, bind queues; each must then say "enabled"
//! plan.steps()                            the writes, for a dry run
//! plan.apply(&files, ..)                  stops at the first error and says what has been done
//! ```
//!
//! All devices go through a phase before the next begins: nothing is enabled before everything could be set.
//!
//! Source: the order is that of Linux `drivers/dma/idxd/sysfs.c` and `device.c` (what depends on what), and of accel-config.

mod explain;
mod plan;
mod run;

pub use plan::{Action, Options, Plan, PlanError, Step};
pub use run::{Applied, ApplyError, Cause};
