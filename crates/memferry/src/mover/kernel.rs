//! How a CPU copies: by which method, for how much, and whether the bytes are in its caches.
//!
//! Which method is fastest depends on the CPU, on the size, and on where the bytes are: non-temporal stores save the
//! read of what they overwrite and leave the caches to others, but cost twice the time where source and target are in
//! the caches already. Sizes are known. Where the bytes are, the first part of a larger copy tells by the time it takes;
//! the rest follows in the way that suits.
//!
//! ```text
//! size ─▶ class ─▶ one method for both? ── yes ──▶ that
//!                        │ no
//!                        ▼
//!            first 16 KiB, timed ── as fast as from caches? ──▶ warm[class]
//!                        └───────── slower ───────────────────▶ cold[class]
//! ```
//!
//! Which method it is in each case is found out by [`CopyMethods::calibrate`].

use std::time::{Duration, Instant};

use serde::Serialize;

/// A way to copy bytes with a CPU.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize)]
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
    /// All of them.
    pub const ALL: [CopyMethod; 3] = [CopyMethod::Memcpy, CopyMethod::RepMovsb, CopyMethod::NonTemporal];

    /// Whether this CPU has it; what has not, copies with [`Memcpy`](CopyMethod::Memcpy).
    pub fn is_available(self) -> bool {
        // SSE2 is part of x86-64.
        self == CopyMethod::Memcpy || cfg!(target_arch = "x86_64")
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
pub(super) const CLASS_BYTES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20];

/// Up to 16 KiB is the first class, then a class for each four powers of two.
fn class_of(size_bytes: usize) -> usize {
    let log2 = size_bytes.checked_ilog2().unwrap_or(0) as usize;
    (log2.saturating_sub(10) / 4).min(CLASS_BYTES.len() - 1)
}

/// How much of a copy is timed to learn whether its bytes are in the caches: enough that a clock's 25 ns do not matter.
const PROBE_BYTES: usize = 16 << 10;
/// Below, the probe would be most of the copy.
const PROBED_BYTES_MIN: usize = 4 * PROBE_BYTES;

/// The method for each size, for bytes in this core's caches (warm) and elsewhere (cold).
///
/// The default is for x86-64 CPUs that nobody has measured. [`calibrate`](CopyMethods::calibrate) measures.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopyMethods {
    pub(super) warm: [CopyMethod; CLASS_BYTES.len()],
    pub(super) cold: [CopyMethod; CLASS_BYTES.len()],
    /// A copy is cold if its first 16 KiB take longer.
    pub(super) warm_probe_max: Duration,
}

impl Default for CopyMethods {
    /// `copy_*` in `results/amd-epyc-2cpu`: memcpy in the caches, non-temporal stores for what is not and for what is
    /// too large for them. 16 KiB took 0.3 us from L2, 0.6 us from L3 and 1.7 us from memory.
    fn default() -> CopyMethods {
        use CopyMethod::{Memcpy, NonTemporal};
        CopyMethods {
            warm: [Memcpy, Memcpy, Memcpy, NonTemporal, NonTemporal],
            cold: [Memcpy, NonTemporal, NonTemporal, NonTemporal, NonTemporal],
            warm_probe_max: Duration::from_nanos(1000),
        }
    }
}

impl CopyMethods {
    /// One method for all.
    pub const fn only(method: CopyMethod) -> CopyMethods {
        let all = [method; CLASS_BYTES.len()];
        CopyMethods { warm: all, cold: all, warm_probe_max: Duration::ZERO }
    }

    /// The method for copies of this size.
    pub fn method(&self, size_bytes: usize, is_cold: bool) -> CopyMethod {
        if is_cold { self.cold[class_of(size_bytes)] } else { self.warm[class_of(size_bytes)] }
    }

    /// Copies `source` to `target` by the method that suits.
    ///
    /// # Panics
    /// If their lengths differ.
    #[inline]
    pub fn copy(&self, source: &[u8], target: &mut [u8]) {
        assert_eq!(source.len(), target.len(), "a copy is as long as its source");
        // SAFETY: as long as each other, and a shared and an exclusive borrow do not overlap.
        unsafe { self.copy_raw(source.as_ptr(), target.as_mut_ptr(), source.len()) }
    }

    /// # Safety
    /// `source` is readable and `target` writable for `size_bytes`, nobody else writes the one or uses the other, and
    /// they do not overlap.
    #[inline]
    pub(super) unsafe fn copy_raw(&self, source: *const u8, target: *mut u8, size_bytes: usize) {
        let class = class_of(size_bytes);
        let (warm, cold) = (self.warm[class], self.cold[class]);
        // SAFETY: the caller's word; the probe is a part of the copy.
        unsafe {
            if warm == cold || size_bytes < PROBED_BYTES_MIN {
                return warm.copy_raw(source, target, size_bytes);
            }
            let begin = Instant::now();
            warm.copy_raw(source, target, PROBE_BYTES);
            let method = if begin.elapsed() > self.warm_probe_max { cold } else { warm };
            method.copy_raw(source.add(PROBE_BYTES), target.add(PROBE_BYTES), size_bytes - PROBE_BYTES);
        }
    }

