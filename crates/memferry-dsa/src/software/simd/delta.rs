//! Vector loops of delta records.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::super::delta::{
    self, BLOCK, CHUNK, CHUNK_ROOM, Delta, DeltaError, ENTRY_BYTES, Entry, GROUP, PLACES, Word,
};
use super::{Avx2, Avx512, load_256, load_512, store_256, store_512};

pub(in super::super) fn create_delta(_: Avx2, old: &[Word], new: &[Word], delta: &mut [u8]) -> Delta {
    #[target_feature(enable = "avx2,popcnt")]
    fn vectors(old: &[Word], new: &[Word], delta: &mut [u8]) -> Delta {
        let differing = |old: &_, new: &_| differing_256(old, new);
        let list = |first, differ, numbers: &mut _| list_256(first, differ, numbers);
        let dense = |first, old: &_, new: &_, room: &mut _| put_dense_256(first, old, new, room);
        delta::create(old, new, delta, differing, list, Some(dense))
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

/// Loads the four words from index `from` on.
#[inline]
#[target_feature(enable = "avx2")]
fn load_four<const COUNT: usize>(words: &[Word; COUNT], from: usize) -> __m256i {
    load_256(words[from..][..4].as_flattened().as_array().expect("four words are a vector"))
}

/// The differing words, at most 32, as bits.
#[inline]
#[target_feature(enable = "avx2")]
fn differing_256<const COUNT: usize>(old: &[Word; COUNT], new: &[Word; COUNT]) -> u32 {
    let mut differ = 0;
    for at in (0..COUNT).step_by(4) {
        let same = _mm256_cmpeq_epi64(load_four(old, at), load_four(new, at));
        differ |= (_mm256_movemask_pd(_mm256_castsi256_pd(same)) as u32 ^ 0xf) << at;
    }
    differ
}

/// Writes the positions of the ones of `differ`, counted from `first`.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn list_256(first: usize, differ: u32, numbers: &mut [u16; BLOCK]) {
    let mut count = 0;
    // The cast keeps the bits: a region has 2^16 words.
    let (mut first, step) = (_mm_set1_epi16(first as i16), _mm_set1_epi16(8));
    for byte in differ.to_le_bytes() {
        // Writes all eight and counts the set bits, as `list_bytes`.
        let places = _mm_cvtepu8_epi16(_mm_set_epi64x(0, i64::from_le_bytes(PLACES[usize::from(byte)])));
        // Each earlier byte has listed at most eight, so there is room.
        if let Some(numbers) = numbers[count..].first_chunk_mut::<8>() {
            // SAFETY: both types have 16 bytes, and all their values are valid.
            *numbers = unsafe { transmute::<__m128i, [u16; 8]>(_mm_add_epi16(first, places)) };
        }
        first = _mm_add_epi16(first, step);
        count += byte.count_ones() as usize;
    }
}

/// Words whose entries fit a vector of 32 bytes.
const TRIPLE: usize = 3;
const _: () = assert!((CHUNK - TRIPLE) * ENTRY_BYTES + size_of::<__m256i>() <= CHUNK_ROOM);

/// For each set of the words of a triple, and the position of the triple in its vector of four words (0 or 1): the halves
/// of words that the entries need, for the lower 16 bytes of the entries and for the upper ones.
///
/// ```text
/// entries       offset word word | offset word   word | offset word word
///               0      2    6      10     12     16     20     22   26
/// halves                0    1             2     4             5    6        3 and 7: unspecified
/// ```
static HALVES: [[[u8; 32]; 1 << TRIPLE]; 2] = {
    let mut sets = [[[0; 32]; 1 << TRIPLE]; 2];
    let mut at = 0;
    while at < 2 << TRIPLE {
        let (place, set) = (at >> TRIPLE, at % (1 << TRIPLE));
        let (mut word, mut count) = (0, 0);
        while word < TRIPLE {
            if set >> word & 1 == 1 {
                let (low, high) = [(0, 1), (2, 4), (5, 6)][count];
                sets[place][set][low * 4] = ((place + word) * 2) as u8;
                sets[place][set][high * 4] = ((place + word) * 2 + 1) as u8;
                count += 1;
            }
            word += 1;
        }
        at += 1;
    }
    sets
};

/// For each set of the words of a triple, their numbers in it at the positions of the offsets of entries.
static NUMBERS_IN_TRIPLE: [[u8; 32]; 1 << TRIPLE] = {
    let mut sets = [[0; 32]; 1 << TRIPLE];
    let mut set = 0;
    while set < sets.len() {
        let (mut word, mut count) = (0, 0);
        while word < TRIPLE {
            if set >> word & 1 == 1 {
                sets[set][count * ENTRY_BYTES] = word as u8;
                count += 1;
            }
            word += 1;
        }
        set += 1;
    }
    sets
};

/// Writes the entries of the differing words of a chunk to the start of `room`, and returns their size.
///
/// Makes the entries of three words at a time, with those of the differing words first.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn put_dense_256(
    first: usize,
    old: &[Word; CHUNK],
    new: &[Word; CHUNK],
    room: &mut [u8; CHUNK_ROOM],
) -> usize {
    const TRIPLES: usize = SIXES / TRIPLE;
    let spread = _mm256_setr_epi8(
        -1, -1, 0, 1, 2, 3, 4, 5, 6, 7, -1, -1, 8, 9, 10, 11, // the first entry and half of the second
        0, 1, 2, 3, -1, -1, 4, 5, 6, 7, 8, 9, 10, 11, -1, -1, // the other half and the third entry
    );
    let (mut numbers, step) = (offsets([first; 3]), offsets([TRIPLE; 3]));
    let mut written = 0;
    for (old, new) in old.as_chunks::<SIXES>().0.iter().zip(new.as_chunks::<SIXES>().0) {
        let differ = differing_256(old, new) as usize;
        for triple in 0..TRIPLES {
            let set = differ >> (triple * TRIPLE) & ((1 << TRIPLE) - 1);
            // The last triple ends with its vector, the others begin with theirs.
            let place = usize::from(triple == TRIPLES - 1);
            let words = load_four(new, triple * TRIPLE - place);
            let halves = _mm256_permutevar8x32_epi32(words, load_256(&HALVES[place][set]));
            let offsets = _mm256_add_epi16(numbers, load_256(&NUMBERS_IN_TRIPLE[set]));
            let entries = _mm256_add_epi16(_mm256_shuffle_epi8(halves, spread), offsets);
            // SAFETY: each vector before this one has advanced `written` by at most 30 bytes; behind those the room has a
            // whole vector, see the assertion.
            store_256(entries, unsafe { &mut *room.as_mut_ptr().wrapping_add(written).cast() });
            written += set.count_ones() as usize * ENTRY_BYTES;
            numbers = _mm256_add_epi16(numbers, step);
        }
    }
    written
}

