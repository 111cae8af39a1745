//! What the host asks of a guest, and how the guest answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where the plan lies in the guest.
pub(crate) const PLAN: &str = "/plan.json";
/// Where the layout lies in the guest, and the variable that tells tests so.
pub(crate) const LAYOUT: &str = "/layout.json";
pub(crate) const LAYOUT_VARIABLE: &str = "MEMFERRY_GUEST_LAYOUT";
/// The command `memferry` in the guest, and the variable that tells tests so.
pub(crate) const COMMAND: &str = "/bin/memferry";
pub(crate) const COMMAND_VARIABLE: &str = "MEMFERRY_GUEST_COMMAND";
/// Files below it move to [`PROGRAMS`], memory of node 0, when the guest is up.
pub(crate) const ARRIVALS: &str = "/arrivals";
pub(crate) const PROGRAMS: &str = "/bin";

/// The first line of process 1: the guest has booted.
pub(crate) const UP: &str = "guest: up";

/// What process 1 writes to the debug-exit port; QEMU exits with twice that and 1. Its own failures exit with 1.
pub(crate) const STATUS_OK: u8 = 0x10;
pub(crate) const STATUS_FAILED: u8 = 0x11;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The guest's host name.
    pub(crate) name: String,
    /// Run one after the other, also after one failed.
    pub(crate) commands: Vec<PlanCommand>,
    /// Whether to send what the kernel shows of the machine through the second serial line.
    pub(crate) record: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlanCommand {
    /// What reports call it.
    pub(crate) name: String,
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    /// After this long it hangs, and is killed.
    pub(crate) seconds_max: u64,
}
