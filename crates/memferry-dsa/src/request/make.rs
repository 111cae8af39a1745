//! The operations, one constructor each.

use std::marker::PhantomData;

use super::check::{DELTA_ROOM_BYTES_MIN, Invalid};
use super::{Outcome, Request, Source, Target};
use crate::address::Address;
use crate::descriptor::Descriptor;
use crate::dif::{DIF_BYTES, DifFormat, DifSource, DifTags, DifTarget};
use crate::flags::Flags;
use crate::operation::Opcode;
use crate::software::dif::Mismatch;
use crate::software::{CrcMode, Delta, DeltaError, ENTRY_BYTES};

impl<'a, O: Outcome> Request<'a, O> {
    /// A request whose regions must have `lengths` (is, should be).
    fn of(descriptor: Descriptor, size: usize, lengths: &[(usize, usize)]) -> Request<'a, O> {
        let operation = descriptor.opcode().unwrap_or(Opcode::Noop);
        let bytes_max = u32::MAX as usize;
        let problem = if size > bytes_max {
            Some(Invalid::TooLong { operation, bytes: size, bytes_max })
        } else {
            let wrong = lengths.iter().find(|(bytes, bytes_needed)| bytes != bytes_needed);
            wrong.map(|&(bytes, bytes_needed)| Invalid::Length { operation, bytes, bytes_needed })
        };
        Request { descriptor, problem, has_cells: false, borrow: PhantomData, outcome: PhantomData }
    }

    /// Whether some of its memory came as cells.
    fn with_cells(self, has_cells: bool) -> Request<'a, O> {
        Request { has_cells, ..self }
    }
}

