//! The allocator of this library: memory that is never given back.
//!
//! A replaced function may be called by the program's allocator while it holds its locks, so this library does not use
//! that allocator. It allocates when it is loaded, when a child of fork opens the queues again (some kilobytes for each
//! device), and for the summary at exit. A call of a replaced function allocates nothing otherwise.
//!
//! ```text
//! allocate: the next free bytes of the block; if it has too few, a new block
//! ```

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::sys;

#[cfg_attr(not(test), global_allocator)]
static ARENA: Arena = Arena::new();

/// Size of a block.
const BLOCK_BYTES: usize = 256 << 10;

/// Makes room for this number of bytes, at most half a block. False: there is no memory.
///
/// A failed allocation ends the process, so code that can do without asks first.
pub(crate) fn reserve(bytes: usize) -> bool {
    ARENA.reserve(bytes)
}

/// An allocator without a lock: `next` is the address of the first free byte.
///
/// All threads advance `next`. The end of a block is a multiple of its size, so it follows from the address.
struct Arena {
    next: AtomicUsize,
}

impl Arena {
    const fn new() -> Arena {
        Arena { next: AtomicUsize::new(0) }
    }

    fn reserve(&self, bytes: usize) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        let is_there = Layout::from_size_align(bytes.min(BLOCK_BYTES / 2), 1)
            .is_ok_and(|layout| Arena::place(next, layout).is_some());
        is_there || {
            let Some(block) = Arena::map_block() else { return false };
            // The rest of the former block is lost.
            self.next.store(block, Ordering::Relaxed);
            true
        }
    }

    /// Maps a new block.
    fn map_block() -> Option<usize> {
        // Twice the size has an aligned block in it. The rest stays untouched.
        Some(sys::map(2 * BLOCK_BYTES)?.next_multiple_of(BLOCK_BYTES))
    }

    /// The address of `size` bytes in the block of `next`, if it has room.
    fn place(next: usize, layout: Layout) -> Option<usize> {
        let start = next.checked_next_multiple_of(layout.align())?;
        let end = start.checked_add(layout.size())?;
        (next != 0 && end <= (next | (BLOCK_BYTES - 1))).then_some(start)
    }
}

// SAFETY: `alloc` hands out each byte of a mapping once: `next` only changes from the value that was read, to the end of the
// bytes that were handed out, or to a block that no other thread has.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() + layout.align() > BLOCK_BYTES / 4 {
            // Mappings are aligned to pages; nothing here needs more.
            return sys::map(layout.size())
                .filter(|at| at.is_multiple_of(layout.align()))
                .map_or(ptr::null_mut(), |at| at as *mut u8);
        }
        loop {
            // Relaxed: the bytes come zeroed from the kernel and are published by the code that receives them.
            let next = self.next.load(Ordering::Relaxed);
            let (start, end) = match Arena::place(next, layout) {
                Some(start) => (start, start + layout.size()),
                None => {
                    let Some(block) = Arena::map_block() else { return ptr::null_mut() };
                    let start = block.next_multiple_of(layout.align());
                    (start, start + layout.size())
                }
            };
            if self.next.compare_exchange(next, end, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return start as *mut u8;
            }
        }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bytes_need_no_new_block() {
        static ARENA: Arena = Arena::new();
        let layout = Layout::from_size_align(1000, 8).unwrap();
        for _ in 0..1000 {
            assert!(ARENA.reserve(10_000));
            let block = ARENA.next.load(Ordering::Relaxed) / BLOCK_BYTES;
            for _ in 0..10 {
                // SAFETY: the size is not zero.
                assert!(!unsafe { ARENA.alloc(layout) }.is_null());
                assert_eq!(ARENA.next.load(Ordering::Relaxed) / BLOCK_BYTES, block);
            }
        }
    }

    #[test]
    fn allocations_are_aligned_and_apart() {
        static ARENA: Arena = Arena::new();
        let sizes = [1, 8, 63, 64, 4096, 60 << 10, BLOCK_BYTES, 3 << 20];
        let allocate = |thread: usize| {
            let mut mine: Vec<(usize, usize)> = Vec::new();
            for round in 0..200 {
                let (size, align) = (sizes[(round + thread) % sizes.len()], 1 << (round % 13));
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: the size is not zero.
                let at = unsafe { ARENA.alloc(layout) };
                assert!(!at.is_null() && at.addr().is_multiple_of(align), "{layout:?}");
                // SAFETY: `size` bytes that were just allocated.
                unsafe { at.write_bytes(0xa5, size) };
                mine.push((at.addr(), size));
            }
            mine
        };
        let mut all: Vec<(usize, usize)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|thread| scope.spawn(move || allocate(thread))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
    }
}
