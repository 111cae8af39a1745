//! Packing and unpacking of bits: value `i` has the bits from `i * width` on, the least significant bit first, as in Arrow's
//! booleans.
//!
//! Eight values of `W` bits are `W` whole bytes, so that position and shift of each of the eight are constants of the
//! compiler: a load of 8 bytes, a shift and a mask. This holds up to 57 bits, where a value and a shift of 7 fill the 8 bytes.

/// The widest value that lies in 8 bytes whatever its shift.
const WORD_WIDTH_MAX: u32 = 57;

/// A value of a column, as bits without sign.
pub(super) trait Native: Copy + Default {
    /// The low bits.
    fn truncated(bits: u64) -> Self;
}

impl Native for u8 {
    #[inline(always)]
    fn truncated(bits: u64) -> u8 {
        bits as u8
    }
}

impl Native for u16 {
    #[inline(always)]
    fn truncated(bits: u64) -> u16 {
        bits as u16
    }
}

impl Native for u32 {
    #[inline(always)]
    fn truncated(bits: u64) -> u32 {
        bits as u32
    }
}

impl Native for u64 {
    #[inline(always)]
    fn truncated(bits: u64) -> u64 {
        bits
    }
}

/// The low `width` bits set; 1 to 64.
fn mask(width: u32) -> u64 {
    u64::MAX >> (64 - width)
}

/// Appends values of `width` bits to the bits of others.
pub(super) struct Packer {
    bytes: Vec<u8>,
    width: u32,
    /// Bits that are not in `bytes` yet, fewer than 64 of them.
    rest: u128,
    rest_bits: u32,
}

impl Packer {
    pub(super) fn new(width: u32, rows: usize) -> Packer {
        let bytes = Vec::with_capacity((rows * width as usize).div_ceil(8) + size_of::<u64>());
        Packer { bytes, width, rest: 0, rest_bits: 0 }
    }

    /// Shapes: `value` has no bit beyond the width.
    #[inline]
    pub(super) fn push(&mut self, value: u64) {
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
    pub(super) fn finish(mut self) -> Vec<u8> {
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
pub(super) fn value(bytes: &[u8], start: usize, width: u32) -> u64 {
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

/// Fills `target` with `reference` plus the values from bit `start` on.
///
/// # Panics
/// If the width is not 1 to 64, or values do not lie in `bytes`.
pub(super) fn unpack<T: Native>(bytes: &[u8], start: usize, width: u32, reference: u64, target: &mut [T]) {
    assert!((1..=u64::BITS).contains(&width), "{width} bits");
    let at = |row: usize| start + row * width as usize;
    let one = |row: usize| T::truncated(reference.wrapping_add(value(bytes, at(row), width)));
    let mut done = 0;
    // Arrays of tables begin at a byte; slices of them as soon as their row is a multiple of 8.
    while done < target.len() && done < 8 && at(done) % 8 != 0 {
        target[done] = one(done);
        done += 1;
    }
    if width <= WORD_WIDTH_MAX && at(done) % 8 == 0 {
        done +=
            blocks_of(width, bytes.get(at(done) / 8..).unwrap_or_default(), reference, &mut target[done..]);
    }
    for (row, target) in target.iter_mut().enumerate().skip(done) {
        *target = one(row);
    }
}

/// Unpacks whole blocks of eight values as long as a load of 8 bytes stays within `bytes`; returns the number of values.
fn blocks_of<T: Native>(width: u32, bytes: &[u8], reference: u64, target: &mut [T]) -> usize {
    macro_rules! by_width {
        ($($width:literal)*) => {
            match width {
                $($width => blocks::<T, $width>(bytes, reference, target),)*
                _ => 0,
            }
        };
    }
    by_width!(
        1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42
        43 44 45 46 47 48 49 50 51 52 53 54 55 56 57
    )
}

fn blocks<T: Native, const W: usize>(bytes: &[u8], reference: u64, target: &mut [T]) -> usize {
    let mask = mask(W as u32);
    let mut done = 0;
    for (block, target) in target.chunks_exact_mut(8).enumerate() {
        let start = block * W;
        let Some(window) = bytes.get(start..start + W + size_of::<u64>()) else { break };
        for (index, target) in target.iter_mut().enumerate() {
            let (byte, shift) = (index * W / 8, index * W % 8);
            let word = window[byte..].first_chunk().expect("the last value ends in the window");
            let value = u64::from_le_bytes(*word) >> shift & mask;
            *target = T::truncated(reference.wrapping_add(value));
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
            for start in (0..24).chain(190..=200) {
                let mut target = vec![0_u64; 200 - start];
                unpack(&bytes, start * width as usize, width, 7, &mut target);
                let expected: Vec<u64> = all[start..].iter().map(|value| value.wrapping_add(7)).collect();
                assert_eq!(target, expected, "{width} bits from row {start}");
            }
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
            unpack(&bytes, shift, width, 0, &mut target);
            assert_eq!(target, all, "{width} bits from bit {shift}");
        }
    }

    #[test]
    fn narrow_types_keep_their_low_bits() {
        let bytes = packed(&[0, 1, 255, 4, 5, 6, 7, 8, 9, 200], 8);
        let mut target = [0_u8; 10];
        unpack(&bytes, 0, 8, (-100_i64) as u64, &mut target);
        assert_eq!(target.map(|value| value as i8)[..4], [-100, -99, (255_i32 - 100) as i8, -96]);
    }

    #[test]
    #[should_panic(expected = "bits from")]
    fn bits_beyond_the_end_are_refused() {
        value(&[1, 2, 3], 17, 8);
    }
}
