//! The operations, one constructor each.

use std::marker::PhantomData;

use super::check::{DELTA_ROOM_BYTES_MIN, Invalid};
use super::{Outcome, Request, Source, Target};
use crate::descriptor::Descriptor;
use crate::dif::{DIF_BYTES, DifFormat, DifSource, DifTags, DifTarget};
use crate::flags::Flags;
use crate::operation::Opcode;
use crate::software::dif::Mismatch;
use crate::software::{CrcMode, Delta, DeltaError, ENTRY_BYTES};

impl<O: Outcome> Request<'_, O> {
    /// A request for `size_bytes`. `has_cells`: some of its memory is cells. `lengths`: found and required lengths of its
    /// other regions.
    fn of(descriptor: Descriptor, size_bytes: usize, has_cells: bool, lengths: &[(usize, usize)]) -> Self {
        let operation = descriptor.opcode().unwrap_or(Opcode::Noop);
        let bytes_max = u32::MAX as usize;
        let problem = if size_bytes > bytes_max {
            Some(Invalid::TooLong { operation, bytes: size_bytes, bytes_max })
        } else {
            let wrong = lengths.iter().find(|(bytes, bytes_needed)| bytes != bytes_needed);
            wrong.map(|&(bytes, bytes_needed)| Invalid::Length { operation, bytes, bytes_needed })
        };
        Request { descriptor, problem, has_cells, borrow: PhantomData, outcome: PhantomData }
    }
}

/// The size in a descriptor. [`Request::of`] notices a size that does not fit.
fn in_descriptor(size_bytes: usize) -> u32 {
    u32::try_from(size_bytes).unwrap_or(u32::MAX)
}

impl<'a> Request<'a, ()> {
    /// Does nothing. In a batch with a fence, it is a barrier.
    pub fn noop() -> Self {
        Request::of(Descriptor::noop(), 0, false, &[])
    }

    /// Waits for everything that this process has submitted to the queues of the client.
    pub fn drain() -> Self {
        Request::of(Descriptor::drain(), 0, false, &[])
    }

    /// Copies `source` to `target`, which have equal lengths. Cells may overlap.
    pub fn copy(source: impl Into<Source<'a>>, target: impl Into<Target<'a>>) -> Self {
        let (source, target) = (source.into(), target.into());
        let (size, has_cells) = (source.size_bytes, source.is_cells || target.is_cells);
        let copy = Descriptor::memmove(source.start, target.start, in_descriptor(size));
        Request::of(copy, size, has_cells, &[(target.size_bytes, size)])
    }

    /// Fills `target` with `pattern`, low byte first; the last repetition may be cut.
    pub fn fill(pattern: u64, target: impl Into<Target<'a>>) -> Self {
        let Target { start, size_bytes, is_cells, .. } = target.into();
        Request::of(Descriptor::fill(pattern, start, in_descriptor(size_bytes)), size_bytes, is_cells, &[])
    }

    /// Fills `target` with a pattern of 16 bytes: by devices since version 2.0, otherwise by the CPU.
    pub fn fill_16(pattern: u128, target: impl Into<Target<'a>>) -> Self {
        let Target { start, size_bytes, is_cells, .. } = target.into();
        Request::of(Descriptor::fill_16(pattern, start, in_descriptor(size_bytes)), size_bytes, is_cells, &[])
    }

    /// Copies `source` to both targets. All have equal lengths, no two overlap, and the addresses of the targets are
    /// equal modulo 4096.
    pub fn dualcast(
        source: impl Into<Source<'a>>,
        target_1: impl Into<Target<'a>>,
        target_2: impl Into<Target<'a>>,
    ) -> Self {
        let (source, target_1, target_2) = (source.into(), target_1.into(), target_2.into());
        let size = source.size_bytes;
        let has_cells = source.is_cells || target_1.is_cells || target_2.is_cells;
        let copy = Descriptor::dualcast(source.start, target_1.start, target_2.start, in_descriptor(size));
        Request::of(copy, size, has_cells, &[(target_1.size_bytes, size), (target_2.size_bytes, size)])
    }

