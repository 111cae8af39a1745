//! The driver's names of its objects: `dsa0`, and below it `group0.1`, `engine0.1`, `wq0.1`.
//!
//! The numbering of devices has gaps, because it includes the analytics accelerators (`iax1`) of a machine. The first
//! number of an inner object is that of its device.
//!
//! Source: Linux `Documentation/ABI/stable/sysfs-driver-dma-idxd`.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// The error of parsing a name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{found:?} is not the name of {what}; an example is {example}")]
pub struct UnknownName {
    /// The text.
    pub found: String,
    /// The expected kind of object.
    pub what: &'static str,
    /// A valid name.
    pub example: &'static str,
}

/// A device, `dsa0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct DeviceId(
    /// Its number; the numbers have gaps.
    pub u32,
);

impl DeviceId {
    /// The group of this device with this number.
    pub const fn group(self, index: u32) -> GroupId {
        GroupId { device: self, index }
    }

    /// The engine of this device with this number.
    pub const fn engine(self, index: u32) -> EngineId {
        EngineId { device: self, index }
    }

    /// The work queue of this device with this number.
    pub const fn queue(self, index: u32) -> QueueId {
        QueueId { device: self, index }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dsa{}", self.0)
    }
}

impl FromStr for DeviceId {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<DeviceId, UnknownName> {
        let number = name.strip_prefix("dsa").and_then(number);
        number.map(DeviceId).ok_or_else(|| UnknownName {
            found: name.to_owned(),
            what: "a DSA device",
            example: "dsa0",
        })
    }
}

impl Serialize for DeviceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

macro_rules! inner {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
        pub struct $name {
            /// Its device.
            pub device: DeviceId,
            /// Its number within the device.
            pub index: u32,
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}.{}"), self.device.0, self.index)
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;

            fn from_str(name: &str) -> Result<$name, UnknownName> {
                let numbers = name.strip_prefix($prefix).and_then(|numbers| numbers.split_once('.'));
                let id = numbers.and_then(|(device, index)| {
                    Some($name { device: DeviceId(number(device)?), index: number(index)? })
                });
                id.ok_or_else(|| UnknownName {
                    found: name.to_owned(),
                    what: $what,
                    example: concat!($prefix, "0.0"),
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

inner!(
    /// A group of engines and the queues that they serve, `group0.0`.
    GroupId,
    "group",
    "a group"
);
inner!(
    /// A processing engine, `engine0.0`.
    EngineId,
    "engine",
    "an engine"
);
inner!(
    /// A work queue, `wq0.0`.
    QueueId,
    "wq",
    "a work queue"
);

/// Parses a decimal number without sign and leading zeros, so that each object has only one name.
pub(super) fn number(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_formatted() {
        assert_eq!("dsa14".parse(), Ok(DeviceId(14)));
        assert_eq!("wq14.7".parse(), Ok(DeviceId(14).queue(7)));
        assert_eq!(DeviceId(2).engine(3).to_string(), "engine2.3");
        assert_eq!(DeviceId(2).group(0).to_string(), "group2.0");
    }

    #[test]
    fn other_texts_are_refused() {
        for name in ["", "dsa", "iax1", "dsa01", "dsa+1", "dsa-1", "dsa 1", "dsa1.0", "dsa99999999999"] {
            assert!(name.parse::<DeviceId>().is_err(), "{name:?}");
        }
        for name in ["wq", "wq0", "wq0.", "wq.0", "wq0.0.0", "wq0.00", "engine0.0"] {
            assert!(name.parse::<QueueId>().is_err(), "{name:?}");
        }
        let told = "wq0".parse::<QueueId>().unwrap_err().to_string();
        assert_eq!(told, "\"wq0\" is not the name of a work queue; an example is wq0.0");
    }
}
