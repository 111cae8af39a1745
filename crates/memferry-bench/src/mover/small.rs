//! The cost of handing small copies to a worker.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use memferry::mover::{CopyOptions, CpuOptions, Mover};
use memferry::topology::Machine;
use memferry_dsa::internals::affinity;

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

/// Nanoseconds of handing a word to another thread, which spins on another CPU: the least that any hand-over costs.
/// `None` if this process may use one CPU only.
pub fn hand_overs(samples_count: usize) -> Option<Vec<f64>> {
    const TURNS: u32 = 10_000;
    let cpus = affinity::allowed().ok()?;
    let [first, .., second] = cpus[..] else { return None };
    let word = AtomicU32::new(0);
    // Each thread waits for its parity.
    let play = |cpu: u32, parity: u32| {
        // Without it the threads may share a CPU, and take longer.
        let _ = affinity::confine(&[cpu]);
        let mut samples_ns = Vec::with_capacity(samples_count);
        let mut turn = parity;
        for _ in 0..samples_count {
            let begin = Instant::now();
            for _ in 0..TURNS {
                while word.load(Ordering::Acquire) != turn {
                    spin_loop();
                }
                word.store(turn.wrapping_add(1), Ordering::Release);
                turn = turn.wrapping_add(2);
            }
            samples_ns.push(begin.elapsed().as_nanos() as f64 / f64::from(2 * TURNS));
        }
        samples_ns
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| play(second, 1));
        let samples_ns = scope.spawn(|| play(first, 0)).join().ok()?;
        other.join().ok()?;
        Some(samples_ns)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hand_over_takes_time() {
        let Some(samples_ns) = hand_overs(2) else { return };
        assert_eq!(samples_ns.len(), 2);
        assert!(samples_ns.iter().all(|ns| *ns > 0.0), "{samples_ns:?}");
    }
}
