//! The flags of a descriptor.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.1 and table 5-3.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// The 24 flag bits of a descriptor.
///
/// Bits 0-15 mean the same for every operation that allows them; bits 16-23 are specific to the operation.
///
/// Source: DSA specification 8.1 and table 5-3; `IDXD_OP_FLAG_*` in `idxd.h`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Flags(u32);

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);
    /// Batch members only: wait for all earlier members of the batch.
    pub const FENCE: Flags = Flags(1 << 0);
    /// On a page fault, request the page from the operating system and wait, instead of stopping.
    pub const BLOCK_ON_FAULT: Flags = Flags(1 << 1);
    /// The completion record address is valid.
    pub const COMPLETION_ADDRESS_VALID: Flags = Flags(1 << 2);
    /// Write the completion record on success as well.
    pub const REQUEST_COMPLETION: Flags = Flags(1 << 3);
    /// Raise an interrupt on completion. Under Linux, user space cannot use it.
    pub const REQUEST_INTERRUPT: Flags = Flags(1 << 4);
    /// DSA 1.x: steering tag selector of the completion record.
    pub const COMPLETION_STEERING_TAG: Flags = Flags(1 << 5);
    /// Compare operations: success depends on the expected result.
    pub const CHECK_RESULT: Flags = Flags(1 << 7);
    /// Allocate the target's lines in the CPU's cache instead of writing to memory.
    pub const CACHE_CONTROL: Flags = Flags(1 << 8);
    /// Traffic class B for the address at byte 16.
    pub const ADDRESS_1_CLASS: Flags = Flags(1 << 9);
    /// Traffic class B for the address at byte 24.
    pub const ADDRESS_2_CLASS: Flags = Flags(1 << 10);
    /// Traffic class B for the operation's third address.
    pub const ADDRESS_3_CLASS: Flags = Flags(1 << 11);
    /// Traffic class B for the completion record.
    pub const COMPLETION_CLASS: Flags = Flags(1 << 12);
    /// Target writes are globally ordered.
    pub const STRICT_ORDERING: Flags = Flags(1 << 13);
    /// DSA 1.x: read the target back, so that its bytes are globally observable before completion.
    pub const DESTINATION_READBACK: Flags = Flags(1 << 14);
    /// DSA 1.x: steering tag selector of the target.
    pub const DESTINATION_STEERING_TAG: Flags = Flags(1 << 15);

    /// Drain: the readback address at byte 16 is valid.
    pub const DRAIN_READBACK_1: Flags = Flags(1 << 16);
    /// Drain: the readback address at byte 24 is valid.
    pub const DRAIN_READBACK_2: Flags = Flags(1 << 17);
    /// Drain: no implicit readback of traffic class A.
    pub const DRAIN_NO_READBACK_A: Flags = Flags(1 << 18);
    /// Drain: no implicit readback of traffic class B.
    pub const DRAIN_NO_READBACK_B: Flags = Flags(1 << 19);
    /// Memory Fill, DSA 2.0: the pattern has 16 bytes.
    pub const FILL_PATTERN_16: Flags = Flags(1 << 18);
    /// Dualcast, DSA 1.x: steering tag selector of the second target.
    pub const DUALCAST_STEERING_TAG_2: Flags = Flags(1 << 16);
    /// CRC operations: read the seed from the address at byte 48.
    pub const CRC_SEED_IN_MEMORY: Flags = Flags(1 << 16);
    /// CRC operations: neither invert nor reflect seed and result.
    pub const CRC_BYPASS_INVERSION: Flags = Flags(1 << 17);
    /// CRC operations: do not reflect the data bytes.
    pub const CRC_BYPASS_DATA_REFLECTION: Flags = Flags(1 << 18);

    /// The flags with these bits; bits above 23 are cut off.
    pub const fn from_bits(bits: u32) -> Flags {
        Flags(bits & 0x00ff_ffff)
    }

    /// The flags as the 24-bit field.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `flags` are set.
    pub const fn contains(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// The flags of `self` that are not in `flags`.
    pub const fn without(self, flags: Flags) -> Flags {
        Flags(self.0 & !flags.0)
    }

    /// The flags of both sets; `|` in constants.
    pub const fn union(self, flags: Flags) -> Flags {
        Flags(self.0 | flags.0)
    }

    /// Whether no flag is set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        self.union(other)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Flags) {
        *self = self.union(other);
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flags({:#08x})", self.0)
    }
}
