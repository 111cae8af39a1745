//! The operations in software beside the best alternative of each, in the same run.
//!
//! All memory is in huge pages where the system has them. In small pages, the physical addresses of a buffer are random. A
//! second-level cache of 1 MiB then lacks room for some lines of a buffer of 1 MiB: `compare_pattern` measured 46 GB/s in
//! one process and 96 in another (AMD EPYC, Zen 4).

use std::cell::RefCell;
use std::hint::black_box;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use memferry::memory::{Binding, Mapping, MemoryError};
use memferry::topology::Machine;
use memferry_dsa::internals::software::{
    DELTA_BYTES_MAX, compare, compare_pattern, copy_crc, dif, dualcast, fill,
};
use memferry_dsa::software::{CrcMode, Delta, apply_delta, crc32c, create_delta};
use memferry_dsa::{DIF_BYTES, DifBlock, DifFormat, DifSource, DifTags, DifTarget};

use crate::harness::{Effort, Pairs, Random};

/// Times of one operation and of its peer.
#[derive(Clone, Debug)]
pub struct OperationTimes {
    /// Name of the operation.
    pub name: String,
    /// Name of its peer.
    pub peer: &'static str,
    /// Bytes that each call processes in one region.
    pub size_bytes: usize,
    /// Seconds per call.
    pub pairs: Pairs,
}

impl OperationTimes {
    /// Our bytes per second, one value per pair.
    pub fn bytes_per_second(&self) -> Vec<f64> {
        self.pairs.ours.iter().map(|seconds| self.size_bytes as f64 / seconds).collect()
    }

    /// The peer's bytes per second, one value per pair.
    pub fn peer_bytes_per_second(&self) -> Vec<f64> {
        self.pairs.peer.iter().map(|seconds| self.size_bytes as f64 / seconds).collect()
    }
}

/// The number of pairs, and the shortest duration of a sample; it has as many calls as that needs.
fn samples(effort: Effort) -> (usize, Duration) {
    effort.of((201, Duration::from_micros(400)), (1, Duration::ZERO))
}

/// Number of measured operations.
pub const OPERATIONS_COUNT: usize = 21;

/// Measures all operations on this `machine`; calls `measured` after each.
///
/// Not generic: a caller that is compiled without optimisation would compile these loops.
///
/// # Errors
/// [`MemoryError`]: there is no memory for the operands.
pub fn all(
    machine: &Machine,
    effort: Effort,
    measured: &mut dyn FnMut(&OperationTimes),
) -> Result<Vec<OperationTimes>, MemoryError> {
    let memory = Memory(machine);
    let mut rows = Vec::new();
    let mut add = |row: OperationTimes| {
        measured(&row);
        rows.push(row);
    };
    streams(memory, effort, &mut add)?;
    deltas(memory, effort, &mut add)?;
    fields(memory, effort, &mut add)?;
    Ok(rows)
}

/// Measures operations beside their peers.
struct Bench<'a> {
    effort: Effort,
    /// Bytes that each call processes in one region.
    size_bytes: usize,
    add: &'a mut dyn FnMut(OperationTimes),
}

impl Bench<'_> {
    /// Times the operation `name` and its peer alternately. Both may write to the state; their results are used.
    fn compare<S, R, P>(
        &mut self,
        (name, peer): (impl Into<String>, &'static str),
        state: &mut S,
        mut ours: impl FnMut(&mut S) -> R,
        mut theirs: impl FnMut(&mut S) -> P,
    ) {
        let mut once = |state: &mut S| {
            let started = Instant::now();
            black_box(ours(state));
            black_box(theirs(state));
            started.elapsed()
        };
        once(state); // also warms up
        let pair = once(state).max(Duration::from_nanos(50));
        let (pairs, sample) = samples(self.effort);
        let calls = (2 * sample.as_nanos() / pair.as_nanos()).clamp(1, 1 << 20) as u32;
        let state = RefCell::new(state);
        let time = |work: &mut dyn FnMut(&mut S)| {
            let mut state = state.borrow_mut();
            let started = Instant::now();
            for _ in 0..calls {
                work(&mut state);
            }
            started.elapsed().as_secs_f64() / f64::from(calls)
        };
        let ours = || time(&mut |state| _ = black_box(ours(state)));
        let theirs = || time(&mut |state| _ = black_box(theirs(state)));
        let pairs = Pairs::measure(pairs, ours, theirs);
        (self.add)(OperationTimes { name: name.into(), peer, size_bytes: self.size_bytes, pairs });
    }
}

