//! Work descriptors: the 64 bytes that describe one operation to the device.
//!
//! A [`Descriptor`] is plain data. Building one is safe and touches no memory; the caller of
//! [`Portal::submit`](crate::Portal::submit) guarantees the addresses in it.
//!
//! Source: Intel DSA Architecture Specification 3.0, sections 8.1 and 8.3; `struct dsa_hw_desc` in Linux'
//! `include/uapi/linux/idxd.h`.

use std::fmt;
use std::mem::offset_of;

use crate::address::Address;
use crate::completion::{Completion, CompletionRecord, Status};
use crate::dif::{DifFormat, DifSource, DifSourceFlags, DifTags, DifTarget, DifTargetFlags};
use crate::flags::Flags;
use crate::operation::{Opcode, UnknownOpcode};

/// A work descriptor.
///
/// ```
/// use memferry_dsa::{CompletionRecord, Descriptor};
/// let (source, mut target, record) = ([1u8; 100], [0u8; 100], CompletionRecord::new());
/// let copy = Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), 100).with_completion(&record);
/// assert_eq!(copy.size(), 100);
/// ```
///
/// Source: DSA specification 8.1.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(C, align(64))]
pub struct Descriptor {
    pub(crate) submitter: u32,        // 19:0 PASID, 30:20 reserved, 31 privileged
    pub(crate) flags_operation: u32,  // 23:0 flags, 31:24 operation
    pub(crate) completion: Address, // completion record, 32-byte aligned; 0 without COMPLETION_ADDRESS_VALID
    pub(crate) address_1: Address,  // source, pattern, descriptor list, or first readback address
    pub(crate) address_2: Address,  // target, second source, compare pattern, or second readback address
    pub(crate) size: u32,           // bytes; descriptors for Batch
    pub(crate) interrupt_handle: u16, // 0 without REQUEST_INTERRUPT
    pub(crate) reserved: u16,       // 0
    pub(crate) operation: [u64; 3], // operation specific
}

const _: () = assert!(size_of::<Descriptor>() == 64 && align_of::<Descriptor>() == 64);
const _: () = assert!(offset_of!(Descriptor, submitter) == 0);
const _: () = assert!(offset_of!(Descriptor, flags_operation) == 4);
const _: () = assert!(offset_of!(Descriptor, completion) == 8);
const _: () = assert!(offset_of!(Descriptor, address_1) == 16);
const _: () = assert!(offset_of!(Descriptor, address_2) == 24);
const _: () = assert!(offset_of!(Descriptor, size) == 32);
const _: () = assert!(offset_of!(Descriptor, interrupt_handle) == 36);
const _: () = assert!(offset_of!(Descriptor, reserved) == 38);
const _: () = assert!(offset_of!(Descriptor, operation) == 40);

impl Descriptor {
    /// A descriptor of `opcode` with every other byte zero.
    #[inline]
    fn of(opcode: Opcode) -> Descriptor {
        Descriptor { flags_operation: u32::from(opcode as u8) << 24, ..Descriptor::default() }
    }

    /// A descriptor of `opcode` with these addresses and this size.
    fn on(
        opcode: Opcode,
        address_1: impl Into<Address>,
        address_2: impl Into<Address>,
        size: u32,
    ) -> Descriptor {
        let (address_1, address_2) = (address_1.into(), address_2.into());
        Descriptor { address_1, address_2, size, ..Descriptor::of(opcode) }
    }

    /// Does nothing but complete.
    ///
    /// Source: DSA specification 8.3.1.
    #[inline]
    pub fn noop() -> Descriptor {
        Descriptor::of(Opcode::Noop)
    }

    /// Processes the `count` descriptors at `list`, which is 64-byte aligned.
    ///
    /// Shapes: `count` is at least 2 and at most the queue's `batch_max`.
    /// Members may run in any order unless they have [`Flags::FENCE`].
    ///
    /// Source: DSA specification 3.8 and 8.3.2.
    #[inline]
    pub fn batch(list: impl Into<Address>, count: u32) -> Descriptor {
        Descriptor::on(Opcode::Batch, list, 0, count)
    }

