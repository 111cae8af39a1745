//! Memory Move, piece by piece.
//!
//! ```text
//! for each piece:   check its pages, source before target; on a fault shorten the piece and stop
//!                   copy the piece
//! ```
//!
//! Regions that overlap with the target above the source are copied from the end to the start, so that the result
//! is as if through a temporary also when a fault stops it half-way.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3.4.

use super::front::{Counters, count};
use super::memory::{Access, Memory};
use super::pages::{Chance, PageFault, bytes_from_page_start, bytes_to_page_end};
use crate::address::Address;
use crate::completion::{Completion, Status};
use crate::descriptor::Descriptor;
use crate::flags::Flags;

/// A copy on its way.
#[derive(Debug)]
pub(super) struct Memmove {
    source: Address,
    target: Address,
    size: u32,
    done: u32,
    is_backwards: bool,
    block_on_fault: bool,
}

impl Memmove {
    pub(super) fn new(descriptor: &Descriptor, chance: &mut Chance) -> Memmove {
        let (source, target) = (descriptor.address_1(), descriptor.address_2());
        Memmove {
            source,
            target,
            size: descriptor.size(),
            done: 0,
            is_backwards: runs_backwards(source, target, descriptor.size(), chance),
            block_on_fault: descriptor.flags().contains(Flags::BLOCK_ON_FAULT),
        }
    }

    /// Copies one piece; the completion once the copy has ended.
    pub(super) fn advance(
        &mut self,
        memory: &impl Memory,
        chance: &mut Chance,
        counters: &Counters,
    ) -> Option<Completion> {
        let piece = chance.piece_bytes(self.size - self.done);
        let (size, fault) = self.translate(piece, memory, chance, counters);
        if size > 0 {
            let start = if self.is_backwards { self.size - self.done - size } else { self.done };
            let start = u64::from(start);
            memory.copy(self.source.offset(start), self.target.offset(start), size as usize);
            self.done += size;
            count(&counters.bytes_copied, u64::from(size));
        }
        match fault {
            Some(fault) => {
                let status = if fault.is_refused { Status::PageFaultRefused } else { Status::PageFault };
                let result = u8::from(self.is_backwards);
                Some(Completion { result, ..fault.completion(status, self.done) })
            }
            None if self.done == self.size => Some(Completion::new(Status::Success)),
            None => None,
        }
    }

    /// How much of the next `piece` bytes can be copied before a page is missing.
    fn translate(
        &self,
        piece: u32,
        memory: &impl Memory,
        chance: &mut Chance,
        counters: &Counters,
    ) -> (u32, Option<PageFault>) {
        let mut ready = 0;
        let (mut source_page, mut target_page) = (None, None);
        while ready < piece {
            let (source, target, bytes) = self.stretch(self.done + ready, piece - ready);
            for (page, access, last) in
                [(source, Access::Read, &mut source_page), (target, Access::Write, &mut target_page)]
            {
                if last.replace(page) == Some(page) {
                    continue;
                }
                if let Err(fault) = chance.data_page(memory, page, access, self.block_on_fault, counters) {
                    return (ready, Some(fault));
                }
            }
            ready += bytes;
        }
        (ready, None)
    }

    /// The pages of source and target after `done` bytes, and how far the copy gets without leaving either.
    fn stretch(&self, done: u32, bytes_max: u32) -> (Address, Address, u32) {
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
}

/// The direction of a copy: given by an overlap, free otherwise.
fn runs_backwards(source: Address, target: Address, size: u32, chance: &mut Chance) -> bool {
    let end = |start: Address| start.0.checked_add(size.into());
    let (Some(source_end), Some(target_end)) = (end(source), end(target)) else {
        return false; // a region that wraps is copied up to the last page, which is never there
    };
    let overlap = source.0 < target_end && target.0 < source_end;
    if overlap { source < target } else { chance.runs_backwards() }
}