/// The memory of this machine.
#[derive(Clone, Copy)]
struct Memory<'a>(&'a Machine);

impl Memory<'_> {
    /// Zeros, from the start of a huge page.
    fn zeros(self, size_bytes: usize) -> Result<Buffer, MemoryError> {
        let pages = Mapping::new(self.0, size_bytes.next_multiple_of(HUGE_PAGE_BYTES), Binding::Any)?;
        Ok(Buffer { pages, size_bytes })
    }

    /// Pseudo-random bytes of a seed.
    fn bytes(self, size_bytes: usize, seed: u64) -> Result<Buffer, MemoryError> {
        let mut random = Random(seed);
        let mut bytes = self.zeros(size_bytes)?;
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&random.next_u64().to_le_bytes()[..chunk.len()]);
        }
        Ok(bytes)
    }

    fn copy(self, bytes: &[u8]) -> Result<Buffer, MemoryError> {
        let mut copy = self.zeros(bytes.len())?;
        copy.copy_from_slice(bytes);
        Ok(copy)
    }
}

/// The size of a huge page of x86-64, from which a [`Mapping`] is aligned to it.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes in huge pages of their own.
struct Buffer {
    pages: Mapping,
    size_bytes: usize,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.pages[..self.size_bytes]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.pages[..self.size_bytes]
    }
}

const PATTERN: u64 = 0x0123_4567_89ab_cdef;

fn streams(
    memory: Memory<'_>,
    effort: Effort,
    add: &mut impl FnMut(OperationTimes),
) -> Result<(), MemoryError> {
    let size_bytes = 1 << 20;
    let mut bench = Bench { effort, size_bytes, add };
    let source = memory.bytes(size_bytes, 1)?;
    let mut target = memory.zeros(size_bytes)?;
    let plain = CrcMode::default();
    let highest_first = CrcMode { bypass_data_reflection: true, ..plain };
    let checksum = |bytes: &[u8]| crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, black_box(bytes));
    for (name, seed, mode) in [
        ("crc32c", 0, plain),
        ("crc32c_seeded", 5, plain),
        ("crc32c_bypass_data_reflection", 0, highest_first),
    ] {
        let ours = |(): &mut ()| crc32c(black_box(seed), black_box(&source), mode);
        bench.compare((name, "crc-fast"), &mut (), ours, |()| checksum(&source));
    }
    bench.compare(
        ("copy_crc", "memcpy, then crc-fast"),
        &mut target,
        |target| copy_crc(black_box(&source), target, 0, plain),
        |target| {
            target.copy_from_slice(black_box(&source));
            checksum(target)
        },
    );
    let same = memory.copy(&source)?;
    bench.compare(
        ("compare", "memcmp"),
        &mut (),
        |()| compare(black_box(&source), black_box(&same)),
        |()| black_box(&*source) == black_box(&*same),
    );
    bench.compare(
        ("fill", "memset"),
        &mut target,
        |target| fill(black_box(PATTERN), black_box(target)),
        |target| black_box(target).fill(black_box(7)),
    );
    fill(PATTERN, &mut target);
    let filled = memory.copy(&target)?;
    bench.compare(
        ("compare_pattern", "memcmp"),
        &mut (),
        |()| compare_pattern(black_box(PATTERN), black_box(&filled)),
        |()| black_box(&*filled) == black_box(&*target),
    );
    bench.compare(
        ("dualcast", "two memcpy"),
        &mut (target, same),
        |(target_1, target_2)| dualcast(black_box(&source), target_1, target_2),
        |(target_1, target_2)| {
            target_1.copy_from_slice(black_box(&source));
            target_2.copy_from_slice(black_box(&source));
        },
    );
    Ok(())
}

