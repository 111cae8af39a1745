//! Errors of the model.

use crate::topology::{NodeId, TopologyError};

/// The error of a computation. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The machine's description lacks a figure.
    #[error("{what} is not known; measure the machine, or add it to its profile")]
    Unknown {
        /// The missing figure.
        what: String,
    },
    /// The profile has a parameter that the model does not know.
    #[error("{machine} has the parameter {name:?}, which no model knows; known are {}", known_parameters())]
    Parameter {
        /// Name of the machine.
        machine: String,
        /// The parameter.
        name: String,
    },
    /// The value of a parameter is outside its range.
    #[error("{machine} has the value {value} for {name}; it must be {wanted}")]
    ParameterValue {
        /// Name of the machine.
        machine: String,
        /// The parameter.
        name: String,
        /// Its value.
        value: f64,
        /// The valid range.
        wanted: &'static str,
    },
    /// The machine has no such node.
    #[error("the machine has no node {node}; it has {}", crate::topology::list::join(known))]
    Node {
        /// The requested node.
        node: NodeId,
        /// The nodes it has.
        known: Vec<NodeId>,
    },
    /// A scenario contradicts itself or the machine.
    #[error("the scenario is impossible: {what}")]
    Scenario {
        /// The contradiction.
        what: String,
    },
    /// A scenario is not valid TOML, or has unknown keys.
    #[error("scenario {name}: {source}; compare it with the files in crates/memferry-bench/scenarios")]
    Toml {
        /// Name or path of the scenario.
        name: String,
        /// Line, column and error.
        source: Box<toml::de::Error>,
    },
    /// There is no such scenario.
    #[error("no scenario {name:?}; use the path of a TOML file or one of: {}", known.join(", "))]
    UnknownScenario {
        /// The requested name.
        name: String,
        /// The built-in scenarios.
        known: Vec<&'static str>,
    },
    /// A file could not be read.
    #[error("cannot read {path}: {source}; give the path of a TOML file")]
    Read {
        /// The file.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The machine could not be described.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

fn known_parameters() -> String {
    super::hardware::PARAMETERS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}
