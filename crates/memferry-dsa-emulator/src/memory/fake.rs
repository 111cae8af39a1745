//! A sparse address space that detects forbidden accesses of a device.

use std::cell::RefCell;
use std::collections::BTreeMap;

use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::{Address, Completion};

use super::{Access, Memory, Vanished};

const PAGE: usize = PAGE_BYTES as usize;

/// A sparse address space of pages that are present, absent or not mapped.
///
/// Accesses of the device are recorded ([`visits`](Self::visits)) and checked: an access outside present pages panics,
/// because it is a bug of the device. Software on the other side uses `load`, `store` and `touch`, which bring pages in
/// as the operating system would.
///
/// ```
/// use memferry_dsa::Address;
/// use memferry_dsa_emulator::{Access, FakeMemory, Memory};
///
/// let memory = FakeMemory::new();
/// memory.map(Address(0x1000), 4096);
/// memory.page_out(Address(0x1000));
/// assert!(!memory.is_present(Address(0x1000), Access::Read));
/// memory.store(Address(0x1800), b"bytes"); // software touches the page
/// assert!(memory.is_present(Address(0x1000), Access::Read) && memory.visits().is_empty());
/// ```
#[derive(Debug, Default)]
pub struct FakeMemory {
    state: RefCell<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    pages: BTreeMap<Address, Page>,
    visits: Vec<Visit>,
}

#[derive(Debug)]
struct Page {
    bytes: Box<[u8; PAGE]>,
    is_present: bool,
    is_writable: bool,
}

/// One recorded access of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Visit {
    /// The kind of the access.
    pub access: Access,
    /// The first byte.
    pub address: Address,
    /// The number of bytes.
    pub size_bytes: usize,
}

impl FakeMemory {
    /// An address space with nothing in it.
    pub fn new() -> FakeMemory {
        FakeMemory::default()
    }

    /// Maps zeroed, present, writable pages for the region.
    ///
    /// # Panics
    /// If the region is empty, or touches the first or the last page of the address space.
    pub fn map(&self, address: Address, size_bytes: usize) {
        assert!(size_bytes > 0, "mapping an empty region");
        let last = address.0.checked_add(size_bytes as u64 - 1).map(|last| Address(last).page());
        let last = last.expect("mapping a region that wraps");
        assert!(
            address.0 >= PAGE_BYTES && last != Address(u64::MAX).page(),
            "mapping the first or the last page"
        );
        let mut state = self.state.borrow_mut();
        for page in (address.page().0..=last.0).step_by(PAGE) {
            let new = Page { bytes: Box::new([0; PAGE]), is_present: true, is_writable: true };
            state.pages.entry(Address(page)).or_insert(new);
        }
    }

    /// Makes a mapped page absent for the device until software touches it or the device requests it.
    pub fn page_out(&self, address: Address) {
        self.with_page(address, |page| page.is_present = false);
    }

    /// Makes a mapped page read-only.
    pub fn write_protect(&self, address: Address) {
        self.with_page(address, |page| page.is_writable = false);
    }

    /// Software touches a page, which brings it in if it is mapped.
    pub fn touch(&self, address: Address) {
        if let Some(page) = self.state.borrow_mut().pages.get_mut(&address.page()) {
            page.is_present = true;
        }
    }

    /// Software reads mapped memory.
    pub fn load(&self, address: Address, size_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; size_bytes];
        self.state.borrow_mut().each_piece(address, size_bytes, |page, range, at| {
            page.is_present = true;
            bytes[at..at + range.len()].copy_from_slice(&page.bytes[range]);
        });
        bytes
    }

    /// Software writes mapped memory.
    pub fn store(&self, address: Address, bytes: &[u8]) {
        self.state.borrow_mut().each_piece(address, bytes.len(), |page, range, at| {
            page.is_present = true;
            let piece = &bytes[at..at + range.len()];
            page.bytes[range].copy_from_slice(piece);
        });
    }

    /// The completion in the record at `address`, if the device has written it.
    pub fn poll(&self, address: Address) -> Option<Completion> {
        let bytes: [u8; 32] = self.load(address, 32).try_into().expect("32 bytes");
        Completion::from_bytes(&bytes)
    }

    /// The accesses of the device, in order.
    pub fn visits(&self) -> Vec<Visit> {
        self.state.borrow().visits.clone()
    }

    fn with_page(&self, address: Address, change: impl FnOnce(&mut Page)) {
        let mut state = self.state.borrow_mut();
        change(state.pages.get_mut(&address.page()).unwrap_or_else(|| panic!("{address:?} is not mapped")));
    }

    /// Records, checks and performs one access of the device.
    fn visit(
        &self,
        access: Access,
        address: Address,
        size_bytes: usize,
        mut each: impl FnMut(&mut Page, std::ops::Range<usize>, usize),
    ) {
        let mut state = self.state.borrow_mut();
        state.visits.push(Visit { access, address, size_bytes });
        state.each_piece(address, size_bytes, |page, range, at| {
            assert!(page.allows(access), "the device accessed {address:?}, which is not present: {access:?}");
            each(page, range, at);
        });
    }
}

impl Pages {
    /// Calls `each` with every page of the region, the range in the page, and the offset in the region.
    fn each_piece(
        &mut self,
        address: Address,
        size_bytes: usize,
        mut each: impl FnMut(&mut Page, std::ops::Range<usize>, usize),
    ) {
        let mut at = 0;
        while at < size_bytes {
            let here = address.offset(at as u64);
            let start = (here.0 - here.page().0) as usize;
            let end = PAGE.min(start + size_bytes - at);
            let page = self.pages.get_mut(&here.page()).unwrap_or_else(|| panic!("{here:?} is not mapped"));
            each(page, start..end, at);
            at += end - start;
        }
    }
}

impl Page {
    fn allows(&self, access: Access) -> bool {
        self.is_present && (access == Access::Read || self.is_writable)
    }
}

impl Memory for FakeMemory {
    fn is_present(&self, page: Address, access: Access) -> bool {
        self.state.borrow().pages.get(&page).is_some_and(|page| page.allows(access))
    }

    fn request_page(&self, page: Address, access: Access) -> bool {
        self.touch(page);
        self.is_present(page, access)
    }

    fn read(&self, address: Address, bytes: &mut [u8]) -> Result<(), Vanished> {
        self.visit(Access::Read, address, bytes.len(), |page, range, at| {
            bytes[at..at + range.len()].copy_from_slice(&page.bytes[range]);
        });
        Ok(())
    }

    fn write(&self, address: Address, bytes: &[u8]) -> Result<(), Vanished> {
        self.visit(Access::Write, address, bytes.len(), |page, range, at| {
            let piece = &bytes[at..at + range.len()];
            page.bytes[range].copy_from_slice(piece);
        });
        Ok(())
    }

    fn copy(&self, source: Address, target: Address, size_bytes: usize) -> Result<(), Vanished> {
        let mut bytes = vec![0; size_bytes];
        self.read(source, &mut bytes)?;
        self.write(target, &bytes)
    }

    /// Recorded as a read.
    fn flush(&self, address: Address, size_bytes: usize) {
        self.visit(Access::Read, address, size_bytes, |_, _, _| {});
    }
}
