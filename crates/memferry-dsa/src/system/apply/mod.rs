//! Applies a configuration through sysfs.
//!
//! ```text
//! Plan::new(&config, &state, options)     validates; changes nothing
//!    1. disable      unbind queues and device, if requested
//!    2. reset        sizes and groups left over from an earlier configuration
//!    3. set          device, engines, queues, groups
//!    4. enable       clear cmd_status, bind devices, bind queues; the state of each must then be "enabled"
//! plan.steps()                            the writes, for a dry run
//! plan.apply()                            stops at the first error and reports the finished steps
//! ```
//!
//! All devices go through a phase before the next begins: nothing is enabled before all settings are written.
//!
//! Source: the order follows the dependencies in Linux `drivers/dma/idxd/sysfs.c` and `device.c`, and accel-config.

mod explain;
mod plan;
mod run;

pub use plan::{Action, ApplyOptions, Plan, PlanError, Step};
pub use run::ApplyError;
