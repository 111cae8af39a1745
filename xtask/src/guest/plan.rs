//! The protocol between host and guest: the plan of commands, paths in the guest, and exit statuses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Path of the plan in the guest.
pub(crate) const PLAN: &str = "/plan.json";
/// Path of the layout in the guest, and the variable with which tests find it.
pub(crate) const LAYOUT: &str = "/layout.json";
pub(crate) const LAYOUT_VARIABLE: &str = "MEMFERRY_GUEST_LAYOUT";
/// Path of the command `memferry` in the guest, and the variable with which tests find it.
pub(crate) const COMMAND: &str = "/bin/memferry";
pub(crate) const COMMAND_VARIABLE: &str = "MEMFERRY_GUEST_COMMAND";
/// Process 1 moves the files below it to [`PROGRAMS`], in memory of node 0.
pub(crate) const ARRIVALS: &str = "/arrivals";
pub(crate) const PROGRAMS: &str = "/bin";

/// First words of process 1, printed when the guest has booted.
pub(crate) const UP: &str = "guest: up";

/// Values that process 1 writes to the debug-exit port. QEMU exits with twice the value plus 1; its own failures exit
/// with 1.
pub(crate) const STATUS_OK: u8 = 0x10;
pub(crate) const STATUS_FAILED: u8 = 0x11;

/// The work of a guest.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The guest's host name.
    pub(crate) name: String,
    /// Commands that run one after the other, also after a failure.
    pub(crate) commands: Vec<PlanCommand>,
    /// Whether to send a recording of the machine through the second serial line.
    pub(crate) record: bool,
}

/// A command of a plan.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlanCommand {
    /// Its name in reports.
    pub(crate) name: String,
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    /// Time limit; a command that runs longer is killed.
    pub(crate) seconds_max: u64,
}
