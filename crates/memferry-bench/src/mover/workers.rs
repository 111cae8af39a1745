//! Two workers beside two threads that do nothing but copy.

use std::cell::RefCell;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use memferry::mover::{CopyError, CopyMethods, CopyReport, CpuEngine, CpuOptions, Engine, RawRequest};
use memferry::topology::Machine;

use super::{Size, take_turns};
use crate::cache::Comparison;

const COPY_BYTES: usize = 256 << 10;
const WORKERS_COUNT: usize = 2;

/// One of the copies that are always under way: when it is done, the worker submits it again.
struct Chain {
    engine: Arc<CpuEngine>,
    /// Of buffers that live until all chains have ended.
    source: AtomicPtr<u8>,
    target: AtomicPtr<u8>,
    copies_left: AtomicUsize,
    /// Chains whose first copy, which is not timed, has ended.
    at_work: Arc<AtomicUsize>,
    begin: OnceLock<Instant>,
    ended: Sender<Result<Duration, CopyError>>,
}

impl Chain {
    fn submit(self: Arc<Chain>) {
        let [source, target] = [&self.source, &self.target].map(|place| place.load(Ordering::Relaxed));
        let chain = self.clone();
        // SAFETY: the owner of the buffers keeps them, and leaves them alone, until the chain has ended; both have this
        // size. A CPU engine loses no buffers.
        let copy = unsafe { RawRequest::new(source, target, COPY_BYTES, move |copied| chain.next(copied)) };
        // A copy that is refused completes with an error, which ends the chain.
        drop(self.engine.submit(copy));
    }

    /// The first copy has woken a worker: waits for the other's.
    fn begin(&self) -> Instant {
        self.at_work.fetch_add(1, Ordering::Relaxed);
        while self.at_work.load(Ordering::Relaxed) < WORKERS_COUNT {
            thread::yield_now();
        }
        Instant::now()
    }

    /// A copy has completed: submits the next, or ends the chain.
    fn next(self: Arc<Chain>, copied: Result<CopyReport, CopyError>) {
        let begin = *self.begin.get_or_init(|| self.begin());
        let copies_left = self.copies_left.load(Ordering::Relaxed);
        if copied.is_ok() && copies_left > 0 {
            self.copies_left.store(copies_left - 1, Ordering::Relaxed);
            return self.submit();
        }
        // Nobody listens any more only if the measurement was given up.
        let _ = self.ended.send(copied.map(|_| begin.elapsed()));
    }
}

type Buffers = (Vec<u8>, Vec<u8>);

/// `copy_2_workers`: nanoseconds for each copy of 256 KiB that stays in its caches, two at a time: by an engine with two
/// workers, and by two threads that call memcpy.
///
/// # Errors
/// What starting the engine says, and failed copies.
pub fn two_workers(size: Size, methods: CopyMethods) -> Result<Comparison, Box<dyn std::error::Error>> {
    let machine = Machine::discover()?;
    let options = CpuOptions { workers_count: WORKERS_COUNT, methods, ..CpuOptions::default() };
    let engine = Arc::new(CpuEngine::new(&machine, options)?);
    // Enough to outweigh the beginning and the end.
    let copies_count = (64 * size.round_bytes / COPY_BYTES / WORKERS_COUNT).max(1);
    let new_buffers = || (vec![1; COPY_BYTES], vec![2; COPY_BYTES]);
    // The same ones for both: how well two buffers share the sets of a cache is a matter of luck.
    let buffers: RefCell<Vec<Buffers>> = RefCell::new((0..WORKERS_COUNT).map(|_| new_buffers()).collect());
    let mut failure = None;

    let ours = || {
        let (ended, ends) = channel();
        let at_work = Arc::new(AtomicUsize::new(0));
        let mut buffers = buffers.borrow_mut();
        for (source, target) in &mut *buffers {
            let chain = Chain {
                engine: engine.clone(),
                source: AtomicPtr::new(source.as_mut_ptr()),
                target: AtomicPtr::new(target.as_mut_ptr()),
                copies_left: AtomicUsize::new(copies_count),
                at_work: at_work.clone(),
                begin: OnceLock::new(),
                ended: ended.clone(),
            };
            Arc::new(chain).submit();
        }
        drop(ended);
        let mut longest = Duration::ZERO;
        for end in ends {
            match end {
                Ok(took) => longest = longest.max(took),
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
        // From when both are at work until the last has ended, as above.
        let longest = thread::scope(|scope| {
            let time = &time;
            let threads: Vec<_> =
                buffers.iter_mut().map(|buffers| scope.spawn(move || time(buffers))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a copy does not panic")).max()
        });
        longest.unwrap_or_default().as_nanos() as f64 / (WORKERS_COUNT * copies_count) as f64
    };
    let (ours, peer) = take_turns(size.rounds_count, ours, peer);
    if let Some(error) = failure {
        return Err(error.into());
    }
    let (name, peer_name) = ("copy_2_workers".to_owned(), "two threads with memcpy".to_owned());
    Ok(Comparison { name, unit: "ns", ours, peer_name, peer })
}
