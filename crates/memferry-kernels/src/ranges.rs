//! The rows whose value lies in a range, as bits.
//!
//! ```text
//! first <= value <= last     is     value - first <= last - first     for integers without sign, modulo their size
//! ```
//!
//! One comparison therefore does for each range, and for integers with sign, too. The results of 64 rows are bytes of 0 and 1 at
//! first, which compilers turn into vectors, then a word of bits.

use crate::packed::{Native, mask};
use crate::{Bits, dispatch};

/// Rows of a word of bits.
const WORD_ROWS: usize = u64::BITS as usize;
/// Rows that are taken from a word of bits at once: more than are set in most words of a selective filter.
const SET_AT_ONCE: usize = 4;
/// Values that are unpacked at once, of widths other than those of integers.
const UNPACKED_ROWS: usize = 8 * WORD_ROWS;

/// A bit for each of the first `rows` values, set if it is one of `first..=last`; the last word ends with zeros.
///
/// Only the low `width` bits of the bounds count. The range may wrap around: the low bits of negative integers are larger than
/// those of positive ones.
///
/// # Panics
/// If the width is not 1 to 64, or values do not lie in the bytes.
pub fn within(column: Bits<'_>, rows: usize, first: u64, last: u64) -> Vec<u64> {
    let span = last.wrapping_sub(first);
    if let Some(bytes) = column.whole_bytes() {
        match column.width {
            8 => return dispatch::within_u8(bytes, rows, first as u8, span as u8),
            16 => return dispatch::within_u16(bytes, rows, first as u16, span as u16),
            32 => return dispatch::within_u32(bytes, rows, first as u32, span as u32),
            64 => return dispatch::within_u64(bytes, rows, first, span),
            _ => {}
        }
    }
    let mask = mask(column.width);
    // Unpacked values have no bits beyond their width, so these of the range do not count either.
    let span = span & mask;
    let mut words = Vec::with_capacity(rows.div_ceil(WORD_ROWS));
    let mut values = [0_u64; UNPACKED_ROWS];
    for from in (0..rows).step_by(UNPACKED_ROWS) {
        let values = &mut values[..UNPACKED_ROWS.min(rows - from)];
        Native::unpack(column.at_row(from), 0, values);
        for values in values.chunks(WORD_ROWS) {
            let mut flags = [0_u8; WORD_ROWS];
            for (flag, value) in flags.iter_mut().zip(values) {
                *flag = (value.wrapping_sub(first) & mask <= span).into();
            }
            words.push(bits_of(&flags));
        }
    }
    words
}

/// A bit for each of the first `rows` bytes, set if its place in `passes` is; the last word ends with zeros.
///
/// # Panics
/// If there are fewer bytes.
pub fn one_of(bytes: &[u8], rows: usize, passes: &[bool; 256]) -> Vec<u64> {
    words!(bytes, rows, 1, |value| passes[usize::from(value[0])])
}

/// Does something with each word of bits; the last one ends with zeros. A macro for the reason of [`words`].
macro_rules! for_words {
    ($bytes:expr, $start:expr, $rows:expr, |$word:ident| $do:expr) => {{
        let (start, rows): (usize, usize) = ($start, $rows);
        let mut done = 0;
        if start.is_multiple_of(8) {
            let (words, _) = $bytes[start / 8..].as_chunks::<{ WORD_ROWS / 8 }>();
            for &word in words.iter().take(rows / WORD_ROWS) {
                let $word = u64::from_le_bytes(word);
                $do;
                done += WORD_ROWS;
            }
        }
        while done < rows {
            let $word = crate::value($bytes, start + done, (rows - done).min(WORD_ROWS) as u32);
            $do;
            done += WORD_ROWS;
        }
    }};
}

/// The rows of the first `rows` whose bit is set, the first one that at `start`.
///
/// # Panics
/// If the bits do not lie in `bytes`.
pub fn rows_of(bytes: &[u8], start: usize, rows: usize) -> Vec<u32> {
    dispatch::set_rows(bytes, start, rows)
}

/// The number of bits set, of the `rows` from `start` on.
///
/// # Panics
/// As [`rows_of`].
pub fn count_of(bytes: &[u8], start: usize, rows: usize) -> usize {
    dispatch::set_count(bytes, start, rows)
}

#[inline(always)]
pub(crate) fn set_rows(bytes: &[u8], start: usize, rows: usize) -> Vec<u32> {
    let mut set = vec![0; set_count(bytes, start, rows) + SET_AT_ONCE];
    let mut found = 0;
    let mut row = 0;
    for_words!(bytes, start, rows, |word| {
        let end = found + word.count_ones() as usize;
        let mut left = word;
        // Some more than are set: a CPU cannot foresee how many are set in the next word.
        while found < end {
            for place in &mut set[found..found + SET_AT_ONCE] {
                *place = row + left.trailing_zeros();
                left &= left.wrapping_sub(1);
            }
            found += SET_AT_ONCE;
        }
        found = end;
        row += WORD_ROWS as u32;
    });
    set.truncate(found);
    set
}

#[inline(always)]
pub(crate) fn set_count(bytes: &[u8], start: usize, rows: usize) -> usize {
    let mut count = 0;
    for_words!(bytes, start, rows, |word| count += word.count_ones() as usize);
    count
}

