//! Create and Apply Delta Record.
//!
//! A delta record lists the 8-byte words in which a new version differs from an old one, ascending:
//!
//! ```text
//! entry:  2 bytes  offset of the word, in words from the start, low byte first
//!         8 bytes  the new word
//! ```
//!
//! Create never writes an offset twice. Apply accepts equal consecutive offsets, and the last entry counts: our reading
//! of status 0x07 is that offsets must not descend. A vendor's test applies such a record and expects success.
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
/// Words that are compared at once: the bits of a mask.
pub(super) const BLOCK: usize = 32;
/// Words that are compared before the entries of the differing ones are written: few enough that both versions are still
/// in the first-level cache then.
pub(super) const CHUNK: usize = 15 * BLOCK;
/// The room for a dense chunk: more than its entries need, so that the last vector can be written whole.
pub(super) const CHUNK_ROOM: usize = CHUNK * ENTRY_BYTES + 4;
/// A chunk with at least this many differing words makes the next chunk use the dense method. At a sixth, both methods
/// are about equally fast, with AVX2 and with AVX-512, measured on an AMD EPYC (Zen 4).
const DENSE: usize = CHUNK / 6;
/// A chunk with at most this many differing words is sparse: in the next chunk, blocks without a difference cost no more
/// than the comparison.
const SPARSE: usize = CHUNK / BLOCK;
/// Bytes of a line of the caches.
const LINE_BYTES: usize = 64;
/// Entries that are applied together if they have no gaps: triples for the vectors, plus one as room for the last vector.
pub(super) const GROUP: usize = 25;

pub(super) type Word = [u8; WORD_BYTES];
pub(super) type Entry = [u8; ENTRY_BYTES];

/// The result of creating a delta record.
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
        /// Bytes of the region that it describes; the next word differs and did not fit.
        bytes_compared: usize,
    },
}

/// A delta record that cannot be applied. The target has the changes of all entries before the bad one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// An offset is less than the one before.
    #[error(
        "the delta record's offsets descend; its first {applied_bytes} bytes are applied; create it again"
    )]
    Descending {
        /// Bytes of the record that are applied.
        applied_bytes: usize,
    },
    /// An offset is outside the target.
    #[error(
        "the delta record has an offset outside the target; its first {applied_bytes} bytes are applied; \
         use it for a region of the size that it was created from"
    )]
    OutOfRange {
        /// Bytes of the record that are applied.
        applied_bytes: usize,
    },
}

/// Writes the differences from `old` to `new` into `delta`. Bytes of `delta` behind the record are unspecified.
///
/// Shapes: `old` and `new` equally long, a multiple of 8, at most 512 KiB; `delta` of any length, of which the
/// last `len % 10` bytes are not used.
///
/// # Panics
/// If a shape is violated.
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

/// Applies the record `delta` to `target`.
///
/// Shapes: `delta` a multiple of 10 bytes, `target` a multiple of 8.
///
/// # Errors
/// [`DeltaError`]; an entry that both descends and is out of range is reported as descending.
///
/// # Panics
/// If a shape is violated.
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
    create(old, new, delta, differing, list_bytes, None::<fn(_, &_, &_, &mut _) -> _>)
}

/// Lists the ones of `differ`, byte by byte.
#[inline(always)]
pub(super) fn list_bytes(first: usize, differ: u32, numbers: &mut [u16; BLOCK]) {
    let mut count = 0;
    for (byte, differ) in differ.to_le_bytes().into_iter().enumerate() {
        // Writes all eight and counts the set bits: they are as good as random, so a branch would be mispredicted.
        let places = numbers[count..].iter_mut().zip(&PLACES[usize::from(differ)]);
        places.for_each(|(number, place)| *number = (first + byte * 8) as u16 + u16::from(*place));
        count += differ.count_ones() as usize;
    }
}

/// For each byte, the positions of its ones, lowest first.
pub(super) static PLACES: [[u8; 8]; 1 << 8] = {
    let mut places = [[0; 8]; 1 << 8];
    let mut byte = 0;
    while byte < places.len() {
        let (mut bit, mut count) = (0, 0);
        while bit < 8 {
            if byte >> bit & 1 == 1 {
                places[byte][count] = bit;
                count += 1;
            }
            bit += 1;
        }
        byte += 1;
    }
    places
};

