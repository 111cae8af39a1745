//! Two workers beside two threads that only copy.

use std::cell::RefCell;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use memferry::mover::{CopyError, CopyMethods, CopyReport, CpuEngine, CpuOptions, Engine, RawRequest};
use memferry::topology::Machine;

use super::Size;
use crate::harness::{Comparison, Pairs};

const COPY_BYTES: usize = 256 << 10;
const WORKERS_COUNT: usize = 2;

/// A copy that is always in flight: on its completion the worker submits it again.
///
/// Only the worker that completes a copy writes `copies_left` and `begin`. A submission hands them to the next worker.
struct Chain {
    engine: Arc<CpuEngine>,
    /// Both point into buffers that outlive all chains.
    source: AtomicPtr<u8>,
    target: AtomicPtr<u8>,
    copies_left: AtomicUsize,
    /// Chains whose first copy, which is not timed, has completed.
    started_count: Arc<AtomicUsize>,
    begin: OnceLock<Instant>,
    result: Sender<Result<Duration, CopyError>>,
}

impl Chain {
    fn submit(self: Arc<Chain>) {
        let [source, target] = [&self.source, &self.target].map(|place| place.load(Ordering::Relaxed));
        let chain = self.clone();
        // SAFETY: the owner of the buffers keeps them, and leaves them alone, until the chain has ended; both have this
        // size. A CPU engine loses no buffers.
        let copy = unsafe { RawRequest::new(source, target, COPY_BYTES, move |copied| chain.next(copied)) };
        // A rejected copy completes with an error, which ends the chain.
        drop(self.engine.submit(copy));
    }

    /// The start of the timed copies: after the first copy of every chain has woken its worker.
    fn begin(&self) -> Instant {
        // ORDERING: Relaxed, no partner: the counter synchronises time only and publishes no data.
        self.started_count.fetch_add(1, Ordering::Relaxed);
        while self.started_count.load(Ordering::Relaxed) < WORKERS_COUNT {
            thread::yield_now();
        }
        Instant::now()
    }

    /// Called when a copy completes: submits the next one, or ends the chain.
    fn next(self: Arc<Chain>, copied: Result<CopyReport, CopyError>) {
        let begin = *self.begin.get_or_init(|| self.begin());
        let copies_left = self.copies_left.load(Ordering::Relaxed);
        if copied.is_ok() && copies_left > 0 {
            self.copies_left.store(copies_left - 1, Ordering::Relaxed);
            return self.submit();
        }
        // The receiver is gone only if the measurement was abandoned.
        let _ = self.result.send(copied.map(|_| begin.elapsed()));
    }
}

type Buffers = (Vec<u8>, Vec<u8>);

/// `copy_2_workers`: nanoseconds per copy of 256 KiB within the caches, two at a time: by an engine with two workers,
/// beside two threads that call memcpy.
///
/// # Errors
/// The engine cannot be started, or a copy fails.
pub fn two_workers(size: Size, methods: CopyMethods) -> Result<Comparison, Box<dyn std::error::Error>> {
    let machine = Machine::discover()?;
    let options = CpuOptions { workers_count: WORKERS_COUNT, methods, ..CpuOptions::default() };
    let engine = Arc::new(CpuEngine::new(&machine, options)?);
    // Enough copies to outweigh start and end.
    let copies_count = (64 * size.round_bytes / COPY_BYTES / WORKERS_COUNT).max(1);
    let new_buffers = || (vec![1; COPY_BYTES], vec![2; COPY_BYTES]);
    // Both use the same buffers: their addresses decide how well they share the sets of a cache.
    let buffers: RefCell<Vec<Buffers>> = RefCell::new((0..WORKERS_COUNT).map(|_| new_buffers()).collect());
    let mut failure = None;

    let ours = || {
        let (result, results) = channel();
        let started_count = Arc::new(AtomicUsize::new(0));
        let mut buffers = buffers.borrow_mut();
        for (source, target) in &mut *buffers {
            let chain = Chain {
                engine: engine.clone(),
                source: AtomicPtr::new(source.as_mut_ptr()),
                target: AtomicPtr::new(target.as_mut_ptr()),
                copies_left: AtomicUsize::new(copies_count),
                started_count: started_count.clone(),
                begin: OnceLock::new(),
                result: result.clone(),
            };
            Arc::new(chain).submit();
        }
        drop(result);
        let mut longest = Duration::ZERO;
        for result in results {
            match result {
                Ok(elapsed) => longest = longest.max(elapsed),
                Err(error) => failure = Some(error),
            }
        }
        longest.as_nanos() as f64 / (WORKERS_COUNT * copies_count) as f64
    };
    let peer = || {
        let mut buffers = buffers.borrow_mut();
        let barrier = Barrier::new(WORKERS_COUNT);
        let time = |(source, target): &mut Buffers| {
            barrier.wait();
            let begin = Instant::now();
            for _ in 0..copies_count {
                std::hint::black_box(&mut *target).copy_from_slice(source);
            }
            begin.elapsed()
        };
        // From the common start until the last thread is done, as above.
        let longest = thread::scope(|scope| {
            let time = &time;
            let threads: Vec<_> =
                buffers.iter_mut().map(|buffers| scope.spawn(move || time(buffers))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a copy does not panic")).max()
        });
        longest.unwrap_or_default().as_nanos() as f64 / (WORKERS_COUNT * copies_count) as f64
    };
    let pairs = Pairs::measure(size.rounds_count, ours, peer);
    if let Some(error) = failure {
        return Err(error.into());
    }
    Ok(Comparison::new("copy_2_workers", "ns", "two threads with memcpy", pairs))
}
