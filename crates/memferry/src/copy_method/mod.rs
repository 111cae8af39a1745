//! Copy methods of a CPU, chosen by size and by whether the bytes are in its caches.
//!
//! The fastest method depends on the CPU, the size, and the place of the bytes. Non-temporal stores avoid the read of the
//! overwritten lines and do not fill the caches, but take twice the time if source and target are cached. The size is
//! known. The time of the first part of a copy of 256 KiB or more shows whether the bytes are cached, and decides the
//! method of the rest. A slow first part may be due to an interrupt or uncached page tables: of bytes that another core
//! had read, a tenth took as long as from memory, of the following parts a hundredth. So two slow parts count as cold.
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
//! [`CopyMethods::calibrate`] measures the fastest method of each class.

#[cfg_attr(not(feature = "internals"), allow(unreachable_pub))]
pub(crate) mod calibration;

use serde::{Deserialize, Serialize};

use crate::moment::Moment;

/// A method to copy bytes with a CPU.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CopyMethod {
    /// `memcpy` of the C library.
    Memcpy,
    /// The string instruction of x86, whose microcode moves whole lines.
    RepMovsb,
    /// Stores that bypass the caches (x86), with prefetch of the source. Not for bytes that are read at once.
    NonTemporal,
}

impl CopyMethod {
    /// The methods of this CPU; others fall back to [`Memcpy`](CopyMethod::Memcpy).
    pub const ALL: &[CopyMethod] = match cfg!(target_arch = "x86_64") {
        // SSE2 is part of x86-64.
        true => &[CopyMethod::Memcpy, CopyMethod::RepMovsb, CopyMethod::NonTemporal],
        false => &[CopyMethod::Memcpy],
    };

    /// The name in records and profiles.
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

/// Geometric means of the size classes, where they are measured; each class is 16 times as large as the previous one.
pub(crate) const CLASS_BYTES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20];

/// The class of a size: the first up to 16 KiB, then one for each four powers of two.
fn class_of(size_bytes: usize) -> usize {
    let log2 = size_bytes.checked_ilog2().unwrap_or(0) as usize;
    (log2.saturating_sub(10) / 4).min(CLASS_BYTES.len() - 1)
}

const FIRST_CLASS_END_BYTES: usize = 16 << 10;

/// The timed part of a copy: large enough that the clock does not matter.
pub(crate) const PROBE_BYTES: usize = 16 << 10;
/// Smallest timed copy: two reads of the clock take 30 ns, 0.6 % of this and 3 % of 64 KiB.
pub(crate) const PROBED_BYTES_MIN: usize = 256 << 10;

/// The method for each size, for bytes in this core's caches (warm) and elsewhere (cold).
///
/// The default is for unmeasured x86-64 CPUs; [`calibrate`](CopyMethods::calibrate) measures. As JSON: the methods for copies of less than 16 KiB, 256 KiB, 4 MiB, 64 MiB, and of more, warm and cold, and the threshold.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyMethods {
    pub(crate) warm: [CopyMethod; CLASS_BYTES.len()],
    pub(crate) cold: [CopyMethod; CLASS_BYTES.len()],
    /// A copy is cold if its first and its second 16 KiB both take longer.
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
    #[cfg(any(test, feature = "internals"))]
    pub const fn only(method: CopyMethod) -> CopyMethods {
        let all = [method; CLASS_BYTES.len()];
        CopyMethods { warm: all, cold: all, warm_probe_ns_max: 0 }
    }

    /// The method for copies of this size.
    pub(crate) fn method(&self, size_bytes: usize, is_cold: bool) -> CopyMethod {
        if is_cold { self.cold[class_of(size_bytes)] } else { self.warm[class_of(size_bytes)] }
    }

    /// Copies `source` to `target` by the fastest method.
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
            // The path of small copies: one of 4 KiB takes 40 ns.
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
    /// Prefetch distance: 16 lines, some 100 ns at 10 GB/s. 512 and 2048 bytes were not faster.
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
        // Non-temporal stores need alignment; whole lines are written out at once.
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
            // ORDERING: sfence orders these stores before the Release that publishes the completion (`Latch::set`, or the
            // unlock of a queue), which does not order non-temporal stores.
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
