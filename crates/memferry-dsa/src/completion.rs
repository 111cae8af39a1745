//! Completion records: the 32 bytes in which the device reports the result of a descriptor.
//!
//! The status byte is zero until the device has written all other bytes, so polling that byte is enough:
//!
//! ```text
//! device:   target bytes -> record bytes 1..31 -> status byte (Release)
//! software: status byte (Acquire), not zero -> record bytes 1..31 -> target bytes
//! ```
//!
//! Source: Intel DSA Architecture Specification 3.0, sections 5.8 and 8.2; `struct dsa_completion_record` and
//! `enum dsa_completion_status` in Linux' `idxd.h`.

use std::fmt;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::address::Address;
use crate::dif::{DifErrors, DifTags};
use crate::flags::Flags;

/// The bits of the code in the status byte.
const CODE_BITS: u8 = 0x3f;
/// The bit of the status byte for a page fault on a write.
const WRITE_BIT: u8 = 0x80;

/// Lists the statuses once and derives the enum, its codes and its texts from the list.
macro_rules! statuses {
    ($($code:literal $name:ident $text:literal)*) => {
        /// The status of a completed descriptor.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum Status {
            $(#[doc = concat!("`", stringify!($code), "`: ", $text, ".")] $name,)*
            /// A code that DSA 1.0 does not define.
            Unknown(u8),
        }

        impl Status {
            /// The status with this code (bits 5:0 of the status byte, or the code of the error register).
            #[inline]
            pub fn from_code(code: u8) -> Status {
                match code {
                    $($code => Status::$name,)*
                    other => Status::Unknown(other),
                }
            }

            /// The code of the status.
            #[inline]
            pub fn code(self) -> u8 {
                match self {
                    $(Status::$name => $code,)*
                    Status::Unknown(code) => code,
                }
            }
        }

        impl fmt::Display for Status {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Status::$name => write!(f, "{} (status {:#04x})", $text, $code),)*
                    Status::Unknown(code) => write!(f, "status {code:#04x}, which DSA 1.0 does not define"),
                }
            }
        }
    };
}

statuses! {
    0x01 Success "success"
    0x02 PredicateFalse "success, but not with the expected result"
    0x03 PageFault "a page fault stopped the operation; touch the page and resume"
    0x04 PageFaultRefused "the operating system refused a page; the address is bad"
    0x05 BatchFailed "a member of the batch did not succeed"
    0x06 BatchListFault "a page fault while the batch's list was read; touch the page and submit the rest of the list"
    0x07 DeltaOrder "the delta record's offsets descend"
    0x08 DeltaOffset "the delta record has an offset outside the target"
    0x09 DifMismatch "a data integrity field does not match"
    0x10 BadOpcode "the operation is not supported, not enabled, or not allowed inside a batch"
    0x11 InvalidFlags "a flag is not allowed here"
    0x12 ReservedNotZero "a reserved field is not zero; zero the descriptor before filling it in"
    0x13 BadSize "the size is zero or above the queue's limit"
    0x14 BadCount "a batch has at least 2 members and at most the queue's limit"
    0x15 BadDeltaSize "the delta record's size is out of range"
    0x16 Overlap "regions overlap that must not"
    0x17 DualcastAlignment "bits 11:0 of the two targets differ"
    0x18 ListAlignment "the batch's list is not 64-byte aligned"
    0x19 BadInterruptHandle "the interrupt handle is not valid"
    0x1a CompletionFault "the completion record's page could not be written"
    0x1b CompletionAlignment "the completion record is not 32-byte aligned"
    0x1c Alignment "an address or a size is not aligned as the operation needs it"
    0x1d NotPrivileged "the queue does not allow privileged descriptors"
    0x1e TrafficClass "the traffic class cannot be used"
    0x1f ReadbackFault "a page fault on a readback address"
    0x20 HardwareRead "hardware error while reading"
    0x21 HardwareWrite "hardware error while writing or reading back"
    0x22 Translation "an address could not be translated"
    0x51 PciConfigChanged "the PCI configuration was changed while the device was active; reset the device"
    0x52 CommandWhileActive "a command was written while another was active; wait for the command status first"
    0x53 QueueOverflow "a descriptor was written to a full dedicated queue and is lost; keep at most its size in flight"
}

