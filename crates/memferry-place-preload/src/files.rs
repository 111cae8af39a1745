//! Mapped files: interleaved in the page cache, or copied to the node of this process.
//!
//! The kernel ignores the policy of a mapping when it reads a file into the page cache; the policy of the reading thread
//! counts, and pages of an earlier run stay where they are. So an interleaved file is read at once, stripe by stripe:
//!
//! ```text
//! for each stripe: set_mempolicy(its node), MADV_POPULATE_READ      pages that are not cached yet
//! for each page on another node: move_pages                         pages of an earlier run, if no other process maps them
//! ```
//!
//! A replica is anonymous memory with the content of the file. It does not see later changes of the file, so the file must
//! not be open for writing.
//!
//! Source: `filemap_alloc_folio` in Linux mm/filemap.c; move_pages(2).

use std::ffi::CStr;
use std::io::Write;
use std::sync::atomic::Ordering;

use libc::{c_int, off_t};

use crate::counts::COUNTS;
use crate::policy::{self, HAS_DEVICE};
use crate::settings::{Policy, Settings};
use crate::stripes::Stripes;
use crate::sys::{self, Mode, Nodes, PAGE};

/// Devices that read and write the memory of a process: GPUs, network adapters, accelerators, passed-through devices.
const DEVICES: [&[u8]; 7] = [
    b"/dev/nvidia",
    b"/dev/kfd",
    b"/dev/dri/",
    b"/dev/infiniband/",
    b"/dev/vfio/",
    b"/dev/accel/",
    b"/dev/habanalabs",
];

/// A new mapping of a file.
#[derive(Clone, Copy)]
pub(crate) struct Mapped {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    pub(crate) protection: c_int,
    pub(crate) flags: c_int,
    pub(crate) file: c_int,
    pub(crate) offset: off_t,
}

/// Places a file that was just mapped.
pub(crate) fn place(mapped: Mapped) {
    let Some(settings) = policy::settings() else { return };
    let Some(status) = sys::status(mapped.file) else { return };
    let kind = status.st_mode & libc::S_IFMT;
    let is_wanted =
        kind == libc::S_IFREG && mapped.bytes >= settings.size_bytes_min && !settings.files.is_empty();
    if kind != libc::S_IFCHR && !is_wanted {
        return;
    }
    let (mut link, mut path) = ([0; 40], [0; libc::PATH_MAX as usize]);
    let Some(path) = path_of(mapped.file, &mut link, &mut path) else { return };
    if kind == libc::S_IFCHR {
        if DEVICES.iter().any(|prefix| path.starts_with(prefix)) {
            HAS_DEVICE.store(true, Ordering::Relaxed);
        }
        return;
    }
    let policy = settings.of_file(path);
    if policy == Policy::Leave || policy::is_left_alone(settings, mapped.bytes) {
        return;
    }
    match policy {
        Policy::Replicate => replicate(settings, mapped, status.st_size as usize),
        Policy::FirstTouch => {
            // Read-ahead would place pages by the first reader of their neighbours.
            // SAFETY: this advice changes no content.
            match unsafe { sys::advise(mapped.start, mapped.bytes, libc::MADV_RANDOM) } {
                Ok(()) => COUNTS.files.add(mapped.bytes),
                Err(errno) => COUNTS.refuse(mapped.bytes, errno),
            }
        }
        _ => interleave(settings, mapped, status.st_size as usize),
    }
}

fn path_of<'a>(file: c_int, link: &mut [u8; 40], path: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut rest = &mut link[..];
    write!(rest, "/proc/self/fd/{file}\0").ok()?;
    sys::read_link(CStr::from_bytes_until_nul(link).ok()?, path)
}

/// The bytes of the file in a mapping, in whole pages.
fn whole_pages(mapped: Mapped, file_bytes: usize) -> usize {
    let behind = file_bytes.saturating_sub(mapped.offset as usize).next_multiple_of(PAGE);
    mapped.bytes.next_multiple_of(PAGE).min(behind)
}

