//! The settings, from environment variables. `memferry offload` sets them from its options.
//!
//! | variable | values |
//! |---|---|
//! | `MEMFERRY_OFFLOAD` | `on` (default), `off` |
//! | `MEMFERRY_OFFLOAD_THRESHOLD` | bytes: calls of this size and more are shared with a device; default: measured |
//! | `MEMFERRY_OFFLOAD_SHARE` | percent of a shared call that the device gets, 1 to 100; default: measured |
//! | `MEMFERRY_OFFLOAD_SUMMARY` | `none` (default), `stderr`, or a file to which each process appends a JSON line |
//! | `MEMFERRY_OFFLOAD_ROOT` | set by the first process: its id, and `noted` after its note about a missing device |

use std::env;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::sys;
use crate::tuner::SHARE_WHOLE;

/// The name of the variable with the id of the first process.
pub(crate) const ROOT: &str = "MEMFERRY_OFFLOAD_ROOT";

/// A fixed threshold; 0: the tuner decides.
pub(crate) static THRESHOLD: AtomicUsize = AtomicUsize::new(0);
/// A fixed share in parts of 1024; 0: the tuner decides.
pub(crate) static SHARE: AtomicU32 = AtomicU32::new(0);

/// Where the summary goes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Summary {
    #[default]
    None,
    Stderr,
    File(CString),
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) is_off: bool,
    pub(crate) threshold: Option<usize>,
    pub(crate) share: Option<u32>,
    pub(crate) summary: Summary,
    /// The first process of the tree, which writes to standard error.
    pub(crate) is_root: bool,
    /// The note about a missing device was written.
    pub(crate) is_noted: bool,
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Errors
    /// A sentence about an invalid value.
    pub(crate) fn from_environment() -> Result<Settings, String> {
        Settings::read(|name| env::var_os(name), sys::process())
    }

    fn read(variable: impl Fn(&str) -> Option<std::ffi::OsString>, process: u32) -> Result<Settings, String> {
        let text = |name: &str| variable(name).filter(|value| !value.is_empty());
        let mut settings = Settings::default();
        match text("MEMFERRY_OFFLOAD").as_deref().map(OsStr::as_bytes) {
            None | Some(b"on") => {}
            Some(b"off") => settings.is_off = true,
            Some(_) => return Err("MEMFERRY_OFFLOAD must be on or off".to_owned()),
        }
        let number = |name: &str, max: usize| {
            let Some(value) = text(name) else { return Ok(None) };
            let number = value.to_str().and_then(|value| value.parse::<usize>().ok());
            match number.filter(|number| (1..=max).contains(number)) {
                Some(number) => Ok(Some(number)),
                None => Err(format!("{name} must be a number from 1 to {max}")),
            }
        };
        settings.threshold = number("MEMFERRY_OFFLOAD_THRESHOLD", usize::MAX / 2)?;
        let percent = number("MEMFERRY_OFFLOAD_SHARE", 100)?;
        settings.share = percent.map(|percent| percent as u32 * SHARE_WHOLE / 100);
        settings.summary = match text("MEMFERRY_OFFLOAD_SUMMARY") {
            None => Summary::None,
            Some(value) if value == "none" => Summary::None,
            Some(value) if value == "stderr" => Summary::Stderr,
            Some(value) => Summary::File(CString::new(value.into_vec()).unwrap_or_default()),
        };
        let root = text(ROOT).map(|value| value.to_string_lossy().into_owned()).unwrap_or_default();
        let mut words = root.split_whitespace();
        let id = words.next().and_then(|id| id.parse::<u32>().ok());
        settings.is_root = id.is_none_or(|id| id == process);
        settings.is_noted = id.is_some() && words.next() == Some("noted");
        Ok(settings)
    }

    /// Makes the fixed values known to calls.
    pub(crate) fn publish(&self) {
        THRESHOLD.store(self.threshold.unwrap_or(0), Ordering::Relaxed);
        SHARE.store(self.share.unwrap_or(0), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let find =
            |name: &str| variables.iter().find(|(found, _)| *found == name).map(|(_, value)| value.into());
        Settings::read(find, 7)
    }

    #[test]
    fn variables_become_settings() {
        let default = read(&[]).unwrap();
        assert_eq!(default, Settings { is_root: true, ..Settings::default() });
        assert!(read(&[("MEMFERRY_OFFLOAD", "off")]).unwrap().is_off);
        let set = read(&[
            ("MEMFERRY_OFFLOAD", "on"),
            ("MEMFERRY_OFFLOAD_THRESHOLD", "65536"),
            ("MEMFERRY_OFFLOAD_SHARE", "50"),
            ("MEMFERRY_OFFLOAD_SUMMARY", "/tmp/x"),
            (ROOT, "8"),
        ]);
        let expected = Settings {
            threshold: Some(65536),
            share: Some(512),
            summary: Summary::File(c"/tmp/x".to_owned()),
            ..Settings::default()
        };
        assert_eq!(set, Ok(expected));
        let summary = |value| read(&[("MEMFERRY_OFFLOAD_SUMMARY", value)]).unwrap().summary;
        assert_eq!(
            [summary("none"), summary("stderr"), summary("")],
            [Summary::None, Summary::Stderr, Summary::None]
        );
    }

    #[test]
    fn the_first_process_is_recognised() {
        let of =
            |root: &str| read(&[(ROOT, root)]).map(|settings| (settings.is_root, settings.is_noted)).unwrap();
        assert_eq!(
            [of("7"), of("7 noted"), of("8 noted"), of("8"), of("x")],
            [(true, false), (true, true), (false, true), (false, false), (true, false)]
        );
    }

    #[test]
    fn invalid_values_are_named() {
        for (name, value) in [
            ("MEMFERRY_OFFLOAD", "yes"),
            ("MEMFERRY_OFFLOAD_THRESHOLD", "0"),
            ("MEMFERRY_OFFLOAD_THRESHOLD", "64K"),
            ("MEMFERRY_OFFLOAD_SHARE", "101"),
            ("MEMFERRY_OFFLOAD_SHARE", "-1"),
        ] {
            assert!(read(&[(name, value)]).unwrap_err().contains(name), "{name}={value}");
        }
    }
}
