//! Mappings: owned memory, populated at creation.

use std::fmt;
use std::fs;
use std::ops::{Deref, DerefMut, Range};
use std::path::Path;
use std::slice;

use libc::c_int;

use super::reservation::Reservation;
use super::syscall::page_bytes;
use super::{Binding, MemoryError, Moved};
use crate::topology::Machine;

/// Options of a [`Mapping`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingOptions {
    /// The nodes of its pages.
    pub binding: Binding,
    /// The kind of pages.
    pub huge_pages: HugePages,
    /// Whether all pages are populated at creation.
    ///
    /// Otherwise each is populated on first touch, without a check of free memory: a page of a bound mapping comes from
    /// another node if its own is full, and the OOM killer runs if the machine is full.
    /// [`Placement::of`](super::Placement::of) shows the nodes; [`Mapping::populate`] populates later.
    pub populate: bool,
}

impl Default for MappingOptions {
    fn default() -> MappingOptions {
        MappingOptions { binding: Binding::Any, huge_pages: HugePages::Advised, populate: true }
    }
}

impl From<Binding> for MappingOptions {
    fn from(binding: Binding) -> MappingOptions {
        MappingOptions { binding, ..MappingOptions::default() }
    }
}

/// Whether memory of 2 MiB and more uses transparent huge pages.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HugePages {
    /// Huge pages where available, otherwise small pages.
    #[default]
    Advised,
    /// Small pages only, which makes interleaving exact.
    Never,
    /// The setting of the system: `/sys/kernel/mm/transparent_hugepage/enabled`.
    AsSystem,
}

impl HugePages {
    /// Whether the system's settings give huge pages to new memory. `root` is `/`.
    ///
    /// Source: Linux `Documentation/admin-guide/mm/transhuge.rst`.
    pub(super) fn come(self, root: &Path) -> bool {
        let read = |file: &str| fs::read_to_string(root.join(THP).join(file)).ok();
        // Since Linux 6.8 the size has a setting of its own.
        let own = read("hugepages-2048kB/enabled").filter(|text| !text.contains("[inherit]"));
        let setting = own.or_else(|| read("enabled")).unwrap_or_default();
        match self {
            HugePages::Never => false,
            HugePages::Advised => setting.contains("[always]") || setting.contains("[madvise]"),
            HugePages::AsSystem => setting.contains("[always]"),
        }
    }

    pub(super) fn advice(self) -> Option<c_int> {
        match self {
            HugePages::Advised => Some(libc::MADV_HUGEPAGE),
            HugePages::Never => Some(libc::MADV_NOHUGEPAGE),
            HugePages::AsSystem => None,
        }
    }
}

const THP: &str = "sys/kernel/mm/transparent_hugepage";

/// Owned anonymous memory: page-aligned, zeroed, and populated by default; unmapped on drop.
///
/// From 2 MiB on it is aligned to huge pages. Moving or sharing the value does not move the bytes.
pub struct Mapping {
    pages: Reservation,
    size_bytes: usize,
}

impl Mapping {
    /// Maps and populates `size_bytes`, with huge pages where available.
    ///
    /// Cost: a page fault and the zeroing for each page, so about the time of writing all bytes.
    ///
    /// # Errors
    /// Those of [`with`](Mapping::with).
    pub fn new(machine: &Machine, size_bytes: usize, binding: Binding) -> Result<Mapping, MemoryError> {
        Mapping::with(machine, size_bytes, binding.into())
    }

    /// Maps `size_bytes` with options.
    ///
    /// # Errors
    /// Before anything was touched: [`MemoryError::Topology`] for an unknown node, [`NodeWithoutMemory`],
    /// [`NotAllowed`], [`NoNodes`] for an empty set, [`Unsupported`] on an old kernel. While pages are populated:
    /// [`NoRoom`], [`Misplaced`] if a bound node filled up meanwhile, [`Reclaimed`] if pages did not stay, [`Refused`]
    /// otherwise. Nothing stays allocated.
    ///
    /// [`NodeWithoutMemory`]: MemoryError::NodeWithoutMemory
    /// [`NotAllowed`]: MemoryError::NotAllowed
    /// [`NoNodes`]: MemoryError::NoNodes
    /// [`Unsupported`]: MemoryError::Unsupported
    /// [`NoRoom`]: MemoryError::NoRoom
    /// [`Misplaced`]: MemoryError::Misplaced
    /// [`Reclaimed`]: MemoryError::Reclaimed
    /// [`Refused`]: MemoryError::Refused
    pub fn with(
        machine: &Machine,
        size_bytes: usize,
        options: MappingOptions,
    ) -> Result<Mapping, MemoryError> {
        let MappingOptions { binding, huge_pages, populate } = options;
        let pages = Reservation::new(machine, size_bytes, binding, huge_pages)?;
        if populate {
            // SAFETY: the reservation is new, so nobody uses it. On an error it is dropped, with its pages.
            unsafe { pages.fill(machine, &(0..pages.size_bytes()), true)? };
        }
        Ok(Mapping { pages, size_bytes })
    }

    /// Populates the missing pages. Moves pages of a bound mapping that are on other nodes. Content is kept.
    ///
    /// `machine` is the one that the mapping was made for.
    ///
    /// # Errors
    /// [`OtherMachine`](MemoryError::OtherMachine), [`NoRoom`](MemoryError::NoRoom),
    /// [`NotMoved`](MemoryError::NotMoved) if a bound node filled up meanwhile,
    /// [`Reclaimed`](MemoryError::Reclaimed), [`Refused`](MemoryError::Refused). Content is intact, and populated
    /// pages stay.
    pub fn populate(&mut self, machine: &Machine) -> Result<(), MemoryError> {
        // SAFETY: `self` is borrowed exclusively, so nobody writes.
        unsafe { self.pages.complete(machine) }
    }

