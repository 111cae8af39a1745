//! CRC Generation and Copy with CRC.
//!
//! The specification keeps the remainder in a register whose most significant bit goes first. Seed and result are that
//! register inverted and reflected, and data bytes enter with their least significant bit first. This code keeps the
//! reflected register, so that the default is the usual table-driven CRC-32C:
//!
//! ```text
//! seed, result:  !register, or its reflection with the bypass of inversion
//! data bytes:    as they are, or reflected with the bypass of their reflection
//! ```
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3 (CRC Generation, Copy with CRC) and appendix A; the
//! tables are those of M. Kounavis and F. Berry, "Novel Table Lookup-Based Algorithms for High-Performance CRC
//! Generation", IEEE Transactions on Computers 57(11), 2008.

use memferry_dsa::{Address, Completion, Descriptor, Flags};

use super::walk::Walk;
use super::{Env, Execute, Stop, blocks_on_fault};
use crate::device::translation::Fault;
use crate::memory::{Access, Memory};

/// 0x1edc6f41, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// `TABLES[n][b]`: the register after byte `b` and `n` zero bytes, from an empty register.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            register = register >> 1 ^ if register & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][byte] = register;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before: u32 = tables[zeros - 1][byte];
            tables[zeros][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        zeros += 1;
    }
    tables
}

/// A CRC in progress.
#[derive(Debug)]
struct Remainder {
    register: u32, // reflected
    bypasses_inversion: bool,
    reflects_data: bool,
    seed_at: Option<Address>, // not read yet
    block_on_fault: bool,
}

impl Remainder {
    fn new(descriptor: &Descriptor) -> Remainder {
        let flags = descriptor.flags();
        let in_memory = flags.contains(Flags::CRC_SEED_IN_MEMORY);
        let mut remainder = Remainder {
            register: 0,
            bypasses_inversion: flags.contains(Flags::CRC_BYPASS_INVERSION),
            reflects_data: flags.contains(Flags::CRC_BYPASS_DATA_REFLECTION),
            seed_at: in_memory.then(|| descriptor.crc_seed_address()),
            block_on_fault: blocks_on_fault(descriptor),
        };
        remainder.register = remainder.convert(descriptor.crc_seed());
        remainder
    }

    /// Converts seed to register, and register to result; it is its own inverse.
    fn convert(&self, value: u32) -> u32 {
        if self.bypasses_inversion { value.reverse_bits() } else { !value }
    }

    /// Reads the seed, if it is in memory and was not read yet.
    fn fetch_seed<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<(), Stop> {
        if let Some(address) = self.seed_at {
            let mut bytes = [0; 4];
            env.translate(address, 4, Access::Read, self.block_on_fault)?;
            let read = env.memory.read(address, &mut bytes);
            read.map_err(|vanished| Fault::vanished(vanished, self.block_on_fault))?;
            self.register = self.convert(u32::from_le_bytes(bytes));
            self.seed_at = None;
        }
        Ok(())
    }

    fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            let mut word = u64::from_le_bytes(*word);
            if self.reflects_data {
                word = word.reverse_bits().swap_bytes();
            }
            let mixed = (word ^ u64::from(self.register)).to_le_bytes();
            self.register = (0..8).fold(0, |sum, index| sum ^ TABLES[7 - index][usize::from(mixed[index])]);
        }
        for byte in rest {
            let byte = if self.reflects_data { byte.reverse_bits() } else { *byte };
            self.register = self.register >> 8 ^ TABLES[0][usize::from(self.register as u8 ^ byte)];
        }
    }

    /// The completion with the result so far, which is the seed for the rest.
    fn with_results(&self, completion: Completion) -> Completion {
        Completion { operation: [self.convert(self.register).into(), 0], ..completion }
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
            remainder.add(bytes);
            Ok(())
        })
    }

    fn succeeded(&self) -> Completion {
        self.remainder.with_results(Completion::new(memferry_dsa::Status::Success))
    }

    fn stopped(&self, fault: Fault) -> Completion {
        self.remainder.with_results(fault.completion(self.walk.done()))
    }
}
