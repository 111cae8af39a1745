//! Errors of reading or choosing a configuration.

use std::io;
use std::path::PathBuf;

use super::Shape;
use crate::system::id::UnknownName;

/// The error of reading or choosing a configuration. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}; give the path of a file in accel-config's format", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The text is not JSON.
    #[error("the configuration is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A value has the wrong JSON type.
    #[error("{object} contains {found}; expected {expected}")]
    Shape {
        /// The object.
        object: String,
        /// The found type.
        found: &'static str,
        /// The expected type.
        expected: &'static str,
    },
    /// An object without a name.
    #[error("an object in {inside} has no \"dev\"; it must be the first key and name the object")]
    NoName {
        /// The object around it.
        inside: String,
    },
    /// An object whose name is not one of the driver's.
    #[error("in {inside}: {source}")]
    BadName {
        /// The object around it.
        inside: String,
        /// The name.
        source: UnknownName,
    },
    /// An object of another device or group.
    #[error("{object} is in {inside}, where it does not belong: {why}")]
    Misplaced {
        /// The object.
        object: String,
        /// The object around it.
        inside: String,
        /// The contradiction.
        why: String,
    },
    /// An unknown key.
    #[error("{object} has the unknown key {key:?}; known keys are {}", known.join(", "))]
    UnknownKey {
        /// The object.
        object: String,
        /// The key.
        key: String,
        /// The keys that it may have.
        known: Vec<&'static str>,
    },
    /// A key that cannot be set.
    #[error(
        "{object} has the read-only key {key:?}: the file seems to come from `accel-config list`; use `accel-config \
         save-config`"
    )]
    ReadOnlyKey {
        /// The object.
        object: String,
        /// The key.
        key: String,
    },
    /// A repeated key, or two names of one setting.
    #[error("{object} has the key {key:?} twice; remove one")]
    RepeatedKey {
        /// The object.
        object: String,
        /// The key.
        key: &'static str,
    },
    /// An invalid value.
    #[error("{key} of {object} is {found}; expected {expected}")]
    Value {
        /// The object.
        object: String,
        /// The key.
        key: &'static str,
        /// The value.
        found: String,
        /// The expected values.
        expected: &'static str,
    },
    /// No built-in profile has this name.
    #[error("no profile {name:?}; use the path of a file in accel-config's format or one of: {}", known.join(", "))]
    UnknownProfile {
        /// The requested name.
        name: String,
        /// The names of all profiles.
        known: Vec<&'static str>,
    },
    /// The text is not the shape of a configuration.
    #[error(
        "{0:?} is not the shape of a configuration; an example is 8n1d1e1w: 8 nodes, 1 device on each, with 1 engine and 1 \
         shared work queue; 1n1d4g1e2w-dedicated has 4 groups in its device, each with 1 engine and 2 dedicated queues (a \
         device has at most 4 groups, 4 engines and 8 queues)"
    )]
    BadShape(String),
    /// The machine does not have enough devices for a shape.
    #[error(
        "{shape} needs {} node{} with {} DSA device{} or more, and {found} have that many: use another shape, or name the \
         devices",
        shape.nodes(), plural(shape.nodes()), shape.devices_per_node(), plural(shape.devices_per_node())
    )]
    TooFewDevices {
        /// The shape.
        shape: Shape,
        /// Nodes that have the devices.
        found: usize,
    },
}

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}
