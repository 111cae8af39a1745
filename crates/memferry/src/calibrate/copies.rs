//! Copies by one core: which method is best from which size on, what they cost beyond their bytes, and what it costs
//! to have them done by a worker that sleeps.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::arena::Arena;
use super::threads::together;
use super::{CalibrateError, Effort, Line, undisturbed};
use crate::mover::{CopyMethod, CopyMethods, CpuOptions, Mover};
use crate::topology::{Machine, Node};

/// What a method does at a size.
#[derive(Copy, Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CopyRate {
    /// How it copies.
    pub method: CopyMethod,
    /// How much at a time.
    pub size_bytes: usize,
    /// How fast.
    pub bytes_per_s: f64,
}

/// Copies by a core.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Copies {
    /// By method and size; the sizes ascend.
    pub rates: Vec<CopyRate>,
    /// Through those by memcpy.
    pub line: Line,
    /// What a worker that sleeps adds to a copy, until the sleeping thread that asked for it runs again.
    pub wake_s: f64,
}

const SIZES_BYTES: [usize; 7] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// One for each size, and one for waking.
pub(super) const STEPS_COUNT: usize = SIZES_BYTES.len() + 1;

pub(super) fn measure(
    machine: &Machine,
    node: &Node,
    effort: Effort,
    progress: &mut dyn FnMut(),
) -> Result<Copies, CalibrateError> {
    let cpu = *node.allowed_cpus.first().ok_or(CalibrateError::NoCpus)?;
    let mut arena = Arena::new(machine, node.id, effort.arena_bytes(&[cpu]))?;
    let mut rates = Vec::new();
    for size_bytes in SIZES_BYTES {
        for &method in CopyMethod::ALL {
            let time_s = copy_s(cpu, &mut arena, method, size_bytes, effort)?;
            rates.push(CopyRate { method, size_bytes, bytes_per_s: size_bytes as f64 / time_s });
        }
        progress();
    }
    let by_memcpy = rates.iter().filter(|rate| rate.method == CopyMethod::Memcpy);
    let points: Vec<_> =
        by_memcpy.map(|it| (it.size_bytes as f64, it.size_bytes as f64 / it.bytes_per_s)).collect();
    let line =
        Line::through(&points).ok_or(CalibrateError::Disturbed { what: "the time of copies by size" })?;
    // The least that is not copied by who asks for it.
    let size_bytes = CpuOptions::default().inline_bytes_max + 1;
    let wake_s = worker_s(machine, &mut arena, size_bytes, effort)? - line.at_s(size_bytes as f64);
    let wake_s = wake_s.max(0.0);
    progress();
    Ok(Copies { rates, line, wake_s })
}

/// Seconds for one of many copies after another, each of bytes that no cache holds.
pub(super) fn copy_s(
    cpu: u32,
    arena: &mut Arena,
    method: CopyMethod,
    size_bytes: usize,
    effort: Effort,
) -> Result<f64, CalibrateError> {
    // What is written stays in caches for a while, and makes small copies faster than many of them are.
    let count = (effort.round_bytes() / size_bytes).max(1);
    let times = together(&[cpu], &mut [arena], effort.rounds, |arena| {
        (0..count).for_each(|_| arena.copy(method, size_bytes));
    })?;
    Ok(undisturbed(&times) / count as f64)
}

/// How long a worker is left alone before it is woken: longer than it looks out for more, and its core sleeps, too.
const REST: Duration = Duration::from_millis(1);

/// Seconds from asking a sleeping worker for a copy, by memcpy, until it was waited for.
pub(super) fn worker_s(
    machine: &Machine,
    arena: &mut Arena,
    size_bytes: usize,
    effort: Effort,
) -> Result<f64, CalibrateError> {
    let methods = CopyMethods::only(CopyMethod::Memcpy);
    let mover = Mover::builder(Arc::new(machine.clone())).copy_methods(methods).build()?;
    let mut times = Vec::new();
    // Twice as many: whether the core of the sleeper sleeps too makes a difference.
    for _ in 0..2 * effort.rounds {
        let (source, target) = arena.next(size_bytes);
        thread::sleep(REST);
        let begin = Instant::now();
        mover.scope(|scope| scope.copy(source, target).wait().map(drop))??;
        times.push(begin.elapsed().as_secs_f64());
    }
    Ok(undisturbed(&times))
}

/// For each stretch of sizes the method that is best there, with the size it begins at. A method has to be 3 % better
/// than the one before to take over: less is noise.
pub fn best_methods(rates: &[CopyRate]) -> Vec<(CopyMethod, usize)> {
    const BETTER: f64 = 1.03;
    let mut best: Vec<(CopyMethod, usize)> = Vec::new();
    for of_size in rates.chunk_by(|one, other| one.size_bytes == other.size_bytes) {
        let Some(first) = of_size.iter().max_by(|one, other| one.bytes_per_s.total_cmp(&other.bytes_per_s))
        else {
            continue;
        };
        let before = best.last().and_then(|(method, _)| of_size.iter().find(|rate| rate.method == *method));
        if before.is_none_or(|before| first.bytes_per_s > before.bytes_per_s * BETTER) {
            best.push((first.method, first.size_bytes));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_takes_over_where_it_is_better() {
        let rate = |method, size_bytes, bytes_per_s| CopyRate { method, size_bytes, bytes_per_s };
        let rates = [
            rate(CopyMethod::Memcpy, 1024, 10.0),
            rate(CopyMethod::NonTemporal, 1024, 5.0),
            rate(CopyMethod::Memcpy, 4096, 10.0),
            rate(CopyMethod::NonTemporal, 4096, 10.2),
            rate(CopyMethod::Memcpy, 8192, 10.0),
            rate(CopyMethod::NonTemporal, 8192, 12.0),
        ];
        assert_eq!(best_methods(&rates), [(CopyMethod::Memcpy, 1024), (CopyMethod::NonTemporal, 8192)]);
        assert_eq!(best_methods(&[]), []);
    }
}
