//! Address translation, and the chance that runs a device: page faults, hardware errors, delays, order.

use std::collections::VecDeque;

use memferry_dsa::{Address, Completion, PAGE_BYTES, Status};

use crate::config::{FaultPlan, Random};
use crate::device::counters::{Counters, count};
use crate::memory::{Access, Memory, Vanished};

/// Most pages whose next visit is known not to fault. Beyond it the oldest may fault again, which costs its
/// software another resume and nothing else.
const FORGIVEN_MAX: usize = 64;

/// An access that was not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) page: Address,
    pub(crate) access: Access,
    pub(crate) reason: Reason,
}

/// Why it was not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// The page is absent, and nobody asked the operating system for it.
    Absent,
    /// The operating system was asked for the page, and refused.
    Refused,
    /// A hardware error: no page fault, and nothing that software can mend.
    Hardware(Status),
}

impl Fault {
    /// The completion of an operation on data that stops here after `bytes_completed`.
    pub(crate) fn completion(self, bytes_completed: u32) -> Completion {
        let status = match self.reason {
            Reason::Refused => Status::PageFaultRefused,
            _ => Status::PageFault,
        };
        self.completion_as(status, bytes_completed)
    }

    /// The completion when a page fault here has the status `page_fault`.
    pub(crate) fn completion_as(self, page_fault: Status, bytes_completed: u32) -> Completion {
        match self.reason {
            Reason::Hardware(status) => Completion { bytes_completed, ..Completion::new(status) },
            Reason::Absent | Reason::Refused => Completion {
                write_fault: self.access == Access::Write,
                bytes_completed,
                fault_address: self.page,
                ..Completion::new(page_fault)
            },
        }
    }

    /// The page has gone after it was translated.
    pub(crate) fn vanished(vanished: Vanished, block_on_fault: bool) -> Fault {
        let reason = if block_on_fault { Reason::Refused } else { Reason::Absent };
        Fault { page: vanished.page, access: vanished.access, reason }
    }
}

/// The dice, and what they must remember.
pub(crate) struct FaultInjector {
    fault_plan: FaultPlan,
    random: Random,
    /// Whether any visit of a page may go wrong by chance.
    strikes_pages: bool,
    /// Pages that faulted by chance and were not visited since.
    forgiven: VecDeque<Address>,
}

impl FaultInjector {
    pub(crate) fn new(fault_plan: FaultPlan) -> FaultInjector {
        let strikes_pages = fault_plan.page_faults_per_mille > 0 || fault_plan.hardware_errors_per_mille > 0;
        FaultInjector {
            random: Random::new(fault_plan.seed),
            fault_plan,
            strikes_pages,
            forgiven: VecDeque::new(),
        }
    }

    pub(crate) fn fault_plan(&self) -> &FaultPlan {
        &self.fault_plan
    }

    /// How many steps something has to wait.
    pub(crate) fn delay_steps(&mut self) -> u64 {
        match self.fault_plan.delay_steps_max {
            0 => 0,
            max => self.random.below(u64::from(max) + 1),
        }
    }

    /// Whether the order of things is free.
    pub(crate) fn reorders(&self) -> bool {
        self.fault_plan.reorder
    }

    /// Which of `count` things comes next, where the order is free; the first unless the device is fault_plan.
    pub(crate) fn pick(&mut self, count: usize) -> usize {
        if self.fault_plan.reorder && count > 1 { self.random.below(count as u64) as usize } else { 0 }
    }

    pub(crate) fn runs_backwards(&mut self) -> bool {
        self.random.chance(self.fault_plan.backwards_per_mille)
    }

    pub(crate) fn rounds_difference(&mut self) -> bool {
        self.random.chance(self.fault_plan.rounded_differences_per_mille)
    }

    pub(crate) fn spreads_batch(&mut self) -> bool {
        self.random.chance(self.fault_plan.spread_batches_per_mille)
    }