fn deltas(
    memory: Memory<'_>,
    effort: Effort,
    add: &mut impl FnMut(OperationTimes),
) -> Result<(), MemoryError> {
    let size_bytes = DELTA_BYTES_MAX;
    let mut bench = Bench { effort, size_bytes, add };
    let old = memory.bytes(size_bytes, 2)?;
    // This many of 1000 words differ, at random places. The usual delta differs at one word in a hundred.
    for (suffix, per_mille) in [("_equal", 0), ("", 10), ("_10_percent", 100), ("_half", 500), ("_all", 1000)]
    {
        let mut new = memory.copy(&old)?;
        let mut random = Random(3);
        for word in new.chunks_exact_mut(8) {
            if random.next_u64() % 1000 < per_mille {
                word.iter_mut().for_each(|byte| *byte = !*byte);
            }
        }
        let mut delta = memory.zeros(size_bytes / 8 * 10)?;
        let mut target = memory.zeros(size_bytes)?;
        bench.compare(
            (format!("delta_create{suffix}"), "memcpy"),
            &mut (&mut delta, &mut target),
            |(delta, _)| create_delta(black_box(&old), black_box(&new), delta),
            |(_, target)| target.copy_from_slice(black_box(&new)),
        );
        let delta_bytes = match create_delta(&old, &new, &mut delta) {
            Delta::Complete { size_bytes } => size_bytes,
            _ => continue, // a device does not accept an empty delta record
        };
        let delta = &delta[..delta_bytes];
        let mut copy = memory.zeros(size_bytes)?;
        bench.compare(
            (format!("delta_apply{suffix}"), "memcpy"),
            &mut (&mut target, &mut copy),
            |(target, _)| apply_delta(black_box(delta), target),
            |(_, copy)| copy.copy_from_slice(black_box(&new)),
        );
    }
    Ok(())
}

fn fields(
    memory: Memory<'_>,
    effort: Effort,
    add: &mut impl FnMut(OperationTimes),
) -> Result<(), MemoryError> {
    let block = DifBlock::Bytes4096;
    let format = DifFormat::new(block);
    let (blocks, block_bytes) = (256, block.bytes() as usize);
    let data = memory.bytes(blocks * block_bytes, 4)?;
    let mut protected = memory.zeros(blocks * (block_bytes + DIF_BYTES as usize))?;
    let tags = DifTags { reference: 5, application: 6, ..DifTags::default() };
    let made = DifTarget { tags, ..DifTarget::default() };
    dif::insert(format, &made, &data, &mut protected);
    let source = DifSource { tags, ..DifSource::default() };
    let rules = DifTarget { tags: DifTags { application: 7, ..tags }, ..DifTarget::default() };
    let mut bench = Bench { effort, size_bytes: protected.len(), add };
    let targets = &mut (memory.zeros(protected.len())?, memory.zeros(protected.len())?);
    let copy = |(_, copy): &mut (Buffer, Buffer)| copy.copy_from_slice(black_box(&protected));
    let check = |_: &mut _| dif::check(format, black_box(&source), black_box(&protected));
    bench.compare(("dif_check", "memcpy"), targets, check, copy);
    let insert =
        |(target, _): &mut (Buffer, _)| dif::insert(format, black_box(&made), black_box(&data), target);
    bench.compare(("dif_insert", "memcpy"), targets, insert, copy);
    let strip = |(target, _): &mut (Buffer, _)| {
        dif::strip(format, black_box(&source), black_box(&protected), &mut target[..data.len()])
    };
    bench.compare(("dif_strip", "memcpy"), targets, strip, copy);
    let update = |(target, _): &mut (Buffer, _)| {
        dif::update(format, black_box(&source), black_box(&rules), &protected, target)
    };
    bench.compare(("dif_update", "memcpy"), targets, update, copy);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The benchmark must not rot: every operation runs and has positive rates.
    #[test]
    fn every_operation_runs() {
        let mut measured = 0;
        let machine = Machine::discover().unwrap();
        let rows = all(&machine, Effort::Quick, &mut |_| measured += 1).unwrap();
        assert_eq!((rows.len(), measured), (OPERATIONS_COUNT, OPERATIONS_COUNT));
        for row in &rows {
            let rates = [row.bytes_per_second(), row.peer_bytes_per_second()].concat();
            assert!(row.pairs.ratio() > 0.0 && rates.iter().all(|rate| *rate > 0.0), "{}", row.name);
        }
        for name in ["crc32c", "compare", "fill", "delta_create_all", "delta_apply_all", "dif_check"] {
            assert!(rows.iter().any(|row| row.name == name), "{name} is not measured");
        }
    }
}
