//! A page map: it shows which pages of an address space are present.
//!
//! Source: Linux' `Documentation/admin-guide/mm/pagemap.rst`.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use memferry_dsa::Address;
use memferry_dsa::internals::PAGE_BYTES;

use super::Access;

/// Entries of the page map that are read at once: those of the largest piece of a transfer.
const ENTRIES_AHEAD: usize = 16;

/// pagemap.rst: the page is present.
const PRESENT: u64 = 1 << 63;
/// pagemap.rst: the page belongs to a file or to shared memory.
const FILE_OR_SHARED: u64 = 1 << 61;
/// pagemap.rst: the page is mapped only here. Zero pages and pages shared after a fork are not exclusive.
const EXCLUSIVE: u64 = 1 << 56;

/// Reads `/proc/PID/pagemap`, some entries ahead.
#[derive(Debug)]
pub(super) struct PageMap {
    file: Arc<File>,
    /// Entries that were read ahead, for reading and for writing.
    ahead: RefCell<[ReadAhead; 2]>,
}

/// Entries of the page map. Each answers one question only, since pages come and go.
#[derive(Clone, Copy, Debug, Default)]
struct ReadAhead {
    first: u64, // the page number of the next entry
    entries: [u64; ENTRIES_AHEAD],
    next: usize,
    count: usize,
}

impl PageMap {
    pub(super) fn new(file: Arc<File>) -> PageMap {
        PageMap { file, ahead: RefCell::default() }
    }

    /// Whether a page is present and, for writing, a write would not have to copy it first. Ignores the protection.
    pub(super) fn has(&self, page: Address, access: Access) -> bool {
        self.entry(page, access).is_some_and(|entry| is_there(entry, access))
    }

    /// The entry of a page; `None` above user space, or if no process has the address space.
    fn entry(&self, page: Address, access: Access) -> Option<u64> {
        let number = page.0 / PAGE_BYTES;
        let ahead = &mut self.ahead.borrow_mut()[access as usize];
        let is_there = |entry: u64| is_there(entry, access);
        if ahead.next < ahead.count && ahead.first + ahead.next as u64 == number {
            let entry = ahead.entries[ahead.next];
            ahead.next += 1;
            // An absent page may be present now, so it is read again. A page that is gone now fails when it is
            // accessed.
            if is_there(entry) {
                return Some(entry);
            }
        }
        let mut bytes = [0; ENTRIES_AHEAD * 8];
        let count = self.file.read_at(&mut bytes, number.checked_mul(8)?).ok()? / 8;
        let (words, _) = bytes.as_chunks::<8>();
        *ahead = ReadAhead {
            first: number,
            entries: std::array::from_fn(|index| u64::from_le_bytes(words[index])),
            next: 1,
            count,
        };
        (count > 0).then_some(ahead.entries[0])
    }
}

fn is_there(entry: u64, access: Access) -> bool {
    entry & PRESENT != 0 && (access == Access::Read || entry & (EXCLUSIVE | FILE_OR_SHARED) != 0)
}
