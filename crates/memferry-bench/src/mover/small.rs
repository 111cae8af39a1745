//! The cost of handing small copies to a worker.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use memferry::mover::{CopyOptions, CpuOptions, Mover};
use memferry::topology::Machine;

use super::Size;

const COPY_BYTES: usize = 4 << 10;

/// `async_4KiB_overhead_ns`: the time of a 4 KiB copy by a worker beyond the copy itself.
///
/// Each round submits batches as long as the engine's queue and waits for them. The copy itself is timed next to each
/// round: the same bytes by memcpy on the submitting thread.
///
/// # Errors
/// The mover cannot be built, or a copy fails.
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
        count => Err(format!("{count} copies were made by the submitting thread, not by a worker").into()),
    }
}
