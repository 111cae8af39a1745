//! Two workers beside two threads that do nothing but copy.

use std::sync::Arc;
use std::sync::Barrier;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Instant;

use super::super::{CopyError, CopyMethods, CpuEngine, CpuOptions, Engine, RawCopy};
use super::{Size, take_turns};
use crate::cache::measure::Comparison;
use crate::topology::Machine;

const COPY_BYTES: usize = 256 << 10;
const WORKERS_COUNT: usize = 2;

/// One of the copies that are always under way: when it is done, the worker submits it again.
struct Chain {
    engine: Arc<CpuEngine>,
    source: Vec<u8>,
    target: Vec<u8>,
    copies_left: usize,
    ended: Sender<Result<Buffers, CopyError>>,
}

type Buffers = (Vec<u8>, Vec<u8>);

impl Chain {
    fn submit(mut self) {
        let (source, target) = (self.source.as_ptr(), self.target.as_mut_ptr());
        let engine = self.engine.clone();
        let done = move |result: Result<_, CopyError>| {
            self.copies_left -= 1;
            match result {
                Ok(_) if self.copies_left > 0 => self.submit(),
                // Nobody listens any more only if the measurement was given up.
                _ => drop(self.ended.send(result.map(|_| (self.source, self.target)))),
            }
        };
        // SAFETY: both vectors live in `done`, untouched until it is called, and are as long as is said. A CPU engine
        // loses no buffers.
        let copy = unsafe { RawCopy::new(source, target, COPY_BYTES, done) };
        // One that is refused ends, and with it the chain.
        drop(engine.submit(copy));
    }
}

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
    let copies_count = (16 * size.round_bytes / COPY_BYTES / WORKERS_COUNT).max(1);
    let new_buffers = || (vec![1; COPY_BYTES], vec![2; COPY_BYTES]);
    let mut buffers: Vec<Buffers> = (0..WORKERS_COUNT).map(|_| new_buffers()).collect();
    let mut failure = None;

    let ours = || {
        let (ended, ends) = channel();
        let begin = Instant::now();
        for (source, target) in buffers.drain(..) {
            let (engine, ended) = (engine.clone(), ended.clone());
            Chain { engine, source, target, copies_left: copies_count, ended }.submit();
        }
        drop(ended);
        for end in ends {
            match end {
                Ok(back) => buffers.push(back),
                Err(error) => failure = Some(error),
            }
        }
        begin.elapsed().as_nanos() as f64 / (WORKERS_COUNT * copies_count) as f64
    };
    let mut peer_buffers: Vec<Buffers> = (0..WORKERS_COUNT).map(|_| new_buffers()).collect();
    let peer = || {
        let barrier = Barrier::new(WORKERS_COUNT);
        let time = |(source, target): &mut Buffers| {
            barrier.wait();
            let begin = Instant::now();
            for _ in 0..copies_count {
                std::hint::black_box(&mut *target).copy_from_slice(source);
            }
            begin.elapsed().as_nanos() as f64
        };
        // Until the last has ended, as above.
        let longest: f64 = thread::scope(|scope| {
            let time = &time;
            let threads: Vec<_> =
                peer_buffers.iter_mut().map(|buffers| scope.spawn(move || time(buffers))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a copy does not panic"))
                .fold(0.0, f64::max)
        });
        longest / (WORKERS_COUNT * copies_count) as f64
    };
    let (ours, peer) = take_turns(size.rounds_count, ours, peer);
    if let Some(error) = failure {
        return Err(error.into());
    }
    let (name, peer_name) = ("copy_2_workers".to_owned(), "two threads with memcpy".to_owned());
    Ok(Comparison { name, unit: "ns", ours, peer_name, peer })
}
