//! Allocations of a thread, and what the system's allocator does with freed memory.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator with a count of the calling thread's allocations. A program installs it with
/// `#[global_allocator]`.
///
/// Each thread writes its own count only: counting costs one addition and no contention.
#[derive(Debug)]
pub struct CountingAllocator;

/// The number of allocations of this thread so far; 0 unless [`CountingAllocator`] is installed.
pub fn allocations_count() -> u64 {
    COUNT.get()
}

/// Makes the C library keep memory that is freed, for the next allocation: up to 64 MiB at the end of each heap, and blocks of
/// up to 32 MiB. For a program that runs queries, before it allocates; costs nothing else.
///
/// A decoder frees and allocates buffers of megabytes for each batch. By default the C library returns them to the kernel, and
/// the kernel then clears a fresh page for every 4 KiB: 20 % of the time of TPC-H Q19 over files.
///
/// Source: mallopt(3). 32 MiB is the maximum, `HEAP_MAX_SIZE / 2`; the kept end is twice that, as if the library had found the
/// threshold itself.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    for (option, bytes) in [(libc::M_MMAP_THRESHOLD, 32 << 20), (libc::M_TRIM_THRESHOLD, 64 << 20)] {
        // SAFETY: these options may be set at any time and take any size; the library refuses others.
        let _accepted = unsafe { libc::mallopt(option, bytes) };
    }
}

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn add_one() {
    COUNT.set(COUNT.get() + 1);
}

// SAFETY: every call is the system allocator's, with the arguments that came; counting neither allocates nor unwinds:
// the cell needs no set-up and has no destructor.
unsafe impl GlobalAlloc for CountingAllocator {
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
