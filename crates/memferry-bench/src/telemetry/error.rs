//! Why a monitor is absent.

use std::io::{self, ErrorKind};

use memferry_dsa::internals::system::Files;

/// Why a monitor is absent: one sentence, with a remedy if there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Absent {
    /// The machine or its kernel lacks it.
    #[error("{0}")]
    NotHere(&'static str),
    /// A file cannot be read.
    #[error("/{file} cannot be read: {source}{remedy}")]
    Unreadable {
        /// The file, without the root.
        file: String,
        /// The error of the kernel.
        source: io::Error,
        /// What to do, after a semicolon, or nothing.
        remedy: &'static str,
    },
    /// A file has other content than the kernel documents.
    #[error("/{file} has {text:?}, which is not {expected}")]
    NotUnderstood {
        /// The file, without the root.
        file: String,
        /// Its content.
        text: String,
        /// What it should have.
        expected: &'static str,
    },
    /// perf counts on whole CPUs for privileged users only.
    #[error(
        "this user may not count on whole CPUs (kernel.perf_event_paranoid is {paranoid}); run as root or with CAP_PERFMON, or \
         set it to 0, and in a container permit perf_event_open"
    )]
    NotPermitted {
        /// The value of the setting.
        paranoid: String,
    },
    /// The kernel refuses a counter.
    #[error("perf_event_open of {event} on CPU {cpu} failed: {source}")]
    Refused {
        /// The event.
        event: String,
        /// The CPU.
        cpu: u32,
        /// The error of the kernel.
        source: io::Error,
    },
    /// This process is monitored already, and leaving its group would spoil the counts of others.
    #[error(
        "this process is in the monitoring group {0:?} of resctrl already; start it outside of that group"
    )]
    Monitored(String),
    /// A monitoring group cannot be made or used.
    #[error("the monitoring group /{group} cannot be {what}: {source}{remedy}")]
    Group {
        /// The group, without the root.
        group: String,
        /// What failed.
        what: &'static str,
        /// The error of the kernel.
        source: io::Error,
        /// What to do, after a semicolon, or nothing.
        remedy: &'static str,
    },
}

/// The files of a machine, as text.
pub(super) struct Tree<'a>(pub(super) &'a dyn Files);

impl Tree<'_> {
    /// The content of a file without white space at its ends.
    pub(super) fn text(&self, file: &str) -> Result<String, Absent> {
        match self.0.read(file) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).trim().to_owned()),
            Err(source) => {
                let remedy = if source.kind() == ErrorKind::PermissionDenied { "; run as root" } else { "" };
                Err(Absent::Unreadable { file: file.to_owned(), source, remedy })
            }
        }
    }

    /// The content of a file that may not exist.
    pub(super) fn optional(&self, file: &str) -> Result<Option<String>, Absent> {
        match self.text(file) {
            Ok(text) => Ok(Some(text)),
            Err(Absent::Unreadable { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The content of a file, parsed.
    pub(super) fn parsed<T>(
        &self,
        file: &str,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, Absent> {
        let text = self.text(file)?;
        parse(&text).ok_or_else(|| Absent::NotUnderstood { file: file.to_owned(), text, expected })
    }

    pub(super) fn number(&self, file: &str) -> Result<u64, Absent> {
        self.parsed(file, "a number", |text| text.parse().ok())
    }

    /// The names in a directory, sorted as numbers where they end in some; none if it does not exist.
    pub(super) fn entries(&self, directory: &str) -> Vec<String> {
        let mut names = self.0.entries(directory).unwrap_or_default();
        names.sort_by(|one, other| split_number(one).cmp(&split_number(other)));
        names
    }
}

/// A name and the number at its end, so that `dsa10` comes after `dsa2`.
fn split_number(name: &str) -> (&str, Option<u32>) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem, name[stem.len()..].parse().ok())
}
