//! How a CPU copies: by which method, for how much, and whether the bytes are in its caches.
//!
//! Which method is fastest depends on the CPU, on the size, and on where the bytes are: non-temporal stores save the
//! read of what they overwrite and leave the caches to others, but cost twice the time where source and target are in
//! the caches already. Sizes are known. Where the bytes are, the first part of a copy of 256 KiB or more tells by the time
//! it takes; the rest follows in the way that suits. A first part that is slow may have met an interrupt, or page tables
//! that were in no cache: of bytes that another core had read, a tenth took as long as from memory, of the parts behind
//! those a hundredth did. So it takes two to be cold.
//!
//! ```text
//! size ─▶ class ─▶ one method for both? ── yes ──▶ that
//!                        │ no
//!                        ▼
//!            first 16 KiB, timed ── as fast as from caches? ──▶ warm[class]
//!                        │ slower
//!            next 16 KiB, timed ─── as fast as from caches? ──▶ warm[class]
//!                        └───────── slower ───────────────────▶ cold[class]
//! ```
//!
//! Which method it is in each case is found out by [`CopyMethods::calibrate`].

#[cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
pub(crate) mod calibration;

use serde::{Deserialize, Serialize};

use crate::moment::Moment;

/// A way to copy bytes with a CPU.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CopyMethod {
    /// The C library's.
    Memcpy,
    /// The string instruction of x86, microcode that moves whole lines.
    RepMovsb,
    /// Stores that go past the caches (x86), with the source fetched ahead. Not for what is read at once.
    NonTemporal,
}

impl CopyMethod {
    /// Those that this CPU has; the others copy as [`Memcpy`](CopyMethod::Memcpy) does.
    pub const ALL: &[CopyMethod] = match cfg!(target_arch = "x86_64") {
        // SSE2 is part of x86-64.
        true => &[CopyMethod::Memcpy, CopyMethod::RepMovsb, CopyMethod::NonTemporal],
        false => &[CopyMethod::Memcpy],
    };

    /// As records and profiles spell it.
    pub fn name(self) -> &'static str {
        match self {
            CopyMethod::Memcpy => "memcpy",
            CopyMethod::RepMovsb => "rep_movsb",
            CopyMethod::NonTemporal => "non_temporal",
        }
    }

    /// Copies `source` to `target`.
    ///
    /// # Panics
    /// If their lengths differ.
    pub fn copy(self, source: &[u8], target: &mut [u8]) {
        assert_eq!(source.len(), target.len(), "a copy is as long as its source");
        // SAFETY: as long as each other, and a shared and an exclusive borrow do not overlap.
        unsafe { self.copy_raw(source.as_ptr(), target.as_mut_ptr(), source.len()) }
    }

    /// # Safety
    /// `source` is readable and `target` writable for `size_bytes`, nobody else writes the one or uses the other, and
    /// they do not overlap.
    unsafe fn copy_raw(self, source: *const u8, target: *mut u8, size_bytes: usize) {
        // SAFETY: the caller's word.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                CopyMethod::RepMovsb => x86::rep_movsb(source, target, size_bytes),
                #[cfg(target_arch = "x86_64")]
                CopyMethod::NonTemporal => x86::non_temporal(source, target, size_bytes),
                _ => std::ptr::copy_nonoverlapping(source, target, size_bytes),
            }
        }
    }
}

/// Classes of sizes: each is 16 times as large as the one before, and is measured in its geometric middle.
pub(crate) const CLASS_BYTES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20];

/// Up to 16 KiB is the first class, then a class for each four powers of two.
fn class_of(size_bytes: usize) -> usize {
    let log2 = size_bytes.checked_ilog2().unwrap_or(0) as usize;
    (log2.saturating_sub(10) / 4).min(CLASS_BYTES.len() - 1)
}

const FIRST_CLASS_END_BYTES: usize = 16 << 10;

/// How much of a copy is timed to learn whether its bytes are in the caches: enough that a look at a clock does not matter.
pub(crate) const PROBE_BYTES: usize = 16 << 10;
/// Smaller copies go by their size alone: to look at the clock twice takes 30 ns, 0.6 % of this and 3 % of 64 KiB.
pub(crate) const PROBED_BYTES_MIN: usize = 256 << 10;