impl Status {
    /// Success, Predicate False or Batch Failed: the statuses for which the device writes a record only on request.
    #[inline]
    pub fn is_quiet(self) -> bool {
        matches!(self, Status::Success | Status::PredicateFalse | Status::BatchFailed)
    }
}

/// A completion record in memory, shared with the device.
///
/// All fields are atomics, since the device writes them while the program polls. Two records share a cache line; give
/// each a line of its own if different threads poll them.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `status` | device, once (Release); [`reset`](Self::reset) | [`poll`](Self::poll) (Acquire) |
/// | others | device, before `status` | [`poll`](Self::poll), if `status` is not zero |
///
/// ```
/// use memferry_dsa::{Completion, CompletionRecord, Status};
///
/// let record = CompletionRecord::new();
/// assert_eq!(record.poll(), None);
/// record.publish(&Completion::new(Status::Success)); // the device's part
/// assert_eq!(record.poll().map(|completion| completion.status), Some(Status::Success));
/// ```
///
/// Source: DSA specification 8.2.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub struct CompletionRecord {
    status: AtomicU8,           // 5:0 code, 7 the faulting access was a write
    result: AtomicU8,           // direction of a copy, result of a comparison, DIF status
    fault_info: AtomicU8,       // DSA 2.0
    unused: AtomicU8,           //
    bytes_completed: AtomicU32, // members processed for Batch
    fault_address: AtomicU64,   // bits 11:0 may read as zero
    operation: [AtomicU64; 2],  // operation specific; 23:0 of the first are the invalid flags of status 0x11
}

const _: () = assert!(size_of::<CompletionRecord>() == 32 && align_of::<CompletionRecord>() == 32);
const _: () = assert!(offset_of!(CompletionRecord, status) == 0);
const _: () = assert!(offset_of!(CompletionRecord, result) == 1);
const _: () = assert!(offset_of!(CompletionRecord, fault_info) == 2);
const _: () = assert!(offset_of!(CompletionRecord, unused) == 3);
const _: () = assert!(offset_of!(CompletionRecord, bytes_completed) == 4);
const _: () = assert!(offset_of!(CompletionRecord, fault_address) == 8);
const _: () = assert!(offset_of!(CompletionRecord, operation) == 16);

impl CompletionRecord {
    /// A record without a completion.
    #[inline]
    pub fn new() -> CompletionRecord {
        CompletionRecord::default()
    }

    /// Clears the record for another descriptor.
    ///
    /// Call it only between uses: resetting the record of a descriptor in flight loses its completion.
    #[inline]
    pub fn reset(&self) {
        // Relaxed: the submission that follows publishes it to the device.
        self.status.store(0, Ordering::Relaxed);
    }

    /// The completion, or `None` while the descriptor is in flight.
    ///
    /// After `Some`, the bytes that the device wrote are visible to this thread.
    #[inline]
    pub fn poll(&self) -> Option<Completion> {
        // ORDERING: Acquire pairs with the Release in `publish` (the device's posted write on silicon): once the
        // status is non-zero, the rest of the record and the target's bytes are visible here.
        let status = self.status.load(Ordering::Acquire);
        if status == 0 {
            return None;
        }
        Some(Completion {
            status: Status::from_code(status & CODE_BITS),
            write_fault: status & WRITE_BIT != 0,
            result: self.result.load(Ordering::Relaxed),
            bytes_completed: self.bytes_completed.load(Ordering::Relaxed),
            fault_address: Address(self.fault_address.load(Ordering::Relaxed)),
            operation: [self.operation[0].load(Ordering::Relaxed), self.operation[1].load(Ordering::Relaxed)],
        })
    }

    /// Writes a completion as the device does: the status byte last.
    #[inline]
    pub fn publish(&self, completion: &Completion) {
        self.result.store(completion.result, Ordering::Relaxed);
        self.fault_info.store(0, Ordering::Relaxed);
        self.unused.store(0, Ordering::Relaxed);
        self.bytes_completed.store(completion.bytes_completed, Ordering::Relaxed);
        self.fault_address.store(completion.fault_address.0, Ordering::Relaxed);
        self.operation[0].store(completion.operation[0], Ordering::Relaxed);
        self.operation[1].store(completion.operation[1], Ordering::Relaxed);
        // ORDERING: Release pairs with the Acquire of `status` in `poll`: it publishes the rest of the record and the
        // target's bytes.
        self.status.store(completion.status_byte(), Ordering::Release);
    }
}

