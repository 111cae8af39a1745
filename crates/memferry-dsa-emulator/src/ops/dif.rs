//! DIF Check, Insert, Strip and Update: data integrity fields behind each block.
//!
//! ```text
//! for each block:   read it, with its field except for Insert
//!                   check the field against the source's tags          Check, Strip, Update
//!                   write the block                                    Insert, Strip, Update
//!                   write a field made from the target's tags          Insert, Update
//! ```
//!
//! A block is processed entirely or not at all.
//!
//! Source: Intel DSA Architecture Specification 3.0, sections 8.3.14-8.3.17 and appendix B.

use memferry_dsa::{
    Address, Completion, DIF_BYTES, Descriptor, DifErrors, DifFormat, DifSource, DifSourceFlags, DifTags,
    DifTarget, DifTargetFlags, Opcode, Status,
};

use super::{Env, Execute, Stop, blocks_on_fault};
use crate::device::translation::Fault;
use crate::memory::{Access, Memory};

/// The polynomial of the guard, 0x18bb7 without its highest bit.
const POLYNOMIAL: u16 = 0x8bb7;

/// `TABLES[n][b]`: the register after byte `b` and `n` zero bytes, from an empty register.
static TABLES: [[u16; 256]; 8] = tables();

const fn tables() -> [[u16; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut register = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            register = register << 1 ^ if register >> 15 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][byte] = register;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before: u16 = tables[zeros - 1][byte];
            tables[zeros][byte] = before << 8 ^ tables[0][(before >> 8) as usize];
            byte += 1;
        }
        zeros += 1;
    }
    tables
}

/// The guard of a block.
fn guard(format: DifFormat, block: &[u8]) -> u16 {
    let seed = if format.guard_seed_ones { 0xffff } else { 0 };
    // Blocks of all sizes are whole words.
    let (words, _) = block.as_chunks::<8>();
    let register = words.iter().fold(seed, |register: u16, word| {
        let [high, low] = register.to_be_bytes();
        let mixed = [word[0] ^ high, word[1] ^ low, word[2], word[3], word[4], word[5], word[6], word[7]];
        (0..8).fold(0, |sum, index| sum ^ TABLES[7 - index][usize::from(mixed[index])])
    });
    if format.guard_inverted { !register } else { register }
}

/// A data integrity field.
#[derive(Clone, Copy)]
struct Field {
    guard: u16,
    application: u16,
    reference: u32,
}

impl Field {
    fn from_bytes(bytes: &[u8; DIF_BYTES as usize]) -> Field {
        let [g0, g1, a0, a1, r0, r1, r2, r3] = *bytes;
        Field {
            guard: u16::from_be_bytes([g0, g1]),
            application: u16::from_be_bytes([a0, a1]),
            reference: u32::from_be_bytes([r0, r1, r2, r3]),
        }
    }

    fn to_bytes(self) -> [u8; DIF_BYTES as usize] {
        let ([g0, g1], [a0, a1]) = (self.guard.to_be_bytes(), self.application.to_be_bytes());
        let [r0, r1, r2, r3] = self.reference.to_be_bytes();
        [g0, g1, a0, a1, r0, r1, r2, r3]
    }

    /// Whether the source's flags exempt this field from checks; an error if they declare it wrong.
    fn is_exempt(self, flags: DifSourceFlags) -> Result<bool, DifErrors> {
        let application_f = self.application == u16::MAX;
        let tags_f = application_f && self.reference == u32::MAX;
        let all_f = tags_f && self.guard == u16::MAX;
        if all_f && flags.contains(DifSourceFlags::DETECT_ALL_F) {
            let is_error = flags.contains(DifSourceFlags::ALL_F_IS_ERROR);
            return if is_error { Err(DifErrors::ALL_F) } else { Ok(true) };
        }
        Ok(application_f && flags.contains(DifSourceFlags::DETECT_APPLICATION_F)
            || tags_f && flags.contains(DifSourceFlags::DETECT_TAGS_F))
    }

    /// The parts that do not match. The mask clears bits of the expected application tag, not of the found one, unless
    /// it turns the comparison off. The specification does not define this; Intel DML does the same.
    fn errors(self, flags: DifSourceFlags, expected: DifTags, guard: impl FnOnce() -> u16) -> DifErrors {
        let mut errors = match self.is_exempt(flags) {
            Ok(true) => return DifErrors::NONE,
            Ok(false) => DifErrors::NONE,
            Err(all_f) => return all_f,
        };
        if !flags.contains(DifSourceFlags::NO_GUARD_CHECK) && self.guard != guard() {
            errors |= DifErrors::GUARD;
        }
        let mask = expected.application_mask;
        if mask != u16::MAX && self.application != expected.application & !mask {
            errors |= DifErrors::APPLICATION;
        }
        if !flags.contains(DifSourceFlags::NO_REFERENCE_CHECK) && self.reference != expected.reference {
            errors |= DifErrors::REFERENCE;
        }
        errors
    }
}