fn interleave(settings: &Settings, mapped: Mapped, file_bytes: usize) {
    let bytes = whole_pages(mapped, file_bytes);
    if mapped.protection & libc::PROT_READ == 0 || bytes == 0 {
        return;
    }
    let free: usize = settings.weights.iter().filter_map(|&(node, _)| room(node)).sum();
    if bytes > free {
        COUNTS.without_room.add(bytes);
        return;
    }
    // Stripes of files are no mappings of their own, so there may be many.
    let stripes = Stripes::new(mapped.start, mapped.start + bytes, &settings.weights, usize::MAX);
    let populate = |(from, to, node): (usize, usize, u32)| {
        sys::set_policy(Mode::Preferred, &Nodes::of([node]))?;
        // SAFETY: populating changes no content. The file may have become shorter: then it is an error, and no signal.
        unsafe { sys::advise(from, to - from, libc::MADV_POPULATE_READ) }
    };
    let answer = stripes.iter().try_for_each(populate);
    // The thread had no policy: `is_left_alone` has looked.
    let restored = sys::set_policy(Mode::Default, &Nodes::NONE);
    match answer.and(restored) {
        Ok(()) => {
            stripes.iter().for_each(|(from, to, node)| move_strays(from, to, node as c_int));
            COUNTS.files.add(bytes);
        }
        Err(errno) => COUNTS.refuse(bytes, errno),
    }
}

/// Moves the pages of a stripe that are on other nodes. The summary shows those that cannot be moved.
fn move_strays(from: usize, to: usize, node: c_int) {
    const BATCH: usize = 256;
    let mut at = from;
    while at < to {
        let count = ((to - at) / PAGE).min(BATCH);
        let mut pages = [0; BATCH];
        pages[..count].iter_mut().enumerate().for_each(|(index, page)| *page = at + index * PAGE);
        at += count * PAGE;
        let mut nodes = [-1; BATCH];
        if !sys::nodes_of(&pages[..count], &mut nodes[..count]) {
            return;
        }
        let mut strays = 0;
        for index in 0..count {
            if nodes[index] >= 0 && nodes[index] != node {
                pages[strays] = pages[index];
                strays += 1;
            }
        }
        if strays > 0 {
            let targets = [node; BATCH];
            sys::move_pages(&pages[..strays], &targets[..strays], &mut nodes[..strays]);
        }
    }
}

fn replicate(settings: &Settings, mapped: Mapped, file_bytes: usize) {
    let bytes = mapped.bytes.next_multiple_of(PAGE);
    let is_read_only = mapped.protection & (libc::PROT_WRITE | libc::PROT_EXEC) == 0
        && mapped.protection & libc::PROT_READ != 0
        && sys::file_flags(mapped.file).is_some_and(|flags| flags & libc::O_ACCMODE == libc::O_RDONLY);
    // Beyond the end of the file an access is an error, which a copy would hide.
    let is_whole = whole_pages(mapped, file_bytes) == bytes;
    if !is_read_only || !is_whole || sys::has_writers(mapped.file) == Some(true) {
        COUNTS.writable.add(bytes);
        return;
    }
    let of_thread = |thread| sys::cpus(thread).and_then(|cpus| settings.near_node(&cpus));
    // Threads inherit their CPUs from the thread that starts them, and the first thread has the id of the process.
    let node = of_thread(0).filter(|&node| of_thread(sys::process()) == Some(node));
    let Some(node) = node else {
        COUNTS.unconfined.add(bytes);
        return;
    };
    if room(node).is_none_or(|free| bytes > free) {
        COUNTS.without_room.add(bytes);
        return;
    }
    match copy(mapped, bytes, node) {
        Ok(()) => COUNTS.replicas.add(bytes),
        Err(errno) => COUNTS.refuse(bytes, errno),
    }
}

