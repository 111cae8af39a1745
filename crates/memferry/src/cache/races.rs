//! Borrowed reads of near copies while one thread evicts them and fills their memory again.
//!
//! The bytes are read and written plainly. Between a read under a guard and the next copy into the same memory stand the
//! orderings of [`readers`](super::readers) alone: readers take no lock and hold no count, and copies are made by the
//! thread that asks for them. `cargo xtask tsan` judges the orderings; elsewhere this checks the bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Access, Cache, readers};
use crate::mover::{
    CopyReport, Engine, EngineKind, EngineStats, Guidelines, Mover, RawRequest, Rejected, Route,
};
use crate::topology::{Machine, NodeId};

const PAGE: usize = 4096;
const PAGES: usize = 8;
const ROUNDS: usize = 2_000;

/// Copies in the thread that submits.
#[derive(Debug)]
struct Here;

impl Engine for Here {
    fn name(&self) -> &str {
        "here"
    }

    fn kind(&self) -> EngineKind {
        EngineKind::Cpu
    }

    fn node(&self) -> Option<NodeId> {
        Some(NodeId(0))
    }

    fn submit(&self, copy: RawRequest) -> Result<(), Rejected> {
        // SAFETY: a submitted copy's buffers are the engine's until it is finished.
        unsafe { std::ptr::copy_nonoverlapping(copy.source(), copy.target(), copy.size_bytes()) };
        let report = CopyReport { cpu_bytes: copy.size_bytes() as u64, dsa_bytes: 0 };
        copy.finish(Ok(report));
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        panic!("the test asks for none")
    }
}

#[test]
fn guarded_reads_end_before_the_next_copy() {
    let guidelines = Guidelines { offload_bytes_min: 0, llc_bytes: 1 << 20 };
    let machine = Arc::new(Machine::two_tiers().unwrap());
    let mover = Mover::builder(machine).engine(Arc::new(Here)).route(Route::Single).guidelines(guidelines);
    let room = PAGES / 2 * PAGE;
    let cache = Cache::builder(mover.build().unwrap()).budget(NodeId(1), room).build().unwrap();
    let bytes: Vec<u8> = (0..PAGES * PAGE).map(|at| (at / PAGE * 31 + at % 251) as u8).collect();
    let region = cache.register_chunked(bytes.clone(), Some(NodeId(0)), PAGE);
    let (is_over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let read = |reader| {
            let (cache, region, bytes, is_over, reads) = (&cache, &region, &bytes, &is_over, &reads);
            move || {
                let mut page = reader;
                // `guard_unasked` serves threads that have a record already.
                readers::current().expect("this thread has not ended");
                // ORDERING: Relaxed: nothing else may order this thread and the other.
                while !is_over.load(Ordering::Relaxed) {
                    page = (page + 1) % PAGES;
                    let range = page * PAGE..(page + 1) * PAGE;
                    let Some(guard) = cache.shared.guard_unasked(region, &range, &Access::default()) else {
                        thread::yield_now();
                        continue;
                    };
                    assert!(guard.published().as_slice() == &bytes[range], "wrong bytes of page {page}");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let readers = [0, 1].map(|reader| scope.spawn(read(reader)));
        let patience = Instant::now() + Duration::from_secs(60);
        let is_enough = |round| round >= ROUNDS && reads.load(Ordering::Relaxed) >= ROUNDS as u64;
        for round in 0.. {
            if is_enough(round) || Instant::now() > patience {
                break;
            }
            let page = round * 5 % PAGES;
            let range = page * PAGE..(page + 1) * PAGE;
            // The second access publishes the copy. Near or not: readers may keep all room.
            for _ in 0..2 {
                cache.access(&region, range.clone(), Access::default()).unwrap().wait();
            }
            if round % 16 == 0 {
                cache.invalidate(&region, range).unwrap();
            }
            // A machine with one CPU lets the readers run.
            thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
        // The sanitizer understands a join, and not the end of a scope.
        readers.into_iter().for_each(|reader| reader.join().expect("the reader's own message is above"));
    });
    let (evictions, reads) = (cache.stats().evictions, reads.into_inner());
    assert!(evictions > 100 && reads > 100, "the test is too tame: {evictions} evictions, {reads} reads");
}
