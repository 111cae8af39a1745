//! Delta records.

use std::arch::x86_64::*;

use super::super::delta::{self, BLOCK, BLOCK_ROOM, Delta, DeltaError, ENTRY_BYTES, Entry, GROUP, Word};
use super::{Avx2, Avx512};

pub(in super::super) fn create_delta(_: Avx2, old: &[Word], new: &[Word], delta: &mut [u8]) -> Delta {
    #[target_feature(enable = "avx2")]
    fn vectors(old: &[Word], new: &[Word], delta: &mut [u8]) -> Delta {
        delta::create_portable(old, new, delta)
    }
    // SAFETY: the CPU has AVX2, says the proof.
    unsafe { vectors(old, new, delta) }
}

pub(in super::super) fn create_delta_512(_: Avx512, old: &[Word], new: &[Word], delta: &mut [u8]) -> Delta {
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
    fn vectors(old: &[Word], new: &[Word], delta: &mut [u8]) -> Delta {
        let differing = |old: &_, new: &_| differing(old, new);
        delta::create(old, new, delta, differing, |first, differ, new, room| {
            put_entries(first, differ, new, room)
        })
    }
    // SAFETY: the CPU has AVX-512 F, BW, VBMI and VBMI2, and POPCNT, says the proof.
    unsafe { vectors(old, new, delta) }
}

/// The words of a block that differ, as bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn differing(old: &[Word; BLOCK], new: &[Word; BLOCK]) -> u32 {
    let (old, new): (*const __m512i, *const __m512i) = (old.as_ptr().cast(), new.as_ptr().cast());
    (0..BLOCK / 8).fold(0, |differ, at| {
        // SAFETY: a block is whole vectors of eight words; the loads ask for no alignment.
        let (old, new) = unsafe { (_mm512_loadu_si512(old.add(at)), _mm512_loadu_si512(new.add(at))) };
        differ | u32::from(_mm512_cmpneq_epi64_mask(old, new)) << (at * 8)
    })
}

/// Words whose entries fit a vector of 64 bytes.
const SIX: usize = 6;
const _: () = assert!(BLOCK.is_multiple_of(SIX) && BLOCK.is_multiple_of(8) && BLOCK <= 32);
const _: () = assert!(BLOCK_ROOM == (BLOCK - SIX) * ENTRY_BYTES + size_of::<__m512i>());

/// For each set of six entries, their bytes.
static ENTRIES: [u64; 1 << SIX] = {
    let mut sets = [0; 1 << SIX];
    let mut set = 0;
    while set < sets.len() {
        let mut entry = 0;
        while entry < SIX {
            if set >> entry & 1 == 1 {
                sets[set] |= ((1 << ENTRY_BYTES) - 1) << (entry * ENTRY_BYTES);
            }
            entry += 1;
        }
        set += 1;
    }
    sets
};

/// Which byte of six words goes to each byte of six entries; bytes of offsets and behind the entries take any.
const SPREAD: [u8; 64] = {
    let mut spread = [0; 64];
    let mut at = 0;
    while at < SIX * ENTRY_BYTES {
        let (entry, byte) = (at / ENTRY_BYTES, at % ENTRY_BYTES);
        spread[at] = if byte < 2 { 0 } else { (entry * 8 + byte - 2) as u8 };
        at += 1;
    }
    spread
};

/// The bytes that are words, not offsets.
const WORDS: u64 = {
    let mut bytes = 0;
    let mut entry = 0;
    while entry < SIX {
        bytes |= 0xff << (entry * ENTRY_BYTES + 2);
        entry += 1;
    }
    bytes
};

/// The numbers of six entries where they have their offsets.
const NUMBERS: [u16; 32] = {
    let mut numbers = [0; 32];
    let mut entry = 0;
    while entry < SIX {
        numbers[entry * ENTRY_BYTES / 2] = entry as u16;
        entry += 1;
    }
    numbers
};

