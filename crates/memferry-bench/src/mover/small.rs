//! What it costs to have small copies done by somebody else.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use memferry::mover::{CopyOptions, CpuOptions, Mover};
use memferry::topology::Machine;

use super::Size;

const COPY_BYTES: usize = 4 << 10;

/// `async_4KiB_overhead_ns`: what a copy of 4 KiB that is handed to a worker takes beyond the copy, where as many as wait
/// for the engine at most are submitted as one batch, and then waited for. The copy itself: the same bytes, one after the
/// other, by memcpy on the submitting thread, next to each.
///
/// # Errors
/// What building the mover says, and failed copies.
pub fn small_copies(size: Size) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let mover = Mover::builder(Arc::new(Machine::discover()?)).build()?;
    let batch_copies = CpuOptions::default().queue_copies_max;
    let new_pair = |_| (vec![1_u8; COPY_BYTES], vec![0_u8; COPY_BYTES]);
    let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = (0..batch_copies).map(new_pair).collect();
    let batches_count = (size.round_bytes / (batch_copies * COPY_BYTES)).max(1);
    let mut overheads_ns = Vec::new();
    for _ in 0..size.rounds_count {
        let begin = Instant::now();
        for _ in 0..batches_count {
            let mut batch = mover.batch(CopyOptions::default());
            let transfers: Vec<_> =
                pairs.drain(..).map(|(source, target)| batch.copy(source, target)).collect();
            batch.submit();
            for transfer in transfers {
                let (source, target, _) = transfer.wait()?;
                pairs.push((source, target));
            }
        }
        let handed_over_ns = begin.elapsed().as_nanos() as f64;
        let begin = Instant::now();
        for _ in 0..batches_count {
            for (source, target) in &mut pairs {
                black_box(target).copy_from_slice(source);
            }
        }
        let copied_ns = begin.elapsed().as_nanos() as f64;
        overheads_ns.push((handed_over_ns - copied_ns) / (batches_count * batch_copies) as f64);
    }
    match mover.stats().inline_operations {
        0 => Ok(overheads_ns),
        count => Err(format!("{count} copies were not handed over").into()),
    }
}