/// Lists the differing words of each chunk, then writes their entries: neither has a branch for each word, which would be
/// mispredicted most of the time.
///
/// - `differing`: returns the differing words of a block as bits.
/// - `list`: writes their numbers, counted from the given one, to the start of the given array.
/// - `dense`: writes all entries of a chunk at once and returns their size, for CPUs that gain by it where many words
///   differ. Its first argument is the number of the chunk's first word. A chunk is probably like the one before it.
#[inline(always)]
pub(super) fn create(
    old: &[Word],
    new: &[Word],
    delta: &mut [u8],
    differing: impl Fn(&[Word; BLOCK], &[Word; BLOCK]) -> u32,
    list: impl Fn(usize, u32, &mut [u16; BLOCK]),
    dense: Option<impl Fn(usize, &[Word; CHUNK], &[Word; CHUNK], &mut [u8; CHUNK_ROOM]) -> usize>,
) -> Delta {
    let (mut written, mut is_dense, mut is_sparse) = (0, false, true);
    let mut numbers = [0; CHUNK];
    // The first chunk ends at the end of a cache line, since a load that crosses lines costs two.
    let (mut first, mut end) = (0, old.as_ptr().align_offset(LINE_BYTES).min(CHUNK));
    while first < old.len() {
        end = end.min(old.len());
        let (old, new, room) = (&old[first..end], &new[first..end], &mut delta[written..]);
        if is_dense
            && let Some(dense) = &dense
            && let (Some(old), Some(new)) = (old.as_array(), new.as_array())
            && let Some(room) = room.first_chunk_mut()
        {
            let size_bytes = dense(first, old, new, room);
            written += size_bytes;
            (is_dense, is_sparse) = (size_bytes >= DENSE * ENTRY_BYTES, false);
        } else {
            let count = match is_sparse {
                true => list_chunk(old, new, &mut numbers, &differing, list_sparse),
                false => list_chunk(old, new, &mut numbers, &differing, &list),
            };
            let numbers = numbers[..count].iter().map(|number| usize::from(*number));
            let entries = room.as_chunks_mut().0;
            for (entry, number) in entries.iter_mut().zip(numbers.clone()) {
                put(entry, first + number, &new[number]);
            }
            if let Some(number) = numbers.clone().nth(entries.len()) {
                let size_bytes = written + entries.len() * ENTRY_BYTES;
                return Delta::Overflow { size_bytes, bytes_compared: (first + number) * WORD_BYTES };
            }
            written += count * ENTRY_BYTES;
            (is_dense, is_sparse) = (count >= DENSE, count <= SPARSE);
        }
        (first, end) = (end, end + CHUNK);
    }
    match written {
        0 => Delta::Equal,
        size_bytes => Delta::Complete { size_bytes },
    }
}

/// Lists few differing words: a loop over the ones, which seldom runs, is predicted well.
#[inline(always)]
fn list_sparse(first: usize, mut differ: u32, numbers: &mut [u16; BLOCK]) {
    let mut numbers = numbers.iter_mut();
    while differ != 0 {
        // A block has as many places as bits.
        let Some(number) = numbers.next() else { return };
        *number = (first + differ.trailing_zeros() as usize) as u16;
        differ &= differ - 1;
    }
}

/// Lists the differing words of a chunk by their numbers in it, and returns their count.
#[inline(always)]
fn list_chunk(
    old: &[Word],
    new: &[Word],
    numbers: &mut [u16; CHUNK],
    differing: impl Fn(&[Word; BLOCK], &[Word; BLOCK]) -> u32,
    list: impl Fn(usize, u32, &mut [u16; BLOCK]),
) -> usize {
    let (old_blocks, old_rest) = old.as_chunks();
    let (new_blocks, new_rest) = new.as_chunks();
    let mut count = 0;
    for (block, (old, new)) in old_blocks.iter().zip(new_blocks).enumerate() {
        let differ = differing(old, new);
        // Each earlier block has listed at most 32 numbers, so there is room.
        if let Some(numbers) = numbers[count..].first_chunk_mut() {
            list(block * BLOCK, differ, numbers);
        }
        count += differ.count_ones() as usize;
    }
    for (number, (old, new)) in (old_blocks.len() * BLOCK..).zip(old_rest.iter().zip(new_rest)) {
        numbers[count] = number as u16;
        count += usize::from(old != new);
    }
    count
}

/// Writes the entry of a word, whose number fits 16 bits: regions have at most 2^16 words.
#[inline(always)]
pub(super) fn put(entry: &mut Entry, word: usize, new: &Word) {
    entry[..2].copy_from_slice(&(word as u16).to_le_bytes());
    entry[2..].copy_from_slice(new);
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

/// Applies entries; a group that is a run without gaps takes one check and `write`.
///
/// `is_run` is called if the last entry has the offset that it has in a run, and checks the others.
#[inline(always)]
pub(super) fn apply(
    entries: &[Entry],
    target: &mut [Word],
    is_run: impl Fn(usize, &[Entry; GROUP]) -> bool,
    write: impl Fn(&[Entry; GROUP], &mut [Word; GROUP]),
) -> Result<(), DeltaError> {
    let (groups, rest) = entries.as_chunks::<GROUP>();
    let mut least = 0; // the offset of the last entry: the lowest one that does not descend
    for (at, group) in groups.iter().enumerate() {
        let first = offset(&group[0]);
        let run = target.get_mut(first..).and_then(|run| run.first_chunk_mut());
        match run {
            Some(run)
                if first >= least
                    && offset(&group[GROUP - 1]) == first + GROUP - 1
                    && is_run(first, group) =>
            {
                write(group, run);
                least = first + GROUP - 1;
            }
            _ => least = apply_careful(at * GROUP, least, group, target)?,
        }
    }
    apply_careful(groups.len() * GROUP, least, rest, target)?;
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

/// Applies entries one by one and returns the lowest offset that does not descend.
#[inline]
fn apply_careful(
    applied: usize,
    mut least: usize,
    entries: &[Entry],
    target: &mut [Word],
) -> Result<usize, DeltaError> {
    for (at, entry) in entries.iter().enumerate() {
        let offset = offset(entry);
        let applied_bytes = (applied + at) * ENTRY_BYTES;
        if offset < least {
            return Err(DeltaError::Descending { applied_bytes });
        }
        *target.get_mut(offset).ok_or(DeltaError::OutOfRange { applied_bytes })? = new(entry);
        least = offset;
    }
    Ok(least)
}