/// The tags of the next block.
fn following(tags: DifTags, application_counts: bool, reference_stays: bool) -> DifTags {
    DifTags {
        application: tags.application.wrapping_add(u16::from(application_counts)),
        reference: tags.reference.wrapping_add(u32::from(!reference_stays)),
        ..tags
    }
}

/// A DIF operation in progress.
#[derive(Debug)]
pub(crate) struct Dif {
    source: Address,
    target: Address,
    size: u32,
    format: DifFormat,
    checked: Option<DifSource>, // with the tags of the next block
    made: Option<DifTarget>,    // with the tags of the next block
    writes: bool,
    done: u32, // of the source
    written: u64,
    block_on_fault: bool,
}

impl Dif {
    pub(super) fn new(opcode: Opcode, descriptor: &Descriptor) -> Dif {
        Dif {
            source: descriptor.address_1(),
            target: descriptor.address_2(),
            size: descriptor.size(),
            format: descriptor.dif_format(),
            checked: (opcode != Opcode::DifInsert).then(|| descriptor.dif_source()),
            made: matches!(opcode, Opcode::DifInsert | Opcode::DifUpdate).then(|| descriptor.dif_target()),
            writes: opcode != Opcode::DifCheck,
            done: 0,
            written: 0,
            block_on_fault: blocks_on_fault(descriptor),
        }
    }

    fn advance_block<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<(), Stop> {
        let gone = |vanished| Fault::vanished(vanished, self.block_on_fault);
        let block = self.format.block.bytes();
        let read = block + if self.checked.is_some() { DIF_BYTES } else { 0 };
        let written = block + if self.made.is_some() { DIF_BYTES } else { 0 };
        let source = self.source.offset(self.done.into());
        let target = self.target.offset(self.written);
        env.translate(source, read, Access::Read, self.block_on_fault)?;
        if self.writes {
            env.translate(target, written, Access::Write, self.block_on_fault)?;
        }
        env.memory.read(source, &mut env.scratch.first[..read as usize]).map_err(gone)?;
        let (data, behind) = env.scratch.first.split_at_mut(block as usize);
        let field = behind.first_chunk_mut().expect("room for a block with its field");
        let found = self.checked.map(|_| Field::from_bytes(field));
        if let (Some(found), Some(source)) = (found, self.checked) {
            let errors = found.errors(source.flags, source.tags, || guard(self.format, data));
            if !errors.is_empty() {
                let mismatch = Completion {
                    bytes_completed: self.done,
                    result: errors.bits(),
                    ..Completion::new(Status::DifMismatch)
                };
                return Err(Stop::Complete(self.with_results(mismatch)));
            }
        }
        if let Some(made) = self.made {
            // Only Update has a source field to pass parts through from; Insert with such flags was refused.
            let passed = |flag| found.filter(|_| made.flags.contains(flag));
            let own = Field {
                guard: passed(DifTargetFlags::PASS_GUARD)
                    .map_or_else(|| guard(self.format, data), |found| found.guard),
                application: passed(DifTargetFlags::PASS_APPLICATION)
                    .map_or(made.tags.application & !made.tags.application_mask, |found| found.application),
                reference: passed(DifTargetFlags::PASS_REFERENCE)
                    .map_or(made.tags.reference, |found| found.reference),
            };
            *field = own.to_bytes();
        }
        if self.writes {
            env.memory.write(target, &env.scratch.first[..written as usize]).map_err(gone)?;
            self.written += u64::from(written);
        }
        env.done(read);
        self.done += read;
        if let Some(DifSource { flags, tags }) = &mut self.checked {
            let counts = flags.contains(DifSourceFlags::APPLICATION_COUNTS);
            *tags = following(*tags, counts, flags.contains(DifSourceFlags::REFERENCE_STAYS));
        }
        if let Some(DifTarget { flags, tags }) = &mut self.made {
            let counts = flags.contains(DifTargetFlags::APPLICATION_COUNTS);
            *tags = following(*tags, counts, flags.contains(DifTargetFlags::REFERENCE_STAYS));
        }
        Ok(())
    }

    /// The completion with the tags of the block after the last executed one.
    fn with_results(&self, completion: Completion) -> Completion {
        let source = self.checked.map_or(0, |source| source.tags.to_word());
        let target = self.made.map_or(0, |target| target.tags.to_word());
        Completion { operation: [source, target], ..completion }
    }
}

impl Execute for Dif {
    fn advance<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<bool, Stop> {
        let end = self.done + env.chance.piece_bytes(self.size - self.done);
        while self.done < end {
            self.advance_block(env)?;
        }
        Ok(self.done == self.size)
    }

    fn succeeded(&self) -> Completion {
        self.with_results(Completion::new(Status::Success))
    }

    fn stopped(&self, fault: Fault) -> Completion {
        self.with_results(fault.completion(self.done))
    }
}
