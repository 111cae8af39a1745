//! What it costs to have small copies done by somebody else.

use std::sync::Arc;
use std::time::Instant;

use super::super::{CpuEngine, CpuOptions, Mover};
use super::Size;
use crate::topology::Machine;

const COPY_BYTES: usize = 4 << 10;
/// As many as wait for the engine at most by default, so that none of them is done inline.
const BATCH_COPIES: usize = 128;

/// `async_4KiB_overhead_ns`: what a copy of 4 KiB that is handed to a worker takes beyond the copy, where a batch of 128
/// is submitted and then waited for. The copy itself: the same bytes, one after the other, by memcpy on the submitting
/// thread, next to each.
///
/// # Errors
/// What building the mover says, and failed copies.
pub fn small_copies(size: Size) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let machine = Arc::new(Machine::discover()?);
    let options = CpuOptions { inline_bytes_max: 0, ..CpuOptions::default() };
    let engine = Arc::new(CpuEngine::new(&machine, options)?);
    let mover = Mover::builder(machine).engine(engine).build()?;
    let source = vec![1_u8; BATCH_COPIES * COPY_BYTES];
    let mut target = vec![0_u8; BATCH_COPIES * COPY_BYTES];
    let batches_count = (size.round_bytes / source.len()).max(1);
    let copies_count = (batches_count * BATCH_COPIES) as f64;
    let mut overheads_ns = Vec::new();
    for _ in 0..size.rounds_count {
        let begin = Instant::now();
        for _ in 0..batches_count {
            mover.scope(|scope| {
                for (source, target) in source.chunks(COPY_BYTES).zip(target.chunks_mut(COPY_BYTES)) {
                    scope.copy(source, target);
                }
            })?;
        }
        let handed_over = begin.elapsed();
        let begin = Instant::now();
        for _ in 0..batches_count {
            for (source, target) in source.chunks(COPY_BYTES).zip(target.chunks_mut(COPY_BYTES)) {
                std::hint::black_box(target).copy_from_slice(source);
            }
        }
        overheads_ns.push((handed_over.as_nanos() as f64 - begin.elapsed().as_nanos() as f64) / copies_count);
    }
    let stats = mover.stats();
    if stats.inline_operations > 0 {
        return Err(format!("{} copies were not handed over", stats.inline_operations).into());
    }
    Ok(overheads_ns)
}