    /// Waits for the submitter's earlier descriptors in the same queue; needs a completion record.
    ///
    /// Source: DSA specification 8.3.3.
    pub fn drain() -> Descriptor {
        Descriptor::of(Opcode::Drain)
    }

    /// Copies `size_bytes` from `source` to `target`, as if through a temporary when they overlap.
    ///
    /// Shapes: 1 to the queue's `transfer_bytes_max` bytes, any alignment.
    ///
    /// Source: DSA specification 8.3.4.
    pub fn memmove(source: impl Into<Address>, target: impl Into<Address>, size_bytes: u32) -> Descriptor {
        Descriptor::on(Opcode::Memmove, source, target, size_bytes)
    }

    /// Fills `size_bytes` at `target` with copies of `pattern`, whose least significant byte goes to `target`.
    ///
    /// Shapes: any alignment; if the size is not a multiple of 8, the last copy is cut.
    ///
    /// Source: DSA specification 8.3 (Memory Fill).
    pub fn fill(pattern: u64, target: impl Into<Address>, size_bytes: u32) -> Descriptor {
        Descriptor::on(Opcode::Fill, pattern, target, size_bytes)
    }

    /// Fills with a pattern of 16 bytes; devices of version 1.0 refuse its flag.
    ///
    /// Source: DSA specification 8.3 (Memory Fill), GENCAP bit 10, since version 2.0.
    pub fn fill_16(pattern: u128, target: impl Into<Address>, size_bytes: u32) -> Descriptor {
        Descriptor {
            operation: [(pattern >> 64) as u64, 0, 0],
            ..Descriptor::fill(pattern as u64, target, size_bytes)
        }
        .with_flags(Flags::FILL_PATTERN_16)
    }

    /// Compares `size_bytes` at `source_1` and `source_2`; needs a completion record.
    ///
    /// The record says whether they differ ([`Completion::differs`]) and where first ([`Completion::bytes_completed`]).
    ///
    /// Source: DSA specification 8.3 (Compare).
    pub fn compare(
        source_1: impl Into<Address>,
        source_2: impl Into<Address>,
        size_bytes: u32,
    ) -> Descriptor {
        Descriptor::on(Opcode::Compare, source_1, source_2, size_bytes)
    }

    /// Compares `size_bytes` at `source` with copies of `pattern`, the first at `source`; needs a completion record.
    ///
    /// The record says whether they differ; the offset of the difference may be rounded down to a multiple of 8.
    ///
    /// Source: DSA specification 8.3 (Compare Pattern).
    pub fn compare_pattern(pattern: u64, source: impl Into<Address>, size_bytes: u32) -> Descriptor {
        Descriptor::on(Opcode::ComparePattern, source, pattern, size_bytes)
    }

    /// Writes to `delta` the differences from `old` to `new`; needs a completion record.
    ///
    /// Shapes: both sources and their size, up to 512 KiB, are multiples of 8; `delta` has room for
    /// `delta_bytes_max`, at least 80 and best a multiple of 10, and overlaps neither source. After a page fault with
    /// less than 80 bytes of room left, the device cannot do the rest.
    ///
    /// Source: DSA specification 8.3 (Create Delta Record).
    pub fn create_delta(
        old: impl Into<Address>,
        new: impl Into<Address>,
        size_bytes: u32,
        delta: impl Into<Address>,
        delta_bytes_max: u32,
    ) -> Descriptor {
        let operation = [delta.into().0, delta_bytes_max.into(), 0];
        Descriptor { operation, ..Descriptor::on(Opcode::CreateDelta, old, new, size_bytes) }
    }