    /// Finds out what is fastest here, with copies from `source` to `target`: up to their length, and cold where they
    /// rotate over all of it. For what is cold to be cold they have to be four times as long as the last-level cache.
    /// A class of sizes that does not fit goes the way of the one below.
    ///
    /// Cost: the time of a hundred copies of all of `source`, on this thread.
    ///
    /// # Panics
    /// If their lengths differ.
    pub fn calibrate(source: &[u8], target: &mut [u8]) -> CopyMethods {
        assert_eq!(source.len(), target.len(), "a copy is as long as its source");
        let mut methods = CopyMethods::only(CopyMethod::Memcpy);
        for (class, &size_bytes) in CLASS_BYTES.iter().enumerate() {
            if size_bytes <= source.len() {
                methods.warm[class] = fastest(source, target, size_bytes, false);
                methods.cold[class] = fastest(source, target, size_bytes, true);
            } else if class > 0 {
                methods.warm[class] = methods.warm[class - 1];
                methods.cold[class] = methods.cold[class - 1];
            }
        }
        if PROBE_BYTES <= source.len() {
            let [warm, cold] = [false, true].map(|is_cold| {
                let method = methods.method(PROBE_BYTES, false);
                median_of(|burst| seconds_each(method, source, target, PROBE_BYTES, is_cold, burst))
            });
            methods.warm_probe_max = Duration::from_secs_f64((warm * cold).sqrt());
        }
        methods
    }
}

/// Rounds of a calibration, in which the methods take turns.
const ROUNDS: usize = 7;
/// Of copies in a round, so that small ones outweigh the clock.
const ROUND_BYTES: usize = 2 << 20;
/// What another method must gain over memcpy to be chosen: less is noise.
const GAIN_MIN: f64 = 1.03;

fn fastest(source: &[u8], target: &mut [u8], size_bytes: usize, is_cold: bool) -> CopyMethod {
    let mut times = CopyMethod::ALL.map(|_| Vec::new());
    for round in 0..ROUNDS {
        for (method, times) in CopyMethod::ALL.into_iter().zip(&mut times) {
            times.push(seconds_each(method, source, target, size_bytes, is_cold, round));
        }
    }
    let medians = times.map(|mut times| middle(&mut times));
    let candidates = CopyMethod::ALL.into_iter().zip(medians).filter(|(method, _)| method.is_available());
    let handicapped = candidates.map(|(method, time)| match method {
        CopyMethod::Memcpy => (method, time),
        _ => (method, time * GAIN_MIN),
    });
    let best = handicapped.min_by(|a, b| a.1.total_cmp(&b.1));
    best.map_or(CopyMethod::Memcpy, |(method, _)| method)
}

fn median_of(time: impl FnMut(usize) -> f64) -> f64 {
    middle(&mut (0..ROUNDS).map(time).collect::<Vec<_>>())
}

fn middle(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// One round of copies: all at the beginning of the buffers, or each at another place.
fn seconds_each(
    method: CopyMethod,
    source: &[u8],
    target: &mut [u8],
    size_bytes: usize,
    is_cold: bool,
    round: usize,
) -> f64 {
    let places = source.len() / size_bytes;
    let count = (ROUND_BYTES / size_bytes).max(1);
    if !is_cold {
        method.copy(&source[..size_bytes], &mut target[..size_bytes]);
    }
    let begin = Instant::now();
    for copy in 0..count {
        // A step that has no divisor in common with most numbers of places comes by all of them.
        let place = if is_cold { (round * count + copy) * 7919 % places } else { 0 };
        let bytes = place * size_bytes..(place + 1) * size_bytes;
        method.copy(std::hint::black_box(&source[bytes.clone()]), &mut target[bytes]);
    }
    begin.elapsed().as_secs_f64() / count as f64
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
    pub(super) unsafe fn rep_movsb(source: *const u8, target: *mut u8, size_bytes: usize) {
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
    pub(super) unsafe fn non_temporal(source: *const u8, target: *mut u8, size_bytes: usize) {
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
                let words = [0, 1, 2, 3].map(|word| _mm_loadu_si128(from.add(word)));
                for (word, value) in words.into_iter().enumerate() {
                    _mm_stream_si128(to.add(word), value);
                }
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
        assert_eq!((class_of(0), class_of(1), class_of(usize::MAX)), (0, 0, CLASS_BYTES.len() - 1));
    }

    /// Around each alignment, line, probe and class border, and nothing beside the target is touched.
    #[test]
    fn every_method_copies_the_same() {
        const GUARD: usize = 70;
        let sizes = [0, 1, 63, 64, 65, 127, 4095, 4096, 4097, 65_535, 65_536, 65_537, 262_144, 300_001];
        let largest = sizes[sizes.len() - 1];
        let source: Vec<u8> = (0..largest + 2 * GUARD).map(|index| (index % 251) as u8).collect();
        let warm = CopyMethods { warm_probe_max: Duration::MAX, ..CopyMethods::default() };
        let cold = CopyMethods { warm_probe_max: Duration::ZERO, ..CopyMethods::default() };
        let all = CopyMethod::ALL.map(CopyMethods::only).into_iter().chain([warm, cold]);
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

    /// Which is fastest is the machine's business; that something was measured shows in the threshold.
    #[test]
    fn a_calibration_copies_and_chooses() {
        let source = vec![7_u8; 1 << 20];
        let mut target = vec![0; 1 << 20];
        let methods = CopyMethods::calibrate(&source, &mut target);
        assert!(target == source, "cold copies rotate over all of it");
        assert!(methods.warm_probe_max > Duration::ZERO);
        let all = methods.warm.iter().chain(&methods.cold);
        assert!(all.clone().all(|method| method.is_available()), "{methods:?}");
        // 16 MiB do not fit: as 1 MiB.
        assert_eq!(methods.method(16 << 20, true), methods.method(1 << 20, true));
        let tiny = CopyMethods::calibrate(&[1; 100], &mut [0; 100]);
        assert_eq!(tiny, CopyMethods::only(CopyMethod::Memcpy));
    }
}
