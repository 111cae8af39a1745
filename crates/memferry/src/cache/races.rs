//! Race test: borrowed reads of near copies while one thread evicts them and reuses their memory.
//!
//! The bytes are read and written without atomics. Only the orderings of [`readers`](super::readers) separate a read under
//! a guard from the next copy into the same memory: readers take no lock and no count, and the accessing thread makes the
//! copies. `cargo xtask tsan` checks the orderings; otherwise this test checks the bytes.

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

/// An engine that copies on the submitting thread.
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
        // SAFETY: the buffers of a submitted copy belong to the engine until it is finished.
        unsafe { std::ptr::copy_nonoverlapping(copy.source(), copy.target(), copy.size_bytes()) };
        let report = CopyReport { cpu_bytes: copy.size_bytes() as u64, dsa_bytes: 0, file_bytes: 0 };
        copy.finish(Ok(report));
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        panic!("the test reads no statistics")
    }
}

#[test]
fn guarded_reads_end_before_the_next_copy() {
    let guidelines = Guidelines { offload_bytes_min: 0, offload_waited_bytes_min: 0, llc_bytes: 1 << 20 };
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
                // `guard_fast` serves only threads with a record.
                readers::current().expect("this thread has not ended");
                // ORDERING: Relaxed: the test must not add an ordering between the threads.
                while !is_over.load(Ordering::Relaxed) {
                    page = (page + 1) % PAGES;
                    let range = page * PAGE..(page + 1) * PAGE;
                    let Some(guard) = cache.shared.guard_fast(region, &range, &Access::default()) else {
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
            // The second access publishes the copy, unless readers keep all room.
            for _ in 0..2 {
                cache.access(&region, range.clone(), Access::default()).unwrap().wait();
            }
            if round % 16 == 0 {
                cache.invalidate(&region, range).unwrap();
            }
            // Lets the readers run on a machine with one CPU.
            thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
        // The sanitizer models a join, but not the end of a scope.
        readers.into_iter().for_each(|reader| reader.join().expect("the reader's own message is above"));
    });
    let (evictions, reads) = (cache.stats().evictions, reads.into_inner());
    assert!(evictions > 100 && reads > 100, "the test is too tame: {evictions} evictions, {reads} reads");
}