/// The method for each size, for bytes in this core's caches (warm) and elsewhere (cold).
///
/// The default is for x86-64 CPUs that nobody has measured. [`calibrate`](CopyMethods::calibrate) measures. As JSON:
/// the methods for copies of less than 16 KiB, 256 KiB, 4 MiB, 64 MiB, and of more, warm and cold, and the threshold.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyMethods {
    pub(crate) warm: [CopyMethod; CLASS_BYTES.len()],
    pub(crate) cold: [CopyMethod; CLASS_BYTES.len()],
    /// A copy is cold if its first 16 KiB take longer, and the next as well.
    pub(crate) warm_probe_ns_max: u64,
}

impl Default for CopyMethods {
    /// `copy_*` in `results/amd-epyc-2cpu`: memcpy in the caches, non-temporal stores for what is not and for what is
    /// too large for them. 16 KiB took 0.3 us from L2, 0.6 us from L3 and 1.7 us from memory.
    fn default() -> CopyMethods {
        use CopyMethod::{Memcpy, NonTemporal};
        CopyMethods {
            warm: [Memcpy, Memcpy, Memcpy, NonTemporal, NonTemporal],
            cold: [Memcpy, Memcpy, NonTemporal, NonTemporal, NonTemporal],
            warm_probe_ns_max: 1000,
        }
    }
}

impl CopyMethods {
    /// One method for all.
    pub const fn only(method: CopyMethod) -> CopyMethods {
        let all = [method; CLASS_BYTES.len()];
        CopyMethods { warm: all, cold: all, warm_probe_ns_max: 0 }
    }

    /// The method for copies of this size, as far as it is known whether they are cold.
    pub fn method(&self, size_bytes: usize, is_cold: bool) -> CopyMethod {
        if is_cold { self.cold[class_of(size_bytes)] } else { self.warm[class_of(size_bytes)] }
    }

    /// Copies `source` to `target` by the method that suits.
    ///
    /// # Panics
    /// If their lengths differ.
    #[inline(always)]
    pub fn copy(&self, source: &[u8], target: &mut [u8]) {
        assert_eq!(source.len(), target.len(), "a copy is as long as its source");
        // SAFETY: as long as each other, and a shared and an exclusive borrow do not overlap.
        unsafe { self.copy_raw(source.as_ptr(), target.as_mut_ptr(), source.len()) }
    }

    /// # Safety
    /// `source` is readable and `target` writable for `size_bytes`, nobody else writes the one or uses the other, and
    /// they do not overlap.
    #[inline(always)]
    pub(crate) unsafe fn copy_raw(&self, source: *const u8, target: *mut u8, size_bytes: usize) {
        // SAFETY: the caller's word.
        unsafe {
            // Here each nanosecond counts: a copy of 4 KiB takes 40.
            if size_bytes < FIRST_CLASS_END_BYTES && self.warm[0] == CopyMethod::Memcpy {
                std::ptr::copy_nonoverlapping(source, target, size_bytes);
            } else {
                self.copy_larger(source, target, size_bytes);
            }
        }
    }

