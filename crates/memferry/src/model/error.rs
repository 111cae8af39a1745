//! Why a model gives no answer.

use crate::topology::{NodeId, TopologyError};

/// Why something could not be computed. Nothing has been changed by the attempt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The machine's description lacks a figure.
    #[error("{what} is not known; measure the machine, or add it to its profile")]
    Unknown {
        /// What is missing.
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
    /// The profile has a value for a parameter that no time can be computed with.
    #[error("{machine} has the value {value} for {name}; it must be {wanted}")]
    ParameterValue {
        /// Name of the machine.
        machine: String,
        /// The parameter.
        name: String,
        /// Its value.
        value: f64,
        /// What it must be.
        wanted: &'static str,
    },
    /// The machine has no such node.
    #[error("the machine has no node {node}; it has {}", crate::topology::list::join(known))]
    Node {
        /// What was asked for.
        node: NodeId,
        /// The nodes it has.
        known: Vec<NodeId>,
    },
    /// A scenario contradicts itself or the machine.
    #[error("the scenario cannot be: {what}")]
    Scenario {
        /// What is wrong with it.
        what: String,
    },
    /// A scenario is no TOML, or has keys that scenarios do not have.
    #[error("scenario {name}: {source}; compare it with the files in crates/memferry-bench/scenarios")]
    Toml {
        /// Name or path of the scenario.
        name: String,
        /// Line, column, and what was wrong there.
        source: Box<toml::de::Error>,
    },
    /// There is no such scenario.
    #[error("no scenario {name:?}; use the path of a TOML file or one of: {}", known.join(", "))]
    UnknownScenario {
        /// What was asked for.
        name: String,
        /// The built-in scenarios.
        known: Vec<&'static str>,
    },
    /// A file could not be read.
    #[error(
        "cannot read {path}: {source}; give the path of a TOML file like those in crates/memferry-bench/scenarios"
    )]
    Read {
        /// The file.
        path: String,
        /// What the operating system answered.
        source: std::io::Error,
    },
    /// The machine could not be described.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

fn known_parameters() -> String {
    super::hardware::PARAMETERS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}