    /// Changes the binding, and moves existing pages to their new nodes.
    ///
    /// [`Binding::Bind`] moves all of them, or fails. The other bindings move pages while there is room;
    /// [`Moved::pages_elsewhere_count`] is the number of the others. Interleaving checks the room for each node's share in
    /// advance. [`Binding::Any`] moves none. Pages that are populated later follow the new binding.
    ///
    /// Cost: the kernel visits each existing page twice (before Linux 6.7 each address of a page), and copies the moved
    /// ones. The former nodes are recorded until the end.
    ///
    /// # Errors
    /// Those of [`with`](Mapping::with) on nodes, [`OtherMachine`](MemoryError::OtherMachine) unless `machine` is
    /// the one that the mapping was made for, [`NoRoom`](MemoryError::NoRoom) before anything was moved,
    /// [`NotMoved`](MemoryError::NotMoved) if a bound node filled up meanwhile. Content and binding are unchanged, and
    /// moved pages are moved back as far as there is room.
    pub fn rebind(&mut self, machine: &Machine, binding: Binding) -> Result<Moved, MemoryError> {
        self.pages.rebind(machine, binding)
    }

    /// Frees the whole pages in a range. Their bytes are 0 then, and pages again once they are touched.
    ///
    /// For memory whose parts have owners of their own. A part of a huge page is freed when the rest is, or when the
    /// kernel needs memory.
    ///
    /// # Errors
    /// [`Refused`](MemoryError::Refused): the pages stay, for example because they are locked.
    ///
    /// # Panics
    /// If the range ends after the mapping.
    ///
    /// # Safety
    /// Nobody uses the bytes of the range or relies on their content.
    pub unsafe fn discard(&self, bytes: Range<usize>) -> Result<(), MemoryError> {
        assert!(bytes.end <= self.size_bytes, "{bytes:?} ends after a mapping of {} bytes", self.size_bytes);
        let (start, end) = (bytes.start.next_multiple_of(page_bytes()), bytes.end);
        // The last page has nothing after the end of the mapping.
        let end = if end == self.size_bytes { self.pages.size_bytes() } else { end - end % page_bytes() };
        if start >= end {
            return Ok(());
        }
        // SAFETY: the pages hold no other bytes than those of the range, which is the caller's promise.
        unsafe { self.pages.discard(start..end) }
            .map_err(|source| MemoryError::refused("madvise", end - start, source))
    }

    /// The requested binding, without effect for another machine.
    pub fn binding(&self) -> &Binding {
        &self.pages.binding
    }

    /// A pointer to the first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.pages.start().as_ptr()
    }

    /// A mutable pointer to the first byte.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.pages.start().as_ptr()
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `size_bytes` initialised bytes (the kernel zeroes them) live as long as `self`, and while
        // it is borrowed nobody writes to them.
        unsafe { slice::from_raw_parts(self.as_ptr(), self.size_bytes) }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.as_mut_ptr(), self.size_bytes) }
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Mapping {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mapping { pages, size_bytes } = self;
        f.debug_struct("Mapping").field("size_bytes", size_bytes).field("binding", &pages.binding).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_of_a_range_are_discarded() {
        let machine = Machine::discover().unwrap();
        let page = page_bytes();
        let mut mapping = Mapping::new(&machine, 4 * page + 100, Binding::Any).unwrap();
        mapping.fill(7);
        let zeros = |mapping: &Mapping| mapping.iter().filter(|&&byte| byte == 0).count();
        // SAFETY: the bytes are the test's own, and no slice of them is alive.
        let discard = |mapping: &Mapping, bytes| unsafe { mapping.discard(bytes) }.unwrap();
        discard(&mapping, 1..2 * page - 1);
        assert_eq!(zeros(&mapping), 0, "no whole page");
        discard(&mapping, page - 1..2 * page);
        assert_eq!(zeros(&mapping), page);
        assert!(mapping[..page].iter().chain(&mapping[2 * page..]).all(|&byte| byte == 7));
        discard(&mapping, 4 * page..4 * page + 100);
        assert_eq!(zeros(&mapping), page + 100, "the last page has nothing else");
    }

    #[test]
    fn huge_pages_follow_the_settings_of_the_system() {
        let root = tempfile::tempdir().unwrap();
        let come =
            || [HugePages::Never, HugePages::Advised, HugePages::AsSystem].map(|huge| huge.come(root.path()));
        assert_eq!(come(), [false; 3]);
        let own = root.path().join(THP).join("hugepages-2048kB");
        fs::create_dir_all(&own).unwrap();
        for (all, size, expected) in [
            ("always madvise [never]", None, [false; 3]),
            ("always [madvise] never", None, [false, true, false]),
            ("[always] madvise never", None, [false, true, true]),
            ("[always] madvise never", Some("always [inherit] madvise never"), [false, true, true]),
            ("[always] madvise never", Some("always inherit madvise [never]"), [false; 3]),
            ("always madvise [never]", Some("always inherit [madvise] never"), [false, true, false]),
        ] {
            fs::write(root.path().join(THP).join("enabled"), all).unwrap();
            size.inspect(|size| fs::write(own.join("enabled"), size).unwrap());
            assert_eq!(come(), expected, "{all} {size:?}");
        }
    }
}
