//! Loops over the values of columns: packing and unpacking of bits, comparisons with a range.
//!
//! They work on bytes, know nothing of Arrow or DataFusion, and are a crate of their own because the development build compiles
//! them at level 3, and crates that call DataFusion at level 1.
//!
//! A column of values of `width` bits is a string of bits, the least significant bit of a value first. Integers of 8, 16, 32
//! and 64 bits in memory are such a column, too.
//!
//! ```
//! use memferry_kernels::{Bits, Native, Packer, within};
//!
//! let mut packer = Packer::new(3, 4);
//! [3, 0, 7, 1].into_iter().for_each(|value| packer.push(value));
//! let bytes = packer.finish();
//!
//! let column = Bits { bytes: &bytes, start: 0, width: 3 };
//! let mut values = [0_u64; 4];
//! Native::unpack(column, 100, &mut values);
//! assert_eq!(values, [103, 100, 107, 101]);
//! assert_eq!(within(column, 4, 1, 3), [0b1001]);
//! ```
//!
//! Source: D. Lemire, L. Boytsov, Decoding billions of integers per second through vectorization, 2015 (frame of
//! reference).
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod dispatch;
mod packed;
mod ranges;

pub use packed::{Native, Packer, value};
pub use ranges::{count_of, one_of, rows_of, within};

/// A column of values of `width` bits each.
#[derive(Clone, Copy, Debug)]
pub struct Bits<'a> {
    /// The bits, those of lower value first.
    pub bytes: &'a [u8],
    /// The bit at which the first value begins.
    pub start: usize,
    /// Bits of a value, 1 to 64.
    pub width: u32,
}

impl<'a> Bits<'a> {
    /// The bytes from the first value on, if it begins with one.
    fn whole_bytes(self) -> Option<&'a [u8]> {
        self.start.is_multiple_of(8).then(|| self.bytes.get(self.start / 8..).unwrap_or_default())
    }

    /// The column from a row on.
    fn at_row(self, row: usize) -> Bits<'a> {
        Bits { start: self.start + row * self.width as usize, ..self }
    }
}
