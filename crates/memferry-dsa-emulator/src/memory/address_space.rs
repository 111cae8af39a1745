//! The address space of another process, for a server that executes the descriptors of that process.
//!
//! A process id does not identify memory: `execve(2)` gives a process new memory, possibly of a setuid program, and
//! Linux reuses the ids of processes that have ended. The files of `/proc` for an address space are bound to it when
//! they are opened, and are empty once no process has it any more:
//!
//! ```text
//! presence     pagemap: see `PageMap`
//! protection   maps: of a mapping, which `mem` ignores (PROCMAP_QUERY; the text before Linux 6.11)
//! access       mem: an access to an absent page makes the kernel bring it in
//! ```
//!
//! The process may change the protection between the check and the access. Then the access fails, or reaches a private
//! page that the process could access just before: the kernel ignores the protection of private mappings only. Shadow
//! stacks count as writable memory.
//!
//! Source: proc_pid_mem(5), proc_pid_maps(5); `mem_rw` in Linux' `fs/proc/base.c`, `check_vma_flags` in `mm/gup.c`;
//! PROCMAP_QUERY in `include/uapi/linux/fs.h`.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::{Address, Completion};

use super::page_map::PageMap;
use super::{Access, Memory, Vanished, copy_by_pages};
use crate::procfs::Status;

/// The address space of another process. It stays the same if the process executes another program or ends.
///
/// ```no_run
/// use memferry_dsa_emulator::AddressSpace;
///
/// let space = AddressSpace::of_thread(4711)?;
/// // SAFETY: process 4711 is another one, and has submitted the descriptors.
/// let memory = unsafe { space.memory() };
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AddressSpace(Arc<Files>);

#[derive(Debug)]
struct Files {
    mem: File,
    page_map: Arc<File>,
    /// The lock protects the position in the file, which reading the text uses.
    maps: Mutex<File>,
}

impl AddressSpace {
    /// Opens the current address space of a thread. A thread that waits for the answer to a FUSE request keeps its
    /// address space meanwhile.
    ///
    /// # Errors
    /// The thread does not exist, it has no memory (any more), or this process may not trace it.
    pub fn of_thread(thread: u32) -> io::Result<AddressSpace> {
        let open = |name: &str, is_written: bool| {
            File::options().read(true).write(is_written).open(format!("/proc/{thread}/{name}"))
        };
        let mut maps = open("maps", false)?;
        if !knows_query() {
            // The text is readable until the thread of the file ends. The first thread usually ends last.
            let process = Status::of(thread)?.ok_or(ErrorKind::NotFound)?.process;
            maps = File::open(format!("/proc/{process}/maps")).unwrap_or(maps);
        }
        let page_map = Arc::new(open("pagemap", false)?);
        Ok(AddressSpace(Arc::new(Files { mem: open("mem", true)?, page_map, maps: Mutex::new(maps) })))
    }

    /// Whether a process still has the address space. Once none has it, none ever has it again.
    pub fn is_alive(&self) -> bool {
        // A read of less than an entry is an error; the end of the file means that no process has the address space.
        // Neither takes a lock of the address space, as a read of `mem` would: one of its threads could hold that
        // forever.
        !matches!(self.0.page_map.read_at(&mut [0], 0), Ok(0))
    }

    /// The memory, for a device.
    ///
    /// # Safety
    /// This is not the address space of this process. Programs with this address space have submitted the descriptors
    /// that a device processes over the memory.
    pub unsafe fn memory(&self) -> ProcessMemory {
        ProcessMemory { space: self.clone(), page_map: PageMap::new(Arc::clone(&self.0.page_map)) }
    }

    /// The number of bytes at an address that the protection allows to access, up to `size_bytes`.
    fn accessible(&self, access: Access, address: Address, size_bytes: usize) -> usize {
        let end = address.0.saturating_add(size_bytes as u64);
        let mut known = address.0;
        while known < end {
            match self.mapping(Address(known)) {
                Some(mapping) if mapping.allows(access) && mapping.end > known => known = mapping.end,
                _ => break,
            }
        }
        (known.min(end) - address.0) as usize
    }

    /// The mapping that contains an address.
    fn mapping(&self, address: Address) -> Option<MappedRange> {
        let mut maps = self.0.maps.lock().unwrap_or_else(PoisonError::into_inner);
        match query(&maps, address) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                let mut text = String::new();
                maps.seek(SeekFrom::Start(0)).and_then(|_| maps.read_to_string(&mut text)).ok()?;
                find(&text, address)
            }
            answer => answer.ok(),
        }
    }
}

/// The end and the protection of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MappedRange {
    end: u64,
    is_readable: bool,
    is_writable: bool,
}

impl MappedRange {
    fn allows(&self, access: Access) -> bool {
        match access {
            Access::Read => self.is_readable,
            Access::Write => self.is_writable,
        }
    }
}

/// `struct procmap_query` of Linux' `include/uapi/linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64, // 0: the mapping that contains the address
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64, // 0 readable, 1 writable
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    device: [u32; 2],
    sizes: [u32; 2], // 0: neither name nor build id
    addresses: [u64; 2],
}

const _: () = assert!(size_of::<Query>() == 104);

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong = 3 << 30 | (size_of::<Query>() as libc::c_ulong) << 16 | 0x66 << 8 | 17;