/// Writes the entries of the words of a block that differ to the start of `room`; their size.
///
/// All six entries of six words are made, then those that are not wanted are squeezed out.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
fn put_entries(first: usize, differ: u32, new: &[Word; BLOCK], room: &mut [u8; BLOCK_ROOM]) -> usize {
    // SAFETY: both arrays have the size of a vector; the loads ask for no alignment.
    let (spread, numbers) =
        unsafe { (_mm512_loadu_si512(SPREAD.as_ptr().cast()), _mm512_loadu_si512(NUMBERS.as_ptr().cast())) };
    let mut written = 0;
    for at in 0..BLOCK / SIX {
        let set = differ as usize >> (at * SIX) & (ENTRIES.len() - 1);
        // A vector has eight words. The last ones of the block are those that end with it.
        let load_at = (at * SIX).min(BLOCK - 8);
        let spread = _mm512_add_epi8(spread, _mm512_set1_epi8(((at * SIX - load_at) * 8) as i8));
        // SAFETY: the eight words from there on are in the block; the load asks for no alignment. (A load of six words
        // under a mask becomes VPEXPANDQ, which is slow.)
        let words = unsafe { _mm512_loadu_si512(new.as_ptr().add(load_at).cast()) };
        // The cast keeps the bits: a region has 2^16 words.
        let offsets = _mm512_add_epi16(numbers, _mm512_set1_epi16((first + at * SIX) as i16));
        let entries = _mm512_mask_permutexvar_epi8(offsets, WORDS, spread, words);
        // Where all words differ, as in a new region, there is nothing to squeeze: a tenth faster, and no slower else.
        let entries = if set == ENTRIES.len() - 1 {
            entries
        } else {
            _mm512_maskz_compress_epi8(ENTRIES[set], entries)
        };
        // SAFETY: the vectors before this one have left at most 60 bytes each; behind those the room has a whole vector,
        // see the assertion. The store asks for no alignment.
        unsafe { _mm512_storeu_si512(room.as_mut_ptr().add(written).cast(), entries) };
        written += set.count_ones() as usize * ENTRY_BYTES;
    }
    written
}

pub(in super::super) fn apply_delta(
    _: Avx2,
    entries: &[Entry],
    target: &mut [Word],
) -> Result<(), DeltaError> {
    #[target_feature(enable = "avx2")]
    fn vectors(entries: &[Entry], target: &mut [Word]) -> Result<(), DeltaError> {
        delta::apply(entries, target, |first, group| is_run(first, group), |group, run| put_words(group, run))
    }
    // SAFETY: the CPU has AVX2, says the proof.
    unsafe { vectors(entries, target) }
}

/// Delta records are read three entries at a time: they are 30 of a vector's 32 bytes.
const TRIPLES: usize = GROUP / 3;
const _: () =
    assert!(GROUP == TRIPLES * 3 + 1, "an entry behind the triples, so that vectors end in the group");

/// The `triple`-th three entries of a group, and two bytes behind them.
#[inline]
#[target_feature(enable = "avx2")]
fn load_entries(group: &[Entry; GROUP], triple: usize) -> __m256i {
    let entries = &group.as_flattened()[triple * 3 * ENTRY_BYTES..][..size_of::<__m256i>()];
    // SAFETY: the slice has the size of a vector; the load asks for no alignment.
    unsafe { _mm256_loadu_si256(entries.as_ptr().cast()) }
}

/// Three numbers where three entries have their offsets.
#[inline]
#[target_feature(enable = "avx2")]
fn offsets(numbers: [usize; 3]) -> __m256i {
    // The casts keep the bits: offsets have 16.
    let [a, b, c] = numbers.map(|number| number as i16);
    _mm256_setr_epi16(a, 0, 0, 0, 0, b, 0, 0, 0, 0, c, 0, 0, 0, 0, 0)
}

/// Whether the offsets of a group of entries, but for the last one, are `first` and those that follow it, without gaps.
#[inline]
#[target_feature(enable = "avx2")]
fn is_run(first: usize, group: &[Entry; GROUP]) -> bool {
    let (mut expected, step) = (offsets([first, first + 1, first + 2]), offsets([3; 3]));
    let mut differ = _mm256_setzero_si256();
    for triple in 0..TRIPLES {
        differ = _mm256_or_si256(differ, _mm256_xor_si256(load_entries(group, triple), expected));
        expected = _mm256_add_epi16(expected, step);
    }
    _mm256_testz_si256(differ, offsets([0xffff; 3])) == 1
}

/// Writes the words of a group of entries one after another.
#[inline]
#[target_feature(enable = "avx2")]
fn put_words(group: &[Entry; GROUP], run: &mut [Word; GROUP]) {
    let gather = _mm256_setr_epi8(
        2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, -1, -1, -1, -1, // the first word and half of the second
        0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, -1, -1, -1, -1, // the other half and the third word
    );
    let close_up = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 7, 7);
    for triple in 0..TRIPLES {
        let halves = _mm256_shuffle_epi8(load_entries(group, triple), gather);
        let words = _mm256_permutevar8x32_epi32(halves, close_up);
        let target = &mut run[triple * 3..][..4];
        // SAFETY: four words are a vector; the store asks for no alignment. The fourth is written again by the next
        // triple, or below.
        unsafe { _mm256_storeu_si256(target.as_mut_ptr().cast(), words) }
    }
    run[GROUP - 1] = delta::new(&group[GROUP - 1]);
}
