//! Address translation, and the chance that runs a device: page faults, delays, order.

use std::collections::VecDeque;

use super::front::{Counters, count};
use super::memory::{Access, Memory};
use super::nasty::{Nasty, Random};
use crate::address::{Address, PAGE_BYTES};
use crate::completion::{Completion, Status};

/// Most pages whose next visit is known not to fault. Beyond it the oldest may fault again, which costs its
/// software another resume and nothing else.
const FORGIVEN_MAX: usize = 64;

/// A page that the device could not access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PageFault {
    pub(super) page: Address,
    pub(super) access: Access,
    /// The operating system was asked for the page, and refused.
    pub(super) is_refused: bool,
}

impl PageFault {
    /// The completion of an operation that stops here after `bytes_completed`.
    pub(super) fn completion(self, status: Status, bytes_completed: u32) -> Completion {
        Completion {
            write_fault: self.access == Access::Write,
            bytes_completed,
            fault_address: self.page,
            ..Completion::new(status)
        }
    }
}

/// The dice, and what they must remember.
pub(super) struct Chance {
    nasty: Nasty,
    random: Random,
    /// Pages that faulted by chance and were not visited since.
    forgiven: VecDeque<Address>,
}

impl Chance {
    pub(super) fn new(nasty: Nasty) -> Chance {
        Chance { random: Random::new(nasty.seed), nasty, forgiven: VecDeque::new() }
    }

    /// How many steps something has to wait.
    pub(super) fn delay_steps(&mut self) -> u64 {
        match self.nasty.delay_steps_max {
            0 => 0,
            max => self.random.below(u64::from(max) + 1),
        }
    }

    /// Which of `count` things comes next, where the order is free; the first unless the device is nasty.
    pub(super) fn pick(&mut self, count: usize) -> usize {
        if self.nasty.reorder && count > 1 { self.random.below(count as u64) as usize } else { 0 }
    }

    pub(super) fn runs_backwards(&mut self) -> bool {
        self.random.chance(self.nasty.backwards_per_mille)
    }

    /// The size of the next piece of a transfer with `left` bytes to go.
    pub(super) fn piece_bytes(&self, left: u32) -> u32 {
        left.min(self.nasty.piece_bytes_max.max(1))
    }

    /// Translates a page of data. With `block_on_fault` the operating system is asked for an absent one.
    pub(super) fn data_page(
        &mut self,
        memory: &impl Memory,
        page: Address,
        access: Access,
        block_on_fault: bool,
        counters: &Counters,
    ) -> Result<(), PageFault> {
        let is_struck = self.strikes(page);
        translate(memory, page, access, is_struck, block_on_fault, counters)
    }

    /// Translates a page of a batch's list. The operating system is asked for an absent one, unless chance strikes.
    pub(super) fn list_page(
        &mut self,
        memory: &impl Memory,
        page: Address,
        counters: &Counters,
    ) -> Result<(), PageFault> {
        let is_struck = self.strikes(page);
        translate(memory, page, Access::Read, is_struck, !is_struck, counters)
    }

    /// Translates the page of a completion record. The operating system is asked for an absent one, unless
    /// chance strikes.
    pub(super) fn record_page(
        &mut self,
        memory: &impl Memory,
        page: Address,
        counters: &Counters,
    ) -> Result<(), PageFault> {
        let is_struck = self.random.chance(self.nasty.lost_records_per_mille);
        translate(memory, page, Access::Write, is_struck, !is_struck, counters)
    }

    /// Whether chance makes this visit of a page fault; the visit after a fault never does.
    fn strikes(&mut self, page: Address) -> bool {
        if self.nasty.page_faults_per_mille == 0 {
            return false;
        }
        if let Some(index) = self.forgiven.iter().position(|forgiven| *forgiven == page) {
            self.forgiven.remove(index);
            return false;
        }
        let faults = self.random.chance(self.nasty.page_faults_per_mille);
        if faults {
            if self.forgiven.len() == FORGIVEN_MAX {
                self.forgiven.pop_front();
            }
            self.forgiven.push_back(page);
        }
        faults
    }
}

/// Translates a page, which counts as absent if it `is_struck`; an absent one is asked for if `may_ask`.
fn translate(
    memory: &impl Memory,
    page: Address,
    access: Access,
    is_struck: bool,
    may_ask: bool,
    counters: &Counters,
) -> Result<(), PageFault> {
    if !is_struck && memory.is_present(page, access) {
        return Ok(());
    }
    if may_ask && memory.request_page(page, access) {
        count(&counters.page_requests, 1);
        return Ok(());
    }
    count(&counters.page_faults, 1);
    Err(PageFault { page, access, is_refused: may_ask })
}

/// Bytes from `address` to the end of its page.
pub(super) fn bytes_to_page_end(address: Address) -> u64 {
    PAGE_BYTES - (address.0 - address.page().0)
}

/// Bytes of the page that end at `end`, the first address behind them.
pub(super) fn bytes_from_page_start(end: Address) -> u64 {
    let last = end.offset(u64::MAX);
    last.0 - last.page().0 + 1
}
