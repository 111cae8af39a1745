//! Create and Apply Delta Record.
//!
//! A delta record lists the 8-byte words in which a new version differs from an old one, ascending:
//!
//! ```text
//! entry:  2 bytes  offset of the word, in words from the start, low byte first
//!         8 bytes  the new word
//! ```
//!
//! Source: DSA specification 8.3.8 and 8.3.9.

use super::simd;

/// Bytes of an entry of a delta record.
pub const ENTRY_BYTES: usize = 10;
/// The largest region that a delta record can describe: 2^16 words.
///
/// Source: DSA specification 8.3.8; the width of an entry's offset.
pub const DELTA_BYTES_MAX: usize = 512 << 10;
/// Bytes of a word.
const WORD_BYTES: usize = 8;
/// Words that are compared before the question whether one differed: whole vectors of eight to compare, and whole sixes,
/// whose entries fit such a vector, to write.
pub(super) const BLOCK: usize = 24;
/// The room that the entries of a block are given: more than they need, so that the last vector may be written whole.
pub(super) const BLOCK_ROOM: usize = BLOCK * ENTRY_BYTES + 4;
/// Entries that are applied together if they have no gaps: triples for the vectors, and one for them to end in.
pub(super) const GROUP: usize = 25;

pub(super) type Word = [u8; WORD_BYTES];
pub(super) type Entry = [u8; ENTRY_BYTES];

/// What became of a delta record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Delta {
    /// Nothing differs; the record is empty.
    Equal,
    /// The first `size_bytes` bytes are the record.
    Complete {
        /// Bytes of the record.
        size_bytes: usize,
    },
    /// The record is full; it describes only the start of the region.
    Overflow {
        /// Bytes of the record.
        size_bytes: usize,
        /// Bytes of the region that it describes; the next word differs and found no room.
        bytes_compared: usize,
    },
}

/// A delta record that cannot be applied. The target has the changes of all entries before the bad one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// An offset is not above the one before.
    #[error(
        "the delta record's offsets do not ascend; its first {applied_bytes} bytes are applied; create it anew"
    )]
    NotAscending {
        /// Bytes of the record that are applied.
        applied_bytes: usize,
    },
    /// An offset is outside the target.
    #[error(
        "the delta record has an offset outside the target; its first {applied_bytes} bytes are applied; \
             is it for a larger region?"
    )]
    OutOfRange {
        /// Bytes of the record that are applied.
        applied_bytes: usize,
    },
}

/// Writes into `delta` what must change in `old` to make it `new`. Bytes of `delta` behind the record are unspecified.
///
/// Shapes: `old` and `new` equally long, a multiple of 8, at most [`DELTA_BYTES_MAX`]; `delta` of any length, of which the
/// last `len % 10` bytes are not used.
///
/// # Panics
/// If the shapes are others.
pub fn create_delta(old: &[u8], new: &[u8], delta: &mut [u8]) -> Delta {
    assert_eq!(old.len(), new.len(), "old and new differ in length");
    assert!(old.len() <= DELTA_BYTES_MAX, "a delta record cannot describe more than {DELTA_BYTES_MAX} bytes");
    let (old, rest) = old.as_chunks();
    assert!(rest.is_empty(), "a delta record describes whole words of 8 bytes");
    let (new, _) = new.as_chunks();
    match (simd::Avx512::detect(), simd::Avx2::detect()) {
        (Some(avx512), _) => simd::create_delta_512(avx512, old, new, delta),
        (None, Some(avx2)) => simd::create_delta(avx2, old, new, delta),
        (None, None) => create_portable(old, new, delta),
    }
}

/// Makes the changes of the record `delta` in `target`.
///
/// Shapes: `delta` a multiple of [`ENTRY_BYTES`], `target` a multiple of 8.
///
/// # Errors
/// [`DeltaError`]; an entry that is neither ascending nor in range is called not ascending.
///
/// # Panics
/// If the shapes are others.
pub fn apply_delta(delta: &[u8], target: &mut [u8]) -> Result<(), DeltaError> {
    let (entries, rest) = delta.as_chunks();
    assert!(rest.is_empty(), "a delta record is whole entries of {ENTRY_BYTES} bytes");
    let (target, rest) = target.as_chunks_mut();
    assert!(rest.is_empty(), "a delta record is for whole words of 8 bytes");
    match simd::Avx2::detect() {
        Some(avx2) => simd::apply_delta(avx2, entries, target),
        None => apply_portable(entries, target),
    }
}

/// The creation for every CPU.
#[inline(always)]
pub(super) fn create_portable(old: &[Word], new: &[Word], delta: &mut [u8]) -> Delta {
    let differing = |old: &[Word; BLOCK], new: &[Word; BLOCK]| {
        let pairs = old.iter().zip(new).enumerate();
        pairs.fold(0, |differ, (at, (old, new))| differ | u32::from(old != new) << at)
    };
    let put_entries = |first: usize, differ: u32, new: &[Word; BLOCK], room: &mut [u8; BLOCK_ROOM]| {
        if differ.count_ones() as usize == BLOCK {
            for (at, (entry, new)) in room.as_chunks_mut::<ENTRY_BYTES>().0.iter_mut().zip(new).enumerate() {
                put(entry, first + at, new);
            }
            return BLOCK * ENTRY_BYTES;
        }
        let mut written = 0;
        for (at, new) in new.iter().enumerate() {
            // An entry is always written and counts if the word differs: as good as random, so no branch.
            put(&mut room[written..], first + at, new);
            written += ENTRY_BYTES * (differ >> at & 1) as usize;
        }
        written
    };
    create(old, new, delta, differing, put_entries)
}