/// Loads the eight words from index 8 * `number` on.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_words<const COUNT: usize>(words: &[Word; COUNT], number: usize) -> __m512i {
    load_512(&words.as_flattened().as_chunks().0[number])
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
    static NUMBERS: [u8; 64] = {
        let mut numbers = [0; 64];
        let mut at = 0;
        while at < 32 {
            numbers[2 * at] = at as u8;
            at += 1;
        }
        numbers
    };
    _mm512_add_epi16(load_512(&NUMBERS), _mm512_set1_epi16(first as i16))
}

/// Writes the positions of the ones of `differ`, counted from `first`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2")]
fn list(first: usize, differ: u32, numbers: &mut [u16; BLOCK]) {
    let all = numbers_from(first);
    // The numbers behind the wanted ones are unspecified. The source is also the merge operand: with another register, the
    // CPU would wait for its former value, even for zeroing.
    let wanted = _mm512_mask_compress_epi16(all, differ, all);
    // SAFETY: both types have 64 bytes, and all their values are valid.
    *numbers = unsafe { transmute::<__m512i, [u16; BLOCK]>(wanted) };
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
    let layouts = {
        let [a, b, c, d] = &LAYOUTS;
        [load_512(a), load_512(b), load_512(c), load_512(d)]
    };
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
            // whole vector, see the assertion.
            let entries = unsafe { &mut *room.as_mut_ptr().wrapping_add(written).cast() };
            store_512(wanted, entries);
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
    let entries = &group.as_flattened()[triple * 3 * ENTRY_BYTES..];
    load_256(entries.first_chunk().expect("an entry behind the triples"))
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
        // Four words; the fourth is written again by the next triple, or below.
        let target = run.as_flattened_mut()[triple * 24..].first_chunk_mut();
        store_256(words, target.expect("a word behind the triples"));
    }
    run[GROUP - 1] = delta::new(&group[GROUP - 1]);
}
