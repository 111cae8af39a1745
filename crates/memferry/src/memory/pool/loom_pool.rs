//! Models of the pool's ledger over memory that loom watches: allocated pages are populated, and have one owner.

use std::ops::Range;

use loom::cell::UnsafeCell;
use loom::thread;

use super::ledger::{Backing, Ledger};
use crate::memory::MemoryError;
use crate::memory::syscall::{HUGE_PAGE_BYTES as CHUNK_BYTES, page_bytes};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::topology::NodeId;

const CHUNKS: usize = 2;

/// Whether each chunk has memory. Blocks in it read that; commit and discard write it, which loom allows only without
/// concurrent access.
struct Watched {
    has_memory: [UnsafeCell<bool>; CHUNKS],
    /// Commits that fail before one succeeds.
    failures: AtomicUsize,
}

impl Watched {
    fn set(&self, bytes: Range<usize>, has_memory: bool) {
        for cell in &self.has_memory[bytes.start / CHUNK_BYTES..bytes.end.div_ceil(CHUNK_BYTES)] {
            // SAFETY: loom reports concurrent accesses.
            cell.with_mut(|cell| unsafe {
                assert_ne!(*cell, has_memory, "a chunk is committed and discarded in turn");
                *cell = has_memory;
            });
        }
    }
}

impl Backing for Watched {
    unsafe fn commit(&self, bytes: Range<usize>) -> Result<(), MemoryError> {
        let fails = |left: usize| left.checked_sub(1);
        if self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fails).is_ok() {
            let node = NodeId(0);
            return Err(MemoryError::NodeWithoutMemory { node });
        }
        thread::yield_now();
        self.set(bytes, true);
        Ok(())
    }

    unsafe fn discard(&self, bytes: Range<usize>) -> bool {
        self.set(bytes, false);
        true
    }
}

fn ledger(chunks: usize, failures: usize) -> Arc<Ledger<Watched>> {
    let has_memory = std::array::from_fn(|_| UnsafeCell::new(false));
    let backing = Watched { has_memory, failures: AtomicUsize::new(failures) };
    // No idle memory is kept, so that chunks are committed and discarded.
    Arc::new(Ledger::new(backing, NodeId(0), chunks * CHUNK_BYTES, 0))
}

/// Allocates a block, checks its memory, and frees it.
fn use_block(ledger: &Ledger<Watched>, size_bytes: usize) -> Result<(), MemoryError> {
    let bytes = ledger.allocate(size_bytes)?;
    for cell in &ledger.backing().has_memory[bytes.start / CHUNK_BYTES..bytes.end.div_ceil(CHUNK_BYTES)] {
        // SAFETY: as in `set`.
        cell.with(|cell| assert!(unsafe { *cell }, "pages without memory"));
    }
    let stats = ledger.stats();
    assert!(stats.used_bytes <= stats.budget_bytes && stats.mapped_bytes <= stats.budget_bytes);
    ledger.free(bytes);
    Ok(())
}

/// Two threads allocate and free a block. Returns their results, and checks that nothing is left.
fn two(ledger: Arc<Ledger<Watched>>, sizes_bytes: [usize; 2]) -> [Result<(), MemoryError>; 2] {
    let other = ledger.clone();
    let thread = thread::spawn(move || use_block(&other, sizes_bytes[1]));
    let outcomes = [use_block(&ledger, sizes_bytes[0]), thread.join().expect("no panic")];
    let stats = ledger.stats();
    assert_eq!((stats.used_bytes, stats.mapped_bytes, stats.blocks_count), (0, 0, 0));
    let refused = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    assert_eq!((stats.allocated_count, stats.refused_count), (2 - refused as u64, refused as u64));
    outcomes
}

#[test]
fn loom_pool_neighbours_in_a_chunk() {
    loom::model(|| {
        let outcomes = two(ledger(1, 0), [page_bytes(); 2]);
        assert!(outcomes.iter().all(Result::is_ok));
    });
}

#[test]
fn loom_pool_blocks_that_share_one_of_two_chunks() {
    loom::model(|| {
        let outcomes = two(ledger(2, 0), [CHUNK_BYTES + page_bytes(), page_bytes()]);
        assert!(outcomes.iter().all(Result::is_ok));
    });
}

#[test]
fn loom_pool_budget_for_one() {
    loom::model(|| {
        let outcomes = two(ledger(1, 0), [CHUNK_BYTES; 2]);
        assert!(outcomes.iter().any(Result::is_ok));
        for outcome in outcomes {
            assert!(matches!(outcome, Ok(()) | Err(MemoryError::Full { .. })), "{outcome:?}");
        }
    });
}

#[test]
fn loom_pool_memory_is_refused_once() {
    loom::model(|| {
        let outcomes = two(ledger(1, 1), [page_bytes(); 2]);
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 1, "the other one retries");
    });
}
