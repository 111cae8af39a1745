//! Parameters: figures of a machine for models, beyond nodes and links.

use serde::{Deserialize, Serialize};

/// The origin of a parameter's value. It tells a fit from a prediction.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Basis {
    /// Printed in a publication.
    Published,
    /// Measured on the machine itself.
    Measured,
    /// Measured there with an emulated device: its operations are real, its speed is not.
    Emulated,
    /// Chosen so that the model reproduces published rows; see [`Parameter::rows`].
    Calibrated,
    /// Not published. The source gives the reason for the value.
    Assumed,
}

/// A named figure for a model of the machine. The model defines the names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// Its name, with the unit.
    pub name: String,
    /// Its value, finite and not negative.
    pub value: f64,
    /// The origin of the value.
    pub basis: Basis,
    /// The published rows that it was calibrated on (`published/`); empty unless it is calibrated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<String>,
    /// Its publication, its calibration, or the reason for the assumption.
    pub source: String,
}

/// A published figure of a machine that no other type holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// Its source.
    pub source: String,
}

impl Parameter {
    /// An assumed parameter, with the reason.
    pub fn assumed(name: &str, value: f64, why: &str) -> Parameter {
        let (name, source) = (name.to_owned(), why.to_owned());
        Parameter { name, value, basis: Basis::Assumed, rows: Vec::new(), source }
    }

    /// The first contradiction in it, if any: profiles are external input.
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
