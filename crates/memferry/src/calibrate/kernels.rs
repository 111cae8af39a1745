//! What is timed: loops that read, write, copy and follow pointers, as plain as they can be.

use std::hint::black_box;
use std::io;

/// Bytes of a cache line on every machine that memferry runs on.
pub(super) const LINE_BYTES: usize = 64;
const LINE_WORDS: usize = LINE_BYTES / size_of::<u64>();

/// How a copy is done.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// The C library's `memcpy`, which chooses by size.
    Memcpy,
    /// The instruction `rep movsb`.
    RepMovsb,
    /// Stores past the caches (`movntdq`): nobody finds the target there afterwards.
    NonTemporal,
}

impl Method {
    /// Those that this processor has.
    pub const ALL: &[Method] = match cfg!(target_arch = "x86_64") {
        true => &[Method::Memcpy, Method::RepMovsb, Method::NonTemporal],
        false => &[Method::Memcpy],
    };

    /// As facts and rows spell it.
    pub fn name(self) -> &'static str {
        match self {
            Method::Memcpy => "memcpy",
            Method::RepMovsb => "rep_movsb",
            Method::NonTemporal => "non_temporal",
        }
    }

    /// Copies as much as both have.
    pub(super) fn copy(self, source: &[u8], target: &mut [u8]) {
        let size_bytes = source.len().min(target.len());
        let (source, target) = (&source[..size_bytes], &mut target[..size_bytes]);
        match self {
            #[cfg(target_arch = "x86_64")]
            Method::RepMovsb => rep_movsb(source, target),
            #[cfg(target_arch = "x86_64")]
            Method::NonTemporal => non_temporal(source, target),
            _ => target.copy_from_slice(source),
        }
        black_box(target);
    }
}

#[cfg(target_arch = "x86_64")]
fn rep_movsb(source: &[u8], target: &mut [u8]) {
    // SAFETY: the caller gives both the same length, so that the instruction reads the first and writes the second
    // and nothing else; the ABI has the direction flag clear. The registers that it changes are named.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") source.len() => _,
            inout("rsi") source.as_ptr() => _,
            inout("rdi") target.as_mut_ptr() => _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(target_arch = "x86_64")]
fn non_temporal(source: &[u8], target: &mut [u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const VECTOR_BYTES: usize = size_of::<__m128i>();
    let head_bytes = target.as_ptr().align_offset(VECTOR_BYTES).min(target.len());
    let (source_head, source) = source.split_at(head_bytes);
    let (target_head, target) = target.split_at_mut(head_bytes);
    target_head.copy_from_slice(source_head);
    let (from, into) = (source.chunks_exact(VECTOR_BYTES), target.chunks_exact_mut(VECTOR_BYTES));
    for (from, into) in from.zip(into) {
        // SAFETY: both are of 16 bytes, and `into` is aligned to that, because its slice begins at such an address.
        // Every x86-64 has SSE2.
        unsafe { _mm_stream_si128(into.as_mut_ptr().cast(), _mm_loadu_si128(from.as_ptr().cast())) };
    }
    let tail = target.len() - target.len() % VECTOR_BYTES;
    target[tail..].copy_from_slice(&source[tail..]);
    // SAFETY: every x86-64 has SSE. The streamed bytes are then in order with all that follows.
    unsafe { _mm_sfence() };
}

/// Reads all of it, a word at a time.
pub(super) fn read(bytes: &[u8]) -> u64 {
    let sum = words(bytes).iter().fold(0_u64, |sum, word| sum.wrapping_add(*word));
    black_box(sum)
}

/// Writes all of it.
pub(super) fn write(bytes: &mut [u8], value: u8) {
    bytes.fill(value);
    black_box(bytes);
}

/// The words that begin at multiples of eight.
fn words(bytes: &[u8]) -> &[u64] {
    // SAFETY: any bytes are a u64.
    unsafe { bytes.align_to::<u64>() }.1
}

fn words_mut(bytes: &mut [u8]) -> &mut [u64] {
    // SAFETY: any bytes are a u64, and the other way round.
    unsafe { bytes.align_to_mut::<u64>() }.1
}

/// Makes a chain of all lines of `bytes`, in random order: the first word of each is the number of the next line.
///
/// Source: S. Sattolo, "An algorithm to generate a random cyclic permutation", 1986: one cycle, so that no line comes
/// again before all others did.
pub(super) fn chain(bytes: &mut [u8], seed: u64) {
    let words = words_mut(bytes);
    let lines = words.len() / LINE_WORDS;
    for line in 0..lines {
        words[line * LINE_WORDS] = line as u64;
    }
    let mut state = seed | 1;
    for line in (1..lines).rev() {
        // Xorshift: Marsaglia 2003.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let other = (state % line as u64) as usize;
        words.swap(line * LINE_WORDS, other * LINE_WORDS);
    }
}

/// Follows a [`chain`] from a line on and returns where it got.
pub(super) fn follow(bytes: &[u8], from: u64, steps: usize) -> u64 {
    let words = words(bytes);
    let mut line = from;
    for _ in 0..steps {
        line = words[line as usize * LINE_WORDS];
    }
    black_box(line)
}

/// Confines this thread to a CPU.
///
/// # Errors
/// What the kernel says: `EINVAL` for a CPU that this process may not use.
pub(super) fn pin(cpu: u32) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as u32 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: an all-zero cpu_set_t is the empty set, the CPU's number is below CPU_SETSIZE, and the set has the size
    // that is said.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu as usize, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_copies() {
        let source: Vec<u8> = (0..5000_u32).map(|index| (index * 7) as u8).collect();
        for method in Method::ALL {
            for (skip, size) in [(0, 0), (1, 1), (3, 17), (0, 64), (5, 4097), (8, 4992)] {
                let mut target = vec![0xee; size + 2];
                method.copy(&source[skip..skip + size], &mut target[1..=size]);
                assert_eq!(target[1..=size], source[skip..skip + size], "{method:?} of {size}");
                assert_eq!(
                    (target[0], target[size + 1]),
                    (0xee, 0xee),
                    "{method:?} of {size}: not beside it"
                );
            }
        }
    }

    #[test]
    fn a_chain_goes_through_all_lines() {
        let mut bytes = crate::memory::Mapping::new(
            &crate::topology::Machine::discover().unwrap(),
            64 * 1024,
            crate::memory::Binding::Any,
        )
        .unwrap();
        chain(&mut bytes, 1);
        let lines = bytes.len() / LINE_BYTES;
        let mut seen = vec![false; lines];
        let mut line = 0;
        for _ in 0..lines {
            assert!(!std::mem::replace(&mut seen[line as usize], true), "line {line} comes twice");
            line = follow(&bytes, line, 1);
        }
        assert_eq!(line, 0);
        assert_eq!(follow(&bytes, 0, lines), 0);
    }
}
