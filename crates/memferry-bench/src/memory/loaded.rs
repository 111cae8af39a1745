//! Latency under load: one thread follows a chain while the others read or modify their memory.
//!
//! The others pause after each KiB. From pause to pause their load grows, and with it the latency of the chain.
//!
//! Source: the option `--loaded_latency` of Intel's Memory Latency Checker.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;
use std::{io, thread};

use memferry::internals::CopyMethod;
use memferry_dsa::internals::affinity::confine;

use super::arena::Arena;
use super::chain::Chain;
use super::kernels;
use super::row::Traffic;

/// Pauses after each KiB, in turns of an empty loop: from none to some microseconds, which leave the memory idle.
pub(super) const DELAYS: [u32; 10] = [0, 50, 100, 200, 400, 800, 1600, 3200, 6400, 25_600];
/// What the others do in a record.
pub(super) const TRAFFICS: [Traffic; 2] = [Traffic::Read, Traffic::Mix];

/// Bytes between pauses.
const BLOCK_BYTES: usize = 1 << 10;
/// Bytes that each thread has gone through before the measurement: the memory has its load by then.
const WARM_UP_BYTES: u64 = 1 << 20;

/// The others' load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) traffic: Traffic,
    pub(super) delay: u32,
}

/// A point of the curve.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Loaded {
    /// Nanoseconds of a step, for each round.
    pub(super) latencies_ns: Vec<f64>,
    /// What the others read and wrote meanwhile, in bytes per second.
    pub(super) load_bytes_per_s: f64,
}

/// Bytes that a thread has gone through. Alone on its cache line and on the one that is fetched with it.
#[derive(Default)]
#[repr(align(128))]
struct Progress(AtomicU64);

/// What the threads of a measurement share.
struct Shared {
    /// Set by the reader at its end.
    is_over: AtomicBool,
    /// Threads that have warmed up, or given up.
    ready_count: AtomicUsize,
    /// Each written by its thread, read by the reader.
    progress: Vec<Progress>,
}

/// Ends the others, also if the reader panics: the scope would wait for them for ever.
struct EndOthers<'a>(&'a Shared);

impl Drop for EndOthers<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed, no partner: the flag ends loops and publishes no data.
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Measures `rounds` times `steps` of the chain from `line` on the first CPU, while each further CPU loads the memory with an
/// arena. `line` becomes the last line.
///
/// # Errors
/// A thread cannot be confined to its CPU.
pub(super) fn measure(
    cpus: &[u32],
    arenas: &mut [Arena],
    (chain, line): (&Chain, &mut usize),
    load: Load,
    (rounds, steps): (usize, usize),
) -> io::Result<Loaded> {
    let (first, others) = cpus.split_first().expect("a domain has a CPU");
    let shared = Shared {
        is_over: AtomicBool::new(false),
        ready_count: AtomicUsize::new(0),
        progress: others.iter().map(|_| Progress::default()).collect(),
    };
    let shared = &shared;
    thread::scope(|scope| {
        let loads: Vec<_> = others
            .iter()
            .zip(arenas)
            .enumerate()
            .map(|(index, (&cpu, arena))| scope.spawn(move || put_load(cpu, arena, load, shared, index)))
            .collect();
        // In a thread of its own: the caller's CPUs stay as they are.
        let reader = scope.spawn(|| -> io::Result<Loaded> {
            let _end = EndOthers(shared);
            confine(&[*first])?;
            Ok(read_chain((chain, line), load.traffic, (rounds, steps), shared))
        });
        let loaded = reader.join().expect("the reader does not panic");
        for load in loads {
            load.join().expect("a load does not panic")?;
        }
        loaded
    })
}

fn read_chain(
    (chain, line): (&Chain, &mut usize),
    traffic: Traffic,
    (rounds, steps): (usize, usize),
    shared: &Shared,
) -> Loaded {
    // ORDERING: Relaxed, no partner, here and below: counters synchronise time only and publish no data.
    while shared.ready_count.load(Ordering::Relaxed) < shared.progress.len() {
        spin_loop();
    }
    let bytes = || -> u64 { shared.progress.iter().map(|of| of.0.load(Ordering::Relaxed)).sum() };
    let (begin, before) = (Instant::now(), bytes());
    let latencies_ns = (0..rounds)
        .map(|_| {
            let begin = Instant::now();
            *line = chain.follow(*line, steps);
            begin.elapsed().as_nanos() as f64 / steps as f64
        })
        .collect();
    let done = traffic.bytes((bytes() - before) as usize);
    Loaded { latencies_ns, load_bytes_per_s: done as f64 / begin.elapsed().as_secs_f64() }
}

fn put_load(cpu: u32, arena: &mut Arena, load: Load, shared: &Shared, index: usize) -> io::Result<()> {
    let confined = confine(&[cpu]);
    if confined.is_err() {
        // The reader waits for all.
        shared.ready_count.fetch_add(1, Ordering::Relaxed);
        return confined;
    }
    let mut done = 0;
    while !shared.is_over.load(Ordering::Relaxed) {
        let loops = arena.loops();
        let (source, target) = arena.next(BLOCK_BYTES);
        match load.traffic {
            Traffic::Read => _ = loops.read(source),
            Traffic::Write => kernels::write(target, 3),
            Traffic::Copy => CopyMethod::Memcpy.copy(source, target),
            Traffic::Mix => _ = loops.mix(target),
        }
        for turn in 0..load.delay {
            black_box(turn);
        }
        done += BLOCK_BYTES as u64;
        shared.progress[index].0.store(done, Ordering::Relaxed);
        if done == WARM_UP_BYTES {
            shared.ready_count.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}