    /// Applies the delta record of `delta_bytes` at `delta` to `target`.
    ///
    /// Shapes: `size_bytes` is that of the record's creation; it and `target` are multiples of 8.
    ///
    /// Source: DSA specification 8.3 (Apply Delta Record).
    pub fn apply_delta(
        delta: impl Into<Address>,
        delta_bytes: u32,
        target: impl Into<Address>,
        size_bytes: u32,
    ) -> Descriptor {
        let operation = [delta_bytes.into(), 0, 0];
        Descriptor { operation, ..Descriptor::on(Opcode::ApplyDelta, delta, target, size_bytes) }
    }

    /// Copies `source` to two targets, whose addresses agree in bits 11:0. No two of the three regions overlap.
    ///
    /// Source: DSA specification 8.3 (Dualcast).
    pub fn dualcast(
        source: impl Into<Address>,
        target_1: impl Into<Address>,
        target_2: impl Into<Address>,
        size_bytes: u32,
    ) -> Descriptor {
        let operation = [target_2.into().0, 0, 0];
        Descriptor { operation, ..Descriptor::on(Opcode::Dualcast, source, target_1, size_bytes) }
    }

    /// Computes the CRC-32C of `source`; needs a completion record, which has the result ([`Completion::crc`]).
    ///
    /// The seed is 0 for the first piece of data, and the result of the previous piece for each later one.
    /// [`Flags::CRC_BYPASS_INVERSION`] and [`Flags::CRC_BYPASS_DATA_REFLECTION`] compute other CRCs.
    ///
    /// Source: DSA specification 8.3 (CRC Generation) and appendix A.
    pub fn crc(seed: u32, source: impl Into<Address>, size_bytes: u32) -> Descriptor {
        let operation = [seed.into(), 0, 0];
        Descriptor { operation, ..Descriptor::on(Opcode::CrcGeneration, source, 0, size_bytes) }
    }

    /// Copies `source` to `target` and computes its CRC-32C as [`crc`](Self::crc) does. The regions do not overlap.
    ///
    /// Source: DSA specification 8.3 (Copy with CRC) and appendix A.
    pub fn copy_crc(
        seed: u32,
        source: impl Into<Address>,
        target: impl Into<Address>,
        size_bytes: u32,
    ) -> Descriptor {
        let operation = [seed.into(), 0, 0];
        Descriptor { operation, ..Descriptor::on(Opcode::CopyCrc, source, target, size_bytes) }
    }

    /// Checks the data integrity fields of `source`; needs a completion record.
    ///
    /// Shapes: `size_bytes` is the size of all blocks with their fields.
    ///
    /// Source: DSA specification 8.3.14 and appendix B.
    pub fn dif_check(
        source: impl Into<Address>,
        size_bytes: u32,
        format: DifFormat,
        expected: DifSource,
    ) -> Descriptor {
        let operation = dif_words(format, Some(expected), None);
        Descriptor { operation, ..Descriptor::on(Opcode::DifCheck, source, 0, size_bytes) }
    }

    /// Copies the blocks of `source` to `target` and inserts a data integrity field behind each.
    ///
    /// Shapes: `size_bytes` is the size of the blocks; `target` has 8 bytes more for each. The regions do not overlap.
    ///
    /// Source: DSA specification 8.3.15 and appendix B.
    pub fn dif_insert(
        source: impl Into<Address>,
        target: impl Into<Address>,
        size_bytes: u32,
        format: DifFormat,
        made: DifTarget,
    ) -> Descriptor {
        let operation = dif_words(format, None, Some(made));
        Descriptor { operation, ..Descriptor::on(Opcode::DifInsert, source, target, size_bytes) }
    }

    /// Checks the data integrity fields of `source` and copies the blocks without them to `target`.
    ///
    /// Shapes: `size_bytes` is the size of the blocks with their fields. The regions do not overlap; for this check the
    /// device takes `size_bytes` as the size of the target as well.
    ///
    /// Source: DSA specification 8.3.16 and appendix B.
    pub fn dif_strip(
        source: impl Into<Address>,
        target: impl Into<Address>,
        size_bytes: u32,
        format: DifFormat,
        expected: DifSource,
    ) -> Descriptor {
        let operation = dif_words(format, Some(expected), None);
        Descriptor { operation, ..Descriptor::on(Opcode::DifStrip, source, target, size_bytes) }
    }