/// The size for a descriptor; one that does not fit is a problem that `of` notices.
fn size_of_transfer(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

impl<'a> Request<'a, ()> {
    /// Does nothing. In a batch with a fence, it is a barrier.
    pub fn noop() -> Request<'a, ()> {
        Request::of(Descriptor::noop(), 0, &[])
    }

    /// Waits for everything that this process has submitted to the queues of the client.
    pub fn drain() -> Request<'a, ()> {
        Request::of(Descriptor::drain(), 0, &[])
    }

    /// Copies `source` to `target`, equally long. Cells may overlap.
    pub fn copy(source: impl Into<Source<'a>>, target: impl Into<Target<'a>>) -> Request<'a, ()> {
        let (source, target) = (source.into(), target.into());
        let size = source.size_bytes;
        let copy = Descriptor::memmove(source.start, target.start, size_of_transfer(size));
        Request::of(copy, size, &[(target.size_bytes, size)]).with_cells(source.is_cells || target.is_cells)
    }

    /// Fills `target` with `pattern`, low byte first; the last repetition may be cut short.
    pub fn fill(pattern: u64, target: impl Into<Target<'a>>) -> Request<'a, ()> {
        let target = target.into();
        let size = target.size_bytes;
        Request::of(Descriptor::fill(pattern, target.start, size_of_transfer(size)), size, &[])
            .with_cells(target.is_cells)
    }

    /// Fills `target` with a pattern of 16 bytes: by devices since version 2.0, otherwise by the CPU.
    pub fn fill_16(pattern: u128, target: impl Into<Target<'a>>) -> Request<'a, ()> {
        let target = target.into();
        let size = target.size_bytes;
        Request::of(Descriptor::fill_16(pattern, target.start, size_of_transfer(size)), size, &[])
            .with_cells(target.is_cells)
    }

    /// Copies `source` to both targets. All are equally long, none overlaps another, and the targets' addresses are
    /// equal modulo 4096.
    pub fn dualcast(
        source: impl Into<Source<'a>>,
        target_1: impl Into<Target<'a>>,
        target_2: impl Into<Target<'a>>,
    ) -> Request<'a, ()> {
        let (source, target_1, target_2) = (source.into(), target_1.into(), target_2.into());
        let size = source.size_bytes;
        let dualcast =
            Descriptor::dualcast(source.start, target_1.start, target_2.start, size_of_transfer(size));
        Request::of(dualcast, size, &[(target_1.size_bytes, size), (target_2.size_bytes, size)])
            .with_cells(source.is_cells || target_1.is_cells || target_2.is_cells)
    }

    /// Writes the lines that `data` touches from the CPU's caches to memory. Whether they stay in the caches is up to
    /// the device.
    pub fn cache_flush(data: impl Into<Source<'a>>) -> Request<'a, ()> {
        let data = data.into();
        let size = data.size_bytes;
        Request::of(Descriptor::cache_flush(data.start, size_of_transfer(size)), size, &[])
            .with_cells(data.is_cells)
    }
}

impl<'a> Request<'a, Option<usize>> {
    /// Looks for the first difference of two regions that are equally long.
    pub fn compare(
        source_1: impl Into<Source<'a>>,
        source_2: impl Into<Source<'a>>,
    ) -> Request<'a, Option<usize>> {
        let (source_1, source_2) = (source_1.into(), source_2.into());
        let size = source_1.size_bytes;
        let compare = Descriptor::compare(source_1.start, source_2.start, size_of_transfer(size));
        Request::of(compare, size, &[(source_2.size_bytes, size)])
            .with_cells(source_1.is_cells || source_2.is_cells)
    }

    /// Looks for the first difference from `pattern`, which is repeated, low byte first, from the start of `source`.
    pub fn compare_pattern(pattern: u64, source: impl Into<Source<'a>>) -> Request<'a, Option<usize>> {
        let source = source.into();
        let size = source.size_bytes;
        Request::of(Descriptor::compare_pattern(pattern, source.start, size_of_transfer(size)), size, &[])
            .with_cells(source.is_cells)
    }
}

impl<'a> Request<'a, Delta> {
    /// Writes to `delta` what must be changed in `old` to get `new`.
    ///
    /// Shapes: `old` and `new` aligned to 8 bytes, equally long, a multiple of 8, at most 512 KiB. `delta` at least
    /// 80 bytes, overlaps neither; what is beyond the last multiple of 10 is not used.
    pub fn create_delta(
        old: impl Into<Source<'a>>,
        new: impl Into<Source<'a>>,
        delta: impl Into<Target<'a>>,
    ) -> Request<'a, Delta> {
        let (old, new, delta) = (old.into(), new.into(), delta.into());
        let size = old.size_bytes;
        // More room than all words need would only be checked against limits for nothing.
        let needed = (size / 8).saturating_mul(ENTRY_BYTES).max(DELTA_ROOM_BYTES_MIN);
        let room = delta.size_bytes.min(needed) / ENTRY_BYTES * ENTRY_BYTES;
        let create = Descriptor::create_delta(
            old.start,
            new.start,
            size_of_transfer(size),
            delta.start,
            size_of_transfer(room),
        );
        Request::of(create, size, &[(new.size_bytes, size)])
            .with_cells(old.is_cells || new.is_cells || delta.is_cells)
    }
}

impl<'a> Request<'a, Result<(), DeltaError>> {
    /// Changes `target` as the record `delta` says.
    ///
    /// Shapes: `delta` exactly what was written; `target` aligned to 8 bytes and as long as what the record was made
    /// of.
    pub fn apply_delta(
        delta: impl Into<Source<'a>>,
        target: impl Into<Target<'a>>,
    ) -> Request<'a, Result<(), DeltaError>> {
        let (delta, target) = (delta.into(), target.into());
        let size = target.size_bytes;
        let delta_bytes = size_of_transfer(delta.size_bytes);
        let apply = Descriptor::apply_delta(delta.start, delta_bytes, target.start, size_of_transfer(size));
        Request::of(apply, size.max(delta.size_bytes), &[]).with_cells(delta.is_cells || target.is_cells)
    }
}

impl<'a> Request<'a, u32> {
    /// Computes the CRC-32C of `source`; seed 0 begins one, and the result is the seed for what follows.
    pub fn crc(seed: u32, source: impl Into<Source<'a>>) -> Request<'a, u32> {
        let source = source.into();
        let size = source.size_bytes;
        Request::of(Descriptor::crc(seed, source.start, size_of_transfer(size)), size, &[])
            .with_cells(source.is_cells)
    }

    /// Copies `source` to `target`, equally long and apart, and computes its CRC-32C.
    pub fn copy_crc(
        seed: u32,
        source: impl Into<Source<'a>>,
        target: impl Into<Target<'a>>,
    ) -> Request<'a, u32> {
        let (source, target) = (source.into(), target.into());
        let size = source.size_bytes;
        let copy = Descriptor::copy_crc(seed, source.start, target.start, size_of_transfer(size));
        Request::of(copy, size, &[(target.size_bytes, size)]).with_cells(source.is_cells || target.is_cells)
    }

