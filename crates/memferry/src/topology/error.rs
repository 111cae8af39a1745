//! Errors of machine descriptions.

use std::io;
use std::path::PathBuf;

use super::NodeId;

/// The error of reading or using a machine's description. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A file that a description needs is missing or unreadable.
    #[error("cannot read {}: {source}; {advice}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
        /// The remedy.
        advice: &'static str,
    },
    /// The content of a file is invalid.
    #[error("{} says {found:?}, expected {expected}; repair the file or use a profile (--profile)", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Its content, shortened.
        found: String,
        /// The expected content.
        expected: &'static str,
    },
    /// Two files contradict each other.
    #[error("the description of {machine} contradicts itself: {what}")]
    Contradiction {
        /// Name of the machine, profile or tree.
        machine: String,
        /// Both sides of the contradiction.
        what: String,
    },
    /// The nodes changed during each reading of the machine.
    #[error(
        "the nodes of {machine} change while they are read, {attempts} times in a row, at last from {before:?} to \
         {after:?}; wait until no memory or CPU is added or removed, and try again"
    )]
    Changing {
        /// Name of the tree.
        machine: String,
        /// Number of readings.
        attempts: u32,
        /// The online nodes before the last reading.
        before: String,
        /// The online nodes after it.
        after: String,
    },
    /// The file is not a recording.
    #[error("{} is not a recording of a machine: {source}; record it again", path.display())]
    Recording {
        /// The file.
        path: PathBuf,
        /// Line, column and error.
        source: serde_json::Error,
    },
    /// The profile is not built in, and not a file.
    #[error("no machine profile {name:?}; use the path of a JSON file or one of: {}", known.join(", "))]
    UnknownProfile {
        /// The requested name.
        name: String,
        /// The built-in profiles.
        known: Vec<&'static str>,
    },
    /// The profile is not valid JSON, or not in the schema of `machines/`.
    #[error("machine profile {name}: {source}; compare it with the files in crates/memferry/machines")]
    Profile {
        /// Name or path of the profile.
        name: String,
        /// Line, column and error.
        source: serde_json::Error,
    },
    /// The profile belongs to another machine.
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
        /// The requested node.
        node: NodeId,
        /// The nodes it has.
        known: Vec<NodeId>,
    },
}
