//! Cache Flush: writes cache lines to memory.
//!
//! Source: DSA specification, section 8.3, Cache Flush; Intel SDM volume 2, CLFLUSH, CLFLUSHOPT, CLWB.

/// Bytes of a line of the caches: 64 on all x86-64 CPUs so far.
const LINE_BYTES: usize = 64;

/// The fate of a cache line after it is written to memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Flush {
    /// The line may stay in the caches; on a CPU without CLWB it does not.
    WriteBack,
    /// The line is removed from the caches.
    Invalidate,
}

/// Writes every cache line of `data` to memory, including partial ones, before any later store of this thread.
///
/// On devices of version 1.x the flag Cache Control chooses the mode: DML sets it for [`Flush::Invalidate`]. Devices since
/// version 2.0 always invalidate.
///
/// Does nothing on CPUs other than x86-64.
pub fn flush(data: &[u8], mode: Flush) {
    let lines = lines(data.as_ptr().addr(), data.len());
    #[cfg(target_arch = "x86_64")]
    x86::flush(lines, mode);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (lines, mode);
}

/// The addresses of the cache lines of `size` bytes at `start`.
pub(super) fn lines(start: usize, size: usize) -> impl Iterator<Item = usize> {
    let first = start & !(LINE_BYTES - 1);
    let count = if size == 0 { 0 } else { (start - first + size).div_ceil(LINE_BYTES) };
    (0..count).map(move |line| first + line * LINE_BYTES)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count, _mm_sfence};
    use std::sync::LazyLock;

    use super::Flush;

    /// The CPU's instructions for flushing; every x86-64 CPU has CLFLUSH.
    struct Instructions {
        clflushopt: bool,
        clwb: bool,
    }

    static INSTRUCTIONS: LazyLock<Instructions> = LazyLock::new(|| {
        // Source: Intel SDM volume 2, CPUID: leaf 7, EBX bits 23 and 24. The standard library does not detect them.
        let extended = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        Instructions { clflushopt: extended >> 23 & 1 == 1, clwb: extended >> 24 & 1 == 1 }
    });

    pub(super) fn flush(lines: impl Iterator<Item = usize>, mode: Flush) {
        match mode {
            Flush::WriteBack if INSTRUCTIONS.clwb => lines.for_each(|line| {
                // SAFETY: the CPU has CLWB. It changes no byte; the line has a byte of the caller's slice, so its page is
                // mapped.
                unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) }
            }),
            _ if INSTRUCTIONS.clflushopt => lines.for_each(|line| {
                // SAFETY: the CPU has CLFLUSHOPT; otherwise as above.
                unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) }
            }),
            _ => lines.for_each(|line| {
                // SAFETY: every x86-64 CPU has CLFLUSH; otherwise as above.
                unsafe { asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)) }
            }),
        }
        // ORDERING: only fences order CLWB and CLFLUSHOPT; this one orders them before later stores.
        // SAFETY: every x86-64 CPU has SFENCE.
        unsafe { _mm_sfence() }
    }
}