    /// Writes the cache lines of `data` to memory. The device decides whether they stay in the caches.
    pub fn cache_flush(data: impl Into<Source<'a>>) -> Self {
        let Source { start, size_bytes, is_cells, .. } = data.into();
        Request::of(Descriptor::cache_flush(start, in_descriptor(size_bytes)), size_bytes, is_cells, &[])
    }
}

impl<'a> Request<'a, Option<usize>> {
    /// Finds the first difference of two regions with equal lengths.
    pub fn compare(source_1: impl Into<Source<'a>>, source_2: impl Into<Source<'a>>) -> Self {
        let (source_1, source_2) = (source_1.into(), source_2.into());
        let (size, has_cells) = (source_1.size_bytes, source_1.is_cells || source_2.is_cells);
        let compare = Descriptor::compare(source_1.start, source_2.start, in_descriptor(size));
        Request::of(compare, size, has_cells, &[(source_2.size_bytes, size)])
    }

    /// Finds the first difference from `pattern`, which is repeated, low byte first, from the start of `source`.
    pub fn compare_pattern(pattern: u64, source: impl Into<Source<'a>>) -> Self {
        let Source { start, size_bytes, is_cells, .. } = source.into();
        let compare = Descriptor::compare_pattern(pattern, start, in_descriptor(size_bytes));
        Request::of(compare, size_bytes, is_cells, &[])
    }
}

impl<'a> Request<'a, Delta> {
    /// Writes to `delta` the differences from `old` to `new`.
    ///
    /// Shapes: `old` and `new` are aligned to 8 bytes and have the same length, a multiple of 8, at most 512 KiB. `delta`
    /// has at least 80 bytes and overlaps neither; bytes behind the last multiple of 10 are not used.
    pub fn create_delta(
        old: impl Into<Source<'a>>,
        new: impl Into<Source<'a>>,
        delta: impl Into<Target<'a>>,
    ) -> Self {
        let (old, new, delta) = (old.into(), new.into(), delta.into());
        let (size, has_cells) = (old.size_bytes, old.is_cells || new.is_cells || delta.is_cells);
        // More room than all words need would only be checked against limits.
        let needed = (size / 8).saturating_mul(ENTRY_BYTES).max(DELTA_ROOM_BYTES_MIN);
        let room = in_descriptor(delta.size_bytes.min(needed) / ENTRY_BYTES * ENTRY_BYTES);
        let create = Descriptor::create_delta(old.start, new.start, in_descriptor(size), delta.start, room);
        Request::of(create, size, has_cells, &[(new.size_bytes, size)])
    }
}

impl<'a> Request<'a, Result<(), DeltaError>> {
    /// Applies the record `delta` to `target`.
    ///
    /// Shapes: `delta` has the size that Create Delta reported. `target` is aligned to 8 bytes and as long as the sources
    /// of the record.
    pub fn apply_delta(delta: impl Into<Source<'a>>, target: impl Into<Target<'a>>) -> Self {
        let (delta, target) = (delta.into(), target.into());
        let (delta_bytes, size) = (delta.size_bytes, target.size_bytes);
        let apply = Descriptor::apply_delta(
            delta.start,
            in_descriptor(delta_bytes),
            target.start,
            in_descriptor(size),
        );
        Request::of(apply, size.max(delta_bytes), delta.is_cells || target.is_cells, &[])
    }
}

impl<'a> Request<'a, u32> {
    /// Computes the CRC-32C of `source`. Seed 0 begins a CRC; the result is the seed for the data that follows.
    pub fn crc(seed: u32, source: impl Into<Source<'a>>) -> Self {
        let Source { start, size_bytes, is_cells, .. } = source.into();
        Request::of(Descriptor::crc(seed, start, in_descriptor(size_bytes)), size_bytes, is_cells, &[])
    }