    pub(crate) fn works_ahead(&mut self) -> bool {
        self.random.chance(self.fault_plan.work_ahead_per_mille)
    }

    /// Heads or tails.
    pub(crate) fn flips(&mut self) -> bool {
        self.random.below(2) == 0
    }

    /// The size of the next piece of a transfer with `left` bytes to go.
    pub(crate) fn piece_bytes(&self, left: u32) -> u32 {
        left.min(self.fault_plan.piece_bytes_max.max(1))
    }

    /// Translates a page of data. With `block_on_fault` the operating system is asked for an absent one.
    #[inline]
    pub(crate) fn data_page(
        &mut self,
        memory: &impl Memory,
        page: Address,
        access: Access,
        block_on_fault: bool,
        counters: &Counters,
    ) -> Result<(), Fault> {
        let is_struck = self.strikes_pages && self.strikes(page, access)?;
        translate(memory, page, access, is_struck, block_on_fault, counters)
    }

    /// Translates a page of a batch's list, or a readback address. The operating system is asked for an absent one,
    /// unless chance strikes.
    pub(crate) fn list_page(
        &mut self,
        memory: &impl Memory,
        page: Address,
        counters: &Counters,
    ) -> Result<(), Fault> {
        let is_struck = self.strikes_pages && self.strikes(page, Access::Read)?;
        translate(memory, page, Access::Read, is_struck, !is_struck, counters)
    }

    /// Translates the page of a completion record. The operating system is asked for an absent one, unless
    /// chance strikes.
    #[inline]
    pub(crate) fn record_page(
        &mut self,
        memory: &impl Memory,
        page: Address,
        counters: &Counters,
    ) -> Result<(), Fault> {
        let is_struck = self.random.chance(self.fault_plan.lost_records_per_mille);
        translate(memory, page, Access::Write, is_struck, !is_struck, counters)
    }

    /// Whether chance makes this visit of a page fault; the visit after a fault never does.
    ///
    /// # Errors
    /// A hardware error struck instead.
    #[cold]
    fn strikes(&mut self, page: Address, access: Access) -> Result<bool, Fault> {
        if self.random.chance(self.fault_plan.hardware_errors_per_mille) {
            let status = match (access, self.flips()) {
                (_, true) => Status::Translation,
                (Access::Read, false) => Status::HardwareRead,
                (Access::Write, false) => Status::HardwareWrite,
            };
            return Err(Fault { page, access, reason: Reason::Hardware(status) });
        }
        if let Some(index) = self.forgiven.iter().position(|forgiven| *forgiven == page) {
            self.forgiven.remove(index);
            return Ok(false);
        }
        let faults = self.random.chance(self.fault_plan.page_faults_per_mille);
        if faults {
            if self.forgiven.len() == FORGIVEN_MAX {
                self.forgiven.pop_front();
            }
            self.forgiven.push_back(page);
        }
        Ok(faults)
    }
}

/// Translates a page, which counts as absent if it `is_struck`; an absent one is asked for if `may_ask`.
#[inline]
fn translate(
    memory: &impl Memory,
    page: Address,
    access: Access,
    is_struck: bool,
    may_ask: bool,
    counters: &Counters,
) -> Result<(), Fault> {
    if !is_struck && memory.is_present(page, access) {
        return Ok(());
    }
    if may_ask && memory.request_page(page, access) {
        count(&counters.page_requests, 1);
        return Ok(());
    }
    count(&counters.page_faults, 1);
    Err(Fault { page, access, reason: if may_ask { Reason::Refused } else { Reason::Absent } })
}

/// Bytes from `address` to the end of its page.
pub(crate) fn bytes_to_page_end(address: Address) -> u64 {
    PAGE_BYTES - (address.0 - address.page().0)
}

/// Bytes of the page that end at `end`, the first address behind them.
pub(crate) fn bytes_from_page_start(end: Address) -> u64 {
    let last = end.offset(u64::MAX);
    last.0 - last.page().0 + 1
}