/// The result of Create Delta.
///
/// Source: DSA specification 8.3 (Create Delta Record).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeltaResult {
    /// The sources are equal, and the record is empty.
    Equal = 0,
    /// The record lists all differences.
    Complete = 1,
    /// The record is full; it lists the differences of the first [`Completion::bytes_completed`] bytes.
    Overflow = 2,
}

/// The content of a completion record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The status of the descriptor.
    pub status: Status,
    /// Page faults: the access was a write.
    pub write_fault: bool,
    /// The operation's result byte: direction of a copy, result of a comparison, DIF errors.
    pub result: u8,
    /// The bytes processed before the operation stopped; for a batch the members processed.
    pub bytes_completed: u32,
    /// Page faults: an address in the page; its low 12 bits may be zero.
    pub fault_address: Address,
    /// Bytes 16-31; their meaning depends on the operation.
    pub operation: [u64; 2],
}

impl Completion {
    /// A completion with this status and zeros elsewhere.
    #[inline]
    pub fn new(status: Status) -> Completion {
        Completion {
            status,
            write_fault: false,
            result: 0,
            bytes_completed: 0,
            fault_address: Address(0),
            operation: [0; 2],
        }
    }

    /// Whether a partial copy ran backwards: it copied the end of the region, not its start.
    pub fn is_backwards(&self) -> bool {
        self.result == 1
    }

    /// Compare and Compare Pattern: whether a difference was found, at [`bytes_completed`](Self::bytes_completed).
    pub fn differs(&self) -> bool {
        self.result == 1
    }

    /// Create Delta: the result; on a page fault `Equal` if no entry was written so far.
    pub fn delta_result(&self) -> DeltaResult {
        match self.result {
            0 => DeltaResult::Equal,
            2 => DeltaResult::Overflow,
            _ => DeltaResult::Complete,
        }
    }

    /// Create Delta: the size of the delta record.
    pub fn delta_bytes(&self) -> u32 {
        self.operation[0] as u32
    }

    /// CRC operations: the CRC; on a page fault the seed for the rest, if any bytes were processed.
    pub fn crc(&self) -> u32 {
        self.operation[0] as u32
    }

    /// DIF operations: the mismatching parts, with [`Status::DifMismatch`].
    pub fn dif_errors(&self) -> DifErrors {
        DifErrors::from_bits(self.result & 0xf) // the bits of DSA 1.0
    }

    /// DIF Check, Strip and Update: the source's tags of the block after the last one processed.
    pub fn dif_source_tags(&self) -> DifTags {
        DifTags::from_word(self.operation[0])
    }

    /// DIF Insert and Update: the target's tags of the block after the last one processed.
    pub fn dif_target_tags(&self) -> DifTags {
        DifTags::from_word(self.operation[1])
    }

    /// The offending flags, with [`Status::InvalidFlags`].
    pub fn invalid_flags(&self) -> Flags {
        Flags::from_bits(self.operation[0] as u32)
    }

    /// Byte 0 of the record.
    #[inline]
    pub fn status_byte(&self) -> u8 {
        self.status.code() | if self.write_fault { WRITE_BIT } else { 0 }
    }

    /// The record's bytes in memory.
    pub fn to_bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[0] = self.status_byte();
        bytes[1] = self.result;
        bytes[4..8].copy_from_slice(&self.bytes_completed.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.fault_address.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.operation[0].to_le_bytes());
        bytes[24..32].copy_from_slice(&self.operation[1].to_le_bytes());
        bytes
    }

    /// The completion in these bytes of memory, or `None` if the status byte is zero.
    pub fn from_bytes(bytes: &[u8; 32]) -> Option<Completion> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        (bytes[0] != 0).then(|| Completion {
            status: Status::from_code(bytes[0] & CODE_BITS),
            write_fault: bytes[0] & WRITE_BIT != 0,
            result: bytes[1],
            bytes_completed: (word(0) >> 32) as u32,
            fault_address: Address(word(8)),
            operation: [word(16), word(24)],
        })
    }
}
