//! Options of a run: the program and its devices.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use memferry_dsa_emulator::{DeviceCosts, FaultPlan};

use crate::supervise::Leftovers;

/// A program and the devices that it gets.
///
/// ```
/// use memferry_emulate::{Options, Setup};
///
/// let options = Options { devices: Some(2), setup: Setup::Disabled, ..Options::new("accel-config") };
/// assert!(options.preload && options.trace.is_none());
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// The program: a path, or a name in PATH.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The number of devices, 1 to 8: `dsa0`, `dsa2` and so on, because the kernel gives odd numbers to analytics
    /// accelerators. `None`: the devices of the configuration, or one.
    pub devices: Option<u32>,
    /// The configuration of the devices when the program starts.
    pub setup: Setup,
    /// Delays and faults of the devices, within the specification, from a seed.
    pub fault_plan: FaultPlan,
    /// The times of a modelled device. `None`: as fast as possible here.
    pub timing: Option<DeviceCosts>,
    /// Whether the program keeps the user and group of the caller. Otherwise it is root in the namespace.
    ///
    /// A user who is not root cannot change the configuration. The queues belong to that user, who can submit with
    /// `write(2)`. Mapping a queue requires CAP_SYS_RAWIO, as with the driver. Root remains root.
    pub keep_user: bool,
    /// Whether the preload library is loaded into the program. Without it, stores to portals are not caught, and
    /// programs submit with `write(2)` only.
    pub preload: bool,
    /// Whether the preload library replaces an instruction that has trapped by a jump.
    pub patch: bool,
    /// A file for every descriptor and completion, as JSON lines. Its former content is lost.
    pub trace: Option<PathBuf>,
    /// Whether a summary is printed to standard error at the end.
    pub stats: bool,
    /// The treatment of processes that outlive the program.
    pub leftovers: Leftovers,
}

/// The configuration of the devices when the program starts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Setup {
    /// Each device is enabled. Its four engines are in one group, with two user queues of 64 entries: the first is
    /// shared, the second dedicated. Both allow the largest transfers and batches, and block-on-fault.
    #[default]
    Ready,
    /// As after boot: disabled, for the program to configure.
    Disabled,
    /// Configured by a file in accel-config's format, and enabled.
    File(
        /// The file.
        PathBuf,
    ),
}

impl Setup {
    /// Returns the default for a program: [`Ready`](Setup::Ready), or [`Disabled`](Setup::Disabled) for `accel-config
    /// load-config`, which skips enabled devices.
    pub fn for_program(program: &OsStr, arguments: &[OsString]) -> Setup {
        let loads = Path::new(program).file_name() == Some(OsStr::new("accel-config"))
            && arguments.first().is_some_and(|argument| argument == "load-config");
        if loads { Setup::Disabled } else { Setup::Ready }
    }
}

impl Options {
    /// The largest number of devices.
    pub const DEVICES_MAX: u32 = 8;

    /// Options for `program` on one device that is ready to use.
    pub fn new(program: impl Into<OsString>) -> Options {
        Options {
            program: program.into(),
            arguments: Vec::new(),
            devices: None,
            setup: Setup::Ready,
            fault_plan: FaultPlan::none(),
            timing: None,
            keep_user: false,
            preload: true,
            patch: true,
            trace: None,
            stats: false,
            leftovers: Leftovers::Terminate,
        }
    }
}
