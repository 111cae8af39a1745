//! The memory of a process, for descriptors that may name anything.
//!
//! ```text
//! is it there?   the page's entry in /proc/PID/pagemap: present, and not shared copy-on-write if it is to be written
//! access         process_vm_readv and process_vm_writev, which answer EFAULT where a plain access would raise a signal
//! page request   this process: madvise(MADV_POPULATE_READ or _WRITE), which makes the kernel handle the fault without
//!                an access; another: a transfer, for which the kernel handles it, and that fails on this side
//! ```
//!
//! A page that was never touched, was swapped out, or that a write would have to copy first is absent for the device,
//! as it is for silicon that walks the process' page tables.
//!
//! Source: Linux' `Documentation/admin-guide/mm/pagemap.rst`; process_vm_readv(2); madvise(2), since Linux 5.14.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{Access, Memory, Vanished};
use crate::address::{Address, PAGE_BYTES};
use crate::completion::Completion;
use crate::emulator::pages::{bytes_from_page_start, bytes_to_page_end};

const PAGE: usize = PAGE_BYTES as usize;
/// Entries of the page map that are read at once: those of the largest piece of a copy.
const ENTRIES_AHEAD: usize = 16;

/// pagemap.rst: the page is present.
const PRESENT: u64 = 1 << 63;
/// pagemap.rst: the page is of a file or shared memory.
const FILE_OR_SHARED: u64 = 1 << 61;
/// pagemap.rst: the page is mapped here and nowhere else. Not so pages of zeros and those shared after a fork.
const EXCLUSIVE: u64 = 1 << 56;

/// The memory of this process or another one, accessed through system calls that answer where an access would crash.
///
/// Slower than [`DirectMemory`](super::DirectMemory) by some system calls for each piece of work.
#[derive(Debug)]
pub struct CheckedMemory {
    /// `None`: this one, also after a fork.
    process: Option<libc::pid_t>,
    page_map: File,
    /// For reading and for writing: entries that were read ahead.
    ahead: RefCell<[Ahead; 2]>,
}

/// Entries of the page map, each good for one answer: pages come and go.
#[derive(Clone, Copy, Debug, Default)]
struct Ahead {
    first: u64, // the page number of the next entry
    entries: [u64; ENTRIES_AHEAD],
    next: usize,
    count: usize,
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
        let page_map = File::open("/proc/self/pagemap")?;
        let memory = CheckedMemory { process: None, page_map, ahead: RefCell::default() };
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

    /// The memory of another process, for who executes descriptors in its name.
    ///
    /// # Errors
    /// There is no such process, or this one may not trace it.
    ///
    /// # Safety
    /// As [`open`](Self::open), for the descriptors and the memory of that process.
    pub unsafe fn of_process(process: u32) -> io::Result<CheckedMemory> {
        let page_map = File::open(format!("/proc/{process}/pagemap"))?;
        let process = process.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(CheckedMemory { process: Some(process), page_map, ahead: RefCell::default() })
    }

    /// The page map's entry of a page; `None` above user space.
    fn entry(&self, page: Address, access: Access) -> Option<u64> {
        let number = page.0 / PAGE_BYTES;
        let ahead = &mut self.ahead.borrow_mut()[access as usize];
        let is_there = |entry: u64| is_there(entry, access);
        if ahead.next < ahead.count && ahead.first + ahead.next as u64 == number {
            let entry = ahead.entries[ahead.next];
            ahead.next += 1;
            // An absent page may have come since; one that has gone shows when it is accessed.
            if is_there(entry) {
                return Some(entry);
            }
        }
        let mut bytes = [0; ENTRIES_AHEAD * 8];
        let count = self.page_map.read_at(&mut bytes, number.checked_mul(8)?).ok()? / 8;
        let (words, _) = bytes.as_chunks::<8>();
        *ahead = Ahead {
            first: number,
            entries: std::array::from_fn(|index| u64::from_le_bytes(words[index])),
            next: 1,
            count,
        };
        (count > 0).then_some(ahead.entries[0])
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
        // may write all, or an address that the kernel refuses. What is written to `address` is allowed by the contract
        // of
        // `open` or `of_process`; the kernel checks that it is mapped.
        let done = unsafe {
            // The thread's number, which is taken as well: that of the process is its first thread's, which has no
            // memory any more once it has ended.
            let process = self.process.unwrap_or_else(|| libc::gettid());
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

    /// Makes the kernel handle a fault on a page of another process. It does so before it looks at this side of the
    /// transfer, where nothing is mapped, so that not a byte is moved.
    fn populate_other(&self, page: Address, access: Access) -> bool {
        let _ = self.transfer(access, std::ptr::without_provenance_mut(NOWHERE), page, 1);
        self.ahead.borrow_mut()[access as usize].count = 0;
        self.is_present(page, access)
    }
}

/// Where no process can map anything: mmap_min_addr is at least this unless somebody sets it to 0, and even then nobody
/// has mapped the null page.
const NOWHERE: usize = 8;

fn is_there(entry: u64, access: Access) -> bool {
    entry & PRESENT != 0 && (access == Access::Read || entry & (EXCLUSIVE | FILE_OR_SHARED) != 0)
}

impl Memory for CheckedMemory {
    /// Protection is not looked at here; a page that must not be accessed shows when it is.
    fn is_present(&self, page: Address, access: Access) -> bool {
        self.entry(page, access).is_some_and(|entry| is_there(entry, access))
    }

    fn request_page(&self, page: Address, access: Access) -> bool {
        match self.process {
            None => populate(page, access).is_ok(),
            Some(_) => self.populate_other(page, access),
        }
    }

    fn read(&self, address: Address, bytes: &mut [u8]) -> Result<(), Vanished> {
        self.access(Access::Read, bytes.as_mut_ptr(), address, bytes.len())
    }

    fn write(&self, address: Address, bytes: &[u8]) -> Result<(), Vanished> {
        // Not written through: `transfer` only reads what it writes to memory.
        self.access(Access::Write, bytes.as_ptr().cast_mut(), address, bytes.len())
    }

    /// Through a temporary, so that one write touches one page and is done entirely or not at all, whatever overlaps.
    fn copy(&self, source: Address, target: Address, size_bytes: usize) -> Result<(), Vanished> {
        let is_backwards = source < target && target.0 - source.0 < size_bytes as u64;
        let mut page = [0; PAGE];
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
            self.read(source.offset(at), piece)
                .and_then(|()| self.write(target.offset(at), piece))
                .map_err(|vanished| Vanished { bytes_done, ..vanished })?;
            bytes_done += bytes;
        }
        Ok(())
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