/// The bits of rows whose bytes pass a test.
///
/// A macro, and loops instead of `map` and `collect`: a closure of a function for certain CPUs is for these CPUs, and not inlined into
/// functions of the standard library, which are for any.
macro_rules! words {
    ($bytes:expr, $rows:expr, $size:literal, |$value:ident| $passes:expr) => {{
        const WORD_ROWS: usize = u64::BITS as usize;
        let rows: usize = $rows;
        let values = $crate::packed::values_of::<$size>($bytes, rows);
        let (blocks, rest) = values.as_chunks::<WORD_ROWS>();
        let mut words: Vec<u64> = Vec::with_capacity(rows.div_ceil(WORD_ROWS));
        for block in blocks {
            let mut flags = [0_u8; WORD_ROWS];
            for (flag, &$value) in flags.iter_mut().zip(block) {
                *flag = ($passes).into();
            }
            words.push($crate::ranges::bits_of(&flags));
        }
        if !rest.is_empty() {
            let mut flags = [0_u8; WORD_ROWS];
            for (flag, &$value) in flags.iter_mut().zip(rest) {
                *flag = ($passes).into();
            }
            words.push($crate::ranges::bits_of(&flags));
        }
        words
    }};
}
pub(crate) use words;

/// The bits of 64 bytes of 0 or 1.
#[inline(always)]
pub(crate) fn bits_of(flags: &[u8; WORD_ROWS]) -> u64 {
    let (bytes, _) = flags.as_chunks::<8>();
    let mut word = 0;
    for (index, &flags) in bytes.iter().enumerate() {
        // Byte i is moved to bit 56 + i, and no two bytes meet: the shifts are 56, 49, ..., 7.
        let bits = u64::from_le_bytes(flags).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        word |= bits << (8 * index);
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Packer;

    /// Numbers in no order (Weyl's sequence).
    fn numbers(count: usize) -> Vec<u64> {
        let mut number = 0_u64;
        let next = |_| {
            number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
            number ^ number >> 29
        };
        (0..count).map(next).collect()
    }

    fn packed(values: &[u64], width: u32) -> Vec<u8> {
        let mut packer = Packer::new(width, values.len());
        values.iter().for_each(|&value| packer.push(value));
        packer.finish()
    }

    fn set(words: &[u64]) -> Vec<usize> {
        (0..words.len() * 64).filter(|row| words[row / 64] >> (row % 64) & 1 == 1).collect()
    }

    #[test]
    fn the_rows_of_a_range_are_those_of_a_comparison() {
        for width in 1..=64_u32 {
            let most = u64::MAX >> (64 - width);
            // Few values, so that each bound is met.
            let values: Vec<u64> =
                numbers(700).iter().map(|number| (number % 7).wrapping_mul(most / 6) & most).collect();
            let bytes = packed(&values, width);
            let all = Bits { bytes: &bytes, start: 0, width };
            let step = most / 6;
            for (first, last) in [(0, 0), (0, most), (step, 3 * step), (most, most), (1.min(most), most)] {
                for (from, rows) in [(0, 700), (0, 64), (0, 0), (1, 63), (8, 129), (13, 600)] {
                    let found = within(all.at_row(from), rows, first, last);
                    assert_eq!(found.len(), rows.div_ceil(64));
                    let expected: Vec<usize> =
                        (0..rows).filter(|row| (first..=last).contains(&values[from + row])).collect();
                    assert_eq!(set(&found), expected, "{width} bits in {first}..={last}, {rows} from {from}");
                }
            }
        }
    }

    #[test]
    fn ranges_of_integers_with_sign_wrap_around() {
        let values: Vec<i16> = (-300..300).map(|value| value * 100).chain([i16::MIN, i16::MAX]).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let column = Bits { bytes: &bytes, start: 0, width: 16 };
        for (first, last) in [(-200, 300), (i16::MIN, -1), (i16::MIN, i16::MAX), (0, 0), (-1, 0)] {
            let found = within(column, values.len(), first as u64, last as u64);
            let expected: Vec<usize> =
                (0..values.len()).filter(|&row| (first..=last).contains(&values[row])).collect();
            assert_eq!(set(&found), expected, "{first}..={last}");
        }
    }

    #[test]
    fn bytes_of_a_set_are_found() {
        let bytes: Vec<u8> = numbers(700).iter().map(|&number| number as u8).collect();
        let passes: [bool; 256] = std::array::from_fn(|byte| byte % 3 == 1);
        for rows in [0, 1, 64, 700] {
            let expected: Vec<usize> = (0..rows).filter(|&row| bytes[row] % 3 == 1).collect();
            assert_eq!(set(&one_of(&bytes, rows, &passes)), expected);
        }
    }

    #[test]
    fn set_rows_are_found_from_each_bit_on() {
        let words = numbers(20);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for start in [0, 1, 7, 8, 63, 64, 100] {
            for rows in [0, 1, 63, 64, 65, 1000] {
                let is_set = |row: &usize| words[(start + row) / 64] >> ((start + row) % 64) & 1 == 1;
                let expected: Vec<u32> = (0..rows).filter(is_set).map(|row| row as u32).collect();
                assert_eq!(rows_of(&bytes, start, rows), expected, "{rows} rows from {start}");
                assert_eq!(set_rows(&bytes, start, rows), expected, "{rows} rows from {start}, on any CPU");
                assert_eq!(count_of(&bytes, start, rows), expected.len(), "{rows} rows from {start}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "values of 8 bytes")]
    fn values_beyond_the_end_are_refused() {
        within(Bits { bytes: &[0; 63], start: 0, width: 64 }, 8, 0, 1);
    }
}