/// Replaces the mapping by a copy on a node.
fn copy(mapped: Mapped, bytes: usize, node: u32) -> Result<(), c_int> {
    let Mapped { start, protection, flags, file, offset, .. } = mapped;
    let replace = |protection, flags, file, offset| {
        // SAFETY: it replaces a mapping whose address the program does not know yet.
        let answer = unsafe { sys::mmap(start, bytes, protection, flags | libc::MAP_FIXED, file, offset) };
        if answer == start as isize { Ok(()) } else { Err(-answer as c_int) }
    };
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    replace(libc::PROT_READ | libc::PROT_WRITE, anonymous, -1, 0)?;
    let filled = sys::bind(start, bytes, Mode::Preferred, &Nodes::of([node]), false).and_then(|()| {
        let mut done = 0;
        while done < bytes {
            // SAFETY: inside the new mapping.
            match unsafe { sys::read_at(file, start + done, bytes - done, offset as usize + done) } {
                // The rest of the last page is zero, as in a mapping.
                0 if bytes - done < PAGE => break,
                0 => return Err(libc::EIO),
                count if count > 0 => done += count as usize,
                error if error == -(libc::EINTR as isize) => {}
                error => return Err(-error as c_int),
            }
        }
        // SAFETY: the mapping is this function's, and gets the rights that the program has requested.
        let answer = unsafe { sys::call(libc::SYS_mprotect, [start, bytes, protection as usize, 0, 0, 0]) };
        if answer == 0 { Ok(()) } else { Err(-answer as c_int) }
    });
    if filled.is_err() {
        replace(protection, flags & !libc::MAP_FIXED_NOREPLACE, file, offset as usize)?;
    }
    filled
}

/// The bytes that a node can take: free ones, and cached ones of files that were not used lately, less a spare of a 16th
/// of the node. `None`: the kernel does not tell.
fn room(node: u32) -> Option<usize> {
    meminfo(node, room_in)
}

/// The bytes of a node.
pub(crate) fn size(node: u32) -> Option<usize> {
    meminfo(node, |text| bytes_of(text, "MemTotal:"))
}

fn meminfo(node: u32, read: impl Fn(&str) -> Option<usize>) -> Option<usize> {
    let (mut name, mut text) = ([0; 64], [0; 4096]);
    let mut rest = &mut name[..];
    write!(rest, "/sys/devices/system/node/node{node}/meminfo\0").ok()?;
    let text = policy::read_start(CStr::from_bytes_until_nul(&name).ok()?, &mut text)?;
    read(std::str::from_utf8(text).ok()?)
}

fn room_in(meminfo: &str) -> Option<usize> {
    let (free, total) = (bytes_of(meminfo, "MemFree:")?, bytes_of(meminfo, "MemTotal:")?);
    Some((free + bytes_of(meminfo, "Inactive(file):").unwrap_or(0)).saturating_sub(total / 16))
}

/// A line `Node 0 MemFree:         123 kB`, in bytes.
fn bytes_of(meminfo: &str, key: &str) -> Option<usize> {
    let line = meminfo.lines().find(|line| line.split_whitespace().nth(2) == Some(key))?;
    line.split_whitespace().nth(3)?.parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_leaves_a_spare() {
        let text = "Node 3 MemTotal:       16000 kB\nNode 3 MemFree:         5000 kB\nNode 3 Inactive(file):  500 kB\n";
        assert_eq!(room_in(text), Some((5500 - 1000) << 10));
        assert_eq!(room_in(&text.replace("5000", "200")), Some(0));
        assert_eq!(room_in("Node 3 MemTotal: 1 kB"), None);
        assert!(room(0).is_some_and(|bytes| bytes > 0), "this machine has a node 0 with free memory");
        assert_eq!(room(1023), None);
    }

    #[test]
    fn mappings_end_with_the_file() {
        let mapped = |bytes, offset| Mapped { start: 0, bytes, protection: 0, flags: 0, file: -1, offset };
        assert_eq!(whole_pages(mapped(3 * PAGE, 0), 2 * PAGE + 1), 3 * PAGE);
        assert_eq!(whole_pages(mapped(4 * PAGE, 0), 2 * PAGE + 1), 3 * PAGE);
        assert_eq!(whole_pages(mapped(PAGE, 4 * PAGE as off_t), 2 * PAGE), 0);
        assert_eq!(whole_pages(mapped(100, PAGE as off_t), 2 * PAGE), PAGE);
    }
}
