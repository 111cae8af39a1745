//! The operations, each by its page of the specification.
//!
//! ```text
//! for each piece:      walk its regions side by side, from one page border to the next
//!                      translate the pages, sources before targets; a fault ends the operation here
//!                      do the span
//! when all is done, or at a fault:  the completion, from which software can resume
//! ```
//!
//! Nothing of this is shared with implementations of the same operations on the CPU, so that each checks the other.
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
use memferry_dsa::{Address, Completion, Descriptor, Flags, Opcode, PAGE_BYTES, Status};

use crate::device::counters::{Counters, count};
use crate::device::translation::{Fault, FaultInjector};
use crate::memory::Memory;

/// What an operation sees of the device.
pub(super) struct Env<'a, M> {
    pub(super) memory: &'a M,
    pub(super) chance: &'a mut FaultInjector,
    pub(super) counters: &'a Counters,
    pub(super) scratch: &'a mut Scratch,
}

/// Room for two stretches of data; a block of 4104 bytes with its field fits as well.
pub(super) struct Scratch {
    first: Box<[u8; SCRATCH]>,
    second: Box<[u8; SCRATCH]>,
}

/// A page and a bit.
const SCRATCH: usize = PAGE_BYTES as usize + 64;

impl Scratch {
    pub(super) fn new() -> Scratch {
        Scratch { first: Box::new([0; SCRATCH]), second: Box::new([0; SCRATCH]) }
    }
}

/// Why an operation does not go on.
enum Stop {
    Fault(Fault),
    /// It found what it looked for, or an error in the data.
    Complete(Completion),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

/// An operation that is under way.
trait Execute {
    /// Does a piece; whether all is done.
    fn advance<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<bool, Stop>;

    /// The completion when all is done.
    fn succeeded(&self) -> Completion {
        Completion::new(Status::Success)
    }

    /// The completion when a fault ends it.
    fn stopped(&self, fault: Fault) -> Completion;
}

/// Lists the operations once and derives the enum and its dispatch.
macro_rules! operations {
    ($($name:ident($state:ty))*) => {
        /// An operation that a checked descriptor asks for.
        pub(super) enum Operation {
            $($name($state),)*
        }

        impl Operation {
            /// Does a piece; the completion once it has ended.
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
    Compare(compare::Compare)
    ComparePattern(compare::ComparePattern)
    CreateDelta(delta::CreateDelta)
    ApplyDelta(delta::ApplyDelta)
    Dualcast(dualcast::Dualcast)
    Crc(crc::Crc<1>)
    CopyCrc(crc::Crc<2>)
    Dif(dif::Dif)
    CacheFlush(flush::CacheFlush)
}

impl Operation {
    /// What the checked descriptor asks for; `None` for No-op, Batch and Drain, which are the device's own.
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
            Opcode::ComparePattern => Operation::ComparePattern(compare::ComparePattern::new(descriptor)),
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
    /// Counts bytes of a transfer that are done.
    fn done(&self, bytes: u32) {
        count(&self.counters.bytes_done, u64::from(bytes));
    }

    /// Translates all pages of a small region that is read or written at once.
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
