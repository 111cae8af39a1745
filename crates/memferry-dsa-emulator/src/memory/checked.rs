//! The memory of this process, for descriptors with arbitrary addresses.
//!
//! ```text
//! presence       the page's entry in /proc/self/pagemap: present, and for writing not shared copy-on-write
//! access         process_vm_readv and process_vm_writev, which return EFAULT where a plain access would raise a signal
//! record         stores of the caller ([`CheckedMemory::with_record_store`]), if it can catch their signals
//! page request   madvise(MADV_POPULATE_READ or _WRITE), which makes the kernel handle the fault without an access
//! ```
//!
//! A page is absent for the device if it was never touched, was swapped out, or would be copied by a write first: as
//! for silicon, which walks the process' page tables.
//!
//! Source: process_vm_readv(2); madvise(2), since Linux 5.14.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::sync::Arc;

use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::{Address, Completion};

use super::page_map::PageMap;
use super::{Access, Memory, Vanished, copy_by_pages};

const PAGE: usize = PAGE_BYTES as usize;

/// The memory of this process, accessed through system calls that return an error where a plain access would crash.
///
/// Slower than [`DirectMemory`](super::DirectMemory) by some system calls for each piece of work.
///
/// ```
/// use memferry_dsa::Address;
/// use memferry_dsa_emulator::{Access, CheckedMemory, Memory};
///
/// // SAFETY: the reads below are of a live array and of the null page.
/// let memory = unsafe { CheckedMemory::open() }?;
/// let (mut copy, bytes) = ([0; 5], b"bytes");
/// memory.read(Address::from(bytes.as_ptr()), &mut copy).expect("it is mapped");
/// assert_eq!(&copy, bytes);
/// assert!(memory.read(Address(0), &mut copy).is_err() && !memory.is_present(Address(0), Access::Read));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct CheckedMemory {
    page_map: PageMap,
    record_store: Option<RecordStore>,
    /// The page of the last record that `record_store` has stored, so it was present and exclusive. If the program has
    /// dropped the page since, the next store brings it in again; if it has unmapped the page, the store fails.
    record_page: Cell<Option<Address>>,
}

/// Stores the 32 bytes of a completion record at an aligned address, the status byte last. Returns false where a plain
/// store would raise a signal; the record may then be written in part.
///
/// # Safety
/// A descriptor names the address for its completion record, as in [`CheckedMemory::open`].
pub type RecordStore = unsafe fn(Address, &[u8; 32]) -> bool;

impl CheckedMemory {
    /// Opens the page map of this process and tries the system calls.
    ///
    /// # Errors
    /// The kernel is older than Linux 5.14, or forbids one of the system calls (containers may).
    ///
    /// # Safety
    /// Descriptors that a device processes over this memory may name memory that is unmapped or protected. The
    /// accessible memory that they name is theirs to use as [`Portal::submit`](memferry_dsa::Portal::submit)
    /// demands.
    pub unsafe fn open() -> io::Result<CheckedMemory> {
        let page_map = Arc::new(File::open("/proc/self/pagemap")?);
        let memory = CheckedMemory {
            page_map: PageMap::new(page_map),
            record_store: None,
            record_page: Cell::new(None),
        };
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

    /// Writes completion records by `store`, without a system call: two of them with cold caches take 20 us, and a look at
    /// the page map as long. If it fails, system calls find the error. Of records in the same page in succession, only
    /// the first looks at the page map.
    pub fn with_record_store(mut self, store: RecordStore) -> CheckedMemory {
        self.record_store = Some(store);
        self
    }

    /// Moves bytes between `local` and `address`; the error has the number of bytes moved.
    fn access(&self, access: Access, local: *mut u8, address: Address, size: usize) -> Result<(), Vanished> {
        self.transfer(access, local, address, size).map_err(|bytes_done| Vanished {
            page: address.offset(bytes_done as u64).page(),
            access,
            bytes_done,
        })
    }

    /// Reads `size` bytes from `address` to `local`, or writes them; the error is the number of bytes moved.
    fn transfer(&self, access: Access, local: *mut u8, address: Address, size: usize) -> Result<(), usize> {
        let mine = libc::iovec { iov_base: local.cast(), iov_len: size };
        let theirs = libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(address.0 as usize),
            iov_len: size,
        };
        // SAFETY: gettid has no preconditions. `local` is a buffer of `size` bytes of the caller, all of which a read
        // from `address` may write. The contract of `open` allows the writes to `address`; the kernel checks that it is
        // mapped.
        let done = unsafe {
            // The thread id works as well. The process id is the id of the first thread, which has no memory any more
            // once it has ended.
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
    /// Ignores the protection: an access to a protected page fails.
    fn is_present(&self, page: Address, access: Access) -> bool {
        self.page_map.has(page, access)
    }

    fn is_record_page_present(&self, page: Address) -> bool {
        self.record_page.get() == Some(page) || self.is_present(page, Access::Write)
    }

    fn request_page(&self, page: Address, access: Access) -> bool {
        populate(page, access).is_ok()
    }

    fn read(&self, address: Address, bytes: &mut [u8]) -> Result<(), Vanished> {
        self.access(Access::Read, bytes.as_mut_ptr(), address, bytes.len())
    }

    fn write(&self, address: Address, bytes: &[u8]) -> Result<(), Vanished> {
        // `transfer` only reads through this pointer when it writes to memory.
        self.access(Access::Write, bytes.as_ptr().cast_mut(), address, bytes.len())
    }

    fn copy(&self, source: Address, target: Address, size_bytes: usize) -> Result<(), Vanished> {
        copy_by_pages(self, source, target, size_bytes)
    }

    /// The status byte is a separate write, so that a thread that polls it sees the rest of the record.
    fn publish(&self, record: Address, completion: &Completion) -> Result<(), Vanished> {
        let bytes = completion.to_bytes();
        // SAFETY: the device publishes records of descriptors only, and the contract of `open` is about those.
        let is_stored = self.record_store.is_some_and(|store| unsafe { store(record, &bytes) });
        self.record_page.set(is_stored.then_some(record.page()));
        if is_stored {
            return Ok(());
        }
        self.write(record.offset(1), &bytes[1..])?;
        // ORDERING: the Release fence pairs with the Acquire in `CompletionRecord::poll`: a thread that sees the status
        // sees the data and the rest of the record, which earlier system calls have written.
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
    // SAFETY: populating changes neither the content nor the protection of a page; the kernel refuses unmapped pages.
    let result =
        unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(page.0 as usize), PAGE, advice) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
