//! Create Delta Record and Apply Delta Record.
//!
//! A delta record is a list of 10-byte entries in ascending order of the offset:
//!
//! ```text
//! offset u16, in units of 8 bytes | 8 bytes of the new data
//! ```
//!
//! Apply accepts equal consecutive offsets: our reading of status 0x07 is that offsets must not descend. A vendor's test
//! applies such a record and expects success.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3 (Create Delta Record, Apply Delta Record).

use memferry_dsa::{Address, Completion, Descriptor, Status};

use super::compare::Expected;
use super::walk::{Interrupted, Walk};
use super::{Env, Execute, Stop, blocks_on_fault};
use crate::device::translation::Fault;
use crate::memory::{Access, Memory};

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: u32 = 10;

/// [`Completion::result`]: some entries were written.
const WRITTEN: u8 = 1;
/// [`Completion::result`]: the record is full.
const OVERFLOW: u8 = 2;

/// A creation of a delta record in progress.
#[derive(Debug)]
pub(crate) struct CreateDelta {
    walk: Walk<2>,
    expected: Expected,
    record: Record,
    compared: u32, // bytes before the first word that differs and has no entry yet
}

/// The delta record so far.
#[derive(Debug)]
struct Record {
    start: Address,
    bytes: u32,
    bytes_max: u32,
}

impl CreateDelta {
    pub(super) fn new(descriptor: &Descriptor) -> CreateDelta {
        let sources = [(descriptor.address_1(), Access::Read), (descriptor.address_2(), Access::Read)];
        let record =
            Record { start: descriptor.delta_address(), bytes: 0, bytes_max: descriptor.delta_bytes() };
        CreateDelta {
            walk: Walk::new(sources, descriptor),
            expected: Expected::of_mask(descriptor),
            record,
            compared: 0,
        }
    }
}

impl Execute for CreateDelta {
    fn advance<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<bool, Stop> {
        let CreateDelta { walk, expected, record, compared } = self;
        let block_on_fault = walk.block_on_fault();
        walk.piece_in_units(8, env, |env, span| {
            let size = span.bytes as usize;
            let mut differences = {
                let (old, new) = (&mut env.scratch.first[..size], &mut env.scratch.second[..size]);
                env.memory.read(span.at[0], old)?;
                env.memory.read(span.at[1], new)?;
                0..if old == new { 0 } else { size / 8 }
            };
            for word in &mut differences {
                let (old, _) = env.scratch.first.as_chunks::<8>();
                let (new, _) = env.scratch.second.as_chunks::<8>();
                if old[word] == new[word] {
                    continue;
                }
                *compared = span.offset + word as u32 * 8;
                if record.bytes + ENTRY_BYTES > record.bytes_max {
                    let full = Completion { bytes_completed: *compared, ..expected.completion(OVERFLOW) };
                    return Err(Interrupted::Stop(Stop::Complete(record.with_results(full))));
                }
                let new = new[word];
                record.append(env, (*compared / 8) as u16, new, block_on_fault)?;
            }
            *compared = span.offset + span.bytes;
            Ok(())
        })
    }

    fn succeeded(&self) -> Completion {
        self.record.with_results(self.expected.completion(self.record.result()))
    }

    fn stopped(&self, fault: Fault) -> Completion {
        self.record
            .with_results(Completion { result: self.record.result(), ..fault.completion(self.compared) })
    }
}

impl Record {
    fn append<M: Memory>(
        &mut self,
        env: &mut Env<'_, M>,
        offset: u16,
        new: [u8; 8],
        block_on_fault: bool,
    ) -> Result<(), Interrupted> {
        let mut entry = [0; ENTRY_BYTES as usize];
        entry[..2].copy_from_slice(&offset.to_le_bytes());
        entry[2..].copy_from_slice(&new);
        let at = self.start.offset(self.bytes.into());
        env.translate(at, ENTRY_BYTES, Access::Write, block_on_fault)?;
        env.memory.write(at, &entry)?;
        self.bytes += ENTRY_BYTES;
        Ok(())
    }

    /// The result without an overflow: whether entries were written.
    fn result(&self) -> u8 {
        if self.bytes > 0 { WRITTEN } else { 0 }
    }

    fn with_results(&self, completion: Completion) -> Completion {
        Completion { operation: [self.bytes.into(), 0], ..completion }
    }
}

/// An application of a delta record in progress.
#[derive(Debug)]
pub(crate) struct ApplyDelta {
    record: Address,
    record_bytes: u32,
    target: Address,
    size: u32,
    applied: u32, // bytes of the record
    last: Option<u16>,
    block_on_fault: bool,
}

impl ApplyDelta {
    pub(super) fn new(descriptor: &Descriptor) -> ApplyDelta {
        ApplyDelta {
            record: descriptor.delta_address(),
            record_bytes: descriptor.delta_bytes(),
            target: descriptor.address_2(),
            size: descriptor.size(),
            applied: 0,
            last: None,
            block_on_fault: blocks_on_fault(descriptor),
        }
    }

    fn apply_entry<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<(), Stop> {
        let gone = |vanished| Fault::vanished(vanished, self.block_on_fault);
        let at = self.record.offset(self.applied.into());
        env.translate(at, ENTRY_BYTES, Access::Read, self.block_on_fault)?;
        let mut entry = [0; ENTRY_BYTES as usize];
        env.memory.read(at, &mut entry).map_err(gone)?;
        let offset = u16::from_le_bytes([entry[0], entry[1]]);
        let stop =
            |status| Stop::Complete(Completion { bytes_completed: self.applied, ..Completion::new(status) });
        if self.last.is_some_and(|last| offset < last) {
            return Err(stop(Status::DeltaOrder));
        }
        let place = u64::from(offset) * 8;
        if place >= u64::from(self.size) {
            return Err(stop(Status::DeltaOffset));
        }
        let target = self.target.offset(place);
        env.translate(target, 8, Access::Write, self.block_on_fault)?;
        env.memory.write(target, &entry[2..]).map_err(gone)?;
        env.done(8);
        self.last = Some(offset);
        self.applied += ENTRY_BYTES;
        Ok(())
    }
}

impl Execute for ApplyDelta {
    fn advance<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<bool, Stop> {
        let entries = env.chance.piece_bytes(self.record_bytes - self.applied).div_ceil(ENTRY_BYTES);
        for _ in 0..entries {
            self.apply_entry(env)?;
        }
        Ok(self.applied == self.record_bytes)
    }

    fn stopped(&self, fault: Fault) -> Completion {
        fault.completion(self.applied)
    }
}
