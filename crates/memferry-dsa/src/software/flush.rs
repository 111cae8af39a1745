//! Cache Flush: lines of the caches go to memory.
//!
//! Source: DSA specification, section 8.3, Cache Flush; Intel SDM volume 2, CLFLUSH, CLFLUSHOPT, CLWB.

/// Bytes of a line of the caches: 64 on all x86-64 CPUs so far.
const LINE_BYTES: usize = 64;

/// What becomes of lines once they are in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Flush {
    /// They may stay in the caches; on a CPU without CLWB they do not.
    WriteBack,
    /// They leave the caches.
    Invalidate,
}

/// Writes every line that `data` touches to memory, also those that it touches only in part, before any later store of
/// this thread.
///
/// On devices of version 1.x the flag Cache Control chooses between the two: DML sets it for [`Flush::Invalidate`]. From
/// version 2.0 on they always invalidate.
///
/// On a CPU that is not an x86-64 this does nothing.
pub fn flush(data: &[u8], how: Flush) {
    let lines = lines(data.as_ptr().addr(), data.len());
    #[cfg(target_arch = "x86_64")]
    x86::flush(lines, how);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (lines, how);
}

/// The addresses of the lines that `size` bytes from `start` on touch.
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

    /// The instructions for flushing that the CPU has; CLFLUSH is in all.
    struct Instructions {
        clflushopt: bool,
        clwb: bool,
    }

    static INSTRUCTIONS: LazyLock<Instructions> = LazyLock::new(|| {
        // Source: Intel SDM volume 2, CPUID: leaf 7, EBX bits 23 and 24. The standard library does not ask for them.
        let extended = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        Instructions { clflushopt: extended >> 23 & 1 == 1, clwb: extended >> 24 & 1 == 1 }
    });

    pub(super) fn flush(lines: impl Iterator<Item = usize>, how: Flush) {
        match how {
            Flush::WriteBack if INSTRUCTIONS.clwb => lines.for_each(|line| {
                // SAFETY: the CPU has CLWB. It changes no byte; the line has a byte of the caller's slice, so its page
                // is there.
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
        // ORDERING: CLWB and CLFLUSHOPT are ordered by nothing but fences; this one puts them before later stores.
        // SAFETY: every x86-64 CPU has SFENCE.
        unsafe { _mm_sfence() }
    }
}
