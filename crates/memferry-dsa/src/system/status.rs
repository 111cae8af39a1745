//! The driver's error reports `cmd_status` and `errors`, in words.
//!
//! Source: `enum idxd_scmd_stat` in Linux' `idxd.h` (codes with bit 31, given by the driver); Intel DSA Architecture
//! Specification 3.0, chapter 9, CMDSTATUS (the others, given by the device) and SWERROR.

use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::completion::Status;

/// `cmd_status`: the status of the last command, or the driver's reason not to issue it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandStatus(
    /// The raw value; 0 means no error.
    pub u32,
);

const LOG: &str = "see the kernel log";
const IOMMU: &str = "boot with intel_iommu=on,sm_on";
const IOMMU_OR_DEDICATED: &str = "boot with intel_iommu=on,sm_on, or make the queue dedicated";

/// Codes with their meaning and remedy.
const WORDS: &[(u32, &str, &str)] = &[
    // Codes of the device. Source: DSA specification, CMDSTATUS.
    (0x01, "the device does not have the command", "update the kernel"),
    (0x02, "the device has no such work queue", "configure queues that it has"),
    (0x03, "hardware error", "see the kernel log; reset the device by unloading and loading idxd"),
    (0x04, "a reserved field is set", "update the kernel"),
    (0x05, "the device is halted", "see the kernel log; reset it by unloading and loading idxd"),
    (0x10, "the device is not disabled", "disable it first"),
    (0x11, "the device refuses the configuration", "compare it with the device's limits"),
    (0x12, "PCI bus mastering is off", "see the kernel log; load idxd again"),
    (0x13, "more page requests are allocated than the device has", "see the kernel log; load idxd again"),
    (
        0x14,
        "the sizes of all work queues are more than the device has",
        "make queues smaller; disable the device first if others are left over from before",
    ),
    (0x15, "a group has queues but no engine, or engines but no queue", "give each group both or neither"),
    (
        0x16,
        "a queue is in no group or in several, or a queue without size is in one",
        "put each queue with a size into one group",
    ),
    (0x17, "an engine is in several groups", "put it into one"),
    (
        0x18,
        "the groups' read buffers do not fit",
        "allow each group at least 4 for each engine, at most what the device has, and reserve none",
    ),
    (0x19, "the event log is not configured as the device needs it", "set event_log_size to 64"),
    (0x1a, "address translation services are not enabled", IOMMU),
    (0x1b, "PASIDs are not enabled", IOMMU),
    (0x20, "the device is not enabled", "enable it before its queues"),
    (0x21, "the queue is not disabled", "disable it first"),
    (0x22, "the queue has size 0", "set its size"),
    (0x23, "the queue has priority 0", "set its priority, 1 to 15"),
    (0x24, "the device does not have queues of this mode", "use the other mode"),
    (
        0x25,
        "block_on_fault is set, and the device or the IOMMU does not serve page faults",
        "set block_on_fault to 0",
    ),
    (0x26, "the queue's use of PASIDs does not fit its mode", IOMMU_OR_DEDICATED),
    (0x27, "max_batch_size is 0 or more than the device's", "set it to at most the device's"),
    (0x28, "max_transfer_size is more than the device's", "set it to at most the device's"),
    (0x2a, "the queue must not be privileged here", "use type user"),
    (0x2b, "the queue's occupancy interrupt is not configured as the device needs it", "update the kernel"),
    (0x2c, "ats_disable is not supported", "set ats_disable to 0"),
    (0x2d, "op_config has an operation that the device lacks", "use a subset of op_cap"),
    (0x2e, "prs_disable is not allowed here", "set prs_disable to 0, or set up the event log"),
    (0x31, "the device is not enabled", "it is disabled already"),
    (0x32, "the queue is not enabled", "it is disabled already"),
    (0x41, "no interrupt handle is left", "use fewer queues of type kernel"),
    (0x42, "the interrupt handle is not valid", LOG),
    // Codes of the driver. Source: enum idxd_scmd_stat.
    (0x8000_0010, "the device is enabled", "disable it first"),
    (0x8000_0020, "the device is not enabled", "enable it before its queues"),
    (0x8000_0021, "the queue is enabled", "disable it first"),
    (0x8002_0000, "the device could not be registered with dmaengine", LOG),
    (0x8003_0000, "the queue is in no group", "set its group_id before the device is enabled"),
    (0x8004_0000, "the queue has no name", "set its name, after its type"),
    (0x8005_0000, "the queue is shared, and shared virtual memory is off", IOMMU_OR_DEDICATED),
    (0x8006_0000, "the queue is shared and has no threshold", "set its threshold, 1 to its size"),
    (0x8007_0000, "the queue's portal could not be mapped", LOG),
    (0x8008_0000, "memory for the queue could not be allocated", "free memory and try again"),
    (0x8009_0000, "memory for the queue's users could not be allocated", "free memory and try again"),
    (0x800a_0000, "the queue could not become a dmaengine channel", LOG),
    (0x800b_0000, "the queue's character device could not be made", LOG),
    (0x800c_0000, "this machine has no shared queues", IOMMU_OR_DEDICATED),
    (0x800d_0000, "no queue of the device is configured", "configure one before the device is enabled"),
    (0x800e_0000, "the queue has size 0", "set its size before the device is enabled"),
    (
        0x800f_0000,
        "the queue's privilege could not be set",
        "use type user, or boot with intel_iommu=on,sm_on",
    ),
    (0x8010_0000, "the queue's interrupt could not be set up", LOG),
    (
        0x8011_0000,
        "the queue is of type user, and the IOMMU does not share virtual memory",
        "enable VT-d in the BIOS and boot with intel_iommu=on,sm_on",
    ),
    (0x8012_0000, "the event log could not be set up", LOG),
    (0x8020_0000, "the queue has no driver_name, or another driver's", "set its driver_name to user"),
];