    /// Checks the data integrity fields of `source` and copies the blocks to `target` with new fields.
    ///
    /// Shapes: both regions have `size_bytes`, the size of the blocks with their fields, and do not overlap.
    ///
    /// Source: DSA specification 8.3.17 and appendix B.
    pub fn dif_update(
        source: impl Into<Address>,
        target: impl Into<Address>,
        size_bytes: u32,
        format: DifFormat,
        expected: DifSource,
        made: DifTarget,
    ) -> Descriptor {
        let operation = dif_words(format, Some(expected), Some(made));
        Descriptor { operation, ..Descriptor::on(Opcode::DifUpdate, source, target, size_bytes) }
    }

    /// Flushes the cache lines of `size_bytes` at `target`, including lines that lie only partly in it.
    ///
    /// Source: DSA specification 8.3 (Cache Flush).
    pub fn cache_flush(target: impl Into<Address>, size_bytes: u32) -> Descriptor {
        Descriptor::on(Opcode::CacheFlush, 0, target, size_bytes)
    }

    /// Compare operations: completes with [`Status::PredicateFalse`] unless the result is the expected one.
    ///
    /// `expected` is 0 for equal and 1 for different; for Create Delta a set of results, bit `n` for result `n`.
    pub fn with_expected_result(self, expected: u8) -> Descriptor {
        let mut operation = self.operation;
        // Byte 56 for Create Delta, byte 40 for the others.
        let word = &mut operation[if self.opcode() == Ok(Opcode::CreateDelta) { 2 } else { 0 }];
        *word = *word & !0xff | u64::from(expected);
        Descriptor { operation, ..self }.with_flags(Flags::CHECK_RESULT)
    }

    /// CRC operations: reads the seed from `address`, a multiple of 4, instead of taking it from the descriptor.
    pub fn with_crc_seed_at(self, address: impl Into<Address>) -> Descriptor {
        Descriptor { operation: [0, address.into().0, self.operation[2]], ..self }
            .with_flags(Flags::CRC_SEED_IN_MEMORY)
    }

    /// Drain: ensures that earlier writes to the memory of `address` are globally visible.
    pub fn with_readback_1(self, address: impl Into<Address>) -> Descriptor {
        Descriptor { address_1: address.into(), ..self }.with_flags(Flags::DRAIN_READBACK_1)
    }

    /// Drain: the same for the memory of a second address.
    pub fn with_readback_2(self, address: impl Into<Address>) -> Descriptor {
        Descriptor { address_2: address.into(), ..self }.with_flags(Flags::DRAIN_READBACK_2)
    }

    /// Requests a completion in `record`, which must be reset ([`CompletionRecord::reset`]) before submission.
    #[inline]
    pub fn with_completion(self, record: &CompletionRecord) -> Descriptor {
        self.with_completion_at(std::ptr::from_ref(record))
    }

    /// Requests a completion in the record at `address`, which is 32-byte aligned.
    #[inline]
    pub fn with_completion_at(self, address: impl Into<Address>) -> Descriptor {
        let completion = address.into();
        Descriptor { completion, ..self }
            .with_flags(Flags::COMPLETION_ADDRESS_VALID | Flags::REQUEST_COMPLETION)
    }

    /// Sets `flags` in addition to the others.
    #[inline]
    pub fn with_flags(self, flags: Flags) -> Descriptor {
        Descriptor { flags_operation: self.flags_operation | flags.bits(), ..self }
    }

    /// Clears `flags`.
    pub(crate) fn without_flags(self, flags: Flags) -> Descriptor {
        Descriptor { flags_operation: self.flags_operation & !flags.bits(), ..self }
    }

    /// The same descriptor with the first four bytes as ENQCMD writes them: `pasid`, unprivileged.
    #[inline]
    pub fn submitted_by(self, pasid: u32) -> Descriptor {
        Descriptor { submitter: pasid & 0xf_ffff, ..self }
    }

