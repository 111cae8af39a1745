//! The memory that an emulated device works on.
//!
//! The device asks for every page before it touches it, and touches nothing else. [`DirectMemory`] is the memory
//! of this process; [`FakeMemory`] is a sparse address space that holds the device to that.

mod direct;
mod fake;

pub use direct::DirectMemory;
pub use fake::{FakeMemory, Visit};

use crate::address::Address;
use crate::completion::Completion;

/// Reading or writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The device reads.
    Read,
    /// The device writes.
    Write,
}

/// An address space, as the device sees it through the IOMMU.
pub trait Memory {
    /// Whether the device can access the page now.
    fn is_present(&self, page: Address, access: Access) -> bool;

    /// Asks the operating system for an absent page; whether the device can access it afterwards.
    fn request_page(&self, page: Address, access: Access) -> bool;

    /// Reads from pages that are present.
    fn read(&self, address: Address, bytes: &mut [u8]);

    /// Writes to pages that are present.
    fn write(&self, address: Address, bytes: &[u8]);

    /// Copies between pages that are present, as if through a temporary.
    fn copy(&self, source: Address, target: Address, size_bytes: usize);

    /// Writes a completion record: everything but the status, then the status.
    fn publish(&self, record: Address, completion: &Completion) {
        let bytes = completion.to_bytes();
        self.write(record.offset(1), &bytes[1..]);
        self.write(record, &bytes[..1]);
    }
}