impl CommandStatus {
    /// Whether the command failed.
    pub fn is_error(self) -> bool {
        self.0 != 0
    }

    /// Whether the code is from the driver, rather than the device.
    fn is_of_driver(self) -> bool {
        self.0 >> 31 == 1
    }

    fn words(self) -> Option<&'static (u32, &'static str, &'static str)> {
        // The low byte is the device's error; its result in 23:8 is not part of it.
        let code = if self.is_of_driver() { self.0 } else { self.0 & 0xff };
        WORDS.iter().find(|(known, ..)| *known == code)
    }

    /// The remedy, if known.
    pub fn advice(self) -> Option<&'static str> {
        self.words().map(|(_, _, advice)| *advice)
    }
}

impl fmt::Display for CommandStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            _ if !self.is_error() => f.write_str("no error"),
            Some((_, what, _)) => write!(f, "{what} (cmd_status {:#x})", self.0),
            None => write!(f, "unknown cmd_status {:#x}", self.0),
        }
    }
}

impl Serialize for CommandStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("CommandStatus", 3)?;
        object.serialize_field("value", &format!("{:#x}", self.0))?;
        object.serialize_field("text", &self.to_string())?;
        object.serialize_field("advice", &self.advice())?;
        object.end()
    }
}

/// `errors`: the first error that could not be reported in a completion record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct SoftwareError {
    /// The error; the codes are those of completion records.
    #[serde(serialize_with = "text")]
    pub status: Status,
    /// More errors followed and are lost.
    pub overflow: bool,
    /// Number of the work queue within the device, if known.
    pub queue: Option<u32>,
    /// Code of the operation, if the descriptor is known.
    pub operation: Option<u8>,
    /// The PASID of the submitter, if the descriptor is known.
    pub pasid: Option<u32>,
    /// The index of the member of a batch.
    pub batch_member: Option<u16>,
    /// The faulting access was a write.
    pub write: bool,
    /// The address of the failed access; for a bad completion record its address.
    pub fault_address: u64,
    /// The offending flags, for [`Status::InvalidFlags`].
    pub invalid_flags: Option<u32>,
}

