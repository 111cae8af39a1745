//! Memory Move, piece by piece.
//!
//! ```text
//! for each piece:   check its pages, source before target; on a fault shorten the piece and stop
//!                   copy the piece
//! ```
//!
//! Overlapping regions with the target above the source are copied from the end to the start. So the result is as if
//! through a temporary buffer, also when a fault stops the copy.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3.4.

use memferry_dsa::{Address, Completion, Descriptor};

use super::{Env, Execute, Stop, blocks_on_fault};
use crate::device::counters::count;
use crate::device::translation::{Fault, FaultInjector, bytes_from_page_start, bytes_to_page_end};
use crate::memory::{Access, Memory};

/// A copy in progress.
#[derive(Debug)]
pub(crate) struct Memmove {
    source: Address,
    target: Address,
    size: u32,
    done: u32,
    is_backwards: bool,
    block_on_fault: bool,
}

impl Memmove {
    pub(super) fn new(descriptor: &Descriptor, chance: &mut FaultInjector) -> Memmove {
        let (source, target) = (descriptor.address_1(), descriptor.address_2());
        Memmove {
            source,
            target,
            size: descriptor.size(),
            done: 0,
            is_backwards: runs_backwards(source, target, descriptor.size(), chance),
            block_on_fault: blocks_on_fault(descriptor),
        }
    }

    /// The number of the next `piece` bytes that can be copied before a page is absent.
    fn translate<M: Memory>(&self, piece: u32, env: &mut Env<'_, M>) -> (u32, Result<(), Fault>) {
        let mut ready = 0;
        let (mut source_page, mut target_page) = (None, None);
        while ready < piece {
            let (source, target, bytes) = self.span(self.done + ready, piece - ready);
            for (page, access, last) in
                [(source, Access::Read, &mut source_page), (target, Access::Write, &mut target_page)]
            {
                if last.replace(page) == Some(page) {
                    continue;
                }
                let (memory, counters) = (env.memory, env.counters);
                let translated = env.chance.data_page(memory, page, access, self.block_on_fault, counters);
                if translated.is_err() {
                    return (ready, translated);
                }
            }
            ready += bytes;
        }
        (ready, Ok(()))
    }

    /// The pages of source and target after `done` bytes, and the bytes up to the next page border of either.
    fn span(&self, done: u32, bytes_max: u32) -> (Address, Address, u32) {
        let (source, target, bytes) = if self.is_backwards {
            let left = u64::from(self.size - done);
            let (source, target) = (self.source.offset(left), self.target.offset(left));
            let bytes = bytes_from_page_start(source).min(bytes_from_page_start(target));
            (source.offset(u64::MAX), target.offset(u64::MAX), bytes)
        } else {
            let (source, target) = (self.source.offset(done.into()), self.target.offset(done.into()));
            (source, target, bytes_to_page_end(source).min(bytes_to_page_end(target)))
        };
        (source.page(), target.page(), bytes.min(bytes_max.into()) as u32)
    }

    /// Copies the next `bytes`, whose pages are translated.
    fn copy<M: Memory>(&mut self, bytes: u32, env: &mut Env<'_, M>) -> Result<(), Fault> {
        let start = if self.is_backwards { self.size - self.done - bytes } else { self.done };
        let (source, target) = (self.source.offset(start.into()), self.target.offset(start.into()));
        let copied = env.memory.copy(source, target, bytes as usize);
        // The memory copies from the start if the direction is free. Then its progress does not count for a piece that
        // is copied from the end.
        let overlaps_up = source < target && target.0 - source.0 < u64::from(bytes);
        let done = match copied {
            Ok(()) => bytes,
            Err(vanished) if self.is_backwards == overlaps_up => vanished.bytes_done as u32,
            Err(_) => 0,
        };
        self.done += done;
        env.done(done);
        count(&env.counters.bytes_copied, u64::from(done));
        copied.map_err(|vanished| Fault::vanished(vanished, self.block_on_fault))
    }
}

impl Execute for Memmove {
    fn advance<M: Memory>(&mut self, env: &mut Env<'_, M>) -> Result<bool, Stop> {
        let piece = env.chance.piece_bytes(self.size - self.done);
        let (ready, translated) = self.translate(piece, env);
        if ready > 0 {
            self.copy(ready, env)?;
        }
        translated?;
        Ok(self.done == self.size)
    }

    fn stopped(&self, fault: Fault) -> Completion {
        Completion { result: u8::from(self.is_backwards), ..fault.completion(self.done) }
    }
}

/// The direction of a copy: determined by an overlap, random otherwise.
fn runs_backwards(source: Address, target: Address, size: u32, chance: &mut FaultInjector) -> bool {
    let end = |start: Address| start.0.checked_add(size.into());
    let (Some(source_end), Some(target_end)) = (end(source), end(target)) else {
        return false; // a region that wraps is copied up to the last page, which is never present
    };
    let overlap = source.0 < target_end && target.0 < source_end;
    if overlap { source < target } else { chance.draws(|plan| plan.backwards_per_mille) }
}
