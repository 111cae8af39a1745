//! The loops that need instructions that not every x86-64 CPU has.
//!
//! Each function takes a proof that the CPU has them, which only `detect` makes; so all of them are safe to call. Some
//! are portable loops that the compiler may turn into longer vectors here.
//!
//! Vectors have 256 bits, with two exceptions that gain clearly, measured on an AMD EPYC (Zen 4) against the same with 256
//! bits: folding CRCs, 42 GB/s instead of 26 on blocks of 4096 bytes, and creating delta records, 20 GB/s instead of 6
//! to 12 where many words differ, because only AVX-512 can squeeze bytes out of a vector.

use std::arch::x86_64::*;

use super::delta::{self, BLOCK, BLOCK_ROOM, Delta, DeltaError, ENTRY_BYTES, Entry, GROUP, Word};
use super::guard::{POLYNOMIAL, STEP_BYTES, divide, remainder};
use super::{compare, fill as filling};

/// Declares a proof that the CPU has some instructions.
macro_rules! proof {
    ($name:ident $($feature:tt)*) => {
        #[doc = concat!("The CPU has", $(" ", $feature,)* ".")]
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $name(());

        impl $name {
            /// The proof, if it holds. Asked once; the standard library remembers the answer.
            #[inline]
            pub(super) fn detect() -> Option<$name> {
                (true $(&& is_x86_feature_detected!($feature))*).then_some($name(()))
            }
        }
    };
}

proof!(Avx2 "avx2");
proof!(Avx512 "avx512f" "avx512bw" "avx512vbmi" "avx512vbmi2" "popcnt");
proof!(Pclmul "pclmulqdq" "ssse3");
proof!(Vpclmul "vpclmulqdq" "avx2" "pclmulqdq" "ssse3");
proof!(Vpclmul512 "avx512f" "avx512bw" "vpclmulqdq" "avx2" "pclmulqdq" "ssse3");

pub(super) fn fill(_: Avx2, pattern: u128, target: &mut [u8]) {
    #[target_feature(enable = "avx2")]
    fn vectors(pattern: u128, target: &mut [u8]) {
        const BYTES: usize = size_of::<__m256i>();
        let size = target.len();
        if size < BYTES {
            return filling::portable(pattern, target);
        }
        let start = target.as_mut_ptr();
        // The pattern as it is `offset` bytes from the start.
        let turned = |offset: usize| {
            let pattern = pattern.rotate_right(offset as u32 % 16 * 8);
            let (low, high) = (pattern as i64, (pattern >> 64) as i64);
            _mm256_set_epi64x(high, low, high, low)
        };
        // A store that crosses a line costs two: all but the first and the last one begin at a border.
        let skew = start.align_offset(BYTES).min(size - BYTES);
        let (first, body, last) = (turned(0), turned(skew), turned(size - BYTES));
        // SAFETY: the target has at least one vector: the first 32 bytes and the last 32 are in it. The loop writes
        // `at..at + 32` where that is not above its size. The stores ask for no alignment.
        unsafe {
            _mm256_storeu_si256(start.cast(), first);
            let mut at = skew;
            while at + 4 * BYTES <= size {
                for vector in 0..4 {
                    _mm256_storeu_si256(start.add(at + vector * BYTES).cast(), body);
                }
                at += 4 * BYTES;
            }
            while at + BYTES <= size {
                _mm256_storeu_si256(start.add(at).cast(), body);
                at += BYTES;
            }
            _mm256_storeu_si256(start.add(size - BYTES).cast(), last);
        }
    }
    // SAFETY: the CPU has AVX2, says the proof.
    unsafe { vectors(pattern, target) }
}