/// Skips blocks without a word for `differing`; the others are for `put_entries` while there is room for all their words.
#[inline(always)]
pub(super) fn create(
    old: &[Word],
    new: &[Word],
    delta: &mut [u8],
    differing: impl Fn(&[Word; BLOCK], &[Word; BLOCK]) -> u32,
    put_entries: impl Fn(usize, u32, &[Word; BLOCK], &mut [u8; BLOCK_ROOM]) -> usize,
) -> Delta {
    let mut written = 0;
    let (old_blocks, old_rest) = old.as_chunks::<BLOCK>();
    let (new_blocks, new_rest) = new.as_chunks::<BLOCK>();
    for (block, (old, new)) in old_blocks.iter().zip(new_blocks).enumerate() {
        let differ = differing(old, new);
        if differ == 0 {
            continue;
        }
        let first = block * BLOCK;
        match delta[written..].first_chunk_mut() {
            Some(room) => written += put_entries(first, differ, new, room),
            None => match create_careful(first, old, new, delta, written) {
                Ok(now_written) => written = now_written,
                Err(overflow) => return overflow,
            },
        }
    }
    match create_careful(old_blocks.len() * BLOCK, old_rest, new_rest, delta, written) {
        Ok(0) => Delta::Equal,
        Ok(size_bytes) => Delta::Complete { size_bytes },
        Err(overflow) => overflow,
    }
}

/// Word by word, with a look at the room before each entry. The new size of the record, or the overflow.
fn create_careful(
    first: usize,
    old: &[Word],
    new: &[Word],
    delta: &mut [u8],
    mut written: usize,
) -> Result<usize, Delta> {
    for (at, (old, new)) in old.iter().zip(new).enumerate() {
        if old != new {
            let word = first + at;
            if delta.len() - written < ENTRY_BYTES {
                return Err(Delta::Overflow { size_bytes: written, bytes_compared: word * WORD_BYTES });
            }
            put(&mut delta[written..], word, new);
            written += ENTRY_BYTES;
        }
    }
    Ok(written)
}

/// Writes the entry of `word`, whose number fits 16 bits: regions have at most 2^16 words.
#[inline(always)]
pub(super) fn put(out: &mut [u8], word: usize, new: &Word) {
    out[..2].copy_from_slice(&(word as u16).to_le_bytes());
    out[2..ENTRY_BYTES].copy_from_slice(new);
}

/// The application for every CPU.
pub(super) fn apply_portable(entries: &[Entry], target: &mut [Word]) -> Result<(), DeltaError> {
    let is_run = |first: usize, group: &[Entry; GROUP]| {
        group.iter().enumerate().fold(0, |gaps, (at, entry)| gaps | (offset(entry) ^ (first + at))) == 0
    };
    let write = |group: &[Entry; GROUP], run: &mut [Word; GROUP]| {
        for (word, entry) in run.iter_mut().zip(group) {
            *word = new(entry);
        }
    };
    apply(entries, target, is_run, write)
}

/// Applies groups of entries that are runs without gaps with one check for all and `write`. Where the last entry has the
/// offset that it has in a run, `is_run` tells whether the others have, too.
#[inline(always)]
pub(super) fn apply(
    entries: &[Entry],
    target: &mut [Word],
    is_run: impl Fn(usize, &[Entry; GROUP]) -> bool,
    write: impl Fn(&[Entry; GROUP], &mut [Word; GROUP]),
) -> Result<(), DeltaError> {
    let (groups, rest) = entries.as_chunks::<GROUP>();
    let mut free = 0; // the lowest offset that still ascends
    for (at, group) in groups.iter().enumerate() {
        let first = offset(&group[0]);
        let run = target.get_mut(first..).and_then(|run| run.first_chunk_mut());
        match run {
            Some(run)
                if first >= free
                    && offset(&group[GROUP - 1]) == first + GROUP - 1
                    && is_run(first, group) =>
            {
                write(group, run);
                free = first + GROUP;
            }
            _ => free = apply_careful(at * GROUP, free, group, target)?,
        }
    }
    apply_careful(groups.len() * GROUP, free, rest, target)?;
    Ok(())
}

/// The offset of an entry, in words.
#[inline(always)]
pub(super) fn offset(entry: &Entry) -> usize {
    usize::from(u16::from_le_bytes([entry[0], entry[1]]))
}

/// The word of an entry.
#[inline(always)]
pub(super) fn new(entry: &Entry) -> Word {
    let [_, _, new @ ..] = *entry;
    new
}

/// Entry by entry; the lowest offset that still ascends.
#[inline]
fn apply_careful(
    applied: usize,
    mut free: usize,
    entries: &[Entry],
    target: &mut [Word],
) -> Result<usize, DeltaError> {
    for (at, entry) in entries.iter().enumerate() {
        let offset = offset(entry);
        let applied_bytes = (applied + at) * ENTRY_BYTES;
        if offset < free {
            return Err(DeltaError::NotAscending { applied_bytes });
        }
        *target.get_mut(offset).ok_or(DeltaError::OutOfRange { applied_bytes })? = new(entry);
        free = offset + 1;
    }
    Ok(free)
}
