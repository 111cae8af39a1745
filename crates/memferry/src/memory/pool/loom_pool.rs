//! Models of the pool's books over memory that loom watches: whoever has pages finds memory under them, alone.

use std::ops::Range;

use loom::cell::UnsafeCell;
use loom::thread;

use super::books::{Books, Ground};
use crate::memory::syscall::{HUGE_PAGE_BYTES as CHUNK_BYTES, page_bytes};
use crate::memory::{MemoryError, PoolError};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::topology::NodeId;

const CHUNKS: usize = 2;

/// Whether each chunk has memory. Blocks in it read that; who commits or discards it writes, which loom allows to
/// nobody beside them.
struct Watched {
    has_memory: [UnsafeCell<bool>; CHUNKS],
    /// Commits that fail before one succeeds.
    failures: AtomicUsize,
}

impl Watched {
    fn set(&self, bytes: Range<usize>, has_memory: bool) {
        for cell in &self.has_memory[bytes.start / CHUNK_BYTES..bytes.end.div_ceil(CHUNK_BYTES)] {
            // SAFETY: loom tells of whoever accesses it at the same time.
            cell.with_mut(|cell| unsafe {
                assert_ne!(
                    *cell, has_memory,
                    "what has memory needs none, and what has none has none to give"
                );
                *cell = has_memory;
            });
        }
    }
}

impl Ground for Watched {
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

fn books(chunks: usize, failures: usize) -> Arc<Books<Watched>> {
    let has_memory = std::array::from_fn(|_| UnsafeCell::new(false));
    let ground = Watched { has_memory, failures: AtomicUsize::new(failures) };
    // Nothing idle is kept, so that memory comes and goes.
    Arc::new(Books::new(ground, NodeId(0), chunks * CHUNK_BYTES, 0))
}

/// Allocates, looks at the memory, and frees.
fn use_block(books: &Books<Watched>, size_bytes: usize) -> Result<(), PoolError> {
    let bytes = books.allocate(size_bytes)?;
    for cell in &books.ground().has_memory[bytes.start / CHUNK_BYTES..bytes.end.div_ceil(CHUNK_BYTES)] {
        // SAFETY: as in `set`.
        cell.with(|cell| assert!(unsafe { *cell }, "pages without memory"));
    }
    let stats = books.stats();
    assert!(stats.used_bytes <= stats.budget_bytes && stats.mapped_bytes <= stats.budget_bytes);
    books.free(bytes);
    Ok(())
}

/// Both allocate and free a block; what that comes to, and that nothing is left of it.
fn two(books: Arc<Books<Watched>>, sizes_bytes: [usize; 2]) -> [Result<(), PoolError>; 2] {
    let other = books.clone();
    let thread = thread::spawn(move || use_block(&other, sizes_bytes[1]));
    let outcomes = [use_block(&books, sizes_bytes[0]), thread.join().expect("no panic")];
    let stats = books.stats();
    assert_eq!((stats.used_bytes, stats.mapped_bytes, stats.blocks_count), (0, 0, 0));
    let refused = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    assert_eq!((stats.allocated_count, stats.refused_count), (2 - refused as u64, refused as u64));
    outcomes
}

#[test]
fn loom_pool_neighbours_in_a_chunk() {
    loom::model(|| {
        let outcomes = two(books(1, 0), [page_bytes(); 2]);
        assert!(outcomes.iter().all(Result::is_ok));
    });
}

#[test]
fn loom_pool_blocks_that_share_one_of_two_chunks() {
    loom::model(|| {
        let outcomes = two(books(2, 0), [CHUNK_BYTES + page_bytes(), page_bytes()]);
        assert!(outcomes.iter().all(Result::is_ok));
    });
}

#[test]
fn loom_pool_budget_for_one() {
    loom::model(|| {
        let outcomes = two(books(1, 0), [CHUNK_BYTES; 2]);
        assert!(outcomes.iter().any(Result::is_ok));
        for outcome in outcomes {
            assert!(matches!(outcome, Ok(()) | Err(PoolError::Full { .. })), "{outcome:?}");
        }
    });
}

#[test]
fn loom_pool_memory_is_refused_once() {
    loom::model(|| {
        let outcomes = two(books(1, 1), [page_bytes(); 2]);
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 1, "the other tries again");
    });
}
