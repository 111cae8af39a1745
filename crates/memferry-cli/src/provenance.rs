//! The provenance of numbers: each number that is shown or saved carries it.

use std::fmt;

use memferry_query::Dsa;
use serde::{Deserialize, Serialize};

use crate::bench::how_of_this_machines_devices;

/// How a number was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Provenance {
    /// On the machine that the record names.
    Measured,
    /// On that machine, with an emulated device or made-up nodes: says nothing about the speed of hardware.
    Emulated,
    /// Computed.
    Modelled,
    /// Printed in a publication.
    Published,
}

impl Provenance {
    /// The provenance of numbers of this DSA. Under `memferry emulate` the system's devices are emulated too.
    pub(crate) fn of_dsa(dsa: Dsa) -> Provenance {
        match dsa {
            Dsa::System => how_of_this_machines_devices(),
            _ => Provenance::Emulated,
        }
    }
}

/// The word in JSON.
impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
