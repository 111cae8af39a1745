//! Bytes of dictionary-coded columns.

use super::ROWS;

/// A column of 32-bit integers: a sorted dictionary of its distinct values, and a vector of their positions in as few bits as
/// these need. An indexed column has for each value the rows that have it, too, again in as few bits.
///
/// The publication prints the sizes (section 5.1) and not the layout, which Psaroudakis et al. (2015) describe.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Layout {
    /// Different values.
    pub distinct: f64,
    /// Whether it has an index.
    pub is_indexed: bool,
}

const VALUE_BYTES: f64 = 4.0;

impl Layout {
    /// C0: a primary key with an index.
    pub const KEY: Layout = Layout { distinct: ROWS as f64, is_indexed: true };

    /// C1 to C6: as many random numbers as there are values, of which 1 - 1/e occur.
    pub const VALUE: Layout =
        Layout { distinct: ROWS as f64 * (1.0 - 1.0 / std::f64::consts::E), is_indexed: false };

    /// Bytes of the vector of positions: a scan reads these.
    pub fn vector_bytes(self) -> f64 {
        ROWS as f64 * self.distinct.log2().ceil() / 8.0
    }

    /// Bytes of the dictionary.
    pub fn dictionary_bytes(self) -> f64 {
        self.distinct * VALUE_BYTES
    }

    /// Bytes of the index.
    pub fn index_bytes(self) -> f64 {
        if self.is_indexed { ROWS as f64 * (ROWS as f64).log2().ceil() / 8.0 } else { 0.0 }
    }

    /// Bytes of everything.
    pub fn bytes(self) -> f64 {
        self.vector_bytes() + self.dictionary_bytes() + self.index_bytes()
    }
}
