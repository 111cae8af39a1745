//! What can keep a program from being run.

use std::io;
use std::path::PathBuf;

use memferry_dsa::system::DeviceId;

/// Why the program was not run, or not to its end. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such program.
    #[error("cannot find {program}: give the path of a program, or a name that is in PATH")]
    NoProgram {
        /// What was asked for.
        program: String,
    },
    /// The program is there and cannot be run.
    #[error("cannot run {program}: {source}; it must be a program or a script with #!, and executable")]
    CannotRun {
        /// What was asked for.
        program: String,
        /// What the operating system answered.
        source: io::Error,
    },
    /// The program is for a machine that the kernel does not run programs of.
    #[error(
        "cannot run {program}: it is a program for another machine (number {machine} of elf.h), which this kernel does \
        not run; take its build for x86-64"
    )]
    OtherMachine {
        /// What was asked for.
        program: String,
        /// Field `e_machine` of the file.
        machine: u16,
    },
    /// No or too many devices.
    #[error("{asked} devices cannot be emulated: ask for 1 to {most}")]
    Devices {
        /// How many were asked for.
        asked: u32,
        /// How many there may be.
        most: u32,
    },
    /// The configuration names a device that is not emulated.
    #[error(
        "the configuration is for {found}, and the devices are {devices}: leave --devices out, or raise it"
    )]
    NoSuchDevice {
        /// A device of the configuration.
        found: DeviceId,
        /// The devices that there are.
        devices: String,
    },
    /// The configuration cannot be read, understood, or carried out.
    #[error("{}: {problem}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The preload library is not there.
    #[error(
        "there is no library {}: `cargo build --release -p memferry-emulate-preload` makes it in target/release; copy it there",
        path.display()
    )]
    NoLibrary {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The file of the trace cannot be written.
    #[error("cannot write the trace to {}: {source}; choose a file in a directory that is yours", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// What the operating system answered.
        source: io::Error,
    },
    /// `/dev/fuse` cannot be used.
    #[error(
        "cannot open /dev/fuse ({source}), which the emulated driver's files need: {}",
        limit(source).unwrap_or(advice)
    )]
    Fuse {
        /// What the operating system answered.
        source: io::Error,
        /// What to do about it.
        advice: &'static str,
    },
    /// There can be no private view of `/dev` and `/sys`.
    #[error("cannot make a namespace for the emulated devices ({source}): {advice}")]
    Namespace {
        /// What the operating system answered.
        source: io::Error,
        /// What to do about it.
        advice: &'static str,
    },
    /// Something could not be mounted in the namespace.
    #[error(
        "cannot mount on {} in a namespace of its own: {source}; {}",
        path.display(),
        limit(source).unwrap_or("in a container, try --privileged")
    )]
    Mount {
        /// Where.
        path: PathBuf,
        /// What the operating system answered.
        source: io::Error,
    },
    /// The calling process has several threads and cannot be split safely.
    #[error("run() was called in a process with {0} threads: call it before any thread is started")]
    Threads(usize),
    /// A system call failed that should not.
    #[error("cannot {what}: {source}{}", limit(source).map(|advice| format!("; {advice}")).unwrap_or_default())]
    System {
        /// What for.
        what: &'static str,
        /// What the operating system answered.
        source: io::Error,
    },
    /// The supervising process said why it could not start.
    #[error("{text}")]
    Supervisor {
        /// The sentence, which is one of the others'.
        text: String,
        /// The exit status that belongs to it.
        code: u8,
    },
    /// The supervising process is gone, and with it the devices and the program.
    #[error(
        "the process that emulates the devices was killed{how}; the program was ended, since its devices are gone"
    )]
    SupervisorGone {
        /// By what, if that is known.
        how: String,
    },
}

impl Error {
    /// The exit status that shells and `env` use: 127 for a program that is not there, 126 for one that cannot be run,
    /// 125 for everything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::NoProgram { .. } => 127,
            Error::CannotRun { .. } | Error::OtherMachine { .. } => 126,
            Error::Supervisor { code, .. } => *code,
            _ => 125,
        }
    }

    /// A program that is there and could not be started.
    pub(crate) fn start(program: &str, source: io::Error) -> Error {
        match limit(&source) {
            Some(_) => Error::System { what: "start the program", source },
            None => Error::CannotRun { program: program.to_owned(), source },
        }
    }

    pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> Error {
        move |source| Error::System { what, source }
    }
}

/// What to do where a limit is reached.
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
