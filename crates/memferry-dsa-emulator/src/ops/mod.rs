//! The operations, each according to its section of the specification.
//!
//! ```text
//! for each piece:      walk the regions side by side, from one page border to the next
//!                      translate the pages, sources before targets; a fault stops the operation here
//!                      execute the span between the borders
//! at the end, or at a fault:  the completion, from which software can resume
//! ```
//!
//! Functions of [`memferry_dsa::software`] compute CRCs and data integrity fields. The conformance suite checks both with
//! an oracle of its own.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3 and appendices A and B.

mod compare;
mod crc;
mod delta;
mod dif;
mod dualcast;
mod fill;
mod flush;
mod memmove;
mod walk;

pub(super) use delta::ENTRY_BYTES as DELTA_ENTRY_BYTES;
use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::{Address, Completion, Descriptor, Flags, Opcode, Status};

use crate::device::counters::{Counters, count};
use crate::device::translation::{Fault, FaultInjector};
use crate::memory::Memory;

/// The parts of the device that an operation uses.
pub(super) struct Env<'a, M> {
    pub(super) memory: &'a M,
    pub(super) chance: &'a mut FaultInjector,
    pub(super) counters: &'a Counters,
    pub(super) scratch: &'a mut Scratch,
}

/// Buffers for two spans of data, each with room for a block of 4104 bytes.
pub(super) struct Scratch {
    first: Box<[u8; SCRATCH]>,
    second: Box<[u8; SCRATCH]>,
}

/// A page, and the integrity field of a block.
const SCRATCH: usize = PAGE_BYTES as usize + 64;

impl Scratch {
    pub(super) fn new() -> Scratch {
        Scratch { first: Box::new([0; SCRATCH]), second: Box::new([0; SCRATCH]) }
    }
}

/// The reason why an operation stops early.
enum Stop {
    Fault(Fault),
    /// It has found a difference, or an error in the data.
    Complete(Completion),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

/// An operation in progress.
trait Execute {
    /// Executes one piece; true after the last.
    fn advance<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<bool, Stop>;

    /// The completion after the last piece.
    fn succeeded(&self) -> Completion {
        Completion::new(Status::Success)
    }

    /// The completion at a fault.
    fn stopped(&self, fault: Fault) -> Completion;
}

/// Lists the operations once and derives the enum and its dispatch.
macro_rules! operations {
    ($($name:ident($state:ty))*) => {
        /// The operation of a checked descriptor.
        pub(super) enum Operation {
            $($name($state),)*
        }

        impl Operation {
            /// Executes one piece; returns the completion after the last.
            pub(super) fn advance<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Option<Completion> {
                match self {
                    $(Operation::$name(state) => run(state, env),)*
                }
            }
        }
    };
}

operations! {
    Memmove(memmove::Memmove)
    Fill(fill::Fill)
    Compare(compare::Compare<2>)
    ComparePattern(compare::Compare<1>)
    CreateDelta(delta::CreateDelta)
    ApplyDelta(delta::ApplyDelta)
    Dualcast(dualcast::Dualcast)
    Crc(crc::Crc<1>)
    CopyCrc(crc::Crc<2>)
    Dif(dif::Dif)
    CacheFlush(flush::CacheFlush)
}

impl Operation {
    /// The operation of a checked descriptor; `None` for No-op, Batch and Drain, which the device itself executes.
    pub(super) fn new(
        opcode: Opcode,
        descriptor: &Descriptor,
        chance: &mut FaultInjector,
    ) -> Option<Operation> {
        Some(match opcode {
            Opcode::Noop | Opcode::Batch | Opcode::Drain => return None,
            Opcode::Memmove => Operation::Memmove(memmove::Memmove::new(descriptor, chance)),
            Opcode::Fill => Operation::Fill(fill::Fill::new(descriptor)),
            Opcode::Compare => Operation::Compare(compare::Compare::new(descriptor)),
            Opcode::ComparePattern => Operation::ComparePattern(compare::Compare::with_pattern(descriptor)),
            Opcode::CreateDelta => Operation::CreateDelta(delta::CreateDelta::new(descriptor)),
            Opcode::ApplyDelta => Operation::ApplyDelta(delta::ApplyDelta::new(descriptor)),
            Opcode::Dualcast => Operation::Dualcast(dualcast::Dualcast::new(descriptor)),
            Opcode::CrcGeneration => Operation::Crc(crc::Crc::new(descriptor)),
            Opcode::CopyCrc => Operation::CopyCrc(crc::Crc::with_copy(descriptor)),
            Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate => {
                Operation::Dif(dif::Dif::new(opcode, descriptor))
            }
            Opcode::CacheFlush => Operation::CacheFlush(flush::CacheFlush::new(descriptor)),
        })
    }
}

fn run<M: Memory>(operation: &mut impl Execute, env: &mut Env<'_, M>) -> Option<Completion> {
    match operation.advance(env) {
        Ok(false) => None,
        Ok(true) => Some(operation.succeeded()),
        Err(Stop::Complete(completion)) => Some(completion),
        Err(Stop::Fault(fault)) => Some(operation.stopped(fault)),
    }
}

fn blocks_on_fault(descriptor: &Descriptor) -> bool {
    descriptor.flags().contains(Flags::BLOCK_ON_FAULT)
}

impl<M: Memory> Env<'_, M> {
    /// Counts executed bytes of a transfer.
    fn done(&self, bytes: u32) {
        count(&self.counters.bytes_done, u64::from(bytes));
    }

    /// Translates all pages of a small region that is accessed at once.
    fn translate(
        &mut self,
        start: Address,
        bytes: u32,
        access: crate::memory::Access,
        block_on_fault: bool,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < u64::from(bytes) {
            let here = start.offset(done);
            self.chance.data_page(self.memory, here.page(), access, block_on_fault, self.counters)?;
            done += crate::device::translation::bytes_to_page_end(here);
        }
        Ok(())
    }
}
