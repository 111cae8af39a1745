//! The origin of a number.

use serde::{Deserialize, Serialize};

/// How a number was obtained. Every number that is shown or recorded states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provenance {
    /// Measured on the machine that the record names.
    Measured,
    /// Measured there with an emulated device or made-up nodes: the behaviour is right, the speed is not.
    Emulated,
    /// Computed by the model.
    Modelled,
    /// Printed in a publication.
    Published,
}

display_by_serde!(Provenance);
