//! The protocol between host and guest: the plan, paths in the guest, serial lines, and exit statuses.

use std::collections::BTreeMap;
use std::ffi::OsString;

use serde::{Deserialize, Serialize};

use crate::pages::Pages;

/// Path of the plan in the guest's image.
pub const PLAN: &str = "/plan.json";
/// Path of the plan after process 1 has moved to the folders of the host.
pub(crate) const PLAN_IN_HOST: &str = "/run/memferry/plan.json";
/// Path of the layout in the guest.
pub const LAYOUT: &str = "/layout.json";
/// The variable with which tests find the layout.
pub const LAYOUT_VARIABLE: &str = "MEMFERRY_GUEST_LAYOUT";
/// Path of the command `memferry` in the guest.
pub const COMMAND: &str = "/bin/memferry";
/// The variable with which tests find the command.
pub const COMMAND_VARIABLE: &str = "MEMFERRY_GUEST_COMMAND";
/// Process 1 moves the files below it to [`PROGRAMS`], in memory of node 0.
pub const ARRIVALS: &str = "/arrivals";
/// The programs of the guest.
pub const PROGRAMS: &str = "/bin";
/// Where persistent memory is mounted, before its number.
pub const PERSISTENT: &str = "/run/pmem";
/// Kernel modules in the guest's image.
pub(crate) const MODULES: &str = "/modules";

/// First words of process 1, printed when the guest has booted.
pub(crate) const UP: &str = "guest: up";

/// First words of the reason why process 1 failed.
pub(crate) const FAILED: &str = "guest: cannot follow the plan: ";

/// Serial lines: the console is the first, the others are these.
pub(crate) const REPORT_LINE: &str = "/dev/ttyS1";
/// Standard output of a program, or its terminal.
pub(crate) const OUTPUT_LINE: &str = "/dev/ttyS2";
/// Standard error of a program.
pub(crate) const ERROR_LINE: &str = "/dev/ttyS3";

/// Values that process 1 writes to the debug-exit port. QEMU exits with twice the value plus 1; its own failures exit
/// with 1.
pub(crate) const STATUS_OK: u8 = 0x10;
pub(crate) const STATUS_FAILED: u8 = 0x11;

/// The name of the host's root directory among the shared folders.
pub(crate) const ROOT_TAG: &str = "root";
/// Directories of the host that the guest replaces with its own.
pub(crate) const OWN_DIRECTORIES: [&str; 5] = ["/tmp", "/run", "/proc", "/sys", "/dev"];

/// The work of a guest.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The guest's host name.
    pub name: String,
    /// Commands that run one after the other, also after a failure.
    pub commands: Vec<PlanCommand>,
    /// Whether to send a recording of the machine through the second serial line.
    pub record: bool,
    /// Nodes whose memory process 1 takes before anything runs, see [`Layout::check_full`](crate::Layout::check_full).
    #[serde(default)]
    pub full: Vec<u32>,
    /// Persistent memory, mounted before anything runs.
    #[serde(default)]
    pub persistent: Option<PlanPersistent>,
    /// A program on the folders of the host, in place of commands.
    #[serde(default)]
    pub program: Option<PlanProgram>,
}

/// Persistent memory of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanPersistent {
    /// Kernel modules in [`MODULES`], in the order of loading.
    pub(crate) modules: Vec<String>,
    /// Number of devices `/dev/pmem0` and so on.
    pub(crate) count: usize,
}

/// A command of a plan.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanCommand {
    /// Its name in reports.
    pub name: String,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// Time limit; a command that runs longer is killed.
    pub seconds_max: u64,
}

/// A program that runs on the folders of the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanProgram {
    /// The path on the host of the executable that process 1 becomes.
    pub(crate) init: OsString,
    /// The path of the program, and its arguments.
    pub(crate) path: OsString,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) directory: OsString,
    /// Kernel modules in [`MODULES`], in the order of loading.
    pub(crate) modules: Vec<String>,
    /// Files and directories below [`OWN_DIRECTORIES`] that the program needs, read-only.
    pub(crate) visible: Vec<OsString>,
    pub(crate) shares: Vec<PlanShare>,
    /// Rows and columns, if the program has a terminal.
    pub(crate) terminal: Option<(u16, u16)>,
}

/// A shared folder, which has the same path in the guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlanShare {
    pub(crate) tag: String,
    pub(crate) path: OsString,
    pub(crate) is_read_only: bool,
}

/// What process 1 says about a program through the second serial line.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// As `waitpid` has it.
    pub(crate) status: i32,
    /// Why the program could not be started.
    pub(crate) failure: Option<String>,
    pub(crate) pages: Pages,
}
