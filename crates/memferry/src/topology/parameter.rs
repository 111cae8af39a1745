//! What a model needs to know of a machine beyond its nodes and links.

use serde::{Deserialize, Serialize};

/// How a parameter came about. Says how far it can be trusted, and keeps a fit from passing for a prediction.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Basis {
    /// Printed in a publication.
    Published,
    /// Measured on the machine itself.
    Measured,
    /// Measured there, but of an emulated device: right in what it did, not in how fast.
    Emulated,
    /// Chosen so that the model reproduces published rows; see [`Parameter::rows`].
    Calibrated,
    /// Nobody has published it. The source says why this value.
    Assumed,
}

/// A named figure that a model of the machine uses. Which names there are is up to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// What it is; the unit is part of the name.
    pub name: String,
    /// How much; finite and not negative.
    pub value: f64,
    /// How it came about.
    pub basis: Basis,
    /// The published rows that it was calibrated on (`published/`); empty unless it is calibrated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<String>,
    /// Where it was taken from, how it was calibrated, or why it was assumed.
    pub source: String,
}

impl Parameter {
    /// What is assumed, and why.
    pub fn assumed(name: &str, value: f64, why: &str) -> Parameter {
        let (name, source) = (name.to_owned(), why.to_owned());
        Parameter { name, value, basis: Basis::Assumed, rows: Vec::new(), source }
    }

    /// What is wrong with it, if anything: profiles come from outside.
    pub(super) fn contradiction(&self) -> Option<String> {
        let Parameter { name, value, basis, rows, source } = self;
        if !value.is_finite() || *value < 0.0 {
            return Some(format!("parameter {name} is {value}; where it is unknown, leave it out"));
        }
        if source.trim().is_empty() {
            return Some(format!(
                "parameter {name} has no source; say where it is from or why it is assumed"
            ));
        }
        match (basis, rows.is_empty()) {
            (Basis::Calibrated, true) => {
                Some(format!("parameter {name} is calibrated, and does not say on which rows"))
            }
            (Basis::Calibrated, false) | (_, true) => None,
            (_, false) => Some(format!("parameter {name} has rows, and is not calibrated")),
        }
    }
}
