//! The vector instructions that the operations use, and a limit for measurements.

use std::sync::atomic::{AtomicBool, Ordering};

use super::simd;

/// The widest vectors that the operations use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Isa {
    /// Those of every CPU of this architecture: 128 bits on x86-64.
    Baseline,
    /// AVX2: 256 bits.
    Avx2,
    /// AVX-512: 512 bits, where they are faster.
    Avx512,
}

/// Whether AVX-512 stays unused. Written by `limit_to_avx2`, read by each detection.
static IS_LIMITED: AtomicBool = AtomicBool::new(false);

impl Isa {
    /// What the operations of this process use.
    pub fn used() -> Isa {
        match (simd::Avx512::detect(), simd::Avx2::detect()) {
            (Some(_), _) => Isa::Avx512,
            (None, Some(_)) => Isa::Avx2,
            (None, None) => Isa::Baseline,
        }
    }

    /// Leaves AVX-512 unused from now on, as on a CPU without it. For measurements.
    pub fn limit_to_avx2() {
        IS_LIMITED.store(true, Ordering::Relaxed);
    }

    /// The name in records.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Baseline => "baseline",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }
}

/// Whether AVX-512 may be used if the CPU has it.
#[inline]
pub(super) fn allows_avx512() -> bool {
    !IS_LIMITED.load(Ordering::Relaxed)
}
