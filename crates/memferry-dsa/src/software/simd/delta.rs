//! Vector loops of delta records.

use std::arch::x86_64::*;

use super::super::delta::{
    self, BLOCK, CHUNK, CHUNK_ROOM, Delta, DeltaError, ENTRY_BYTES, Entry, GROUP, Word,
};
use super::{Avx2, Avx512};

pub(in super::super) fn create_delta(_: Avx2, old: &[Word], new: &[Word], delta: &mut [u8]) -> Delta {
    #[target_feature(enable = "avx2,popcnt")]
    fn vectors(old: &[Word], new: &[Word], delta: &mut [u8]) -> Delta {
        let differing = |old: &_, new: &_| differing_256(old, new);
        delta::create(old, new, delta, differing, delta::list_bytes, None::<fn(_, &_, &_, &mut _) -> _>)
    }
    // SAFETY: the CPU has AVX2 and POPCNT (the proof).
    unsafe { vectors(old, new, delta) }
}

pub(in super::super) fn create_delta_512(_: Avx512, old: &[Word], new: &[Word], delta: &mut [u8]) -> Delta {
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
    fn vectors(old: &[Word], new: &[Word], delta: &mut [u8]) -> Delta {
        let differing = |old: &_, new: &_| differing(old, new);
        let list = |first, differ, numbers: &mut _| list(first, differ, numbers);
        let dense = |first, old: &_, new: &_, room: &mut _| put_dense(first, old, new, room);
        delta::create(old, new, delta, differing, list, Some(dense))
    }
    // SAFETY: the CPU has AVX-512 F, BW, VBMI and VBMI2, and POPCNT (the proof).
    unsafe { vectors(old, new, delta) }
}

/// The differing words of a block as bits, with vectors of four.
#[inline]
#[target_feature(enable = "avx2")]
fn differing_256(old: &[Word; BLOCK], new: &[Word; BLOCK]) -> u32 {
    let (old, new) = (old.as_ptr().cast::<__m256i>(), new.as_ptr().cast::<__m256i>());
    let mut equal = 0;
    for at in 0..BLOCK / 4 {
        // SAFETY: a block is eight vectors of four words; the loads need no alignment.
        let (old, new) = unsafe { (_mm256_loadu_si256(old.add(at)), _mm256_loadu_si256(new.add(at))) };
        let same = _mm256_castsi256_pd(_mm256_cmpeq_epi64(old, new));
        equal |= (_mm256_movemask_pd(same) as u32) << (4 * at);
    }
    !equal
}

/// Loads the eight words from index 8 * `number` on.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_words<const COUNT: usize>(words: &[Word; COUNT], number: usize) -> __m512i {
    let eight = &words.as_chunks::<8>().0[number];
    // SAFETY: eight words are a vector; the load needs no alignment.
    unsafe { _mm512_loadu_si512(eight.as_ptr().cast()) }
}

/// The differing words, at most 32, as bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn differing<const COUNT: usize>(old: &[Word; COUNT], new: &[Word; COUNT]) -> u32 {
    (0..COUNT / 8).fold(0, |differ, at| {
        let (old, new) = (load_words(old, at), load_words(new, at));
        differ | u32::from(_mm512_cmpneq_epi64_mask(old, new)) << (at * 8)
    })
}

/// The 32 numbers from `first` on. The casts keep the bits: a region has 2^16 words.
#[inline]
#[target_feature(enable = "avx512bw")]
fn numbers_from(first: usize) -> __m512i {
    static NUMBERS: [u16; 32] = {
        let mut numbers = [0; 32];
        let mut at = 0;
        while at < numbers.len() {
            numbers[at] = at as u16;
            at += 1;
        }
        numbers
    };
    // SAFETY: 32 numbers are a vector; the load needs no alignment.
    let numbers = unsafe { _mm512_loadu_si512(NUMBERS.as_ptr().cast()) };
    _mm512_add_epi16(numbers, _mm512_set1_epi16(first as i16))
}

/// Writes the positions of the ones of `differ`, counted from `first`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2")]
fn list(first: usize, differ: u32, numbers: &mut [u16; BLOCK]) {
    let all = numbers_from(first);
    // The numbers behind the wanted ones are unspecified. The source is also the merge operand: with another register, the
    // CPU would wait for its former value, even for zeroing.
    let wanted = _mm512_mask_compress_epi16(all, differ, all);
    // SAFETY: 32 numbers are a vector; the store needs no alignment.
    unsafe { _mm512_storeu_si512(numbers.as_mut_ptr().cast(), wanted) }
}

