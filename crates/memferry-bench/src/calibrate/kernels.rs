//! Plain loops that read, write and follow pointers.

use std::hint::black_box;

/// Bytes of a cache line on every machine that memferry runs on.
pub(super) const LINE_BYTES: usize = 64;
const LINE_WORDS: usize = LINE_BYTES / size_of::<u64>();

/// Reads all bytes, a word at a time.
pub(super) fn read(bytes: &[u8]) -> u64 {
    let sum = words(bytes).iter().fold(0_u64, |sum, word| sum.wrapping_add(*word));
    black_box(sum)
}

/// Writes all bytes.
pub(super) fn write(bytes: &mut [u8], value: u8) {
    bytes.fill(value);
    black_box(bytes);
}

/// The aligned words of the bytes.
fn words(bytes: &[u8]) -> &[u64] {
    // SAFETY: any eight bytes are a valid u64.
    unsafe { bytes.align_to::<u64>() }.1
}

fn words_mut(bytes: &mut [u8]) -> &mut [u64] {
    // SAFETY: any eight bytes are a valid u64, and any u64 is eight valid bytes.
    unsafe { bytes.align_to_mut::<u64>() }.1
}

/// Writes a chain through all lines of `bytes` in random order: the first word of a line is the number of the next line.
///
/// Source: S. Sattolo, "An algorithm to generate a random cyclic permutation", 1986: one cycle through
/// all lines.
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

/// Follows a [`chain`] from a line and returns the last line.
pub(super) fn follow(bytes: &[u8], from: u64, steps: usize) -> u64 {
    let words = words(bytes);
    let mut line = from;
    for _ in 0..steps {
        line = words[line as usize * LINE_WORDS];
    }
    black_box(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_goes_through_all_lines() {
        let mut bytes = memferry::memory::Mapping::new(
            &memferry::topology::Machine::discover().unwrap(),
            64 * 1024,
            memferry::memory::Binding::Any,
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
