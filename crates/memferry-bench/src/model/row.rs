//! Results as rows, in the form that benchmarks have.

use serde::Serialize;

/// How a number came about.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum How {
    /// Taken with a clock.
    Measured,
    /// Computed by the model.
    Modelled,
    /// Printed in a publication.
    Published,
}

/// One number.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// What it is.
    pub name: String,
    /// How much.
    pub value: f64,
    /// In which unit.
    pub unit: &'static str,
    /// How it came about.
    pub how: How,
    /// How many values it is the middle of; a model has one.
    pub samples: usize,
    /// Smallest of them.
    pub min: f64,
    /// Largest of them.
    pub max: f64,
    /// What it is compared with, if with anything in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The peer's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_value: Option<f64>,
    /// Above 1: better than the peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
}

impl Row {
    /// A number of the model's that is compared with nothing.
    pub fn modelled(name: impl Into<String>, value: f64, unit: &'static str) -> Row {
        Row {
            name: name.into(),
            value,
            unit,
            how: How::Modelled,
            samples: 1,
            min: value,
            max: value,
            peer: None,
            peer_value: None,
            ratio: None,
        }
    }

    /// The same, compared with a peer; `ratio` above 1 means better.
    pub fn against(self, peer: impl Into<String>, peer_value: f64, ratio: f64) -> Row {
        Row { peer: Some(peer.into()), peer_value: Some(peer_value), ratio: Some(ratio), ..self }
    }
}