    /// # Safety
    /// As [`copy_raw`](CopyMethods::copy_raw).
    unsafe fn copy_larger(&self, source: *const u8, target: *mut u8, size_bytes: usize) {
        let class = class_of(size_bytes);
        let (warm, cold) = (self.warm[class], self.cold[class]);
        // SAFETY: the caller's word; the probe is a part of the copy.
        unsafe {
            if warm == cold || size_bytes < PROBED_BYTES_MIN {
                return warm.copy_raw(source, target, size_bytes);
            }
            let mut done_bytes = 0;
            let mut is_slow = || {
                let begin = Moment::now();
                warm.copy_raw(source.add(done_bytes), target.add(done_bytes), PROBE_BYTES);
                done_bytes += PROBE_BYTES;
                begin.elapsed_ns() > self.warm_probe_ns_max
            };
            let method = if is_slow() && is_slow() { cold } else { warm };
            method.copy_raw(source.add(done_bytes), target.add(done_bytes), size_bytes - done_bytes);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{
        __m128i, _MM_HINT_NTA, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128,
    };

    const LINE_BYTES: usize = 64;
    /// How far ahead the source is fetched: 16 lines, of some 100 ns at 10 GB/s. 512 and 2048 bytes were no faster.
    const AHEAD_BYTES: usize = 1024;

    /// # Safety
    /// As [`CopyMethod::copy_raw`](super::CopyMethod::copy_raw).
    pub(crate) unsafe fn rep_movsb(source: *const u8, target: *mut u8, size_bytes: usize) {
        // SAFETY: it reads and writes the ranges of the caller's word, upwards: the direction flag is clear by the ABI.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") size_bytes => _,
                inout("rsi") source => _,
                inout("rdi") target => _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// # Safety
    /// As [`CopyMethod::copy_raw`](super::CopyMethod::copy_raw).
    pub(crate) unsafe fn non_temporal(source: *const u8, target: *mut u8, size_bytes: usize) {
        // Non-temporal stores want their alignment; whole lines, so that each leaves at once.
        let head_bytes = target.align_offset(LINE_BYTES).min(size_bytes);
        let lines = (size_bytes - head_bytes) / LINE_BYTES;
        let done_bytes = head_bytes + lines * LINE_BYTES;
        // SAFETY: head, lines and tail make up the ranges of the caller's word. A prefetch does not fault.
        unsafe {
            std::ptr::copy_nonoverlapping(source, target, head_bytes);
            for line in 0..lines {
                let from = source.add(head_bytes + line * LINE_BYTES).cast::<__m128i>();
                let to = target.add(head_bytes + line * LINE_BYTES).cast::<__m128i>();
                _mm_prefetch::<_MM_HINT_NTA>(from.cast::<i8>().wrapping_add(AHEAD_BYTES));
                let (a, b) = (_mm_loadu_si128(from), _mm_loadu_si128(from.add(1)));
                let (c, d) = (_mm_loadu_si128(from.add(2)), _mm_loadu_si128(from.add(3)));
                _mm_stream_si128(to, a);
                _mm_stream_si128(to.add(1), b);
                _mm_stream_si128(to.add(2), c);
                _mm_stream_si128(to.add(3), d);
            }
            std::ptr::copy_nonoverlapping(
                source.add(done_bytes),
                target.add(done_bytes),
                size_bytes - done_bytes,
            );
            // ORDERING: these stores are ordered by nothing else, not even by the Release that tells of the copy.
            _mm_sfence();
        }
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn classes_are_measured_in_their_middle() {
        for (class, &size_bytes) in CLASS_BYTES.iter().enumerate() {
            for near in [size_bytes / 4, size_bytes, 4 * size_bytes - 1] {
                assert_eq!(class_of(near), class, "{near}");
            }
        }
        assert_eq!((class_of(FIRST_CLASS_END_BYTES - 1), class_of(FIRST_CLASS_END_BYTES)), (0, 1));
        assert_eq!((class_of(0), class_of(1), class_of(usize::MAX)), (0, 0, CLASS_BYTES.len() - 1));
    }

    /// Around each alignment, line, probe and class border, and nothing beside the target is touched.
    #[test]
    fn every_method_copies_the_same() {
        const GUARD: usize = 70;
        let sizes = [0, 1, 63, 64, 65, 127, 4095, 4096, 4097, 65_535, 65_536, 65_537, 262_144, 300_001];
        let largest = sizes[sizes.len() - 1];
        let source: Vec<u8> = (0..largest + 2 * GUARD).map(|index| (index % 251) as u8).collect();
        let warm = CopyMethods { warm_probe_ns_max: u64::MAX, ..CopyMethods::default() };
        let cold = CopyMethods { warm_probe_ns_max: 0, ..CopyMethods::default() };
        let all = CopyMethod::ALL.iter().map(|&method| CopyMethods::only(method)).chain([warm, cold]);
        for methods in all {
            for size_bytes in sizes {
                for (from, to) in [(0, 0), (1, 0), (0, 3), (17, 64), (5, 69)] {
                    let mut target = vec![0xa5; size_bytes + 2 * GUARD];
                    methods.copy(&source[from..from + size_bytes], &mut target[to..to + size_bytes]);
                    let told = format!("{methods:?}, {size_bytes} bytes from {from} to {to}");
                    assert!(target[to..to + size_bytes] == source[from..from + size_bytes], "{told}");
                    let mut beside = target[..to].iter().chain(&target[to + size_bytes..]);
                    assert!(beside.all(|&byte| byte == 0xa5), "{told}");
                }
            }
        }
    }
}