fn text<S: Serializer>(status: &Status, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(status)
}

impl SoftwareError {
    /// Decodes the register; `None` if it holds no error.
    pub fn from_words(words: [u64; 4]) -> Option<SoftwareError> {
        let [first, second, fault_address, _] = words;
        let bit = |number: u32| first >> number & 1 == 1;
        if !bit(0) {
            return None;
        }
        let status = Status::from_code((first >> 8) as u8);
        let described = bit(2);
        Some(SoftwareError {
            status,
            overflow: bit(1),
            queue: bit(3).then_some((first >> 16) as u32 & 0xff),
            operation: described.then_some((first >> 32) as u8),
            pasid: described.then_some((first >> 40) as u32 & 0xf_ffff),
            batch_member: bit(4).then_some(second as u16),
            write: bit(5),
            fault_address,
            invalid_flags: (bit(7) && status == Status::InvalidFlags).then_some((second >> 32) as u32),
        })
    }
}

impl fmt::Display for SoftwareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)?;
        if let Some(queue) = self.queue {
            write!(f, ", queue {queue}")?;
        }
        if let Some(operation) = self.operation {
            write!(f, ", operation {operation:#04x}")?;
        }
        if let Some(pasid) = self.pasid {
            write!(f, ", PASID {pasid}")?;
        }
        if let Some(member) = self.batch_member {
            write!(f, ", member {member} of a batch")?;
        }
        if self.fault_address != 0 {
            let access = if self.write { "writing" } else { "reading" };
            write!(f, ", {access} address {:#x}", self.fault_address)?;
        }
        if let Some(flags) = self.invalid_flags {
            write!(f, ", flags {flags:#x}")?;
        }
        if self.overflow {
            f.write_str("; more errors followed and are lost")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_words_and_advice() {
        let sizes = CommandStatus(0x14);
        let told = "the sizes of all work queues are more than the device has (cmd_status 0x14)";
        assert_eq!(sizes.to_string(), told);
        assert!(sizes.advice().unwrap().contains("smaller"));
        assert_eq!(CommandStatus(0x0012_3414).to_string(), told.replace("0x14", "0x123414"), "with a result");
        assert_eq!(CommandStatus(0).to_string(), "no error");
        assert!(CommandStatus(0x8011_0000).to_string().contains("type user"));
        assert!(CommandStatus(0x8099_0000).to_string().contains("unknown cmd_status"));
        assert_eq!(CommandStatus(0xffff_ffff).advice(), None);
        let mut codes: Vec<_> = WORDS.iter().map(|(code, ..)| code).collect();
        codes.dedup();
        assert_eq!(codes.len(), WORDS.len());
        assert!(codes.is_sorted());
    }

    #[test]
    fn an_error_register_is_decoded() {
        // Invalid flags 0x2 of a member of a batch: valid, descriptor, queue, batch, info; code 0x11, queue 3,
        // operation 3, PASID 77; member 5.
        let first = 0x9d | 0x11 << 8 | 3 << 16 | 3 << 32 | 77 << 40;
        let error = SoftwareError::from_words([first, 5 | 2 << 32, 0x7000, 0]).unwrap();
        assert_eq!(error.status, Status::InvalidFlags);
        assert_eq!((error.queue, error.operation, error.pasid), (Some(3), Some(3), Some(77)));
        assert_eq!((error.batch_member, error.invalid_flags), (Some(5), Some(2)));
        assert!(!error.overflow && !error.write);
        let told = error.to_string();
        assert!(told.contains("queue 3") && told.contains("0x7000") && told.contains("PASID 77"), "{told}");
        assert_eq!(SoftwareError::from_words([first & !1, 0, 0, 0]), None);
        // The overflow of a dedicated queue reports only the queue's number.
        let error = SoftwareError::from_words([0xb | 0x53 << 8 | 2 << 16, 0, 0, 0]).unwrap();
        assert_eq!((error.status, error.queue, error.operation), (Status::QueueOverflow, Some(2), None));
        assert!(error.to_string().ends_with("more errors followed and are lost"));
    }
}
