//! What can be wrong with what the driver shows.

use std::io;
use std::path::PathBuf;

use super::id::QueueId;

/// Why the state of the system could not be read or used. Nothing has been changed by the attempt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SystemError {
    /// A file is there and cannot be read.
    #[error("cannot read {}: {source}; {advice}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system answered.
        source: io::Error,
        /// What to do about it.
        advice: &'static str,
    },
    /// A file was read and its content makes no sense.
    #[error("{} says {found:?}, expected {expected}; if that is what the kernel says, please report it", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Its content, shortened.
        found: String,
        /// What would have been understood.
        expected: &'static str,
    },
    /// A queue cannot be used without knowing this about it.
    #[error(
        "{queue} does not say its {attribute}; the kernel's driver is too old, or the recorded tree incomplete"
    )]
    Missing {
        /// The queue.
        queue: QueueId,
        /// The file that is missing.
        attribute: &'static str,
    },
}

/// Enough of a broken file to recognise it.
pub(super) fn shorten(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
