//! How numbers came about: each that is shown or kept says it.

use memferry_query::Dsa;
use serde::{Deserialize, Serialize};

use crate::bench::how_of_this_machines_devices;
use crate::words::words;

/// How a number came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum How {
    /// On the machine that the record names.
    Measured,
    /// There too, but an emulated device or made-up nodes took part: right in what it did, not in how fast.
    Emulated,
    /// Computed.
    Modelled,
    /// Printed in a publication.
    Published,
}

impl How {
    /// Of what this DSA did; under `memferry emulate` this machine's own is emulated too.
    pub(crate) fn of_dsa(dsa: Dsa) -> How {
        match dsa {
            Dsa::System => how_of_this_machines_devices(),
            _ => How::Emulated,
        }
    }
}

words!(
    How,
    "way to come by a number",
    Measured = "measured",
    Emulated = "emulated",
    Modelled = "modelled",
    Published = "published"
);
