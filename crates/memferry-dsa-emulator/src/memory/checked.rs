//! The memory of this process, for descriptors that may name anything.
//!
//! ```text
//! is it there?   the page's entry in /proc/self/pagemap: present, and not shared copy-on-write if it is to be written
//! access         process_vm_readv and process_vm_writev, which answer EFAULT where a plain access would raise a signal
//! page request   madvise(MADV_POPULATE_READ or _WRITE), which makes the kernel handle the fault without an access
//! ```
//!
//! A page that was never touched, was swapped out, or that a write would have to copy first is absent for the device,
//! as it is for silicon that walks the process' page tables.
//!
//! Source: process_vm_readv(2); madvise(2), since Linux 5.14.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::sync::Arc;

use memferry_dsa::{Address, Completion, PAGE_BYTES};

use super::page_map::PageMap;
use super::{Access, Memory, Vanished, copy_by_pages};

const PAGE: usize = PAGE_BYTES as usize;
/// The memory of this process, accessed through system calls that answer where an access would crash.
///
/// Slower than [`DirectMemory`](super::DirectMemory) by some system calls for each piece of work.
#[derive(Debug)]
pub struct CheckedMemory {
    page_map: PageMap,
}

impl CheckedMemory {
    /// Opens the page map of this process and tries the system calls.
    ///
    /// # Errors
    /// The kernel is older than Linux 5.14, or does not let the process use one of them (containers may).
    ///
    /// # Safety
    /// Descriptors that a device processes over this memory may name memory that is not mapped, or not in that way; the
    /// mapped memory that they name is theirs to use as [`Portal::submit`](crate::Portal::submit) demands.
    pub unsafe fn open() -> io::Result<CheckedMemory> {
        let page_map = Arc::new(File::open("/proc/self/pagemap")?);
        let memory = CheckedMemory { page_map: PageMap::new(page_map) };
        let mut probe = Box::new([1u8; 2 * PAGE]);
        let page = Address::from(probe.as_mut_ptr()).offset(PAGE_BYTES - 1).page();
        if !memory.is_present(page, Access::Write) {
            return Err(io::Error::other("/proc/self/pagemap does not show a page that was just written"));
        }
        populate(page, Access::Write)?;
        let mut copied = [0];
        for access in [Access::Read, Access::Write] {
            memory.transfer(access, copied.as_mut_ptr(), page, 1).map_err(|_| io::Error::last_os_error())?;
        }
        Ok(memory)
    }

    /// Moves bytes between `local` and `address`; says how far it came if that is not the end.
    fn access(&self, access: Access, local: *mut u8, address: Address, size: usize) -> Result<(), Vanished> {
        self.transfer(access, local, address, size).map_err(|bytes_done| Vanished {
            page: address.offset(bytes_done as u64).page(),
            access,
            bytes_done,
        })
    }

    /// Reads `size` bytes from `address` to `local`, or writes them; otherwise how many it came to.
    fn transfer(&self, access: Access, local: *mut u8, address: Address, size: usize) -> Result<(), usize> {
        let mine = libc::iovec { iov_base: local.cast(), iov_len: size };
        let theirs = libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(address.0 as usize),
            iov_len: size,
        };
        // SAFETY: gettid has no preconditions. `local` are `size` bytes of the caller, of which reading from `address`
        // may write all. What is written to `address` is allowed by the contract of `open`; the kernel checks that it is
        // mapped.
        let done = unsafe {
            // The thread's number, which is taken as well: that of the process is its first thread's, which has no
            // memory any more once it has ended.
            let process = libc::gettid();
            match access {
                Access::Read => libc::process_vm_readv(process, &mine, 1, &theirs, 1, 0),
                Access::Write => libc::process_vm_writev(process, &mine, 1, &theirs, 1, 0),
            }
        };
        match usize::try_from(done).unwrap_or(0) {
            done if done == size => Ok(()),
            done => Err(done),
        }
    }
}

impl Memory for CheckedMemory {
    /// Protection is not looked at here; a page that must not be accessed shows when it is.
    fn is_present(&self, page: Address, access: Access) -> bool {
        self.page_map.has(page, access)
    }

    fn request_page(&self, page: Address, access: Access) -> bool {
        populate(page, access).is_ok()
    }

    fn read(&self, address: Address, bytes: &mut [u8]) -> Result<(), Vanished> {
        self.access(Access::Read, bytes.as_mut_ptr(), address, bytes.len())
    }

    fn write(&self, address: Address, bytes: &[u8]) -> Result<(), Vanished> {
        // Not written through: `transfer` only reads what it writes to memory.
        self.access(Access::Write, bytes.as_ptr().cast_mut(), address, bytes.len())
    }

    fn copy(&self, source: Address, target: Address, size_bytes: usize) -> Result<(), Vanished> {
        copy_by_pages(self, source, target, size_bytes)
    }

    /// The status byte is a write of its own, so that who polls it sees the rest of the record.
    fn publish(&self, record: Address, completion: &Completion) -> Result<(), Vanished> {
        let bytes = completion.to_bytes();
        self.write(record.offset(1), &bytes[1..])?;
        // ORDERING: Release pairs with the Acquire in `CompletionRecord::poll`: what the system calls before have
        // written is visible to who sees the status.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        self.write(record, &bytes[..1])
    }
}

/// Makes the kernel handle a fault on the page.
fn populate(page: Address, access: Access) -> io::Result<()> {
    let advice = match access {
        Access::Read => libc::MADV_POPULATE_READ,
        Access::Write => libc::MADV_POPULATE_WRITE,
    };
    // SAFETY: populating changes neither the contents nor the protection of a page; the kernel refuses what is not
    // mapped.
    let result =
        unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(page.0 as usize), PAGE, advice) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
