//! A fence of two unequal halves: readers pay next to nothing, whoever takes something away pays for both.
//!
//! ```text
//! reader:  A = 1; light(); read B          taker:  B = 1; heavy(); read A
//! ```
//!
//! At least one of them sees the other's 1, as with a full fence on both sides (Dekker). `light` only keeps the
//! compiler from moving accesses across it; `heavy` has the kernel run a full fence on every CPU that runs a thread of
//! this process:
//! 0.6 us alone, 2.5 to 4 us with a second thread running, on the two CPUs of a virtual machine (AMD EPYC).
//! Where the kernel does not offer that, both halves are full fences.
//!
//! Source: membarrier(2); M. Desnoyers et al., "User-Level Implementations of Read-Copy Update", IEEE TPDS 23(2), 2012.

#[cfg(memferry_loom)]
pub(super) use model::{heavy, light};
#[cfg(not(memferry_loom))]
pub(super) use system::{heavy, light, prepare};

#[cfg(not(memferry_loom))]
mod system {
    use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

    /// Whether the kernel runs the fences. It is asked once, and the first answer stays. No thread waits for another's:
    /// in a forked child that one would be missing.
    static KERNEL_FENCES: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;

    /// The reader's half.
    #[inline]
    pub(in crate::cache) fn light() {
        // ORDERING: Relaxed: a thread that reads an old `UNKNOWN` runs a full fence, which suits either kind of `heavy`.
        // `YES` stays, so a `heavy` beside it asks the kernel.
        if KERNEL_FENCES.load(Ordering::Relaxed) == YES {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// Asks the kernel once, so that readers need no fence of their own from the first on; whether it agrees.
    pub(in crate::cache) fn prepare() -> bool {
        let mut answer = KERNEL_FENCES.load(Ordering::Relaxed);
        if answer == UNKNOWN {
            let agrees = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
            let fresh = if agrees { YES } else { NO };
            let first = KERNEL_FENCES.compare_exchange(UNKNOWN, fresh, Ordering::Relaxed, Ordering::Relaxed);
            answer = first.map_or_else(|answer| answer, |_| fresh);
        }
        answer == YES
    }

    /// The taker's half; false if it did not happen, and nothing may be concluded from what is read afterwards.
    ///
    /// That can only be when something forbids the system call after it was allowed once (a seccomp filter).
    #[must_use]
    pub(in crate::cache) fn heavy() -> bool {
        if prepare() {
            return membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        }
        fence(Ordering::SeqCst);
        true
    }

    #[allow(unsafe_code)]
    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: the call takes two numbers besides the command and touches no memory of this process.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    #[cfg(test)]
    mod tests {
        use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
        use std::sync::{Arc, Barrier};
        use std::thread;

        use super::{heavy, light};

        /// Neither side missing the other is all that the fences are for.
        #[test]
        fn one_of_two_sees_the_other() {
            const ROUNDS: usize = 20_000;
            let cells: Arc<Vec<[AtomicU32; 2]>> = Arc::new((0..ROUNDS).map(|_| Default::default()).collect());
            let start = Arc::new(Barrier::new(2));
            let reader = thread::spawn({
                let (cells, start) = (cells.clone(), start.clone());
                move || {
                    start.wait();
                    let looks = cells.iter().map(|[a, b]| {
                        a.store(1, Relaxed);
                        light();
                        b.load(Relaxed)
                    });
                    looks.collect::<Vec<u32>>()
                }
            });
            start.wait();
            let taker: Vec<u32> = (cells.iter())
                .map(|[a, b]| {
                    b.store(1, Relaxed);
                    assert!(heavy());
                    a.load(Relaxed)
                })
                .collect();
            let reader = reader.join().unwrap();
            assert!(reader.iter().zip(&taker).all(|(saw, was_seen)| saw + was_seen > 0));
        }
    }
}

/// Loom knows full fences only; that `heavy` makes one of every `light` is the kernel's promise.
#[cfg(memferry_loom)]
mod model {
    use loom::sync::atomic::{Ordering, fence};

    pub(in crate::cache) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(in crate::cache) fn heavy() -> bool {
        fence(Ordering::SeqCst);
        true
    }
}
