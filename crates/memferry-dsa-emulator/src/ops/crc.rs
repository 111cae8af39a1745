//! CRC Generation and Copy with CRC.
//!
//! In every mode, the result of a part is the seed for the rest.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3 (CRC Generation, Copy with CRC) and appendix A.

use memferry_dsa::software::{CrcMode, crc32c};
use memferry_dsa::{Address, Completion, Descriptor, Flags, Status};

use super::walk::Walk;
use super::{Env, Execute, Stop, blocks_on_fault};
use crate::device::translation::Fault;
use crate::memory::{Access, Memory};

/// A CRC in progress.
#[derive(Debug)]
struct Remainder {
    crc: u32, // of the bytes so far
    mode: CrcMode,
    seed_at: Option<Address>, // not read yet
    block_on_fault: bool,
}

impl Remainder {
    fn new(descriptor: &Descriptor) -> Remainder {
        let flags = descriptor.flags();
        let in_memory = flags.contains(Flags::CRC_SEED_IN_MEMORY);
        Remainder {
            crc: descriptor.crc_seed(),
            mode: CrcMode {
                bypass_inversion: flags.contains(Flags::CRC_BYPASS_INVERSION),
                bypass_data_reflection: flags.contains(Flags::CRC_BYPASS_DATA_REFLECTION),
            },
            seed_at: in_memory.then(|| descriptor.crc_seed_address()),
            block_on_fault: blocks_on_fault(descriptor),
        }
    }

    /// Reads the seed, if it is in memory and was not read yet.
    fn fetch_seed<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<(), Stop> {
        if let Some(address) = self.seed_at {
            let mut bytes = [0; 4];
            env.translate(address, 4, Access::Read, self.block_on_fault)?;
            let read = env.memory.read(address, &mut bytes);
            read.map_err(|vanished| Fault::vanished(vanished, self.block_on_fault))?;
            self.crc = u32::from_le_bytes(bytes);
            self.seed_at = None;
        }
        Ok(())
    }

    /// The completion with the result so far, which is the seed for the rest.
    fn with_results(&self, completion: Completion) -> Completion {
        Completion { operation: [self.crc.into(), 0], ..completion }
    }
}

/// CRC Generation over one region, or Copy with CRC, which also writes a second region.
#[derive(Debug)]
pub(crate) struct Crc<const REGIONS: usize> {
    walk: Walk<REGIONS>,
    remainder: Remainder,
}

impl Crc<1> {
    pub(super) fn new(descriptor: &Descriptor) -> Crc<1> {
        let source = [(descriptor.address_1(), Access::Read)];
        Crc { walk: Walk::new(source, descriptor), remainder: Remainder::new(descriptor) }
    }
}

impl Crc<2> {
    pub(super) fn with_copy(descriptor: &Descriptor) -> Crc<2> {
        let regions = [(descriptor.address_1(), Access::Read), (descriptor.address_2(), Access::Write)];
        Crc { walk: Walk::new(regions, descriptor), remainder: Remainder::new(descriptor) }
    }
}

impl<const REGIONS: usize> Execute for Crc<REGIONS> {
    fn advance<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<bool, Stop> {
        let Crc { walk, remainder } = self;
        remainder.fetch_seed(env)?;
        walk.piece(env, |env, span| {
            let bytes = &mut env.scratch.first[..span.bytes as usize];
            env.memory.read(span.at[0], bytes)?;
            if let Some(target) = span.at.get(1) {
                env.memory.write(*target, bytes)?;
            }
            remainder.crc = crc32c(remainder.crc, bytes, remainder.mode);
            Ok(())
        })
    }

    fn succeeded(&self) -> Completion {
        self.remainder.with_results(Completion::new(Status::Success))
    }

    fn stopped(&self, fault: Fault) -> Completion {
        self.remainder.with_results(fault.completion(self.walk.done()))
    }
}
