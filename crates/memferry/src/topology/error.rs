//! What can be wrong with the description of a machine.

use std::io;
use std::path::PathBuf;

use super::NodeId;

/// Why a machine's description could not be read or used. Nothing has been changed by the attempt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A file that a description needs is missing or unreadable.
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
    #[error("{} says {found:?}, expected {expected}; repair the file or use a profile (--profile)", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Its content, shortened.
        found: String,
        /// What would have been understood.
        expected: &'static str,
    },
    /// Two files exclude each other.
    #[error("the description of {machine} contradicts itself: {what}")]
    Contradiction {
        /// Name of the machine, profile or tree.
        machine: String,
        /// Both sides of the contradiction.
        what: String,
    },
    /// The nodes changed each time the machine was read.
    #[error(
        "the nodes of {machine} change while they are read, {attempts} times in a row, at last from {before:?} to \
         {after:?}; wait until memory and CPUs are where they shall be, and try again"
    )]
    Changing {
        /// Name of the tree.
        machine: String,
        /// How often it was read.
        attempts: u32,
        /// The nodes that were online before the last reading.
        before: String,
        /// And after it.
        after: String,
    },
    /// The file is no recording.
    #[error("{} is no recording of a machine: {source}; record it again", path.display())]
    Recording {
        /// The file.
        path: PathBuf,
        /// Line, column, and what was wrong there.
        source: serde_json::Error,
    },
    /// The profile is neither built in nor a file.
    #[error("no machine profile {name:?}; use the path of a JSON file or one of: {}", known.join(", "))]
    UnknownProfile {
        /// What was asked for.
        name: String,
        /// The built-in profiles.
        known: Vec<&'static str>,
    },
    /// The profile is no JSON, or not in the schema of `machines/`.
    #[error("machine profile {name}: {source}; compare it with the files in crates/memferry/machines")]
    Profile {
        /// Name or path of the profile.
        name: String,
        /// Line, column, and what was wrong there.
        source: serde_json::Error,
    },
    /// The profile is not of this machine.
    #[error(
        "the figures of {profile} are not those of {machine}: {what}; measure this machine with `memferry calibrate \
         --out FILE`"
    )]
    Misfit {
        /// Name of the machine.
        machine: String,
        /// Name of the profile.
        profile: String,
        /// The first difference.
        what: String,
    },
    /// The machine has no such node.
    #[error("{machine} has no node {node}; it has {}", crate::topology::list::join(known))]
    UnknownNode {
        /// Name of the machine.
        machine: String,
        /// What was asked for.
        node: NodeId,
        /// The nodes it has.
        known: Vec<NodeId>,
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
