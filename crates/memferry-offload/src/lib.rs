//! Runs an unmodified program whose large calls of memcpy, memmove, memset and memcmp a DSA shares with the CPU: the
//! library behind `memferry offload`.
//!
//! ```text
//! memferry offload ── exec ──▶ PROGRAM ── preloads libmemferry_offload.so ──▶ memferry-offload-preload
//! ```
//!
//! ```no_run
//! use memferry_offload::{Options, execute};
//!
//! let mut options = Options::new("sort");
//! options.arguments = vec!["big.txt".into()];
//! eprintln!("{}", execute(&options)); // returns only if the program cannot be run
//! ```
//!
//! The program takes the place of the calling process, so it keeps the process id, the terminal and the signals. Programs that it
//! starts load the library, too.
//!
//! [`place`] does the same with the library of `memferry place`, which chooses the nodes of large mappings.
//!
//! Source: ld.so(8), `LD_PRELOAD`.

#![deny(unsafe_code)]

mod confinement;
mod library;
#[allow(unsafe_code)]
mod mounts;
pub mod place;
#[allow(unsafe_code)]
mod privileges;
#[allow(unsafe_code)]
mod scheduling;
mod start;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

pub use library::install;
use start::Start;

/// The options of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The program: a path, or a name in PATH.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Calls of this size and more are shared with a device; by default the library measures which are worth it.
    pub threshold_bytes: Option<usize>,
    /// The share of the device in percent, 1 to 100; by default it is adapted to the rates of device and CPU.
    pub share_percent: Option<u32>,
    /// The summary at the exit of a process.
    pub summary: Summary,
}

/// The place of the summary.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Summary {
    /// No summary.
    None,
    /// Standard error, of the first process only.
    #[default]
    Stderr,
    /// A file, to which each process appends a line of JSON.
    File(PathBuf),
}

impl Summary {
    /// The value for the library.
    fn variable(&self) -> OsString {
        match self {
            Summary::None => "none".into(),
            Summary::Stderr => "stderr".into(),
            // Processes of the program may have other working directories.
            Summary::File(path) => {
                std::path::absolute(path).unwrap_or_else(|_| path.clone()).into_os_string()
            }
        }
    }
}

/// A program that is not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program does not exist or cannot be run.
    #[error(transparent)]
    Program(#[from] memferry_emulate::Error),
    /// The kernel refuses to execute the program.
    #[error("cannot run {}: {source}", program.display())]
    Execute {
        /// The program.
        program: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The kernel refuses the memory policy of the process, or its CPUs.
    #[error(
        "cannot set the {what} of the process: {source}; see Mems_allowed_list and Cpus_allowed_list in /proc/self/status"
    )]
    Schedule {
        /// The property.
        what: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// This process has a memory policy already.
    #[error(
        "this process already has the memory policy {policy}, which memferry place would leave alone, so nothing would be \
         placed; start it without numactl"
    )]
    OwnPolicy {
        /// The kernel's name of the policy.
        policy: String,
    },
    /// The library cannot be written to any directory.
    #[error(
        "cannot write the preload library to {}: {source}; set XDG_RUNTIME_DIR to a directory that you own, on a file \
         system that is mounted without noexec",
        directory.display()
    )]
    Library {
        /// The last directory that was tried.
        directory: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl Error {
    /// The exit status of the command: as of a shell, or 125.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Program(error) => error.exit_code(),
            Error::Execute { .. } => 126,
            Error::Library { .. } | Error::Schedule { .. } | Error::OwnPolicy { .. } => 125,
        }
    }
}

impl Options {
    /// Options for a program without arguments: everything is measured, and the summary is printed.
    pub fn new(program: impl Into<OsString>) -> Options {
        Options {
            program: program.into(),
            arguments: Vec::new(),
            threshold_bytes: None,
            share_percent: None,
            summary: Summary::default(),
        }
    }

    /// The variables of the library.
    fn environment(&self) -> Vec<(&'static str, Option<OsString>)> {
        let number = |number: Option<usize>| number.map(|number| number.to_string().into());
        vec![
            ("MEMFERRY_OFFLOAD_THRESHOLD", number(self.threshold_bytes)),
            ("MEMFERRY_OFFLOAD_SHARE", number(self.share_percent.map(|share| share as usize))),
            ("MEMFERRY_OFFLOAD_SUMMARY", Some(self.summary.variable())),
            ("MEMFERRY_OFFLOAD_ROOT", Some(std::process::id().to_string().into())),
        ]
    }
}

/// Executes the program in place of this process. Returns only if that fails.
///
/// A program that cannot load the library gets a note and runs without it: static and 32-bit programs, programs of another C
/// library, and programs that change their user or group. With `MEMFERRY_OFFLOAD=off` every program runs without it.
pub fn execute(options: &Options) -> Error {
    let start = Start {
        library: &library::OFFLOAD,
        off: "MEMFERRY_OFFLOAD",
        loss: "so its copies cannot be offloaded; it runs without that",
        rules: ", and for a DSA `/dev/dsa/* rw,` and `/sys/bus/dsa/** r,`",
    };
    start.execute(&options.program, &options.arguments, options.environment())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_variables() {
        let options = Options {
            threshold_bytes: Some(65536),
            share_percent: Some(50),
            summary: Summary::File("/tmp/x".into()),
            ..Options::new("true")
        };
        let variables = options.environment();
        let value = |name| variables.iter().find(|(found, _)| *found == name).unwrap().1.clone().unwrap();
        assert_eq!(value("MEMFERRY_OFFLOAD_THRESHOLD"), "65536");
        assert_eq!(value("MEMFERRY_OFFLOAD_SHARE"), "50");
        assert_eq!(value("MEMFERRY_OFFLOAD_SUMMARY"), "/tmp/x");
        assert!(Options::new("true").environment().contains(&("MEMFERRY_OFFLOAD_THRESHOLD", None)));
    }

    #[test]
    fn missing_programs_have_the_status_of_a_shell() {
        let code = |program: &str| execute(&Options::new(program)).exit_code();
        assert_eq!((code("a-name-that-nobody-uses"), code("/")), (127, 126));
    }
}
