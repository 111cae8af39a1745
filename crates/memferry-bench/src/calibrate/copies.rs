//! Copies by one core: the best method by size, the fixed cost, and the additional cost of a sleeping worker.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use memferry::internals::CopyMethod;
use memferry::mover::{CopyMethods, CpuOptions, Mover};
use memferry::topology::{Machine, Node};

use super::sampling::Sampler;
use super::{CalibrateError, Line};
use crate::memory::arena::Arena;
use crate::memory::threads::together;

/// The rate of a copy method at a size.
#[derive(Copy, Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CopyRate {
    /// The copy method.
    pub method: CopyMethod,
    /// Size of a copy.
    pub size_bytes: usize,
    /// The rate.
    pub bytes_per_s: f64,
}

/// Copies by a core.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Copies {
    /// By method and size; the sizes ascend.
    pub rates: Vec<CopyRate>,
    /// The line through copies by memcpy.
    pub line: Line,
    /// Copies by a sleeping worker, until the sleeping waiter runs again: sizes and seconds.
    pub by_worker: [(usize, f64); 2],
    /// Additional time of a small copy by a sleeping worker.
    pub wake_s: f64,
    /// Further time for the first megabyte or so: a core is slow after sleep.
    pub warm_s: f64,
}

pub(super) const SIZES_BYTES: [usize; 7] =
    [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// The smallest copy that goes to a worker, and a size beyond warm-up.
fn worker_sizes_bytes() -> [usize; 2] {
    [CpuOptions::default().inline_bytes_max + 1, WARM_BYTES]
}

/// Bytes after which a worker is as fast as a busy one.
const WARM_BYTES: usize = 2 << 20;

/// Steps: one per size, and one for workers.
pub(super) const STEPS_COUNT: usize = SIZES_BYTES.len() + 1;

/// Number of sampled values.
pub(super) const FIGURES_COUNT: usize = SIZES_BYTES.len() * CopyMethod::ALL.len() + 2;

/// Measures copies with an arena of `node`.
pub(super) fn measure(
    machine: &Machine,
    node: &Node,
    arena: &mut Arena,
    sampler: &mut Sampler,
    progress: &mut dyn FnMut(),
) -> Result<Copies, CalibrateError> {
    let cpu = *node.allowed_cpus.first().ok_or(CalibrateError::NoCpus)?;
    let mut rates = Vec::new();
    for size_bytes in SIZES_BYTES {
        for &method in CopyMethod::ALL {
            let time_s = copy_s(cpu, arena, method, size_bytes, sampler)?;
            rates.push(CopyRate { method, size_bytes, bytes_per_s: size_bytes as f64 / time_s });
        }
        progress();
    }
    let mut by_worker = worker_sizes_bytes().map(|size_bytes| (size_bytes, 0.0));
    for (size_bytes, time_s) in &mut by_worker {
        *time_s = worker_s(machine, arena, *size_bytes, sampler)?;
    }
    progress();
    Copies::of(rates, by_worker)
}

/// The best copy methods of a core of `node`, with an arena of that node.
pub(super) fn methods(node: &Node, arena: &mut Arena) -> Result<CopyMethods, CalibrateError> {
    let cpu = *node.allowed_cpus.first().ok_or(CalibrateError::NoCpus)?;
    let mut methods = CopyMethods::default();
    together(&[cpu], &mut [(arena, &mut methods)], 1, |(arena, methods)| {
        let (source, target) = arena.all();
        **methods = CopyMethods::calibrate(source, target);
    })?;
    Ok(methods)
}

impl Copies {
    fn of(rates: Vec<CopyRate>, by_worker: [(usize, f64); 2]) -> Result<Copies, CalibrateError> {
        let by_memcpy = rates.iter().filter(|rate| rate.method == CopyMethod::Memcpy);
        let points: Vec<_> =
            by_memcpy.map(|it| (it.size_bytes as f64, it.size_bytes as f64 / it.bytes_per_s)).collect();
        let line =
            Line::through(&points).ok_or(CalibrateError::Disturbed { what: "the time of copies by size" })?;
        let [wake_s, all_s] =
            by_worker.map(|(size_bytes, time_s)| (time_s - line.at_s(size_bytes as f64)).max(0.0));
        Ok(Copies { rates, line, by_worker, wake_s, warm_s: (all_s - wake_s).max(0.0) })
    }

    pub(super) fn or_better(mut self, other: Copies) -> Result<Copies, CalibrateError> {
        for (rate, other) in self.rates.iter_mut().zip(&other.rates) {
            rate.bytes_per_s = rate.bytes_per_s.max(other.bytes_per_s);
        }
        for ((_, time_s), (_, other_s)) in self.by_worker.iter_mut().zip(other.by_worker) {
            *time_s = time_s.min(other_s);
        }
        Copies::of(self.rates, self.by_worker)
    }
}

/// Seconds per copy in a sequence of copies, each of bytes that no cache holds.
pub(super) fn copy_s(
    cpu: u32,
    arena: &mut Arena,
    method: CopyMethod,
    size_bytes: usize,
    sampler: &mut Sampler,
) -> Result<f64, CalibrateError> {
    // Written bytes stay in caches for a while, which makes a few small copies faster than many.
    let count = (sampler.effort.round_bytes() / size_bytes).max(1);
    let time_s = sampler.together_s(&[cpu], &mut [arena], |arena| {
        (0..count).for_each(|_| arena.copy(method, size_bytes));
    })?;
    Ok(time_s / count as f64)
}

/// Pause before a worker is woken: longer than its polling, so that its core sleeps, too.
const REST: Duration = Duration::from_millis(1);

/// Seconds from the request of a copy by memcpy to a sleeping worker until the waiter continues.
pub(super) fn worker_s(
    machine: &Machine,
    arena: &mut Arena,
    size_bytes: usize,
    sampler: &mut Sampler,
) -> Result<f64, CalibrateError> {
    let methods = CopyMethods::only(CopyMethod::Memcpy);
    let mover = Mover::builder(Arc::new(machine.clone())).copy_methods(methods).build()?;
    // Twice as many samples: times depend on whether the worker's core sleeps, too.
    sampler.least_s(2, || {
        let (source, target) = arena.next(size_bytes);
        thread::sleep(REST);
        let begin = Instant::now();
        mover.scope(|scope| scope.copy(source, target).wait().map(drop))??;
        Ok(begin.elapsed().as_secs_f64())
    })
}

/// The best method by size, with the size from which it is best. A method must be 3 % better than the one before: less
/// is noise.
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
    fn the_better_of_two() {
        let copies = |bytes_per_s: [f64; 2], by_worker_s: [f64; 2]| {
            let rate =
                |(size_bytes, bytes_per_s)| CopyRate { method: CopyMethod::Memcpy, size_bytes, bytes_per_s };
            let rates = [1 << 20, 4 << 20].into_iter().zip(bytes_per_s).map(rate).collect();
            let [small_s, large_s] = by_worker_s;
            Copies::of(rates, [(1000, small_s), (2_000_000, large_s)]).unwrap()
        };
        let both = copies([1e9, 5e8], [9e-6, 2.5e-3]).or_better(copies([5e8, 1e9], [6e-6, 3e-3])).unwrap();
        assert!((both.line.bytes_per_s / 1e9 - 1.0).abs() < 1e-6, "{both:?}");
        assert_eq!(both.by_worker, [(1000, 6e-6), (2_000_000, 2.5e-3)]);
        assert!((both.wake_s - 5e-6).abs() < 1e-9 && (both.warm_s - 495e-6).abs() < 1e-9, "{both:?}");
    }

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
