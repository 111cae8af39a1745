//! Address translation and fault injection: page faults, hardware errors, delays, order.

use std::collections::VecDeque;

use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::{Address, Completion, Status};

use crate::config::{FaultPlan, Random};
use crate::device::counters::{Counters, count};
use crate::memory::{Access, Memory, Vanished};

/// The largest number of pages whose next access is known not to fault. Beyond it the oldest may fault again, which
/// only costs its software another resume.
const EXEMPT_MAX: usize = 64;

/// A failed access to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) page: Address,
    pub(crate) access: Access,
    pub(crate) reason: Reason,
}

/// The reason of a [`Fault`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// The page is absent, and was not requested from the operating system.
    Absent,
    /// The operating system refused the page.
    Refused,
    /// A hardware error, which software cannot resolve.
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

    /// The completion if a page fault has the status `page_fault` here.
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

    /// A page that vanished after its translation.
    pub(crate) fn vanished(vanished: Vanished, block_on_fault: bool) -> Fault {
        let reason = if block_on_fault { Reason::Refused } else { Reason::Absent };
        Fault { page: vanished.page, access: vanished.access, reason }
    }
}

/// The random decisions of a device, according to its fault plan.
pub(crate) struct FaultInjector {
    fault_plan: FaultPlan,
    random: Random,
    /// Whether the plan injects errors into accesses to pages.
    injects_page_errors: bool,
    /// Pages with an injected fault that were not accessed since.
    exempt: VecDeque<Address>,
}

impl FaultInjector {
    pub(crate) fn new(fault_plan: FaultPlan) -> FaultInjector {
        let injects_page_errors =
            fault_plan.page_faults_per_mille > 0 || fault_plan.hardware_errors_per_mille > 0;
        FaultInjector {
            random: Random::new(fault_plan.seed),
            fault_plan,
            injects_page_errors,
            exempt: VecDeque::new(),
        }
    }

    pub(crate) fn fault_plan(&self) -> &FaultPlan {
        &self.fault_plan
    }

    /// A delay in steps.
    pub(crate) fn delay_steps(&mut self) -> u64 {
        match self.fault_plan.delay_steps_max {
            0 => 0,
            max => self.random.below(u64::from(max) + 1),
        }
    }

    /// The index of the next of `count` candidates: the first, unless the plan reorders.
    pub(crate) fn pick(&mut self, count: usize) -> usize {
        if self.fault_plan.reorder && count > 1 { self.random.below(count as u64) as usize } else { 0 }
    }

    /// Whether to do something now that the plan does with this probability.
    pub(crate) fn draws(&mut self, per_mille: impl FnOnce(&FaultPlan) -> u16) -> bool {
        self.random.chance(per_mille(&self.fault_plan))
    }

    /// True in half of the calls.
    pub(crate) fn flips(&mut self) -> bool {
        self.random.below(2) == 0
    }

    /// The size of the next piece of a transfer with `left` bytes to go.
    pub(crate) fn piece_bytes(&self, left: u32) -> u32 {
        left.min(self.fault_plan.piece_bytes_max.max(1))
    }

    /// Translates a page of data. With `block_on_fault` it requests an absent page from the operating system.
    #[inline]
    pub(crate) fn data_page(
        &mut self,
        memory: &impl Memory,
        page: Address,
        access: Access,
        block_on_fault: bool,
        counters: &Counters,
    ) -> Result<(), Fault> {
        let is_injected = self.injects_page_errors && self.injects_fault(page, access)?;
        let is_present = !is_injected && memory.is_present(page, access);
        translate(memory, page, access, is_present, block_on_fault, counters)
    }

    /// Translates a page of a batch's list, or a readback address. It requests an absent page from the operating
    /// system, unless it injects a fault.
    pub(crate) fn list_page(
        &mut self,
        memory: &impl Memory,
        page: Address,
        counters: &Counters,
    ) -> Result<(), Fault> {
        let is_injected = self.injects_page_errors && self.injects_fault(page, Access::Read)?;
        let is_present = !is_injected && memory.is_present(page, Access::Read);
        translate(memory, page, Access::Read, is_present, !is_injected, counters)
    }

    /// Translates the page of a completion record. It requests an absent page from the operating system, unless it
    /// injects a fault.
    #[inline]
    pub(crate) fn record_page(
        &mut self,
        memory: &impl Memory,
        page: Address,
        counters: &Counters,
    ) -> Result<(), Fault> {
        let is_injected = self.random.chance(self.fault_plan.lost_records_per_mille);
        let is_present = !is_injected && memory.is_record_page_present(page);
        translate(memory, page, Access::Write, is_present, !is_injected, counters)
    }

    /// Whether to inject a page fault into this access; the access after an injected fault never faults.
    ///
    /// # Errors
    /// An injected hardware error.
    #[cold]
    fn injects_fault(&mut self, page: Address, access: Access) -> Result<bool, Fault> {
        if self.random.chance(self.fault_plan.hardware_errors_per_mille) {
            let status = match (access, self.flips()) {
                (_, true) => Status::Translation,
                (Access::Read, false) => Status::HardwareRead,
                (Access::Write, false) => Status::HardwareWrite,
            };
            return Err(Fault { page, access, reason: Reason::Hardware(status) });
        }
        if let Some(index) = self.exempt.iter().position(|exempt| *exempt == page) {
            self.exempt.remove(index);
            return Ok(false);
        }
        let faults = self.random.chance(self.fault_plan.page_faults_per_mille);
        if faults {
            if self.exempt.len() == EXEMPT_MAX {
                self.exempt.pop_front();
            }
            self.exempt.push_back(page);
        }
        Ok(faults)
    }
}

/// Translates a page; an absent page is requested if `may_ask`.
#[inline]
fn translate(
    memory: &impl Memory,
    page: Address,
    access: Access,
    is_present: bool,
    may_ask: bool,
    counters: &Counters,
) -> Result<(), Fault> {
    if is_present {
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

/// Bytes from the start of the page that contains the byte before `end`, up to `end`.
pub(crate) fn bytes_from_page_start(end: Address) -> u64 {
    let last = end.offset(u64::MAX);
    last.0 - last.page().0 + 1
}
