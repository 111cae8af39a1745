//! What to run, and on what.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use memferry_dsa_emulator::{FaultPlan, Timing};

use crate::supervise::Leftovers;

/// A program and the devices that it gets.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program: a path, or a name that is looked for in PATH.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The number of devices, 1 to 8: `dsa0`, `dsa2`, and so on, as the kernel numbers them beside the analytics
    /// accelerators. `None`: those of the configuration, or one.
    pub devices: Option<u32>,
    /// How they are configured when the program starts.
    pub setup: Setup,
    /// How badly the devices behave, within the specification, and from which seed.
    pub fault_plan: FaultPlan,
    /// How long things take. `None`: as long as they take here.
    pub timing: Option<Timing>,
    /// Keeps the user and group that the caller has, instead of being root in the namespace; then the configuration
    /// cannot be changed from inside, and the queues belong to the user, who can open them and write descriptors, and map
    /// them only with CAP_SYS_RAWIO, as the driver has it. Root keeps being root.
    pub keep_user: bool,
    /// The library that catches what is stored to portals. `None`: nothing is caught; programs can submit with
    /// `write(2)` only.
    pub preload: Option<PathBuf>,
    /// Whether the library replaces the instructions that it caught once by jumps.
    pub patch: bool,
    /// Where every descriptor and completion is written, as JSON lines; what was there is replaced.
    pub trace: Option<PathBuf>,
    /// Whether a summary is printed to standard error in the end.
    pub stats: bool,
    /// What becomes of processes that the program leaves behind.
    pub leftovers: Leftovers,
}

/// How devices are when the program starts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Setup {
    /// Each is enabled, with its four engines in one group and two queues of 64 entries for users: the first shared,
    /// the second dedicated; with the device's largest transfers and batches, and with blocking on faults allowed.
    #[default]
    Ready,
    /// As after boot: disabled, and to be configured by the program.
    Disabled,
    /// As a file in accel-config's format says, enabled.
    File(
        /// The file.
        PathBuf,
    ),
}

impl Setup {
    /// What suits a program when nobody has said it: [`Ready`](Setup::Ready), but [`Disabled`](Setup::Disabled) for
    /// `accel-config load-config`, which leaves out devices that are enabled.
    pub fn for_program(program: &OsStr, arguments: &[OsString]) -> Setup {
        let loads = Path::new(program).file_name() == Some(OsStr::new("accel-config"))
            && arguments.first().is_some_and(|argument| argument == "load-config");
        if loads { Setup::Disabled } else { Setup::Ready }
    }
}

impl Options {
    /// Most devices that can be emulated.
    pub const DEVICES_MAX: u32 = 8;

    /// Runs `program` on one device that is ready, without a preload library.
    pub fn new(program: impl Into<OsString>) -> Options {
        Options {
            program: program.into(),
            arguments: Vec::new(),
            devices: None,
            setup: Setup::Ready,
            fault_plan: FaultPlan::none(),
            timing: None,
            keep_user: false,
            preload: None,
            patch: true,
            trace: None,
            stats: false,
            leftovers: Leftovers::End,
        }
    }
}
