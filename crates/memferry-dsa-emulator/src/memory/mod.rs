//! The memory that an emulated device works on.
//!
//! The device translates every page before it accesses it, and accesses no other page.
//!
//! | memory | address space | bad addresses |
//! |---|---|---|
//! | [`DirectMemory`] | this process', through pointers | crash the process, except for obvious garbage |
//! | [`CheckedMemory`] | this process', through system calls | are page faults |
//! | [`ProcessMemory`] | another process', through files of `/proc` | are page faults |
//! | [`FakeMemory`] | its own, sparse | are page faults; panics if the device did not translate the page |

mod address_space;
mod checked;
mod direct;
mod fake;
mod page_map;

pub use address_space::{AddressSpace, ProcessMemory};
pub use checked::{CheckedMemory, RecordStore};
pub use direct::DirectMemory;
pub use fake::{FakeMemory, Visit};
use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::{Address, Completion};

use crate::device::translation::{bytes_from_page_start, bytes_to_page_end};

/// The kind of an access to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The device reads.
    Read,
    /// The device writes.
    Write,
}

/// A failed access to a page that was present at its translation: another thread has unmapped or protected it since.
/// The device treats it as a page fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vanished {
    /// The page.
    pub page: Address,
    /// The kind of the access.
    pub access: Access,
    /// Bytes that were accessed before, from the side where the operation started.
    pub bytes_done: usize,
}

/// An address space, as the device sees it through the IOMMU.
///
/// # Errors
/// Accesses return [`Vanished`] for pages that are not present any more.
pub trait Memory {
    /// Whether the device can access the page now.
    fn is_present(&self, page: Address, access: Access) -> bool;

    /// Whether the device can write a completion record to the page now. May repeat the answer of an earlier call, as if
    /// the device had cached the translation.
    fn is_record_page_present(&self, page: Address) -> bool {
        self.is_present(page, Access::Write)
    }

    /// Requests an absent page from the operating system; returns whether the device can access it afterwards.
    fn request_page(&self, page: Address, access: Access) -> bool;

    /// Reads from pages that are present.
    fn read(&self, address: Address, bytes: &mut [u8]) -> Result<(), Vanished>;

    /// Writes to pages that are present.
    fn write(&self, address: Address, bytes: &[u8]) -> Result<(), Vanished>;

    /// Copies between pages that are present, as if through a temporary buffer. If it fails, the start of the target is
    /// written; its end, if the target is above a source that it overlaps.
    fn copy(&self, source: Address, target: Address, size_bytes: usize) -> Result<(), Vanished>;

    /// Writes the lines of a region back from the processor's caches. The region is present.
    fn flush(&self, _address: Address, _size_bytes: usize) {}

    /// Writes a completion record: everything but the status, then the status.
    fn publish(&self, record: Address, completion: &Completion) -> Result<(), Vanished> {
        let bytes = completion.to_bytes();
        self.write(record.offset(1), &bytes[1..])?;
        self.write(record, &bytes[..1])
    }
}

/// Copies through a temporary buffer of one page: each write concerns one page and is done entirely or not at all, also
/// if the regions overlap.
fn copy_by_pages(
    memory: &impl Memory,
    source: Address,
    target: Address,
    size_bytes: usize,
) -> Result<(), Vanished> {
    let is_backwards = source < target && target.0 - source.0 < size_bytes as u64;
    let mut page = [0; PAGE_BYTES as usize];
    let mut bytes_done = 0;
    while bytes_done < size_bytes {
        let left = size_bytes - bytes_done;
        let in_page = match is_backwards {
            true => bytes_from_page_start(target.offset(left as u64)),
            false => bytes_to_page_end(target.offset(bytes_done as u64)),
        };
        let bytes = left.min(in_page as usize);
        let at = if is_backwards { left - bytes } else { bytes_done } as u64;
        let piece = &mut page[..bytes];
        memory
            .read(source.offset(at), piece)
            .and_then(|()| memory.write(target.offset(at), piece))
            .map_err(|vanished| Vanished { bytes_done, ..vanished })?;
        bytes_done += bytes;
    }
    Ok(())
}
