//! The error register SWERROR: errors that no completion record could report.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memferry_dsa::system::SoftwareError;
use memferry_dsa::{Descriptor, Status};

/// The register. It consists of atomics, so that a submitter in a signal handler can write it and several processes can
/// share it.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `state` | `report` (Empty to Writing to Valid), `take` and `clear` (to Empty) | all |
/// | `words` | the reporter that has set the state to Writing | `words`, in state Valid |
#[repr(C)]
pub(crate) struct ErrorRegister {
    state: AtomicU32, // 1:0 Empty, Writing or Valid; 2 more errors followed
    words: [AtomicU64; 4],
}

const EMPTY: u32 = 0;
const WRITING: u32 = 1;
const VALID: u32 = 2;
const OVERFLOW: u32 = 4;

impl ErrorRegister {
    pub(crate) fn new() -> ErrorRegister {
        ErrorRegister { state: AtomicU32::new(EMPTY), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Writes the register, which keeps the first error and counts the others as an overflow.
    pub(crate) fn report(&self, error: &SoftwareError) {
        // ORDERING: Acquire pairs with the Release of `state` in `take` and `clear`: their reads of `words` come before
        // the stores below.
        let won = self.state.compare_exchange(EMPTY, WRITING, Ordering::Acquire, Ordering::Relaxed);
        if won.is_err() {
            self.state.fetch_or(OVERFLOW, Ordering::Relaxed);
            return;
        }
        for (word, value) in self.words.iter().zip(to_words(error)) {
            word.store(value, Ordering::Relaxed);
        }
        // ORDERING: Release pairs with the Acquire of `state` in `words`: a reader that sees Valid sees all words.
        // An overflow that was reported meanwhile is kept.
        self.state.fetch_add(VALID - WRITING, Ordering::Release);
    }

    /// The four words of the register; all zero without an error.
    pub(crate) fn words(&self) -> [u64; 4] {
        // ORDERING: Acquire pairs with the Release of `state` in `report`: the words are complete.
        let state = self.state.load(Ordering::Acquire);
        if state & VALID == 0 {
            return [0; 4];
        }
        let mut words: [u64; 4] = std::array::from_fn(|index| self.words[index].load(Ordering::Relaxed));
        words[0] |= VALID_BIT | if state & OVERFLOW != 0 { OVERFLOW_BIT } else { 0 };
        words
    }

    /// Empties the register, whatever its state.
    pub(crate) fn clear(&self) {
        // ORDERING: Release pairs with the Acquire of `state` in `report`.
        self.state.store(EMPTY, Ordering::Release);
    }

    /// Reads the register and clears it.
    pub(crate) fn take(&self) -> Option<SoftwareError> {
        let error = SoftwareError::from_words(self.words())?;
        // An overflow that is reported between the two calls belongs to the error that was read.
        self.clear();
        Some(error)
    }
}

// Bits of the register's first word. Source: DSA specification 5.8 and 9.2 (SWERROR).
const VALID_BIT: u64 = 1 << 0;
const OVERFLOW_BIT: u64 = 1 << 1;
const DESCRIPTOR_VALID_BIT: u64 = 1 << 2;
const QUEUE_VALID_BIT: u64 = 1 << 3;
const BATCH_BIT: u64 = 1 << 4;
const WRITE_BIT: u64 = 1 << 5;
const INFORMATION_VALID_BIT: u64 = 1 << 7;

/// An error of a descriptor that came through a queue, without further details.
pub(crate) fn error_of(status: Status, queue: usize, descriptor: &Descriptor) -> SoftwareError {
    SoftwareError {
        status,
        overflow: false,
        queue: Some(queue as u32),
        operation: Some(descriptor.operation_code()),
        pasid: Some(descriptor.pasid()),
        batch_member: None,
        write: false,
        fault_address: 0,
        invalid_flags: None,
    }
}

/// The words of the register, without the bits that the register itself sets.
fn to_words(error: &SoftwareError) -> [u64; 4] {
    let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
    let first = bit(error.operation.is_some(), DESCRIPTOR_VALID_BIT)
        | bit(error.queue.is_some(), QUEUE_VALID_BIT)
        | bit(error.batch_member.is_some(), BATCH_BIT)
        | bit(error.write, WRITE_BIT)
        | bit(error.invalid_flags.is_some(), INFORMATION_VALID_BIT)
        | u64::from(error.status.code()) << 8
        | u64::from(error.queue.unwrap_or(0) & 0xff) << 16
        | u64::from(error.operation.unwrap_or(0)) << 32
        | u64::from(error.pasid.unwrap_or(0) & 0xf_ffff) << 40;
    let second =
        u64::from(error.batch_member.unwrap_or(0)) | u64::from(error.invalid_flags.unwrap_or(0)) << 32;
    [first, second, error.fault_address, 0]
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_kept_and_read_back_unchanged() {
        let register = ErrorRegister::new();
        assert_eq!((register.take(), register.words()), (None, [0; 4]));
        let first = SoftwareError {
            batch_member: Some(7),
            write: true,
            invalid_flags: Some(0x12_3456),
            fault_address: 0x7fff_1234_5000,
            ..error_of(Status::InvalidFlags, 6, &Descriptor::drain().submitted_by(0xa_bcde))
        };
        register.report(&first);
        assert_eq!(register.words()[0], 0x0abc_de02_0006_11bd);
        register.report(&error_of(Status::QueueOverflow, 1, &Descriptor::noop()));
        assert_eq!(register.take(), Some(SoftwareError { overflow: true, ..first }));
        assert_eq!(register.take(), None);
    }
}
