//! The memory of this process, through pointers.

#![allow(unsafe_code)]

use std::ptr;

use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::{Address, Completion, CompletionRecord};

use super::{Access, Memory, Vanished};

/// The end of user space on x86-64 with four levels of page tables.
const USER_END: u64 = 1 << 47;

/// The memory of this process, accessed through raw pointers.
#[derive(Debug)]
pub struct DirectMemory(());

impl DirectMemory {
    /// Gives access to this process' memory.
    ///
    /// # Safety
    /// Every descriptor that a device processes over this memory keeps the contract of
    /// [`Portal::submit`](memferry_dsa::Portal::submit), and only that device calls the methods of [`Memory`]
    /// on it.
    pub unsafe fn new() -> DirectMemory {
        DirectMemory(())
    }
}

fn pointer(address: Address) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address.0 as usize)
}

impl Memory for DirectMemory {
    /// Only the null page and addresses above user space count as absent; that detects most garbage.
    fn is_present(&self, page: Address, _access: Access) -> bool {
        (PAGE_BYTES..USER_END).contains(&page.0)
    }

    fn request_page(&self, page: Address, access: Access) -> bool {
        self.is_present(page, access)
    }

    fn read(&self, address: Address, bytes: &mut [u8]) -> Result<(), Vanished> {
        // SAFETY: the contract of `new`: a descriptor in flight names this memory, so it is valid and not written.
        unsafe { ptr::copy_nonoverlapping(pointer(address), bytes.as_mut_ptr(), bytes.len()) }
        Ok(())
    }

    fn write(&self, address: Address, bytes: &[u8]) -> Result<(), Vanished> {
        // SAFETY: the contract of `new`: a descriptor in flight names this memory, so it is valid and exclusive.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), pointer(address), bytes.len()) }
        Ok(())
    }

    fn copy(&self, source: Address, target: Address, size_bytes: usize) -> Result<(), Vanished> {
        // SAFETY: the contract of `new`, as in `read` and `write`; `ptr::copy` allows overlapping regions.
        unsafe { ptr::copy(pointer(source), pointer(target), size_bytes) }
        Ok(())
    }

    #[cfg(target_arch = "x86_64")]
    fn flush(&self, address: Address, size_bytes: usize) {
        /// Bytes of a cache line.
        const LINE: u64 = 64;
        let first = address.0 & !(LINE - 1);
        for line in (first..address.0 + size_bytes as u64).step_by(LINE as usize) {
            // SAFETY: the contract of `new`: a descriptor in flight names this memory, so it is valid; flushing a line
            // changes nothing in it. The instruction belongs to SSE2, which every x86-64 processor has.
            unsafe { std::arch::x86_64::_mm_clflush(pointer(Address(line))) }
        }
    }

    fn publish(&self, record: Address, completion: &Completion) -> Result<(), Vanished> {
        // SAFETY: the contract of `new`: the descriptor names a completion record here; the device has checked its
        // alignment; all its fields are atomics, so that concurrent polling is no data race.
        let record = unsafe { &*pointer(record).cast::<CompletionRecord>() };
        record.publish(completion);
        Ok(())
    }
}
