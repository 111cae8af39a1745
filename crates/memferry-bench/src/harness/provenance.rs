//! The origin of a number.

use std::fmt;
use std::str::FromStr;

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

impl Provenance {
    const ALL: [Provenance; 4] =
        [Provenance::Measured, Provenance::Emulated, Provenance::Modelled, Provenance::Published];

    fn name(self) -> &'static str {
        match self {
            Provenance::Measured => "measured",
            Provenance::Emulated => "emulated",
            Provenance::Modelled => "modelled",
            Provenance::Published => "published",
        }
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Provenance {
    type Err = String;

    fn from_str(text: &str) -> Result<Provenance, String> {
        let found = Provenance::ALL.into_iter().find(|it| it.name() == text);
        found.ok_or_else(|| {
            let names = Provenance::ALL.map(Provenance::name).join(", ");
            format!("{text:?} is not a way to obtain a number; use one of {names}")
        })
    }
}