    /// How seed, data and result are turned.
    pub fn with_mode(self, mode: CrcMode) -> Request<'a, u32> {
        let flag = |is_set, flag| if is_set { flag } else { Flags::NONE };
        self.with_flags(
            flag(mode.bypass_inversion, Flags::CRC_BYPASS_INVERSION)
                | flag(mode.bypass_data_reflection, Flags::CRC_BYPASS_DATA_REFLECTION),
        )
    }
}

/// The size of a target of as many blocks as `bytes` are, if each has `from` bytes there and `to` bytes in the target.
fn resized(bytes: usize, from: u32, to: u32) -> usize {
    (bytes / from as usize).saturating_mul(to as usize)
}

impl<'a> Request<'a, DifTags> {
    /// Copies the blocks of `source` to `target` with a data integrity field behind each.
    pub fn dif_insert(
        source: impl Into<Source<'a>>,
        target: impl Into<Target<'a>>,
        format: DifFormat,
        made: DifTarget,
    ) -> Request<'a, DifTags> {
        let (source, target) = (source.into(), target.into());
        let (size, block) = (source.size_bytes, format.block.bytes());
        let insert = Descriptor::dif_insert(source.start, target.start, size_of_transfer(size), format, made);
        let lengths = whole(size, block, target.size_bytes, resized(size, block, block + DIF_BYTES));
        Request::of(insert, size, &lengths).with_cells(source.is_cells || target.is_cells)
    }
}

/// The check of a target's length, left out if the source is not whole blocks, which is then the problem.
fn whole(size: usize, block: u32, bytes: usize, bytes_needed: usize) -> [(usize, usize); 1] {
    if size.is_multiple_of(block as usize) { [(bytes, bytes_needed)] } else { [(0, 0)] }
}

impl<'a> Request<'a, Result<DifTags, Mismatch>> {
    /// Checks the data integrity fields of `source`.
    pub fn dif_check(
        source: impl Into<Source<'a>>,
        format: DifFormat,
        expected: DifSource,
    ) -> Request<'a, Result<DifTags, Mismatch>> {
        let source = source.into();
        let size = source.size_bytes;
        let check = Descriptor::dif_check(source.start, size_of_transfer(size), format, expected);
        Request::of(check, size, &[]).with_cells(source.is_cells)
    }

    /// Checks the fields of `source` and copies the blocks without them to `target`.
    ///
    /// The device takes `target` to be as long as `source`, and these must not overlap.
    pub fn dif_strip(
        source: impl Into<Source<'a>>,
        target: impl Into<Target<'a>>,
        format: DifFormat,
        expected: DifSource,
    ) -> Request<'a, Result<DifTags, Mismatch>> {
        let (source, target) = (source.into(), target.into());
        let (size, block) = (source.size_bytes, format.block.bytes());
        let strip =
            Descriptor::dif_strip(source.start, target.start, size_of_transfer(size), format, expected);
        let needed = resized(size, block + DIF_BYTES, block);
        Request::of(strip, size, &whole(size, block + DIF_BYTES, target.size_bytes, needed))
            .with_cells(source.is_cells || target.is_cells)
    }
}

impl<'a> Request<'a, Result<(DifTags, DifTags), Mismatch>> {
    /// Checks the fields of `source` and copies the blocks to `target`, equally long, with fields made anew.
    pub fn dif_update(
        source: impl Into<Source<'a>>,
        target: impl Into<Target<'a>>,
        format: DifFormat,
        expected: DifSource,
        made: DifTarget,
    ) -> Request<'a, Result<(DifTags, DifTags), Mismatch>> {
        let (source, target) = (source.into(), target.into());
        let size = source.size_bytes;
        let from: Address = source.start.into();
        let update =
            Descriptor::dif_update(from, target.start, size_of_transfer(size), format, expected, made);
        Request::of(update, size, &[(target.size_bytes, size)]).with_cells(source.is_cells || target.is_cells)
    }
}
