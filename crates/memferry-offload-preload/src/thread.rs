//! Memory of a thread that needs no allocation: it is part of the thread's stack from the start.
//!
//! The library is preloaded, so it may use the static model (initial-exec): two instructions, which call nothing. The usual
//! model may allocate in `__tls_get_addr`, also inside an allocator. Rust has no stable way to choose the model, hence the
//! assembler.
//!
//! Source: U. Drepper, *ELF Handling for Thread-Local Storage*, section 4.3.6.

use std::arch::{asm, global_asm};
use std::sync::atomic::{AtomicU32, Ordering};

use memferry_dsa::CompletionRecord;

/// Most descriptors of a thread at the same time.
pub(crate) const DESCRIPTORS_MAX: usize = 8;

/// The memory of one thread. All zero in a new thread.
#[repr(C, align(64))]
pub(crate) struct Thread {
    /// A device writes them until [`Guard`] is dropped.
    pub(crate) lines: [Line; DESCRIPTORS_MAX],
    /// Not zero while the thread is in [`large`](crate::large). Swapped, because a process that another one has made by
    /// clone(2) may share this memory.
    is_busy: AtomicU32,
}

/// A completion record on a cache line of its own.
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) CompletionRecord);

const THREAD_BYTES: usize = (DESCRIPTORS_MAX + 1) * 64;
const _: () = assert!(size_of::<Thread>() == THREAD_BYTES && align_of::<Thread>() == 64);

global_asm!(
    ".pushsection .tbss.memferry_offload_thread, \"awT\", @nobits",
    ".hidden memferry_offload_thread",
    ".globl memferry_offload_thread",
    ".type memferry_offload_thread, @tls_object",
    ".size memferry_offload_thread, {bytes}",
    ".p2align 6",
    "memferry_offload_thread:",
    ".zero {bytes}",
    ".popsection",
    bytes = const THREAD_BYTES,
);

/// The memory of the calling thread, unless it is in use: by a call that a signal handler has interrupted, or that this
/// call comes from.
#[inline]
pub(crate) fn enter() -> Option<Guard> {
    let address: *const Thread;
    // SAFETY: it computes the address of the symbol above for this thread.
    unsafe {
        asm!(
            "mov {0}, qword ptr [rip + memferry_offload_thread@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) address,
            options(nostack, pure, readonly),
        );
    }
    // SAFETY: it is as large and as aligned as the type, zeros are valid values of its atomics, and the thread that uses
    // it is running.
    let thread: &'static Thread = unsafe { &*address };
    // Relaxed: only this thread and its signal handlers.
    (thread.is_busy.swap(1, Ordering::Relaxed) == 0).then(|| Guard { thread })
}

/// The use of a thread's memory. It stays in use if a signal handler leaves the call by longjmp(3): a device may still
/// write to it.
pub(crate) struct Guard {
    pub(crate) thread: &'static Thread,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.thread.is_busy.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_memory_once() {
        let mine = enter().unwrap();
        // Once an unsuccessful try ended the use, so the second one recursed without end.
        assert!(enter().is_none() && enter().is_none(), "it is in use");
        let address = &raw const *mine.thread as usize;
        let others =
            std::thread::spawn(|| enter().map(|guard| &raw const *guard.thread as usize)).join().unwrap();
        assert_ne!(others, Some(address));
        assert!(others.is_some() && address.is_multiple_of(64));
        assert!(mine.thread.lines.iter().all(|line| line.0.poll().is_none()));
        drop(mine);
        assert!(enter().is_some());
    }
}