    /// The same descriptor with the PASID of its dedicated queue.
    #[inline]
    pub fn owned_by(self, pasid: u32) -> Descriptor {
        Descriptor { submitter: self.submitter & !0xf_ffff | pasid & 0xf_ffff, ..self }
    }

    /// The rest of this copy after a page fault stopped it.
    ///
    /// Returns `None` if `completion` is not partial, if nothing is left, or for another operation than Memory Move.
    /// Touch the faulting page, reset the completion record and submit the result.
    ///
    /// Source: DSA specification 8.3.4 (direction of the copy).
    pub fn resumed(&self, completion: &Completion) -> Option<Descriptor> {
        let partial = matches!(completion.status, Status::PageFault | Status::PageFaultRefused);
        let done = completion.bytes_completed;
        if !partial || self.opcode() != Ok(Opcode::Memmove) || done >= self.size {
            return None;
        }
        let rest = Descriptor { size: self.size - done, ..*self };
        if completion.is_backwards() {
            return Some(rest); // the end of both regions is copied: the addresses stay
        }
        let skipped = u64::from(done);
        Some(Descriptor {
            address_1: self.address_1.offset(skipped),
            address_2: self.address_2.offset(skipped),
            ..rest
        })
    }

    /// The operation, if it is one of DSA 1.0.
    #[inline]
    pub fn opcode(&self) -> Result<Opcode, UnknownOpcode> {
        Opcode::try_from(self.operation_code())
    }

    /// The operation's code, known or not.
    #[inline]
    pub fn operation_code(&self) -> u8 {
        (self.flags_operation >> 24) as u8
    }

    /// The flags.
    #[inline]
    pub fn flags(&self) -> Flags {
        Flags::from_bits(self.flags_operation)
    }

    /// The PASID: the address space of the addresses.
    #[inline]
    pub fn pasid(&self) -> u32 {
        self.submitter & 0xf_ffff
    }

    /// Whether the descriptor requests kernel privilege.
    #[inline]
    pub fn is_privileged(&self) -> bool {
        self.submitter >> 31 == 1
    }

    /// The interrupt that the completion raises, with [`Flags::REQUEST_INTERRUPT`].
    pub fn interrupt_handle(&self) -> u16 {
        self.interrupt_handle
    }

    /// The address of the completion record; meaningful with [`Flags::COMPLETION_ADDRESS_VALID`].
    #[inline]
    pub fn completion_address(&self) -> Address {
        self.completion
    }

    /// The address at byte 16: source, or list of a batch.
    #[inline]
    pub fn address_1(&self) -> Address {
        self.address_1
    }

    /// The address at byte 24: target, or second source.
    #[inline]
    pub fn address_2(&self) -> Address {
        self.address_2
    }

    /// The size in bytes, or the number of members of a batch.
    #[inline]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The pattern of Fill (byte 16) or Compare Pattern (byte 24).
    pub fn pattern(&self) -> u64 {
        if self.opcode() == Ok(Opcode::ComparePattern) { self.address_2.0 } else { self.address_1.0 }
    }

    /// The pattern of [`fill_16`](Self::fill_16); meaningful with [`Flags::FILL_PATTERN_16`].
    pub fn pattern_16(&self) -> u128 {
        u128::from(self.operation[0]) << 64 | u128::from(self.address_1.0)
    }

    /// The value of [`with_expected_result`](Self::with_expected_result).
    pub fn expected_result(&self) -> u8 {
        self.operation[if self.opcode() == Ok(Opcode::CreateDelta) { 2 } else { 0 }] as u8
    }

    /// Dualcast: the second target.
    pub fn target_2(&self) -> Address {
        Address(self.operation[0])
    }

    /// Delta operations: the address of the delta record, at byte 40 for Create Delta and at byte 16 for Apply Delta.
    pub fn delta_address(&self) -> Address {
        if self.opcode() == Ok(Opcode::ApplyDelta) { self.address_1 } else { Address(self.operation[0]) }
    }

