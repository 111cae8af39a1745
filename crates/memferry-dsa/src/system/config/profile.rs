//! Built-in configurations: `devices/*.json`, which accel-config can load as well.

use super::{Config, ConfigError, Shape, UnknownKeys};
use crate::system::state::SystemState;

macro_rules! built_in {
    ($name:literal, $purpose:literal, $source:literal) => {
        Profile {
            name: $name,
            purpose: $purpose,
            source: $source,
            text: include_str!(concat!("../../../devices/", $name, ".json")),
        }
    };
}

const BUILT_IN: &[Profile] = &[
    built_in!(
        "8n1d1e1w",
        "the eight devices of a two-socket Xeon Max, one for each node",
        "Fürst 2024, 2.5 (this configuration), 2.3.1.4 (one queue and one engine write in order)"
    ),
    built_in!("4n1d1e1w", "the four devices of one socket of a Xeon Max", "Fürst 2024, 3.2.3 (four devices)"),
    built_in!(
        "2n1d1e1w",
        "one device near the source and one near the target",
        "Fürst 2024, 3.2.3 (Push-Pull: two devices gain most of what eight do)"
    ),
    built_in!(
        "1n1d1e1w",
        "one device, one engine, one shared queue",
        "Fürst 2024, 3.2.1 and 3.2.2 (one device); Kuper et al. 2024, figure 9 (SWQ: one engine, many threads)"
    ),
    built_in!(
        "1n1d1e1w-dedicated",
        "one device, one engine, one queue for one process",
        "Kuper et al. 2024, 4.1 (one engine) and 4.2 (a dedicated queue)"
    ),
    built_in!(
        "1n1d4e1w",
        "one device whose four engines serve one shared queue: small transfers, or page faults that stall an engine",
        "Kuper et al. 2024, 4.3, figure 7 and guideline G5"
    ),
    built_in!(
        "1n1d4e8w-dedicated",
        "one device for eight processes or threads, each with a queue of its own",
        "Kuper et al. 2024, 6.3, guideline G6 (more dedicated queues rather than one shared)"
    ),
    built_in!(
        "1n1d4g1e1w-dedicated",
        "one device for four users that must not disturb each other: a queue of 32 entries and an engine each",
        "Kuper et al. 2024, figure 9 (DWQ: one engine per queue) and guideline G6 (32 entries suffice)"
    ),
    built_in!(
        "1n4d1e1w-dedicated",
        "four devices of one socket, a queue each",
        "Kuper et al. 2024, figure 10 (throughput grows with the number of devices)"
    ),
];

/// A built-in configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    name: &'static str,
    purpose: &'static str,
    source: &'static str,
    text: &'static str,
}

impl Profile {
    /// All profiles.
    pub fn all() -> &'static [Profile] {
        BUILT_IN
    }

    /// The profile with this name.
    ///
    /// # Errors
    /// [`ConfigError::UnknownProfile`].
    pub fn named(name: &str) -> Result<Profile, ConfigError> {
        let found = BUILT_IN.iter().find(|profile| profile.name == name).copied();
        found.ok_or_else(|| ConfigError::UnknownProfile {
            name: name.to_owned(),
            known: BUILT_IN.iter().map(|profile| profile.name).collect(),
        })
    }

    /// Its name, which is its [`Shape`].
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its purpose.
    pub fn purpose(&self) -> &'static str {
        self.purpose
    }

    /// The publication that uses it.
    pub fn source(&self) -> &'static str {
        self.source
    }

    /// The text of its file, for the usual names of devices: `dsa0`, `dsa2` and so on.
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.name.parse().expect("the name of a built-in profile is a shape")
    }

    /// The configuration in its file.
    pub fn config(&self) -> Config {
        Config::parse(self.text, UnknownKeys::Refuse).expect("the file of a built-in profile is valid")
    }

    /// The same settings for devices of a machine; see [`Shape::devices_of`].
    ///
    /// # Errors
    /// [`ConfigError::TooFewDevices`].
    pub fn for_machine(&self, state: &SystemState) -> Result<Config, ConfigError> {
        let shape = self.shape();
        Ok(Config::for_devices(&shape.devices_of(state)?, &shape))
    }
}
