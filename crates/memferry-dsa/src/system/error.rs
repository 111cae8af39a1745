//! Errors of reading the driver's state.

use std::io;
use std::path::PathBuf;

use super::id::QueueId;

/// The error of reading or using the state of the system. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SystemError {
    /// An existing file cannot be read.
    #[error("cannot read {}: {source}; {advice}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
        /// The remedy.
        advice: &'static str,
    },
    /// The content of a file cannot be parsed.
    #[error("cannot parse {}: it contains {found:?}, expected {expected}; please report it if the kernel prints that", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Its content, shortened.
        found: String,
        /// The expected format.
        expected: &'static str,
    },
    /// An attribute that is necessary for the use of a queue is missing.
    #[error(
        "{queue} has no attribute {attribute}: the kernel's driver is too old, or the recorded tree is incomplete"
    )]
    Missing {
        /// The queue.
        queue: QueueId,
        /// The missing file.
        attribute: &'static str,
    },
}

/// The start of a text, long enough to recognise it in an error.
pub fn shorten(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
