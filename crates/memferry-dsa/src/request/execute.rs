//! The CPU's accesses to the memory of a request: it executes operations and touches pages.
//!
//! Results have the form of a device's completion, so that both can execute parts of one request.

#![allow(unsafe_code)]

use super::resume::crc_mode;
use crate::address::{Address, PAGE_BYTES};
use crate::completion::{Completion, Status};
use crate::descriptor::Descriptor;
use crate::dif::{DIF_BYTES, DifTags};
use crate::flags::Flags;
use crate::operation::Opcode;
use crate::software::dif::Mismatch;
use crate::software::{self, Delta, DeltaError, Flush, dif};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::slice;

/// Memory that a request reads.
///
/// # Safety
/// The region is valid and initialised, its pointer was exposed, and no code writes it while the slice is used.
pub(super) unsafe fn bytes_at<'m>(address: Address, bytes: usize) -> &'m [u8] {
    // SAFETY: passed on to the caller.
    unsafe { slice::from_raw_parts(with_exposed_provenance(address.0 as usize), bytes) }
}

/// Memory that a request writes.
///
/// # Safety
/// As [`bytes_at`]; the pointer allows writes, and no other code reads the region meanwhile.
pub(super) unsafe fn bytes_at_mut<'m>(address: Address, bytes: usize) -> &'m mut [u8] {
    // SAFETY: passed on to the caller.
    unsafe { slice::from_raw_parts_mut(with_exposed_provenance_mut(address.0 as usize), bytes) }
}

/// The regions of a descriptor, and whether they are written.
fn regions(d: &Descriptor) -> [(Address, u64, bool); 3] {
    const NONE: (Address, u64, bool) = (Address(0), 0, false);
    let (first, second, size) = (d.address_1(), d.address_2(), u64::from(d.size()));
    let (source, target) = ((first, size, false), (second, size, true));
    match d.opcode() {
        Ok(Opcode::Memmove | Opcode::CopyCrc) => [source, target, NONE],
        Ok(Opcode::Fill) => [target, NONE, NONE],
        Ok(Opcode::CacheFlush) => [(second, size, false), NONE, NONE],
        Ok(Opcode::Compare) => [source, (second, size, false), NONE],
        Ok(Opcode::ComparePattern | Opcode::CrcGeneration | Opcode::DifCheck) => [source, NONE, NONE],
        Ok(Opcode::CreateDelta) => {
            let delta = (d.delta_address(), d.delta_bytes().into(), true);
            [source, (second, size, false), delta]
        }
        Ok(Opcode::ApplyDelta) => [(first, d.delta_bytes().into(), false), target, NONE],
        Ok(Opcode::Dualcast) => [source, target, (d.target_2(), size, true)],
        Ok(Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate) => {
            [source, (second, dif_target_bytes(d), true), NONE]
        }
        _ => [NONE; 3],
    }
}

/// Bytes that a DIF operation writes.
fn dif_target_bytes(d: &Descriptor) -> u64 {
    let (block, field) = (u64::from(d.dif_format().block.bytes()), u64::from(DIF_BYTES));
    let size = u64::from(d.size());
    match d.opcode() {
        Ok(Opcode::DifInsert) => size / block * (block + field),
        Ok(Opcode::DifStrip) => size / (block + field) * block,
        _ => size,
    }
}

/// Bytes of all regions.
pub(crate) fn bytes_of(descriptor: &Descriptor) -> u64 {
    regions(descriptor).iter().map(|(_, bytes, _)| bytes).sum()
}

/// Reads a byte of the faulting page, and writes it back if the device's access was a write. Touches only regions of the
/// descriptor, since other code owns the rest of the page. Returns whether the page has a byte of a region.
///
/// # Safety
/// The regions of the descriptor are valid, exposed, borrowed, and not accessed by a device.
pub unsafe fn touch(descriptor: &Descriptor, completion: &Completion) -> bool {
    let page = completion.fault_address.page();
    for (start, bytes, is_written) in regions(descriptor) {
        let at = start.max(page);
        let end = start.offset(bytes).min(Address(page.0.saturating_add(PAGE_BYTES)));
        if at >= end || completion.write_fault && !is_written {
            continue;
        }
        let byte = with_exposed_provenance_mut::<u8>(at.0 as usize);
        // SAFETY: the byte is in a region of the descriptor, in one that is borrowed for writing if it is written.
        // Volatile: the access has a purpose, the value has none.
        unsafe {
            let value = byte.read_volatile();
            if completion.write_fault {
                byte.write_volatile(value);
            }
        }
        return true;
    }
    false
}

