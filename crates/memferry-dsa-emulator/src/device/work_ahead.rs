//! Work ahead: an engine reads for the next descriptor while the one at hand still writes.
//!
//! Silicon has several descriptors in progress in each engine. What it promises for one queue and one engine is the
//! order of writes; a later read may pass an earlier write. So the writes of work ahead are held back until its turn:
//!
//! ```text
//! at hand:  read ... write ... write ... record
//! ahead:      read ... (write held) ... read ...  | its turn: held writes, then it goes on as any other
//! ```
//!
//! For a descriptor of another queue nothing is promised, and nothing is held back.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 3.9 (ordering).

use std::cell::RefCell;

use memferry_dsa::{Address, Completion, PAGE_BYTES};

use crate::device::job::Job;
use crate::memory::{Access, Memory, Vanished};

/// A descriptor that an engine works on ahead of its turn.
pub(crate) struct WorkAhead {
    pub(crate) job: Job,
    /// Its writes are held back: it came through the same queue as the descriptor at hand.
    pub(crate) is_held: bool,
    /// It cannot be started before its turn: a batch, or a drain.
    pub(crate) is_parked: bool,
    pub(crate) ended: Option<Completion>,
    pub(crate) writes: RefCell<Vec<Write>>,
}

/// A write that is held back.
#[derive(Debug)]
pub(crate) struct Write {
    address: Address,
    bytes: Vec<u8>,
}

impl WorkAhead {
    pub(crate) fn new(job: Job, is_held: bool) -> WorkAhead {
        WorkAhead { job, is_held, is_parked: false, ended: None, writes: RefCell::default() }
    }

    /// Does the writes that were held back.
    ///
    /// # Errors
    /// A page has gone since it was translated; the writes before are done.
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

/// Memory whose writes are held back. No operation reads what it has written itself: regions that overlap are copied
/// from the side where that cannot happen.
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