    /// Delta operations: the size of the delta record; for Create Delta the room for it.
    pub fn delta_bytes(&self) -> u32 {
        let at_40 = self.opcode() == Ok(Opcode::ApplyDelta);
        self.operation[if at_40 { 0 } else { 1 }] as u32
    }

    /// CRC operations: the seed; meaningful without [`Flags::CRC_SEED_IN_MEMORY`].
    pub fn crc_seed(&self) -> u32 {
        self.operation[0] as u32
    }

    /// CRC operations: the address of the seed; meaningful with [`Flags::CRC_SEED_IN_MEMORY`].
    pub fn crc_seed_address(&self) -> Address {
        Address(self.operation[1])
    }

    /// DIF operations: the format of blocks and guards.
    pub fn dif_format(&self) -> DifFormat {
        DifFormat::from_bits((self.operation[0] >> 16) as u8)
    }

    /// DIF operations: the checks of the source's fields.
    pub fn dif_source(&self) -> DifSource {
        DifSource {
            flags: DifSourceFlags::from_bits(self.operation[0] as u8),
            tags: DifTags::from_word(self.operation[1]),
        }
    }

    /// DIF operations: the rules for the target's fields.
    pub fn dif_target(&self) -> DifTarget {
        DifTarget {
            flags: DifTargetFlags::from_bits((self.operation[0] >> 8) as u8),
            tags: DifTags::from_word(self.operation[2]),
        }
    }

    /// The descriptor's eight 64-bit words in memory.
    #[inline]
    pub fn to_words(&self) -> [u64; 8] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let handle_reserved = u32::from(self.interrupt_handle) | u32::from(self.reserved) << 16;
        [
            pair(self.submitter, self.flags_operation),
            self.completion.0,
            self.address_1.0,
            self.address_2.0,
            pair(self.size, handle_reserved),
            self.operation[0],
            self.operation[1],
            self.operation[2],
        ]
    }

    /// The descriptor with these words in memory; every bit pattern is valid.
    #[inline]
    pub fn from_words(words: [u64; 8]) -> Descriptor {
        Descriptor {
            submitter: words[0] as u32,
            flags_operation: (words[0] >> 32) as u32,
            completion: Address(words[1]),
            address_1: Address(words[2]),
            address_2: Address(words[3]),
            size: words[4] as u32,
            interrupt_handle: (words[4] >> 32) as u16,
            reserved: (words[4] >> 48) as u16,
            operation: [words[5], words[6], words[7]],
        }
    }

    /// The descriptor's bytes in memory.
    #[inline]
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.to_words()) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The descriptor with these bytes in memory.
    #[inline]
    pub fn from_bytes(bytes: &[u8; 64]) -> Descriptor {
        let (words, _) = bytes.as_chunks::<8>();
        let mut all = [0; 8];
        for (word, chunk) in all.iter_mut().zip(words) {
            *word = u64::from_le_bytes(*chunk);
        }
        Descriptor::from_words(all)
    }
}

/// Bytes 40-63 of a DIF descriptor.
fn dif_words(format: DifFormat, expected: Option<DifSource>, made: Option<DifTarget>) -> [u64; 3] {
    let (expected, made) = (expected.unwrap_or_default(), made.unwrap_or_default());
    let flags = u32::from_le_bytes([expected.flags.bits(), made.flags.bits(), format.to_bits(), 0]);
    [flags.into(), expected.tags.to_word(), made.tags.to_word()]
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Descriptor");
        match self.opcode() {
            Ok(opcode) => out.field("operation", &opcode),
            Err(unknown) => out.field("operation", &unknown.0),
        };
        out.field("flags", &self.flags())
            .field("completion", &self.completion)
            .field("address_1", &self.address_1)
            .field("address_2", &self.address_2)
            .field("size", &self.size)
            .field("submitter", &self.submitter)
            .field("interrupt_handle", &self.interrupt_handle)
            .field("reserved", &self.reserved)
            .field("operation_specific", &self.operation)
            .finish()
    }
}