/// Executes a descriptor on the CPU.
///
/// # Safety
/// The descriptor was checked as requests are, and its regions are valid, exposed, borrowed, and not accessed by a
/// device.
pub(super) unsafe fn execute(d: &Descriptor) -> Completion {
    let Ok(opcode) = d.opcode() else { return Completion::new(Status::BadOpcode) };
    let size = d.size() as usize;
    // SAFETY: passed on to the caller; a region that is written overlaps no other, except of Memory Move.
    let read = |address, bytes| unsafe { bytes_at(address, bytes) };
    // SAFETY: as above.
    let write = |address, bytes| unsafe { bytes_at_mut(address, bytes) };
    let (first, second) = (d.address_1(), d.address_2());
    let mode = crc_mode(d.flags());
    match opcode {
        Opcode::Noop | Opcode::Drain => {}
        Opcode::Batch => return Completion::new(Status::BadOpcode),
        Opcode::Memmove => {
            let source = with_exposed_provenance::<u8>(first.0 as usize);
            let target = with_exposed_provenance_mut::<u8>(second.0 as usize);
            // SAFETY: passed on to the caller; the regions may overlap.
            unsafe { source.copy_to(target, size) }
        }
        Opcode::Fill if d.flags().contains(Flags::FILL_PATTERN_16) => {
            software::fill16(d.pattern_16(), write(second, size));
        }
        Opcode::Fill => software::fill(d.pattern(), write(second, size)),
        Opcode::Compare => return compared(software::compare(read(first, size), read(second, size))),
        Opcode::ComparePattern => {
            return compared(software::compare_pattern(d.pattern(), read(first, size)));
        }
        Opcode::CreateDelta => {
            let delta = write(d.delta_address(), d.delta_bytes() as usize);
            return created(software::create_delta(read(first, size), read(second, size), delta));
        }
        Opcode::ApplyDelta => {
            let delta = read(first, d.delta_bytes() as usize);
            return applied(software::apply_delta(delta, write(second, size)));
        }
        Opcode::Dualcast => {
            software::dualcast(read(first, size), write(second, size), write(d.target_2(), size));
        }
        Opcode::CrcGeneration => return with_crc(software::crc32c(d.crc_seed(), read(first, size), mode)),
        Opcode::CopyCrc => {
            let (source, target) = (read(first, size), write(second, size));
            return with_crc(software::copy_crc(source, target, d.crc_seed(), mode));
        }
        Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate => {
            // SAFETY: passed on to the caller.
            return unsafe { execute_dif(opcode, d) };
        }
        // The request is that memory has the lines; devices may keep them in the caches or not.
        Opcode::CacheFlush => software::flush(read(second, size), Flush::Invalidate),
    }
    Completion::new(Status::Success)
}

fn compared(difference: Option<usize>) -> Completion {
    match difference {
        None => Completion::new(Status::Success),
        Some(at) => Completion { result: 1, bytes_completed: at as u32, ..Completion::new(Status::Success) },
    }
}

fn created(delta: Delta) -> Completion {
    let (result, written, compared) = match delta {
        Delta::Equal => (0, 0, 0),
        Delta::Complete { size_bytes } => (1, size_bytes, 0),
        Delta::Overflow { size_bytes, bytes_compared } => (2, size_bytes, bytes_compared),
    };
    let bytes_completed = compared as u32;
    Completion { result, bytes_completed, operation: [written as u64, 0], ..Completion::new(Status::Success) }
}

fn applied(applied: Result<(), DeltaError>) -> Completion {
    let (status, bytes) = match applied {
        Ok(()) => (Status::Success, 0),
        Err(DeltaError::Descending { applied_bytes }) => (Status::DeltaOrder, applied_bytes),
        Err(DeltaError::OutOfRange { applied_bytes }) => (Status::DeltaOffset, applied_bytes),
    };
    Completion { bytes_completed: bytes as u32, ..Completion::new(status) }
}

fn with_crc(crc: u32) -> Completion {
    Completion { operation: [crc.into(), 0], ..Completion::new(Status::Success) }
}

/// # Safety
/// As [`execute`].
unsafe fn execute_dif(opcode: Opcode, d: &Descriptor) -> Completion {
    // SAFETY: passed on to the caller; Check has no target, and the regions of the others do not overlap.
    let (source, target) = unsafe {
        let target_bytes = if opcode == Opcode::DifCheck { 0 } else { dif_target_bytes(d) as usize };
        let target = if target_bytes == 0 { &mut [][..] } else { bytes_at_mut(d.address_2(), target_bytes) };
        (bytes_at(d.address_1(), d.size() as usize), target)
    };
    let (format, expected, made) = (d.dif_format(), d.dif_source(), d.dif_target());
    if made.flags.bits() & 0b111 != 0 {
        return Completion::new(Status::ReservedNotZero);
    }
    let told = |source: Option<DifTags>, target: Option<DifTags>| {
        let word = |tags: Option<DifTags>| tags.map_or(0, DifTags::to_word);
        Completion { operation: [word(source), word(target)], ..Completion::new(Status::Success) }
    };
    match opcode {
        Opcode::DifInsert => told(None, Some(dif::insert(format, &made, source, target))),
        Opcode::DifStrip => match dif::strip(format, &expected, source, target) {
            Ok(next) => told(Some(next), None),
            Err(wrong) => mismatch(wrong),
        },
        Opcode::DifUpdate => match dif::update(format, &expected, &made, source, target) {
            Ok((source, target)) => told(Some(source), Some(target)),
            Err(wrong) => mismatch(wrong),
        },
        _ => match dif::check(format, &expected, source) {
            Ok(next) => told(Some(next), None),
            Err(wrong) => mismatch(wrong),
        },
    }
}

fn mismatch(mismatch: Mismatch) -> Completion {
    Completion {
        result: mismatch.wrong.bits(),
        bytes_completed: mismatch.bytes_completed as u32,
        ..Completion::new(Status::DifMismatch)
    }
}
