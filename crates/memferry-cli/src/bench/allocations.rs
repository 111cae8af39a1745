//! How often a thread allocates: the program's allocator is the system's, with a count in front of it.
//!
//! The count is the thread's own, so that it costs an addition and no thread waits for another's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// What this thread has allocated so far, in calls.
pub(crate) fn count() -> u64 {
    COUNT.get()
}

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn add_one() {
    COUNT.set(COUNT.get() + 1);
}

// SAFETY: every call is the system allocator's, with the arguments that came; counting neither allocates nor unwinds:
// the cell needs no set-up and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add_one();
        // SAFETY: the caller keeps the promises of `GlobalAlloc`, which are the same there.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add_one();
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        add_one();
        // SAFETY: as in `alloc`; `address` came from the system allocator.
        unsafe { System.realloc(address, layout, new_size) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: as in `realloc`.
        unsafe { System.dealloc(address, layout) }
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    #[test]
    fn counts_what_this_thread_allocates() {
        let before = super::count();
        let mut one = black_box(Vec::<u8>::with_capacity(1));
        assert_eq!(super::count() - before, 1);
        one.reserve_exact(100);
        drop(black_box(one));
        drop(black_box(vec![0_u8; 100]));
        assert_eq!(super::count() - before, 3);
        std::thread::spawn(|| drop(black_box(Box::new(1)))).join().unwrap();
        let after_spawn = super::count();
        black_box(1 + 1);
        assert_eq!(super::count(), after_spawn);
    }
}
