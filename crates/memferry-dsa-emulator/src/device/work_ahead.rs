//! Work ahead: an engine reads for the next descriptor while the current one still writes.
//!
//! Silicon has several descriptors in progress in each engine. For one queue and one engine it promises the order of
//! writes only; a later read may pass an earlier write. So the writes of work ahead are buffered until its turn:
//!
//! ```text
//! current:  read ... write ... write ... record
//! ahead:      read ... (write buffered) ... read ...  | its turn: buffered writes, then it continues normally
//! ```
//!
//! For a descriptor of another queue the specification promises no order, and its writes are not buffered.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 3.9 (ordering).

use std::cell::RefCell;

use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::{Address, Completion};

use crate::device::job::Job;
use crate::memory::{Access, Memory, Vanished};

/// A descriptor that an engine works on ahead of its turn.
pub(crate) struct WorkAhead {
    pub(crate) job: Job,
    /// Its writes are buffered: it came through the same queue as the current descriptor.
    pub(crate) is_held: bool,
    /// It cannot be started before its turn: a batch, or a drain.
    pub(crate) is_parked: bool,
    pub(crate) completion: Option<Completion>,
    pub(crate) writes: RefCell<Vec<Write>>,
}

/// A buffered write.
#[derive(Debug)]
pub(crate) struct Write {
    address: Address,
    bytes: Vec<u8>,
}

impl WorkAhead {
    pub(crate) fn new(job: Job, is_held: bool) -> WorkAhead {
        WorkAhead { job, is_held, is_parked: false, completion: None, writes: RefCell::default() }
    }

    /// Performs the buffered writes.
    ///
    /// # Errors
    /// [`Vanished`]: a page has vanished since its translation; the writes before it are done.
    pub(crate) fn release(&mut self, memory: &impl Memory) -> Result<(), Vanished> {
        for write in self.writes.get_mut().drain(..) {
            let last = write.address.offset(write.bytes.len() as u64 - 1).page();
            let mut page = write.address.page();
            loop {
                if !memory.is_present(page, Access::Write) && !memory.request_page(page, Access::Write) {
                    return Err(Vanished { page, access: Access::Write, bytes_done: 0 });
                }
                if page == last {
                    break;
                }
                page = page.offset(PAGE_BYTES);
            }
            memory.write(write.address, &write.bytes)?;
        }
        Ok(())
    }
}

/// A store buffer in front of a memory. Operations never read their own writes: overlapping regions are copied from the
/// side where that cannot happen.
pub(crate) struct WriteBuffer<'a, M> {
    pub(crate) memory: &'a M,
    pub(crate) writes: &'a RefCell<Vec<Write>>,
}

impl<M: Memory> Memory for WriteBuffer<'_, M> {
    fn is_present(&self, page: Address, access: Access) -> bool {
        self.memory.is_present(page, access)
    }

    fn request_page(&self, page: Address, access: Access) -> bool {
        self.memory.request_page(page, access)
    }

    fn read(&self, address: Address, bytes: &mut [u8]) -> Result<(), Vanished> {
        self.memory.read(address, bytes)
    }

    fn write(&self, address: Address, bytes: &[u8]) -> Result<(), Vanished> {
        self.writes.borrow_mut().push(Write { address, bytes: bytes.to_vec() });
        Ok(())
    }

    fn copy(&self, source: Address, target: Address, size_bytes: usize) -> Result<(), Vanished> {
        let mut bytes = vec![0; size_bytes];
        self.memory.read(source, &mut bytes)?;
        self.writes.borrow_mut().push(Write { address: target, bytes });
        Ok(())
    }

    fn flush(&self, address: Address, size_bytes: usize) {
        self.memory.flush(address, size_bytes);
    }
}
