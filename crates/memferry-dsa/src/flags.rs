//! The flags of a descriptor.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.1 and table 5-3.

/// Declares a set of flags in the bits of a mask.
macro_rules! flags {
    ($(#[$about:meta])* $name:ident: $bits:ident & $mask:literal {
        $($(#[$flag_about:meta])* $flag:ident = $value:expr;)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(transparent)]
        pub struct $name($bits);

        impl $name {
            /// No flag.
            pub const NONE: $name = $name(0);
            $($(#[$flag_about])* pub const $flag: $name = $name($value);)*

            /// The flags with these bits; bits outside the field are cut off.
            #[inline]
            pub const fn from_bits(bits: $bits) -> $name {
                $name(bits & $mask)
            }

            /// The flags as the bits of the field.
            #[inline]
            pub const fn bits(self) -> $bits {
                self.0
            }

            /// Whether all of `flags` are set.
            #[inline]
            pub const fn contains(self, flags: $name) -> bool {
                self.0 & flags.0 == flags.0
            }

            /// Whether no flag is set.
            #[inline]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }

        impl std::ops::BitOr for $name {
            type Output = $name;
            #[inline]
            fn bitor(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }
        }

        impl std::ops::BitOrAssign for $name {
            #[inline]
            fn bitor_assign(&mut self, other: $name) {
                *self = *self | other;
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}
pub(crate) use flags;

flags! {
    /// The 24 flag bits of a descriptor.
    ///
    /// Bits 0-15 mean the same for every operation that allows them; bits 16-23 are specific to the operation.
    ///
    /// ```
    /// use memferry_dsa::{Descriptor, Flags};
    ///
    /// let fenced = Descriptor::noop().with_flags(Flags::FENCE | Flags::REQUEST_COMPLETION);
    /// assert!(fenced.flags().contains(Flags::FENCE));
    /// ```
    ///
    /// Source: DSA specification 8.1 and table 5-3; `IDXD_OP_FLAG_*` in `idxd.h`.
    Flags: u32 & 0x00ff_ffff {
        /// Batch members only: wait for all earlier members of the batch.
        FENCE = 1 << 0;
        /// On a page fault, request the page from the operating system and wait, instead of stopping.
        BLOCK_ON_FAULT = 1 << 1;
        /// The completion record address is valid.
        COMPLETION_ADDRESS_VALID = 1 << 2;
        /// Write the completion record on success as well.
        REQUEST_COMPLETION = 1 << 3;
        /// Raise an interrupt on completion. Under Linux, user space cannot use it.
        REQUEST_INTERRUPT = 1 << 4;
        /// DSA 1.x: steering tag selector of the completion record.
        COMPLETION_STEERING_TAG = 1 << 5;
        /// Compare operations: success depends on the expected result.
        CHECK_RESULT = 1 << 7;
        /// Allocate the target's lines in the CPU's cache instead of writing to memory.
        CACHE_CONTROL = 1 << 8;
        /// Traffic class B for the address at byte 16.
        ADDRESS_1_CLASS = 1 << 9;
        /// Traffic class B for the address at byte 24.
        ADDRESS_2_CLASS = 1 << 10;
        /// Traffic class B for the operation's third address.
        ADDRESS_3_CLASS = 1 << 11;
        /// Traffic class B for the completion record.
        COMPLETION_CLASS = 1 << 12;
        /// Target writes are globally ordered.
        STRICT_ORDERING = 1 << 13;
        /// DSA 1.x: read the target back, so that its bytes are globally observable before completion.
        DESTINATION_READBACK = 1 << 14;
        /// DSA 1.x: steering tag selector of the target.
        DESTINATION_STEERING_TAG = 1 << 15;

        /// Drain: the readback address at byte 16 is valid.
        DRAIN_READBACK_1 = 1 << 16;
        /// Drain: the readback address at byte 24 is valid.
        DRAIN_READBACK_2 = 1 << 17;
        /// Drain: no implicit readback of traffic class A.
        DRAIN_NO_READBACK_A = 1 << 18;
        /// Drain: no implicit readback of traffic class B.
        DRAIN_NO_READBACK_B = 1 << 19;
        /// Memory Fill, DSA 2.0: the pattern has 16 bytes.
        FILL_PATTERN_16 = 1 << 18;
        /// Dualcast, DSA 1.x: steering tag selector of the second target.
        DUALCAST_STEERING_TAG_2 = 1 << 16;
        /// CRC operations: read the seed from the address at byte 48.
        CRC_SEED_IN_MEMORY = 1 << 16;
        /// CRC operations: neither invert nor reflect seed and result.
        CRC_BYPASS_INVERSION = 1 << 17;
        /// CRC operations: do not reflect the data bytes.
        CRC_BYPASS_DATA_REFLECTION = 1 << 18;
    }
}

impl Flags {
    /// The flags of `self` that are not in `flags`.
    #[inline]
    pub const fn without(self, flags: Flags) -> Flags {
        Flags(self.0 & !flags.0)
    }

    /// The flags of both sets; `|` in constants.
    #[inline]
    pub const fn union(self, flags: Flags) -> Flags {
        Flags(self.0 | flags.0)
    }
}
