//! Work descriptors: the 64 bytes that tell the device what to do.
//!
//! A [`Descriptor`] is plain data. Building one promises nothing and touches no memory; the promise about the
//! addresses in it is made where it is submitted ([`Portal::submit`](crate::Portal::submit)).
//!
//! Source: Intel DSA Architecture Specification 3.0, sections 8.1 and 8.3; `struct dsa_hw_desc` in Linux'
//! `include/uapi/linux/idxd.h`.

use std::fmt;
use std::mem::offset_of;

use crate::address::Address;
use crate::completion::{Completion, CompletionRecord, Status};
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
    submitter: u32,        // 19:0 PASID, 30:20 reserved, 31 privileged
    flags_operation: u32,  // 23:0 flags, 31:24 operation
    completion: Address,   // completion record, 32-byte aligned; 0 without COMPLETION_ADDRESS_VALID
    address_1: Address,    // source, pattern, descriptor list, or first readback address
    address_2: Address,    // target, second source, compare pattern, or second readback address
    size: u32,             // bytes; descriptors for Batch
    interrupt_handle: u16, // 0 without REQUEST_INTERRUPT
    reserved: u16,         // 0
    operation: [u64; 3],   // operation specific
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
    fn of(opcode: Opcode) -> Descriptor {
        Descriptor { flags_operation: u32::from(opcode as u8) << 24, ..Descriptor::default() }
    }

    /// Does nothing, and completes if asked for a completion.
    ///
    /// Source: DSA specification 8.3.1.
    pub fn noop() -> Descriptor {
        Descriptor::of(Opcode::Noop)
    }

    /// Processes the `count` descriptors at `list`, which is 64-byte aligned.
    ///
    /// Shapes: `count` is at least 2 and at most the queue's `batch_max`.
    /// Members may run in any order unless they carry [`Flags::FENCE`].
    ///
    /// Source: DSA specification 3.8 and 8.3.2.
    pub fn batch(list: impl Into<Address>, count: u32) -> Descriptor {
        Descriptor { address_1: list.into(), size: count, ..Descriptor::of(Opcode::Batch) }
    }

    /// Waits for everything that the submitter put into the same queue before; needs a completion record.
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
        Descriptor {
            address_1: source.into(),
            address_2: target.into(),
            size: size_bytes,
            ..Descriptor::of(Opcode::Memmove)
        }
    }

    /// Asks for a completion in `record`, which must be zero ([`CompletionRecord::reset`]) when this is submitted.
    pub fn with_completion(self, record: &CompletionRecord) -> Descriptor {
        self.with_completion_at(std::ptr::from_ref(record))
    }

    /// Asks for a completion in the record at `address`, which is 32-byte aligned.
    pub fn with_completion_at(self, address: impl Into<Address>) -> Descriptor {
        let completion = address.into();
        Descriptor { completion, ..self }
            .with_flags(Flags::COMPLETION_ADDRESS_VALID | Flags::REQUEST_COMPLETION)
    }

    /// Adds `flags` to those that are set.
    pub fn with_flags(self, flags: Flags) -> Descriptor {
        Descriptor { flags_operation: self.flags_operation | flags.bits(), ..self }
    }

    /// The same work submitted in the name of `pasid`, unprivileged: what ENQCMD makes of the first four bytes.
    pub fn submitted_by(self, pasid: u32) -> Descriptor {
        Descriptor { submitter: pasid & 0xf_ffff, ..self }
    }

    /// The same work submitted through a queue that belongs to `pasid`: what a dedicated queue makes of it.
    pub(crate) fn owned_by(self, pasid: u32) -> Descriptor {
        Descriptor { submitter: self.submitter & !0xf_ffff | pasid & 0xf_ffff, ..self }
    }

    /// What is left to do after a page fault cut this copy short.
    ///
    /// Returns `None` if `completion` is no partial one, or if nothing is left, or for another operation than
    /// Memory Move. Touch the faulting page, reset the completion record and submit the answer.
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
            return Some(rest); // the end of both regions is done: the addresses stay
        }
        let skipped = u64::from(done);
        Some(Descriptor {
            address_1: self.address_1.offset(skipped),
            address_2: self.address_2.offset(skipped),
            ..rest
        })
    }

    /// The operation, if DSA 1.0 knows it.
    pub fn opcode(&self) -> Result<Opcode, UnknownOpcode> {
        Opcode::try_from(self.operation_code())
    }

    /// The operation's code, known or not.
    pub fn operation_code(&self) -> u8 {
        (self.flags_operation >> 24) as u8
    }

    /// The flags.
    pub fn flags(&self) -> Flags {
        Flags::from_bits(self.flags_operation)
    }

    /// The process address space that the addresses belong to.
    pub fn pasid(&self) -> u32 {
        self.submitter & 0xf_ffff
    }

    /// Whether the descriptor asks for the rights of the kernel.
    pub fn is_privileged(&self) -> bool {
        self.submitter >> 31 == 1
    }

    /// Where the completion record lies; meaningful with [`Flags::COMPLETION_ADDRESS_VALID`].
    pub fn completion_address(&self) -> Address {
        self.completion
    }

    /// The address at byte 16: source, or list of a batch.
    pub fn address_1(&self) -> Address {
        self.address_1
    }

    /// The address at byte 24: target, or second source.
    pub fn address_2(&self) -> Address {
        self.address_2
    }

    /// The size in bytes, or the number of members of a batch.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The descriptor as the eight 64-bit words that it is in memory.
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

    /// The descriptor with these words in memory; every pattern of bits is one.
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
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.to_words()) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The descriptor with these bytes in memory.
    pub fn from_bytes(bytes: &[u8; 64]) -> Descriptor {
        let (words, _) = bytes.as_chunks::<8>();
        let mut all = [0; 8];
        for (word, chunk) in all.iter_mut().zip(words) {
            *word = u64::from_le_bytes(*chunk);
        }
        Descriptor::from_words(all)
    }
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
