//! Packing and unpacking of bits: value `i` has the bits from `i * width` on, the least significant bit first, as in Arrow's
//! booleans.
//!
//! Eight values of `W` bits are `W` whole bytes, so that position and shift of each of the eight are constants of the
//! compiler: a load of 8 bytes, a shift and a mask. This holds up to 57 bits, where a value and a shift of 7 fill the 8 bytes.

use crate::Bits;
use crate::dispatch::load_ahead;

/// The widest value that lies in 8 bytes whatever its shift.
const WORD_WIDTH_MAX: u32 = 57;

/// The values of a column: integers, as many of their low bits as they have.
///
/// The functions are those of a type and not generic, so that they are compiled here.
pub trait Native: Copy + Default {
    /// Fills `target` with `reference` plus the first values of `column`.
    ///
    /// # Panics
    /// If the width is not 1 to 64, or values do not lie in the bytes.
    fn unpack(column: Bits<'_>, reference: i64, target: &mut [Self]);

    /// `reference` plus the first `rows` values of `column`.
    ///
    /// # Panics
    /// As [`unpack`](Native::unpack).
    fn unpacked(column: Bits<'_>, rows: usize, reference: i64) -> Vec<Self>;

    /// `reference` plus the values of `rows`.
    ///
    /// # Panics
    /// As [`unpack`](Native::unpack).
    fn unpack_rows(column: Bits<'_>, reference: i64, rows: &[u32]) -> Vec<Self>;
}

macro_rules! native {
    ($($native:ty)*) => {
        $(impl Native for $native {
            fn unpack(column: Bits<'_>, reference: i64, target: &mut [Self]) {
                unpack(column, target, |value| (reference as $native).wrapping_add(value as $native));
            }

            fn unpacked(column: Bits<'_>, rows: usize, reference: i64) -> Vec<Self> {
                unpacked(column, rows, |value| (reference as $native).wrapping_add(value as $native))
            }

            fn unpack_rows(column: Bits<'_>, reference: i64, rows: &[u32]) -> Vec<Self> {
                unpack_rows(column, rows, |value| (reference as $native).wrapping_add(value as $native))
            }
        })*
    };
}

native!(u8 u16 u32 u64 i128);

/// Selected rows whose values are loaded ahead. If few rows are selected, each is in a cache line of its own, and a CPU begins too few
/// loads by itself: without loading ahead it took 1.8 times as long on an AMD EPYC of family 26, and 1.15 times on one of family 25. There, 8
/// to 256 rows were equally fast.
const ROWS_AHEAD: usize = 32;

/// The low `width` bits set; 1 to 64.
pub(crate) fn mask(width: u32) -> u64 {
    u64::MAX >> (64 - width)
}

/// Appends values of `width` bits to the bits of others.
///
/// ```
/// let mut packer = memferry_kernels::Packer::new(3, 4);
/// [3, 0, 7, 1].into_iter().for_each(|value| packer.push(value));
/// assert_eq!(packer.finish(), [0b11_000_011, 0b11]);
/// ```
#[derive(Debug)]
pub struct Packer {
    bytes: Vec<u8>,
    width: u32,
    /// Bits that are not in `bytes` yet, fewer than 64 of them.
    rest: u128,
    rest_bits: u32,
}

impl Packer {
    /// A packer of about `rows` values of `width` bits, 1 to 64.
    pub fn new(width: u32, rows: usize) -> Packer {
        let bytes = Vec::with_capacity((rows * width as usize).div_ceil(8) + size_of::<u64>());
        Packer { bytes, width, rest: 0, rest_bits: 0 }
    }

    /// Appends a value, which has no bit beyond the width.
    #[inline]
    pub fn push(&mut self, value: u64) {
        debug_assert_eq!(value & !mask(self.width), 0, "wider than {} bits", self.width);
        self.rest |= u128::from(value) << self.rest_bits;
        self.rest_bits += self.width;
        if self.rest_bits >= u64::BITS {
            self.bytes.extend_from_slice(&(self.rest as u64).to_le_bytes());
            self.rest >>= u64::BITS;
            self.rest_bits -= u64::BITS;
        }
    }

    /// The bits, the last byte filled up with zeros.
    pub fn finish(mut self) -> Vec<u8> {
        let bytes = self.rest_bits.div_ceil(8) as usize;
        self.bytes.extend_from_slice(&self.rest.to_le_bytes()[..bytes]);
        self.bytes
    }
}

/// The value whose `width` bits begin at bit `start`.
///
/// # Panics
/// If they do not lie in `bytes`.
#[inline]
pub fn value(bytes: &[u8], start: usize, width: u32) -> u64 {
    let from = &bytes[start / 8..];
    let word = match from.first_chunk() {
        Some(&word) => u128::from_le_bytes(word),
        None => {
            let mut word = [0; size_of::<u128>()];
            word[..from.len()].copy_from_slice(from);
            assert!(
                start % 8 + width as usize <= from.len() * 8,
                "{width} bits from {start} of {}",
                bytes.len()
            );
            u128::from_le_bytes(word)
        }
    };
    (word >> (start % 8)) as u64 & mask(width)
}

/// What `of` makes of the first `rows` values.
#[inline(always)]
fn unpacked<T: Copy + Default>(column: Bits<'_>, rows: usize, of: impl Fn(u64) -> T + Copy) -> Vec<T> {
    // Not by `unpack`, so that the vector is written once.
    if let Some(bytes) = column.whole_bytes() {
        match column.width {
            8 => return values_of(bytes, rows).iter().map(|&[byte]| of(byte.into())).collect(),
            16 => {
                let values = values_of(bytes, rows).iter();
                return values.map(|&bytes| of(u16::from_le_bytes(bytes).into())).collect();
            }
            32 => {
                let values = values_of(bytes, rows).iter();
                return values.map(|&bytes| of(u32::from_le_bytes(bytes).into())).collect();
            }
            64 => return values_of(bytes, rows).iter().map(|&bytes| of(u64::from_le_bytes(bytes))).collect(),
            _ => {}
        }
    }
    let mut target = vec![T::default(); rows];
    unpack(column, &mut target, of);
    target
}

/// The first `rows` values of `N` whole bytes.
#[inline(always)]
pub(crate) fn values_of<const N: usize>(bytes: &[u8], rows: usize) -> &[[u8; N]] {
    let (values, _) = bytes.as_chunks::<N>();
    assert!(values.len() >= rows, "{rows} values of {N} bytes in {}", bytes.len());
    &values[..rows]
}

/// Fills `target` with what `of` makes of the values.
#[inline(always)]
fn unpack<T>(column: Bits<'_>, target: &mut [T], of: impl Fn(u64) -> T + Copy) {
    assert!((1..=u64::BITS).contains(&column.width), "{} bits", column.width);
    let one = |row: usize| {
        let Bits { bytes, start, width } = column.at_row(row);
        of(value(bytes, start, width))
    };
    let mut done = 0;
    // Arrays of tables begin at a byte; slices of them as soon as their row is a multiple of 8.
    while done < target.len() && done < 8 && column.at_row(done).whole_bytes().is_none() {
        target[done] = one(done);
        done += 1;
    }
    if column.width <= WORD_WIDTH_MAX
        && let Some(bytes) = column.at_row(done).whole_bytes()
    {
        done += blocks_of(column.width, bytes, &mut target[done..], of);
    }
    for (row, target) in target.iter_mut().enumerate().skip(done) {
        *target = one(row);
    }
}

#[inline(always)]
fn unpack_rows<T>(column: Bits<'_>, rows: &[u32], of: impl Fn(u64) -> T) -> Vec<T> {
    assert!((1..=u64::BITS).contains(&column.width), "{} bits", column.width);
    if let Some(bytes) = column.whole_bytes() {
        match column.width {
            8 => return rows_of_bytes(bytes, rows, |[byte]| of(byte.into())),
            16 => return rows_of_bytes(bytes, rows, |bytes| of(u16::from_le_bytes(bytes).into())),
            32 => return rows_of_bytes(bytes, rows, |bytes| of(u32::from_le_bytes(bytes).into())),
            64 => return rows_of_bytes(bytes, rows, |bytes| of(u64::from_le_bytes(bytes))),
            _ => {}
        }
    }
    let one = |&row: &u32| {
        let Bits { bytes, start, width } = column.at_row(row as usize);
        of(value(bytes, start, width))
    };
    rows.iter().map(one).collect()
}

#[inline(always)]
fn rows_of_bytes<T, const N: usize>(bytes: &[u8], rows: &[u32], of: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (values, _) = bytes.as_chunks::<N>();
    let mut found = Vec::with_capacity(rows.len());
    for (index, &row) in rows.iter().enumerate() {
        if let Some(ahead) = rows.get(index + ROWS_AHEAD).and_then(|&row| values.get(row as usize)) {
            load_ahead(ahead);
        }
        found.push(of(values[row as usize]));
    }
    found
}

/// Unpacks whole blocks of eight values as long as a load of 8 bytes stays within `bytes`; returns the number of values.
#[inline(always)]
fn blocks_of<T>(width: u32, bytes: &[u8], target: &mut [T], of: impl Fn(u64) -> T) -> usize {
    macro_rules! by_width {
        ($($width:literal)*) => {
            match width {
                $($width => blocks::<T, $width>(bytes, target, of),)*
                _ => 0,
            }
        };
    }
    by_width!(
        1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42
        43 44 45 46 47 48 49 50 51 52 53 54 55 56 57
    )
}

#[inline]
fn blocks<T, const W: usize>(bytes: &[u8], target: &mut [T], of: impl Fn(u64) -> T) -> usize {
    let mask = mask(W as u32);
    let mut done = 0;
    for (block, target) in target.chunks_exact_mut(8).enumerate() {
        let start = block * W;
        let Some(window) = bytes.get(start..start + W + size_of::<u64>()) else { break };
        for (index, target) in target.iter_mut().enumerate() {
            let (byte, shift) = (index * W / 8, index * W % 8);
            let word = window[byte..].first_chunk().expect("the last value ends in the window");
            *target = of(u64::from_le_bytes(*word) >> shift & mask);
        }
        done += 8;
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that use all bits of a width, in no order (Weyl's sequence).
    fn values(width: u32, rows: usize) -> Vec<u64> {
        let step = 0x9e37_79b9_7f4a_7c15_u64;
        (1..=rows as u64).map(|row| row.wrapping_mul(step) >> (64 - width)).collect()
    }

    fn packed(values: &[u64], width: u32) -> Vec<u8> {
        let mut packer = Packer::new(width, values.len());
        values.iter().for_each(|&value| packer.push(value));
        packer.finish()
    }

    #[test]
    fn values_of_each_width_come_back_from_each_row_on() {
        for width in 1..=64 {
            let all = values(width, 200);
            let bytes = packed(&all, width);
            assert_eq!(bytes.len(), (200 * width as usize).div_ceil(8), "no byte is wasted");
            let column = Bits { bytes: &bytes, start: 0, width };
            for start in (0..24).chain(190..=200) {
                let mut target = vec![0_u64; 200 - start];
                Native::unpack(column.at_row(start), 7, &mut target);
                assert_eq!(u64::unpacked(column.at_row(start), 200 - start, 7), target);
                let expected: Vec<u64> = all[start..].iter().map(|value| value.wrapping_add(7)).collect();
                assert_eq!(target, expected, "{width} bits from row {start}");
            }
            let rows: Vec<u32> = (0..200).step_by(7).collect();
            let expected: Vec<u64> = rows.iter().map(|&row| all[row as usize].wrapping_sub(3)).collect();
            assert_eq!(u64::unpack_rows(column, -3, &rows), expected, "some rows of {width} bits");
        }
    }

    #[test]
    fn bits_that_begin_within_a_byte_come_back() {
        for (width, shift) in [(8, 1), (16, 3), (24, 7), (5, 2), (57, 7), (64, 5)] {
            let all = values(width, 100);
            // One bit more in front for each bit of the shift.
            let mut packer = Packer::new(1, shift + 6400);
            (0..shift).for_each(|_| packer.push(1));
            all.iter().for_each(|&value| (0..width).for_each(|bit| packer.push(value >> bit & 1)));
            let bytes = packer.finish();
            let mut target = vec![0_u64; 100];
            let column = Bits { bytes: &bytes, start: shift, width };
            Native::unpack(column, 0, &mut target);
            assert_eq!(target, all, "{width} bits from bit {shift}");
            assert_eq!(u64::unpack_rows(column, 0, &[99, 0]), [all[99], all[0]]);
        }
    }

    #[test]
    fn narrow_types_keep_their_low_bits() {
        let bytes = packed(&[0, 1, 255, 4, 5, 6, 7, 8, 9, 200], 8);
        let mut target = [0_u8; 10];
        Native::unpack(Bits { bytes: &bytes, start: 0, width: 8 }, -100, &mut target);
        assert_eq!(target.map(|value| value as i8)[..4], [-100, -99, (255_i32 - 100) as i8, -96]);
    }

    #[test]
    fn decimals_keep_sign_and_size() {
        let all = [0, 1, u64::MAX, 1 << 63];
        let bytes = packed(&all, 64);
        let mut target = [0_i128; 4];
        Native::unpack(Bits { bytes: &bytes, start: 0, width: 64 }, i64::MIN, &mut target);
        assert_eq!(target, all.map(|value| i128::from(i64::MIN) + i128::from(value)));
        let column = Bits { bytes: &[1, 0, 255], start: 0, width: 8 };
        assert_eq!(i128::unpacked(column, 3, -1), [0, -1, 254]);
        assert_eq!(i128::unpack_rows(column, -1, &[2, 1]), [254, -1]);
    }

    #[test]
    #[should_panic(expected = "values of 4 bytes")]
    fn whole_bytes_beyond_the_end_are_refused() {
        u64::unpacked(Bits { bytes: &[0; 11], start: 0, width: 32 }, 3, 0);
    }

    #[test]
    #[should_panic(expected = "bits from")]
    fn bits_beyond_the_end_are_refused() {
        value(&[1, 2, 3], 17, 8);
    }
}
