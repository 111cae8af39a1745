//! Errors of a run.

use std::io;
use std::path::PathBuf;

use memferry_dsa::system::DeviceId;

/// A run that failed before the program ended. No mount and no process is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program does not exist.
    #[error("cannot find {program}: give the path of a program, or a name that is in PATH")]
    NoProgram {
        /// The requested program.
        program: String,
    },
    /// The program exists and cannot be run.
    #[error("cannot run {program}: {source}; it must be a program or a script with #!, and executable")]
    CannotRun {
        /// The requested program.
        program: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The program is built for another machine.
    #[error(
        "cannot run {program}: it is built for another machine (number {machine} of elf.h), which this kernel does not run; \
        use its build for x86-64"
    )]
    OtherMachine {
        /// The requested program.
        program: String,
        /// Field `e_machine` of the file.
        machine: u16,
    },
    /// The number of devices is zero or too large.
    #[error("cannot emulate {requested} devices: the number must be 1 to {max}")]
    DeviceCount {
        /// The requested number.
        requested: u32,
        /// The largest number.
        max: u32,
    },
    /// The configuration names a device that is not emulated.
    #[error(
        "the configuration has {found}, but only {devices} are emulated: leave --devices out, or raise it"
    )]
    NoSuchDevice {
        /// The device of the configuration.
        found: DeviceId,
        /// The emulated devices.
        devices: String,
    },
    /// The configuration cannot be read, parsed or applied.
    #[error("{}: {problem}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The problem, as a sentence.
        problem: String,
    },
    /// The file of the trace cannot be written.
    #[error("cannot write the trace to {}: {source}; choose a file in a directory that you own", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// `/dev/fuse` cannot be used.
    #[error(
        "cannot open /dev/fuse ({source}), which the emulated driver's files need: {}",
        limit(source).unwrap_or(advice)
    )]
    Fuse {
        /// The error of the operating system.
        source: io::Error,
        /// What the user can do.
        advice: &'static str,
    },
    /// The kernel refuses a namespace, and so a private view of `/dev` and `/sys`.
    #[error("cannot make a namespace for the emulated devices ({source}): {advice}")]
    Namespace {
        /// The error of the operating system.
        source: io::Error,
        /// What the user can do.
        advice: &'static str,
    },
    /// A mount in the namespace failed.
    #[error(
        "cannot mount on {} in the private namespace: {source}; {}",
        path.display(),
        limit(source).unwrap_or("in a container, try --privileged")
    )]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The calling process has several threads, so a fork is not safe.
    #[error("cannot fork a process with {0} threads: call run() before you start threads")]
    Threads(usize),
    /// A system call failed.
    #[error("cannot {what}: {source}{}", limit(source).map(|advice| format!("; {advice}")).unwrap_or_default())]
    System {
        /// The purpose of the call.
        what: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The supervisor reported an error.
    #[error("{text}")]
    Supervisor {
        /// The message, from another variant.
        text: String,
        /// The exit status of that variant.
        code: u8,
    },
    /// The supervisor was killed, and with it the devices and the program.
    #[error(
        "the supervisor, which emulates the devices, was killed{how}; the program was killed too, because its devices are gone"
    )]
    SupervisorGone {
        /// The signal, if it is known.
        how: String,
    },
}

impl Error {
    /// Returns the exit status by the convention of shells and `env`: 127 for a program that does not exist, 126 for
    /// one that cannot be run, 125 for all other errors.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::NoProgram { .. } => 127,
            Error::CannotRun { .. } | Error::OtherMachine { .. } => 126,
            Error::Supervisor { code, .. } => *code,
            _ => 125,
        }
    }

    /// The error of a program that exists and could not be started.
    pub(crate) fn start(program: &str, source: io::Error) -> Error {
        match limit(&source) {
            Some(_) => Error::System { what: "start the program", source },
            None => Error::CannotRun { program: program.to_owned(), source },
        }
    }

    pub(crate) fn mount<E: Into<io::Error>>(path: impl Into<PathBuf>) -> impl FnOnce(E) -> Error {
        let path = path.into();
        move |error| Error::Mount { path, source: error.into() }
    }

    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Error {
        move |error| Error::System { what, source: error.into() }
    }
}

/// Returns advice if the error is an exceeded limit.
pub(crate) fn limit(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EAGAIN => Some("raise the limit of processes and threads (ulimit -u)"),
        libc::EMFILE | libc::ENFILE => Some("raise the limit of open files (ulimit -n)"),
        libc::ENOMEM => Some("free memory, or raise its limit (ulimit -v)"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named() {
        let source = || io::Error::from_raw_os_error(libc::EMFILE);
        let path = PathBuf::from("/dev");
        for error in [
            Error::system("start a thread")(source()),
            Error::Fuse { source: source(), advice: "load the module" },
            Error::Mount { path, source: source() },
            Error::start("true", source()),
        ] {
            let told = error.to_string();
            assert!(told.contains("ulimit -n") && !told.contains("--privileged"), "{told}");
            assert!(!told.contains("load the module") && error.exit_code() == 125, "{told}");
        }
        let missing = io::Error::from_raw_os_error(libc::ENOEXEC);
        assert_eq!(Error::start("x", missing).exit_code(), 126);
    }
}
