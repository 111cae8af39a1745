//! Errors of guests.

use memferry::topology::TopologyError;

/// The reason why a guest cannot be built, or did not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The profile does not exist or contradicts itself.
    #[error("cannot build a guest: {0}")]
    Profile(#[from] TopologyError),
    /// QEMU and Linux cannot have the machine of the profile.
    #[error("cannot build a guest of {profile}: {why}")]
    Layout {
        /// Name of the profile.
        profile: String,
        /// What is impossible.
        why: String,
    },
    /// Programs are not installed.
    #[error(
        "a guest needs {}, not found in PATH; on Debian and Ubuntu: `sudo apt-get install --no-install-recommends {}`",
        .programs.join(" and "),
        .packages.join(" ")
    )]
    NotInstalled {
        /// The missing programs.
        programs: Vec<&'static str>,
        /// The packages of Debian and Ubuntu that have them.
        packages: Vec<&'static str>,
    },
    /// There is no kernel for the guest.
    #[error("{0}")]
    Kernel(String),
    /// A file for the guest cannot be read or written.
    #[error("{0}")]
    Image(String),
    /// A file of persistent memory cannot be used.
    #[error("{0}")]
    PersistentMemory(String),
    /// QEMU cannot be used.
    #[error("{0}")]
    Qemu(String),
    /// A folder cannot be shared.
    #[error("{0}")]
    Share(String),
    /// The terminal cannot be given to the guest.
    #[error("cannot give the terminal to the guest: {0}")]
    Terminal(
        /// The reason.
        std::io::Error,
    ),
    /// The guest stopped before its program ended.
    #[error("the guest did not finish: {0}")]
    NotFinished(String),
    /// The program could not be started in the guest.
    #[error("{0}")]
    NotStarted(String),
}

impl Error {
    /// Returns the exit status by the convention of shells and `env`: 126 for a program that cannot be run, 125 for all
    /// other errors.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::NotStarted(_) => 126,
            _ => 125,
        }
    }
}
