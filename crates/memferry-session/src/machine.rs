//! The machine of an option: a profile, or this machine, with its calibration if there is one.

use std::env::VarError;

use anyhow::Result;
use memferry::topology::{Machine, TopologyError};

use crate::error::usage;

/// The machine of an option, or this machine.
pub fn open(profile: Option<&str>) -> Result<Machine> {
    let machine = match profile {
        Some(name) => Machine::from_profile(name),
        None => Machine::discover(),
    };
    machine.map_err(|error| match error {
        TopologyError::UnknownProfile { .. } => usage(error),
        _ => error.into(),
    })
}

/// The variable that names the default calibration of this machine.
const CALIBRATION: &str = "MEMFERRY_CALIBRATION";

/// The machine of an option, or this machine with the rates of its calibration, if there is one.
///
/// # Errors
/// Both options are given; the calibration is of another machine.
pub fn open_calibrated(profile: Option<&str>, calibration: Option<&str>) -> Result<Machine> {
    let named = match (profile, calibration) {
        (Some(_), Some(_)) => {
            return Err(usage(
                "--machine names another machine, whose profile has figures of its own; leave out --calibration, which \
                 is about this one",
            ));
        }
        (Some(_), None) => return open(profile),
        (None, Some(name)) => Some(name.to_owned()),
        (None, None) => match std::env::var(CALIBRATION) {
            Ok(name) => Some(name).filter(|name| !name.is_empty()),
            Err(VarError::NotPresent) => None,
            Err(VarError::NotUnicode(_)) => {
                return Err(usage(format!("{CALIBRATION} is not UTF-8; name the file with --calibration")));
            }
        },
    };
    let machine = open(None)?;
    let Some(name) = named else { return Ok(machine) };
    let calibrated = machine.with_profile(&open(Some(&name))?);
    calibrated.map_err(|error| match error {
        TopologyError::Misfit { .. } => usage(format!("{name}: {error}")),
        _ => error.into(),
    })
}