    /// Copies `source` to `target` and computes its CRC-32C. Both have equal lengths and do not overlap.
    pub fn copy_crc(seed: u32, source: impl Into<Source<'a>>, target: impl Into<Target<'a>>) -> Self {
        let (source, target) = (source.into(), target.into());
        let (size, has_cells) = (source.size_bytes, source.is_cells || target.is_cells);
        let copy = Descriptor::copy_crc(seed, source.start, target.start, in_descriptor(size));
        Request::of(copy, size, has_cells, &[(target.size_bytes, size)])
    }

    /// Sets the inversion and reflection of seed, data and result.
    pub fn with_mode(self, mode: CrcMode) -> Self {
        let flag = |is_set, flag| if is_set { flag } else { Flags::NONE };
        self.with_flags(
            flag(mode.bypass_inversion, Flags::CRC_BYPASS_INVERSION)
                | flag(mode.bypass_data_reflection, Flags::CRC_BYPASS_DATA_REFLECTION),
        )
    }
}

/// The size of a target with a block of `to` bytes for each block of `from` bytes in a source of `bytes`.
fn resized(bytes: usize, from: u32, to: u32) -> usize {
    (bytes / from as usize).saturating_mul(to as usize)
}

/// The lengths of a target. They are equal if the source is not whole blocks, since that is the problem to report.
fn whole(size: usize, block: u32, bytes: usize, bytes_needed: usize) -> [(usize, usize); 1] {
    if size.is_multiple_of(block as usize) { [(bytes, bytes_needed)] } else { [(0, 0)] }
}

impl<'a> Request<'a, DifTags> {
    /// Copies the blocks of `source` to `target` with a data integrity field behind each.
    pub fn dif_insert(
        source: impl Into<Source<'a>>,
        target: impl Into<Target<'a>>,
        format: DifFormat,
        made: DifTarget,
    ) -> Self {
        let (source, target) = (source.into(), target.into());
        let (size, has_cells) = (source.size_bytes, source.is_cells || target.is_cells);
        let insert = Descriptor::dif_insert(source.start, target.start, in_descriptor(size), format, made);
        let block = format.block.bytes();
        let lengths = whole(size, block, target.size_bytes, resized(size, block, block + DIF_BYTES));
        Request::of(insert, size, has_cells, &lengths)
    }
}

impl<'a> Request<'a, Result<DifTags, Mismatch>> {
    /// Checks the data integrity fields of `source`.
    pub fn dif_check(source: impl Into<Source<'a>>, format: DifFormat, expected: DifSource) -> Self {
        let Source { start, size_bytes, is_cells, .. } = source.into();
        let check = Descriptor::dif_check(start, in_descriptor(size_bytes), format, expected);
        Request::of(check, size_bytes, is_cells, &[])
    }

    /// Checks the fields of `source` and copies the blocks without them to `target`.
    ///
    /// The device treats `target` as if it were as long as `source`, and these regions must not overlap.
    pub fn dif_strip(
        source: impl Into<Source<'a>>,
        target: impl Into<Target<'a>>,
        format: DifFormat,
        expected: DifSource,
    ) -> Self {
        let (source, target) = (source.into(), target.into());
        let (size, has_cells) = (source.size_bytes, source.is_cells || target.is_cells);
        let strip = Descriptor::dif_strip(source.start, target.start, in_descriptor(size), format, expected);
        let block = format.block.bytes();
        let needed = resized(size, block + DIF_BYTES, block);
        Request::of(strip, size, has_cells, &whole(size, block + DIF_BYTES, target.size_bytes, needed))
    }
}

impl<'a> Request<'a, Result<(DifTags, DifTags), Mismatch>> {
    /// Checks the fields of `source` and copies the blocks to `target`, which is as long, with new fields.
    pub fn dif_update(
        source: impl Into<Source<'a>>,
        target: impl Into<Target<'a>>,
        format: DifFormat,
        expected: DifSource,
        made: DifTarget,
    ) -> Self {
        let (source, target) = (source.into(), target.into());
        let (size, has_cells) = (source.size_bytes, source.is_cells || target.is_cells);
        let (from, to) = (source.start, target.start);
        let update = Descriptor::dif_update(from, to, in_descriptor(size), format, expected, made);
        Request::of(update, size, has_cells, &[(target.size_bytes, size)])
    }
}
