//! The error register: what no completion record could tell.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memferry_dsa::{Address, Descriptor, Flags, Status};

/// The register. Atomics only, so that a submitter in a signal handler can write it, and several processes can share it.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `state` | who reports (Empty to Writing to Valid), who takes (Valid to Empty) | both |
/// | `words` | who has it in state Writing | who takes it in state Valid |
#[repr(C)]
pub(super) struct ErrorRegister {
    state: AtomicU32, // 1:0 Empty, Writing or Valid; 2 more errors followed
    words: [AtomicU64; 4],
}

const EMPTY: u32 = 0;
const WRITING: u32 = 1;
const VALID: u32 = 2;
const OVERFLOW: u32 = 4;

impl ErrorRegister {
    pub(super) fn new() -> ErrorRegister {
        ErrorRegister { state: AtomicU32::new(EMPTY), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Writes the register, which keeps the first error and remembers that there were more.
    pub(super) fn report(&self, error: &SoftwareError) {
        // ORDERING: Acquire pairs with the Release in `take`: the former error has been read.
        let won = self.state.compare_exchange(EMPTY, WRITING, Ordering::Acquire, Ordering::Relaxed);
        if won.is_err() {
            self.state.fetch_or(OVERFLOW, Ordering::Relaxed);
            return;
        }
        for (place, word) in self.words.iter().zip(error.to_words()) {
            place.store(word, Ordering::Relaxed);
        }
        // ORDERING: Release pairs with the Acquire in `words`: the words are complete.
        // An overflow that came meanwhile is kept.
        self.state.fetch_add(VALID - WRITING, Ordering::Release);
    }

    /// What is in the register, as the register's own words (SWERROR); all zero without an error.
    pub(super) fn words(&self) -> [u64; 4] {
        // ORDERING: Acquire pairs with the Release in `report`.
        let state = self.state.load(Ordering::Acquire);
        if state & VALID == 0 {
            return [0; 4];
        }
        let mut words: [u64; 4] = std::array::from_fn(|index| self.words[index].load(Ordering::Relaxed));
        words[0] |= VALID_BIT | if state & OVERFLOW != 0 { OVERFLOW_BIT } else { 0 };
        words
    }

    /// Starts anew, whatever was there.
    pub(super) fn clear(&self) {
        self.state.store(EMPTY, Ordering::Release);
    }

    /// Reads the register and clears it.
    pub(super) fn take(&self) -> Option<SoftwareError> {
        let error = SoftwareError::from_words(self.words())?;
        // ORDERING: Release pairs with the Acquire in `report`. An overflow that comes now belongs to what was taken.
        self.state.store(EMPTY, Ordering::Release);
        Some(error)
    }
}

/// An error that no completion record could tell.
///
/// Source: DSA specification 5.8 and 9.2 (SWERROR).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SoftwareError {
    /// What went wrong.
    pub status: Status,
    /// More errors followed this one.
    pub overflow: bool,
    /// The work queue.
    pub queue: usize,
    /// The operation's code.
    pub operation: u8,
    /// Whose descriptor it was.
    pub pasid: u32,
    /// The index in its batch, for a member.
    pub batch_index: Option<u16>,
    /// Page faults: the access was a write.
    pub write_fault: bool,
    /// [`Status::InvalidFlags`]: which.
    pub invalid_flags: Flags,
    /// Page faults: the address.
    pub fault_address: Address,
}

// Bits of the register's first word.
const VALID_BIT: u64 = 1 << 0;
const OVERFLOW_BIT: u64 = 1 << 1;
const DESCRIPTOR_VALID_BIT: u64 = 1 << 2;
const QUEUE_VALID_BIT: u64 = 1 << 3;
const BATCH_BIT: u64 = 1 << 4;
const WRITE_BIT: u64 = 1 << 5;
const INFORMATION_VALID_BIT: u64 = 1 << 7;

impl SoftwareError {
    pub(super) fn new(status: Status, queue: usize, descriptor: &Descriptor) -> SoftwareError {
        SoftwareError {
            status,
            overflow: false,
            queue,
            operation: descriptor.operation_code(),
            pasid: descriptor.pasid(),
            batch_index: None,
            write_fault: false,
            invalid_flags: Flags::NONE,
            fault_address: Address(0),
        }
    }

    /// The words of the register, without the bits that the register itself sets.
    fn to_words(&self) -> [u64; 4] {
        let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
        let first = DESCRIPTOR_VALID_BIT
            | QUEUE_VALID_BIT
            | bit(self.batch_index.is_some(), BATCH_BIT)
            | bit(self.write_fault, WRITE_BIT)
            | bit(self.invalid_flags != Flags::NONE, INFORMATION_VALID_BIT)
            | u64::from(self.status.code()) << 8
            | (self.queue as u64 & 0xff) << 16
            | u64::from(self.operation) << 32
            | u64::from(self.pasid & 0xf_ffff) << 40;
        let second = u64::from(self.batch_index.unwrap_or(0)) | u64::from(self.invalid_flags.bits()) << 32;
        [first, second, self.fault_address.0, 0]
    }

    /// The inverse; `None` if the register is not valid.
    fn from_words([first, second, fault_address, _]: [u64; 4]) -> Option<SoftwareError> {
        let has = |bit: u64| first & bit != 0;
        has(VALID_BIT).then(|| SoftwareError {
            status: Status::from_code((first >> 8) as u8),
            overflow: has(OVERFLOW_BIT),
            queue: usize::from((first >> 16) as u8),
            operation: (first >> 32) as u8,
            pasid: (first >> 40) as u32 & 0xf_ffff,
            batch_index: has(BATCH_BIT).then_some(second as u16),
            write_fault: has(WRITE_BIT),
            invalid_flags: Flags::from_bits((second >> 32) as u32),
            fault_address: Address(fault_address),
        })
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_kept_and_comes_back_as_it_was() {
        let register = ErrorRegister::new();
        assert_eq!((register.take(), register.words()), (None, [0; 4]));
        let first = SoftwareError {
            batch_index: Some(7),
            write_fault: true,
            invalid_flags: Flags::from_bits(0x12_3456),
            fault_address: Address(0x7fff_1234_5000),
            ..SoftwareError::new(Status::CompletionFault, 6, &Descriptor::drain().submitted_by(0xa_bcde))
        };
        register.report(&first);
        assert_eq!(register.words()[0], 0x0abc_de02_0006_1abd);
        register.report(&SoftwareError::new(Status::QueueOverflow, 1, &Descriptor::noop()));
        assert_eq!(register.take(), Some(SoftwareError { overflow: true, ..first }));
        assert_eq!(register.take(), None);
    }
}