/// # Errors
/// `ENOENT`: nothing is mapped there; `ESRCH`: no process has the address space; `ENOTTY`: before Linux 6.11.
fn query(maps: &File, address: Address) -> io::Result<MappedRange> {
    let mut query = Query { size: size_of::<Query>() as u64, query_addr: address.0, ..Query::default() };
    // SAFETY: the kernel reads and writes one structure of the given size, which has no pointers.
    if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &mut query) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let flag = |bit: u32| query.vma_flags >> bit & 1 == 1;
    Ok(MappedRange { end: query.vma_end, is_readable: flag(0), is_writable: flag(1) })
}

/// Whether the kernel has PROCMAP_QUERY. This tries it on its own process: another process may hold the lock of its
/// mappings forever.
fn knows_query() -> bool {
    static KNOWS: LazyLock<bool> = LazyLock::new(|| {
        let maps = File::open("/proc/self/maps");
        let error = maps.and_then(|maps| query(&maps, Address(0))).err();
        error.and_then(|error| error.raw_os_error()) != Some(libc::ENOTTY)
    });
    *KNOWS
}

/// Finds the mapping of an address in the text of `maps`: `START-END rwxp ...`, in hexadecimal digits.
fn find(text: &str, address: Address) -> Option<MappedRange> {
    text.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let [start, end] = [start, end].map(|number| u64::from_str_radix(number, 16));
        let (start, end) = (start.ok()?, end.ok()?);
        let flag = |at: usize, letter: u8| rest.as_bytes().get(at) == Some(&letter);
        let mapping = MappedRange { end, is_readable: flag(0, b'r'), is_writable: flag(1, b'w') };
        (start..end).contains(&address.0).then_some(mapping)
    })
}

/// The memory of another process.
///
/// An access to unmapped or protected memory is a page fault, as is every access once no process has the address space.
#[derive(Debug)]
pub struct ProcessMemory {
    space: AddressSpace,
    page_map: PageMap,
}

impl ProcessMemory {
    /// Makes an access in pieces; each call of `piece` returns the number of bytes that it has moved.
    fn access(
        &self,
        access: Access,
        address: Address,
        size_bytes: usize,
        mut piece: impl FnMut(&File, std::ops::Range<usize>, u64) -> io::Result<usize>,
    ) -> Result<(), Vanished> {
        let accessible = self.space.accessible(access, address, size_bytes);
        let mut bytes_done = 0;
        while bytes_done < accessible {
            match piece(&self.space.0.mem, bytes_done..accessible, address.0 + bytes_done as u64) {
                Ok(0) => break, // no process has the address space
                Ok(count) => bytes_done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        if bytes_done == size_bytes {
            return Ok(());
        }
        Err(Vanished { page: address.offset(bytes_done as u64).page(), access, bytes_done })
    }
}

impl Memory for ProcessMemory {
    /// Ignores the protection, which each access checks.
    fn is_present(&self, page: Address, access: Access) -> bool {
        self.page_map.has(page, access)
    }

    /// Makes the kernel bring the page in for reading. The later write itself resolves copy-on-write: writing back a
    /// byte here could undo a store of the process.
    fn request_page(&self, page: Address, access: Access) -> bool {
        self.space.accessible(access, page, PAGE_BYTES as usize) == PAGE_BYTES as usize
            && matches!(self.space.0.mem.read_at(&mut [0], page.0), Ok(1))
    }

    fn read(&self, address: Address, bytes: &mut [u8]) -> Result<(), Vanished> {
        self.access(Access::Read, address, bytes.len(), |mem, range, at| mem.read_at(&mut bytes[range], at))
    }

    fn write(&self, address: Address, bytes: &[u8]) -> Result<(), Vanished> {
        self.access(Access::Write, address, bytes.len(), |mem, range, at| mem.write_at(&bytes[range], at))
    }

    fn copy(&self, source: Address, target: Address, size_bytes: usize) -> Result<(), Vanished> {
        copy_by_pages(self, source, target, size_bytes)
    }

    /// Drops a record for an address space that no process has; this is no error of the device.
    fn publish(&self, record: Address, completion: &Completion) -> Result<(), Vanished> {
        let bytes = completion.to_bytes();
        let written = self.write(record.offset(1), &bytes[1..]).and_then(|()| {
            // ORDERING: the Release fence pairs with the Acquire in `CompletionRecord::poll`: a thread that sees the
            // status sees the data and the rest of the record, which earlier system calls have written.
            std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
            self.write(record, &bytes[..1])
        });
        if self.space.is_alive() { written } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kernels before Linux 6.11 only have the text.
    #[test]
    fn the_text_agrees_with_the_query() {
        let maps = File::open("/proc/self/maps").unwrap();
        if !knows_query() {
            return println!("skipped: this kernel has no PROCMAP_QUERY");
        }
        // Other threads map and unmap meanwhile, so only mappings that exist before and after are compared.
        let text = || std::fs::read_to_string("/proc/self/maps").unwrap();
        let (before, mut compared) = (text(), 0);
        let starts = before.lines().filter_map(|line| u64::from_str_radix(line.split('-').next()?, 16).ok());
        for address in starts.map(Address) {
            let answer = query(&maps, address).ok();
            if find(&before, address) == find(&text(), address) && find(&before, address) == answer {
                compared += 1;
            }
        }
        assert!(compared > 5, "{before}");
        assert_eq!(find(&before, Address(0x1000)), None);
        assert_eq!(find("1000-2000 -w-p 0 0:0 0\n", Address(0x2000)), None);
        let mapping = find("0-1000 r--p 0\n1000-2000 -w-p 0 0:0 0\n", Address(0x1fff)).unwrap();
        assert_eq!(mapping, MappedRange { end: 0x2000, is_readable: false, is_writable: true });
    }
}