/// Words whose entries fit a vector of 64 bytes.
const SIX: usize = 6;
/// Words per step where many differ: a multiple of eight for comparing and of six for writing.
const SIXES: usize = 4 * SIX;
const _: () = assert!(SIXES.is_multiple_of(8) && CHUNK.is_multiple_of(SIXES));
const _: () = assert!((CHUNK - SIX) * ENTRY_BYTES + size_of::<__m512i>() == CHUNK_ROOM);

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

/// For each byte of the entries of a six, the index of its source byte: in a vector of words, or from 64 on in the numbers
/// of all sixes. The bytes behind the entries are unspecified.
static LAYOUTS: [[u8; 64]; SIXES / SIX] = {
    let mut layouts = [[0; 64]; SIXES / SIX];
    let mut at = 0;
    while at < SIXES * ENTRY_BYTES {
        let (word, byte) = (at / ENTRY_BYTES, at % ENTRY_BYTES);
        let (six, entry) = (word / SIX, word % SIX);
        // The last six ends with its vector, the others begin with theirs.
        let place = if six == SIXES / SIX - 1 { entry + 8 - SIX } else { entry };
        layouts[six][at % (SIX * ENTRY_BYTES)] =
            if byte < 2 { 64 + word * 2 + byte } else { place * 8 + byte - 2 } as u8;
        at += 1;
    }
    layouts
};

/// Writes the entries of the differing words of a chunk to the start of `room`, and returns their size.
///
/// Makes the entries of six words at a time, then removes those of equal words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
fn put_dense(first: usize, old: &[Word; CHUNK], new: &[Word; CHUNK], room: &mut [u8; CHUNK_ROOM]) -> usize {
    // SAFETY: the arrays have the size of a vector; the loads need no alignment.
    let layouts = LAYOUTS.each_ref().map(|layout| unsafe { _mm512_loadu_si512(layout.as_ptr().cast()) });
    let mut numbers = numbers_from(first);
    let mut written = 0;
    for (old, new) in old.as_chunks::<SIXES>().0.iter().zip(new.as_chunks::<SIXES>().0) {
        let differ = differing(old, new) as usize;
        let [low, middle, high] = [0, 1, 2].map(|at| load_words(new, at));
        let sixes =
            [low, _mm512_alignr_epi64::<6>(middle, low), _mm512_alignr_epi64::<4>(high, middle), high];
        for (at, (words, layout)) in sixes.into_iter().zip(layouts).enumerate() {
            let set = differ >> (at * SIX) & (ENTRIES.len() - 1);
            let all = _mm512_permutex2var_epi8(words, layout, numbers);
            let wanted = _mm512_mask_compress_epi8(all, ENTRIES[set], all); // as in `list`
            // SAFETY: each vector before this one has advanced `written` by at most 60 bytes; behind those the room has a
            // whole vector, see the assertion. The store needs no alignment.
            unsafe { _mm512_storeu_si512(room.as_mut_ptr().add(written).cast(), wanted) };
            written += set.count_ones() as usize * ENTRY_BYTES;
        }
        numbers = _mm512_add_epi16(numbers, _mm512_set1_epi16(SIXES as i16));
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
    // SAFETY: the CPU has AVX2 (the proof).
    unsafe { vectors(entries, target) }
}

/// Delta records are read three entries at a time: they are 30 of a vector's 32 bytes.
const TRIPLES: usize = GROUP / 3;
const _: () =
    assert!(GROUP == TRIPLES * 3 + 1, "an entry behind the triples, so that vectors end inside the group");

/// The `triple`-th three entries of a group, and two bytes behind them.
#[inline]
#[target_feature(enable = "avx2")]
fn load_entries(group: &[Entry; GROUP], triple: usize) -> __m256i {
    let entries = &group.as_flattened()[triple * 3 * ENTRY_BYTES..][..size_of::<__m256i>()];
    // SAFETY: the slice has the size of a vector; the load needs no alignment.
    unsafe { _mm256_loadu_si256(entries.as_ptr().cast()) }
}

/// Three numbers at the positions of the offsets of three entries.
#[inline]
#[target_feature(enable = "avx2")]
fn offsets(numbers: [usize; 3]) -> __m256i {
    // The casts keep the bits: offsets have 16.
    let [a, b, c] = numbers.map(|number| number as i16);
    _mm256_setr_epi16(a, 0, 0, 0, 0, b, 0, 0, 0, 0, c, 0, 0, 0, 0, 0)
}

/// Whether the offsets of a group, except the last one, count up from `first` without gaps.
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
        // SAFETY: four words are a vector; the store needs no alignment. The fourth is written again by the next
        // triple, or below.
        unsafe { _mm256_storeu_si256(target.as_mut_ptr().cast(), words) }
    }
    run[GROUP - 1] = delta::new(&group[GROUP - 1]);
}