pub(super) fn fill_around_caches(avx2: Avx2, pattern: u128, target: &mut [u8]) {
    #[target_feature(enable = "avx2")]
    fn vectors(pattern: u128, lines: &mut [Line]) {
        let halves = [pattern as i64, (pattern >> 64) as i64];
        let vector = _mm256_set_epi64x(halves[1], halves[0], halves[1], halves[0]);
        for line in lines {
            let line: *mut __m256i = (&raw mut *line).cast();
            // SAFETY: both halves of the line are 32 bytes that this slice has alone, aligned because lines are.
            unsafe {
                _mm256_stream_si256(line, vector);
                _mm256_stream_si256(line.add(1), vector);
            }
        }
        // ORDERING: streaming stores are not ordered with later stores, so that a Release of this thread could be seen
        // before them; the fence makes them keep the order of other stores.
        _mm_sfence();
    }

    // SAFETY: a line is bytes; any bytes are one.
    let (head, lines, tail) = unsafe { target.align_to_mut::<Line>() };
    let turned = pattern.rotate_right(head.len() as u32 % 16 * 8); // also for the tail: a line is whole patterns
    fill(avx2, pattern, head);
    // SAFETY: the CPU has AVX2, says the proof.
    unsafe { vectors(turned, lines) }
    fill(avx2, turned, tail);
}

/// A line of the caches.
#[repr(C, align(64))]
struct Line([u8; 64]);

pub(super) fn compare_pattern(_: Avx2, pattern: u64, data: &[u8]) -> Option<usize> {
    #[target_feature(enable = "avx2")]
    fn vectors(pattern: u64, data: &[u8]) -> Option<usize> {
        compare::portable(pattern, data)
    }
    // SAFETY: the CPU has AVX2, says the proof.
    unsafe { vectors(pattern, data) }
}

pub(super) fn create_delta(_: Avx2, old: &[Word], new: &[Word], delta: &mut [u8]) -> Delta {
    #[target_feature(enable = "avx2")]
    fn vectors(old: &[Word], new: &[Word], delta: &mut [u8]) -> Delta {
        delta::create_portable(old, new, delta)
    }
    // SAFETY: the CPU has AVX2, says the proof.
    unsafe { vectors(old, new, delta) }
}

