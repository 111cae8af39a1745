//! An asymmetric fence: readers pay almost nothing, the evicting thread pays for both sides.
//!
//! ```text
//! reader:  A = 1; light(); read B          remover:  B = 1; heavy(); read A
//! ```
//!
//! At least one of the two sees the other's 1, as with a full fence on both sides (Dekker). `light` only stops the
//! compiler from moving accesses across it. `heavy` makes the kernel run a full fence on every CPU that runs a thread of
//! this process: 0.6 us alone, 2.5 to 4 us with a second running thread, on the two CPUs of a virtual machine (AMD EPYC).
//! If the kernel does not offer that, both halves are full fences.
//!
//! Source: membarrier(2); M. Desnoyers et al., "User-Level Implementations of Read-Copy Update", IEEE TPDS 23(2), 2012.

#[cfg(memferry_loom)]
pub use model::{heavy, light};
#[cfg(not(memferry_loom))]
pub use system::{heavy, light, prepare};

#[cfg(not(memferry_loom))]
mod system {
    use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

    /// Whether the kernel runs the fences. Any thread reads it; `prepare` sets it once. No thread waits for another one
    /// that sets it: in a forked child that thread would not exist.
    static KERNEL_FENCES: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;

    /// The reader's half.
    #[inline]
    pub fn light() {
        // ORDERING: Relaxed: a thread that reads an old `UNKNOWN` runs a full fence, which matches both kinds of `heavy`.
        // `YES` is final, so a concurrent `heavy` asks the kernel.
        // Both fences pair with the one of `heavy`: of the store before and the load after each, one is seen.
        if KERNEL_FENCES.load(Ordering::Relaxed) == YES {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// Asks the kernel once, before the first reader. Returns whether it runs the fences.
    pub fn prepare() -> bool {
        let mut answer = KERNEL_FENCES.load(Ordering::Relaxed);
        if answer == UNKNOWN {
            let agrees = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
            let fresh = if agrees { YES } else { NO };
            let first = KERNEL_FENCES.compare_exchange(UNKNOWN, fresh, Ordering::Relaxed, Ordering::Relaxed);
            answer = first.map_or_else(|answer| answer, |_| fresh);
        }
        answer == YES
    }

    /// The remover's half. Returns false if the fence failed; then loads after it prove nothing.
    ///
    /// It fails only if a seccomp filter forbids the system call after it was allowed once.
    #[must_use]
    pub fn heavy() -> bool {
        if prepare() {
            return membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        }
        // ORDERING: SeqCst pairs with the full fence of `light`.
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

        /// The guarantee of the fences: the two sides do not miss each other.
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
            let remover: Vec<u32> = (cells.iter())
                .map(|[a, b]| {
                    b.store(1, Relaxed);
                    assert!(heavy());
                    a.load(Relaxed)
                })
                .collect();
            let reader = reader.join().unwrap();
            assert!(reader.iter().zip(&remover).all(|(saw, was_seen)| saw + was_seen > 0));
        }
    }
}

/// Loom supports full fences only; the kernel promises that `heavy` turns every `light` into one.
#[cfg(memferry_loom)]
mod model {
    use loom::sync::atomic::{Ordering, fence};

    pub fn light() {
        // ORDERING: SeqCst pairs with `heavy`.
        fence(Ordering::SeqCst);
    }

    pub fn heavy() -> bool {
        // ORDERING: SeqCst pairs with `light`.
        fence(Ordering::SeqCst);
        true
    }
}
