//! Configurations that come with the library: `devices/*.json`, files that accel-config loads as they are.

use super::{Config, ConfigError, Shape, TooFewDevices, UnknownKeys};
use crate::system::id::DeviceId;
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
        "one device for four that must not disturb each other: a queue of 32 entries and an engine each",
        "Kuper et al. 2024, figure 9 (DWQ: one engine per queue) and guideline G6 (32 entries suffice)"
    ),
    built_in!(
        "1n4d1e1w-dedicated",
        "four devices of one socket, a queue each",
        "Kuper et al. 2024, figure 10 (throughput grows with the number of devices)"
    ),
];

/// A configuration that comes with the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    name: &'static str,
    purpose: &'static str,
    source: &'static str,
    text: &'static str,
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// There is no such profile.
    #[error("no profile {name:?}; use the path of a file in accel-config's format or one of: {}", known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// The profiles that there are.
        known: Vec<&'static str>,
    },
    /// A profile whose file is broken; tests would have found it.
    #[error("profile {name}: {source}")]
    Broken {
        /// The profile.
        name: &'static str,
        /// What is wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The machine does not have the devices.
    #[error("{name}: {source}")]
    TooFewDevices {
        /// The profile.
        name: &'static str,
        /// What there is.
        source: TooFewDevices,
    },
}

impl Profile {
    /// All profiles.
    pub fn all() -> &'static [Profile] {
        BUILT_IN
    }

    /// The profile with this name.
    ///
    /// # Errors
    /// There is none.
    pub fn named(name: &str) -> Result<Profile, ProfileError> {
        let found = BUILT_IN.iter().find(|profile| profile.name == name).copied();
        found.ok_or_else(|| ProfileError::Unknown {
            name: name.to_owned(),
            known: BUILT_IN.iter().map(|profile| profile.name).collect(),
        })
    }

    /// Its name, which says what there is: see [`Shape`].
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it is good for.
    pub fn purpose(&self) -> &'static str {
        self.purpose
    }

    /// Who used it.
    pub fn source(&self) -> &'static str {
        self.source
    }

    /// The file, for the devices that a machine usually has: `dsa0`, `dsa2` and so on.
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// What its name says.
    ///
    /// # Errors
    /// [`ProfileError::Broken`].
    pub fn shape(&self) -> Result<Shape, ProfileError> {
        self.name.parse().map_err(|source| self.broken(source))
    }

    /// The file's content.
    ///
    /// # Errors
    /// [`ProfileError::Broken`].
    pub fn config(&self) -> Result<Config, ProfileError> {
        Config::parse(self.text, UnknownKeys::Refuse).map_err(|source: ConfigError| self.broken(source))
    }

    /// The same for other devices, as many as are wanted.
    ///
    /// # Errors
    /// [`ProfileError::Broken`].
    pub fn for_devices(&self, devices: &[DeviceId]) -> Result<Config, ProfileError> {
        Ok(Config::for_devices(devices, &self.shape()?))
    }

    /// The same for devices that there are: the first that are enough, on as many nodes as it asks for.
    ///
    /// # Errors
    /// [`ProfileError::TooFewDevices`].
    pub fn for_machine(&self, state: &SystemState) -> Result<Config, ProfileError> {
        let shape = self.shape()?;
        let devices = shape
            .devices_of(state)
            .map_err(|source| ProfileError::TooFewDevices { name: self.name, source })?;
        Ok(Config::for_devices(&devices, &shape))
    }

    fn broken(&self, source: impl std::error::Error + Send + Sync + 'static) -> ProfileError {
        ProfileError::Broken { name: self.name, source: Box::new(source) }
    }
}