pub(super) fn create_delta_512(_: Avx512, old: &[Word], new: &[Word], delta: &mut [u8]) -> Delta {
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

pub(super) fn apply_delta(_: Avx2, entries: &[Entry], target: &mut [Word]) -> Result<(), DeltaError> {
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

/// The factors that move the high and the low half of 16 bytes by `bits`.
const fn fold_factors(bits: u32) -> [i64; 2] {
    [remainder(1, bits + 64) as i64, remainder(1, bits) as i64]
}

/// Factors for a step, and for vectors that are 64, 32 and 16 bytes apart.
const STEP: [i64; 2] = fold_factors(8 * STEP_BYTES as u32);
const APART_64: [i64; 2] = fold_factors(512);
const APART_48: [i64; 2] = fold_factors(384);
const APART_32: [i64; 2] = fold_factors(256);
const APART_16: [i64; 2] = fold_factors(128);

/// The CRC of `first` and `steps` after `seed`, 16 bytes at a time. The seed is added to the first two bytes.
pub(super) fn fold_pclmul(_: Pclmul, seed: u16, first: &[u8; STEP_BYTES], steps: &[[u8; STEP_BYTES]]) -> u16 {
    #[target_feature(enable = "pclmulqdq,ssse3")]
    fn vectors(seed: u16, first: &[u8; STEP_BYTES], steps: &[[u8; STEP_BYTES]]) -> u16 {
        let mut folded = load_16(first);
        folded[0] = _mm_xor_si128(folded[0], _mm_set_epi64x(i64::from(seed) << 48, 0));
        let factors = factors_16(STEP);
        for step in steps {
            let step = load_16(step);
            for (folded, step) in folded.iter_mut().zip(step) {
                *folded = fold_16(*folded, factors, step);
            }
        }
        let [a, b, c, d, e, f, g, h] = folded;
        let factors = factors_16(APART_64);
        let [a, b, c, d] =
            [fold_16(a, factors, e), fold_16(b, factors, f), fold_16(c, factors, g), fold_16(d, factors, h)];
        let factors = factors_16(APART_32);
        let [a, b] = [fold_16(a, factors, c), fold_16(b, factors, d)];
        reduce(fold_16(a, factors_16(APART_16), b))
    }
    // SAFETY: the CPU has PCLMULQDQ and SSSE3, says the proof.
    unsafe { vectors(seed, first, steps) }
}

/// The same, 32 bytes at a time.
pub(super) fn fold_vpclmul(
    _: Vpclmul,
    seed: u16,
    first: &[u8; STEP_BYTES],
    steps: &[[u8; STEP_BYTES]],
) -> u16 {
    #[target_feature(enable = "vpclmulqdq,avx2,pclmulqdq,ssse3")]
    fn vectors(seed: u16, first: &[u8; STEP_BYTES], steps: &[[u8; STEP_BYTES]]) -> u16 {
        let mut folded = load_32(first);
        folded[0] = _mm256_xor_si256(folded[0], _mm256_set_epi64x(0, 0, i64::from(seed) << 48, 0));
        let factors = factors_32(STEP);
        for step in steps {
            let step = load_32(step);
            for (folded, step) in folded.iter_mut().zip(step) {
                *folded = fold_32(*folded, factors, step);
            }
        }
        let [a, b, c, d] = folded;
        let factors = factors_32(APART_64);
        let [a, b] = [fold_32(a, factors, c), fold_32(b, factors, d)];
        let a = fold_32(a, factors_32(APART_32), b);
        // The lower half of the vector came first.
        let (first, second) = (_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
        reduce(fold_16(first, factors_16(APART_16), second))
    }
    // SAFETY: the CPU has VPCLMULQDQ, AVX2, PCLMULQDQ and SSSE3, says the proof.
    unsafe { vectors(seed, first, steps) }
}

/// The same, 64 bytes at a time.
pub(super) fn fold_vpclmul_512(
    _: Vpclmul512,
    seed: u16,
    first: &[u8; STEP_BYTES],
    steps: &[[u8; STEP_BYTES]],
) -> u16 {
    #[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,avx2,pclmulqdq,ssse3")]
    fn vectors(seed: u16, first: &[u8; STEP_BYTES], steps: &[[u8; STEP_BYTES]]) -> u16 {
        let [mut a, mut b] = load_64(first);
        a = _mm512_xor_si512(a, _mm512_set_epi64(0, 0, 0, 0, 0, 0, i64::from(seed) << 48, 0));
        let factors = _mm512_broadcast_i32x4(factors_16(STEP));
        for step in steps {
            let [next_a, next_b] = load_64(step);
            a = fold_64(a, factors, next_a);
            b = fold_64(b, factors, next_b);
        }
        let a = fold_64(a, _mm512_broadcast_i32x4(factors_16(APART_64)), b);
        // Each of the four lanes by its own distance from the last one, which stays.
        let factors = _mm512_set_epi64(
            0,
            0,
            APART_16[0],
            APART_16[1],
            APART_32[0],
            APART_32[1],
            APART_48[0],
            APART_48[1],
        );
        let last = _mm512_maskz_mov_epi64(0b1100_0000, a);
        let a = fold_64(a, factors, last);
        let a = _mm256_xor_si256(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
        reduce(_mm_xor_si128(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)))
    }
    // SAFETY: the CPU has AVX-512 F and BW, VPCLMULQDQ, AVX2, PCLMULQDQ and SSSE3, says the proof.
    unsafe { vectors(seed, first, steps) }
}

#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold_64(folded: __m512i, factors: __m512i, next: __m512i) -> __m512i {
    let high = _mm512_clmulepi64_epi128(folded, factors, 0x11);
    let low = _mm512_clmulepi64_epi128(folded, factors, 0x00);
    _mm512_ternarylogic_epi64(high, low, next, 0x96) // all three, XORed
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load_64(step: &[u8; STEP_BYTES]) -> [__m512i; STEP_BYTES / 64] {
    let turn = _mm512_broadcast_i32x4(_mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    std::array::from_fn(|at| {
        // SAFETY: the vectors are the 128 bytes of the array, one after another; the load asks for no alignment.
        let vector = unsafe { _mm512_loadu_si512(step.as_ptr().cast::<__m512i>().add(at)) };
        _mm512_shuffle_epi8(vector, turn)
    })
}

#[inline]
#[target_feature(enable = "pclmulqdq")]
fn factors_16([high, low]: [i64; 2]) -> __m128i {
    _mm_set_epi64x(high, low)
}

#[inline]
#[target_feature(enable = "avx2")]
fn factors_32([high, low]: [i64; 2]) -> __m256i {
    _mm256_set_epi64x(high, low, high, low)
}

/// `folded`, moved on by the distance that `factors` are for, and `next`.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn fold_16(folded: __m128i, factors: __m128i, next: __m128i) -> __m128i {
    let high = _mm_clmulepi64_si128(folded, factors, 0x11);
    let low = _mm_clmulepi64_si128(folded, factors, 0x00);
    _mm_xor_si128(_mm_xor_si128(high, low), next)
}

#[inline]
#[target_feature(enable = "vpclmulqdq,avx2")]
fn fold_32(folded: __m256i, factors: __m256i, next: __m256i) -> __m256i {
    let high = _mm256_clmulepi64_epi128(folded, factors, 0x11);
    let low = _mm256_clmulepi64_epi128(folded, factors, 0x00);
    _mm256_xor_si256(_mm256_xor_si256(high, low), next)
}

/// The bytes in vectors, each with its first byte highest: polynomials are written that way.
#[inline]
#[target_feature(enable = "ssse3")]
fn load_16(step: &[u8; STEP_BYTES]) -> [__m128i; STEP_BYTES / 16] {
    let turn = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    std::array::from_fn(|at| {
        // SAFETY: the vectors are the 128 bytes of the array, one after another; the load asks for no alignment.
        let vector = unsafe { _mm_loadu_si128(step.as_ptr().cast::<__m128i>().add(at)) };
        _mm_shuffle_epi8(vector, turn)
    })
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_32(step: &[u8; STEP_BYTES]) -> [__m256i; STEP_BYTES / 32] {
    let turn =
        _mm256_broadcastsi128_si256(_mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    std::array::from_fn(|at| {
        // SAFETY: the vectors are the 128 bytes of the array, one after another; the load asks for no alignment.
        let vector = unsafe { _mm256_loadu_si256(step.as_ptr().cast::<__m256i>().add(at)) };
        _mm256_shuffle_epi8(vector, turn)
    })
}

/// The remainder of `folded` * x^16.
///
/// ```text
/// 128 bits:  high * x^80 + low * x^16                      80 bits are left
///            (the 16 above 64) * x^64 + the lower 64       64 bits are left
/// Barrett:   quotient = (rest / x^16) * (x^64 / P) / x^48;  rest + quotient * P
/// ```
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn reduce(folded: __m128i) -> u16 {
    const FACTORS: [i64; 2] = [remainder(1, 64) as i64, remainder(1, 80) as i64];
    const BARRETT: [i64; 2] = [POLYNOMIAL as i64, divide(1, 64).0 as i64];
    let (factors, barrett) = (factors_16(FACTORS), factors_16(BARRETT));
    let low = _mm_srli_si128(_mm_slli_si128(folded, 8), 6);
    let rest = _mm_xor_si128(_mm_clmulepi64_si128(folded, factors, 0x01), low);
    let rest = _mm_xor_si128(_mm_clmulepi64_si128(rest, factors, 0x11), rest);
    let rest_64 = _mm_cvtsi128_si64(rest) as u64;
    let quotient = _mm_clmulepi64_si128(_mm_cvtsi64_si128((rest_64 >> 16) as i64), barrett, 0x00);
    let product = _mm_clmulepi64_si128(_mm_srli_si128(quotient, 6), barrett, 0x10);
    rest_64 as u16 ^ _mm_cvtsi128_si64(product) as u16
}
