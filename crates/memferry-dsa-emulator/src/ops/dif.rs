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

use memferry_dsa::internals::software::dif;
use memferry_dsa::{
    Address, Completion, DIF_BYTES, Descriptor, DifFormat, DifSource, DifTags, DifTarget, Opcode, Status,
};

use super::{Env, Execute, Scratch, Stop, blocks_on_fault};
use crate::device::translation::Fault;
use crate::memory::{Access, Memory};

/// A DIF operation in progress.
#[derive(Debug)]
pub(crate) struct Dif {
    opcode: Opcode,
    source: Address,
    target: Address,
    size: u32,
    format: DifFormat,
    source_dif: DifSource, // with the tags of the next block; Insert has none: the fields are reserved
    target_dif: DifTarget, // with the tags of the next block; Check and Strip have none
    done: u32,             // of the source
    written: u64,
    block_on_fault: bool,
}

impl Dif {
    pub(super) fn new(opcode: Opcode, descriptor: &Descriptor) -> Dif {
        Dif {
            opcode,
            source: descriptor.address_1(),
            target: descriptor.address_2(),
            size: descriptor.size(),
            format: descriptor.dif_format(),
            source_dif: descriptor.dif_source(),
            target_dif: descriptor.dif_target(),
            done: 0,
            written: 0,
            block_on_fault: blocks_on_fault(descriptor),
        }
    }

    fn advance_block<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<(), Stop> {
        let gone = |vanished| Fault::vanished(vanished, self.block_on_fault);
        let block = self.format.block.bytes();
        let read = if self.opcode == Opcode::DifInsert { block } else { block + DIF_BYTES };
        let written = if self.opcode == Opcode::DifStrip { block } else { block + DIF_BYTES };
        let writes = self.opcode != Opcode::DifCheck;
        let source = self.source.offset(self.done.into());
        let target = self.target.offset(self.written);
        env.translate(source, read, Access::Read, self.block_on_fault)?;
        if writes {
            env.translate(target, written, Access::Write, self.block_on_fault)?;
        }
        env.memory.read(source, &mut env.scratch.first[..read as usize]).map_err(gone)?;
        let Scratch { first, second } = &mut *env.scratch;
        let (data, out) = (&first[..read as usize], &mut second[..written as usize]);
        let (format, source, made) = (self.format, &self.source_dif, &self.target_dif);
        let checked = match self.opcode {
            Opcode::DifCheck => dif::check(format, source, data).map(|next| (next, made.tags)),
            Opcode::DifInsert => Ok((source.tags, dif::insert(format, made, data, out))),
            Opcode::DifStrip => dif::strip(format, source, data, out).map(|next| (next, made.tags)),
            _ => dif::update(format, source, made, data, out),
        };
        let next = checked.map_err(|mismatch| {
            Stop::Complete(self.with_results(Completion {
                bytes_completed: self.done,
                result: mismatch.wrong.bits(),
                ..Completion::new(Status::DifMismatch)
            }))
        })?;
        if writes {
            env.memory.write(target, out).map_err(gone)?;
            self.written += u64::from(written);
        }
        (self.source_dif.tags, self.target_dif.tags) = next;
        env.done(read);
        self.done += read;
        Ok(())
    }

    /// The completion with the tags of the block after the last executed one.
    fn with_results(&self, completion: Completion) -> Completion {
        let tags = [self.source_dif.tags, self.target_dif.tags];
        Completion { operation: tags.map(DifTags::to_word), ..completion }
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
