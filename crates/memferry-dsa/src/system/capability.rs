//! The capabilities of a device: `version`, `gen_cap`, `op_cap`.
//!
//! Source: Intel DSA Architecture Specification 3.0, chapter 9 (VERSION, GENCAP, OPCAP); the formats are those of Linux'
//! `drivers/dma/idxd/sysfs.c`. Older kernels printed 64-bit words, lowest first.

use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::operation::{self, Opcode, OperationSet};

/// The version of the architecture, 0x100 for DSA 1.0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version(
    /// 15:8 major, 7:0 minor.
    pub u32,
);

impl Version {
    /// Sapphire Rapids, Emerald Rapids, Xeon Max.
    pub const V1_0: Version = Version(0x100);
    /// Granite Rapids, Sierra Forest.
    pub const V2_0: Version = Version(0x200);
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> 8, self.0 & 0xff)
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The register GENCAP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GeneralCapabilities(
    /// The raw register.
    pub u64,
);

/// The features with a bit of their own in GENCAP. Source: DSA specification, GENCAP.
const FEATURES: [(u32, &str); 17] = [
    (0, "block on fault"),
    (1, "overlapping copy"),
    (2, "cache control for memory"),
    (3, "cache control for flush"),
    (4, "command capabilities register"),
    (5, "durable write"),
    (6, "inter-domain operations"),
    (7, "translation fetch with a stride"),
    (8, "destination readback"),
    (9, "drain readback"),
    (10, "16-byte fill pattern"),
    (11, "64-bit CRC"),
    (12, "fault information"),
    (15, "batch continuation"),
    (31, "configuration"),
    (32, "event log overflow"),
    (52, "batch of one"),
];

impl GeneralCapabilities {
    fn has(self, bit: u32) -> bool {
        self.0 >> bit & 1 == 1
    }

    fn field(self, bit: u32, bits: u32) -> u64 {
        self.0 >> bit & ((1 << bits) - 1)
    }

    /// Whether the device can wait for absent pages.
    pub fn block_on_fault(self) -> bool {
        self.has(0)
    }

    /// Whether the cache control flag of descriptors is allowed.
    pub fn cache_control(self) -> bool {
        self.has(2)
    }

    /// Whether software may configure the device; a guest's device may be preconfigured.
    pub fn configurable(self) -> bool {
        self.has(31)
    }

    /// Size of an entry of the event log; `None` if the device has no event log.
    pub fn event_log_entry_bytes(self) -> Option<u32> {
        match self.field(13, 2) {
            0 => None,
            shift => Some(32 << shift),
        }
    }

    /// Largest transfer of a descriptor.
    pub fn transfer_bytes_max(self) -> u64 {
        1 << self.field(16, 5)
    }

    /// Most members of a batch.
    pub fn batch_max(self) -> u32 {
        1 << self.field(21, 4)
    }

    /// Entries of the interrupt message storage.
    pub fn interrupt_messages_max(self) -> u32 {
        self.field(25, 6) as u32 * 256
    }

    /// The names of the device's features.
    pub fn features(self) -> impl Iterator<Item = &'static str> {
        FEATURES.into_iter().filter(move |(bit, _)| self.has(*bit)).map(|(_, name)| name)
    }
}

impl Serialize for GeneralCapabilities {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("GeneralCapabilities", 5)?;
        object.serialize_field("register", &format!("{:#x}", self.0))?;
        object.serialize_field("features", &self.features().collect::<Vec<_>>())?;
        object.serialize_field("transfer_bytes_max", &self.transfer_bytes_max())?;
        object.serialize_field("batch_max", &self.batch_max())?;
        object.serialize_field("event_log_entry_bytes", &self.event_log_entry_bytes())?;
        object.end()
    }
}

/// Parses `0x40` or `40`.
pub(super) fn hexadecimal(text: &str) -> Option<u64> {
    operation::hexadecimal(text.strip_prefix("0x").unwrap_or(text))
}

/// The operations of a set by name, or by code if they are unknown.
pub(super) fn names(operations: OperationSet) -> Vec<String> {
    let codes = (0..=u8::MAX).filter(|code| operations.contains_code(*code));
    codes
        .map(|code| match Opcode::try_from(code) {
            Ok(opcode) => opcode.name().to_owned(),
            Err(_) => format!("{code:#04x}"),
        })
        .collect()
}

/// Serializes operations by name, for `serialize_with`.
pub(super) fn serialize_operations<S: Serializer>(
    operations: &Option<OperationSet>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    operations.map(names).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gen_cap_of_sapphire_rapids() {
        let gen_cap = GeneralCapabilities(0x40915f0107);
        assert_eq!(gen_cap.transfer_bytes_max(), 2 << 30);
        assert_eq!(gen_cap.batch_max(), 1024);
        assert_eq!(gen_cap.interrupt_messages_max(), 2048);
        assert_eq!(gen_cap.event_log_entry_bytes(), None);
        let features: Vec<_> = gen_cap.features().collect();
        let expected = [
            "block on fault",
            "overlapping copy",
            "cache control for memory",
            "destination readback",
            "configuration",
        ];
        assert_eq!(features, expected);
    }
}
