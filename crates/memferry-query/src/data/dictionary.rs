//! Dictionaries: columns with few different values keep each value once, and one byte a row.
//!
//! ```text
//! values   AIR  FOB  MAIL  SHIP        in ascending order, each once
//! keys     2    0    0     3    ...    one byte a row: its place among the values
//! ```
//!
//! Each row group has its own dictionary, chosen when the row group is cut. A filter is evaluated for the values, not for the
//! rows: [`passing`] compares keys with the places of the values that pass. Values in order often make these one range.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, UInt8Array, UInt32Array, UInt64Array};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::{interleave, sort_to_indices, take};
use arrow::datatypes::{DataType, Decimal128Type, ToByteSlice, UInt8Type};
use memferry_kernels::{Bits, one_of, within};

use crate::packed::bits_of;

/// Most values of a dictionary: as many as keys of a byte can tell apart.
const VALUES_MAX: usize = 256;
/// Row groups with fewer rows have none: the column then is smaller than the pages that a scan reads of it.
pub(super) const ROWS_MIN: usize = 4096;
/// Slots of the table that finds the key of a value; a power of two, four times [`VALUES_MAX`] so that few values collide.
const SLOTS: usize = 1024;

/// Whether columns of this type may be kept as dictionaries: those whose values have 16 bytes in memory.
pub(super) fn supports(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8View | DataType::Decimal128(..))
}

/// Bytes of a value that is not in a dictionary: those of a view, and of a decimal.
pub(super) const VALUE_BYTES: usize = 16;

/// The type of a dictionary of values of this type.
pub(super) fn data_type(values: &DataType) -> DataType {
    DataType::Dictionary(Box::new(DataType::UInt8), Box::new(values.clone()))
}

/// `pieces`, one after the other, as a dictionary; `None` if they have many values, or few rows.
///
/// Cost: one pass, which ends at the value that is one too many.
pub(super) fn encode(pieces: &[ArrayRef]) -> Option<ArrayRef> {
    let rows = pieces.iter().map(|piece| piece.len()).sum();
    let first = pieces.first()?;
    if rows < ROWS_MIN || !supports(first.data_type()) {
        return None;
    }
    let mut drafted = Drafted::new(rows);
    for (index, piece) in pieces.iter().enumerate() {
        match piece.data_type() {
            DataType::Decimal128(..) => {
                let values = piece.as_primitive::<Decimal128Type>().values();
                for (row, value) in values.iter().enumerate() {
                    let value = piece.is_valid(row).then(|| value.to_byte_slice());
                    drafted.push(value, (index, row))?;
                }
            }
            _ => {
                let views = piece.as_string_view();
                for row in 0..piece.len() {
                    let value = piece.is_valid(row).then(|| views.value(row).as_bytes());
                    drafted.push(value, (index, row))?;
                }
            }
        }
    }
    drafted.finish(pieces)
}

/// The values of a dictionary's rows.
///
/// # Panics
/// If `array` is not a dictionary with keys of a byte.
pub(crate) fn decode(array: &ArrayRef) -> ArrayRef {
    let dictionary = array.as_dictionary::<UInt8Type>();
    values_of(dictionary.values(), dictionary.keys())
}

/// The values at the places `keys`.
pub(crate) fn values_of(values: &ArrayRef, keys: &dyn Array) -> ArrayRef {
    take(values, keys, None).expect("each key is the place of a value")
}

/// The rows whose key's value passes, given that of each value, and whether a null passes.
pub(crate) fn passing(keys: &UInt8Array, values: &BooleanBuffer, null_passes: bool) -> BooleanBuffer {
    let rows = keys.len();
    let mut ranges = values.set_slices();
    let words = match (ranges.next(), ranges.next()) {
        (None, _) => return nulls_too(keys, BooleanBuffer::new_unset(rows), null_passes),
        (Some((start, end)), None) => {
            let bits = Bits { bytes: keys.values().inner(), start: 0, width: u8::BITS };
            within(bits, rows, start as u64, end as u64 - 1)
        }
        _ => {
            let passes = std::array::from_fn(|key| key < values.len() && values.value(key));
            one_of(keys.values().inner(), rows, &passes)
        }
    };
    let passed = bits_of(words, rows);
    match keys.nulls() {
        // The key of a null may be any.
        Some(nulls) => nulls_too(keys, &passed & nulls.inner(), null_passes),
        None => passed,
    }
}

fn nulls_too(keys: &UInt8Array, passed: BooleanBuffer, null_passes: bool) -> BooleanBuffer {
    match keys.nulls() {
        Some(nulls) if null_passes => &passed | &!nulls.inner(),
        _ => passed,
    }
}

/// Keys in the order in which their values came first, and where these are.
struct Drafted<'a> {
    keys: Vec<u8>,
    valid: Vec<bool>,
    has_nulls: bool,
    values: Vec<&'a [u8]>,
    /// The piece and the row of each value.
    places: Vec<(usize, usize)>,
    /// One more than the key of the value that belongs here; 0: none.
    slots: Vec<u16>,
}

impl<'a> Drafted<'a> {
    fn new(rows: usize) -> Drafted<'a> {
        Drafted {
            keys: Vec::with_capacity(rows),
            valid: Vec::with_capacity(rows),
            has_nulls: false,
            values: Vec::new(),
            places: Vec::new(),
            slots: vec![0; SLOTS],
        }
    }

    /// `None`: one value too many.
    fn push(&mut self, value: Option<&'a [u8]>, place: (usize, usize)) -> Option<()> {
        let Some(value) = value else {
            self.has_nulls = true;
            self.keys.push(0);
            self.valid.push(false);
            return Some(());
        };
        let mut slot = hash(value) % SLOTS;
        let key = loop {
            let key = usize::from(self.slots[slot]);
            if key == 0 {
                if self.values.len() == VALUES_MAX {
                    return None;
                }
                self.values.push(value);
                self.places.push(place);
                self.slots[slot] = self.values.len() as u16;
                break self.values.len() - 1;
            }
            if self.values[key - 1] == value {
                break key - 1;
            }
            slot = (slot + 1) % SLOTS;
        };
        self.keys.push(key as u8);
        self.valid.push(true);
        Some(())
    }

    /// The dictionary, its values in order; `None` without any.
    fn finish(mut self, pieces: &[ArrayRef]) -> Option<ArrayRef> {
        if self.values.is_empty() {
            return None;
        }
        let arrays: Vec<&dyn Array> = pieces.iter().map(|piece| piece.as_ref()).collect();
        let values = interleave(&arrays, &self.places).expect("the places are rows of the pieces");
        let order: UInt32Array =
            sort_to_indices(&values, None, None).expect("strings and decimals have an order");
        let mut rank = [0_u8; VALUES_MAX];
        for (place, &key) in order.values().iter().enumerate() {
            rank[key as usize] = place as u8;
        }
        for key in &mut self.keys {
            *key = rank[usize::from(*key)];
        }
        let order: UInt64Array = order.values().iter().map(|&key| u64::from(key)).collect();
        let values = values_of(&values, &order);
        let nulls = self.has_nulls.then(|| NullBuffer::from(self.valid));
        let keys = UInt8Array::new(self.keys.into(), nulls);
        Some(Arc::new(DictionaryArray::new(keys, values)))
    }
}

/// Mixes the words of a value by multiplication; values that differ in one word land in different slots mostly.
fn hash(value: &[u8]) -> usize {
    // 2^64 divided by the golden ratio (Knuth, volume 3, section 6.4).
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = value.len() as u64;
    for word in value.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        hash = (hash ^ u64::from_le_bytes(bytes)).wrapping_mul(GOLDEN);
        hash ^= hash >> 32;
    }
    hash as usize
}

#[cfg(test)]
mod tests {
    use arrow::array::{Decimal128Array, StringViewArray};

    use super::*;

    /// Numbers without order (Weyl's sequence).
    fn number(row: usize) -> usize {
        (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 20
    }

    /// Strings of 0 to 40 bytes, of which some begin alike.
    fn text(number: usize) -> String {
        format!("{}{}", "prefix of ten".repeat(number % 3), "x".repeat(number % 5)) + &number.to_string()
    }

    fn strings(values: usize, with_nulls: bool) -> ArrayRef {
        let value = |row| (!with_nulls || row % 7 != 0).then(|| text(number(row) % values));
        Arc::new((0..10_000).map(value).collect::<StringViewArray>())
    }

    fn decimals(values: usize, with_nulls: bool) -> ArrayRef {
        let value = |row| {
            (!with_nulls || row % 7 != 0)
                .then(|| (number(row) % values) as i128 * (1_i128 << 70) - (1_i128 << 73))
        };
        Arc::new((0..10_000).map(value).collect::<Decimal128Array>())
    }

    #[test]
    fn values_come_back_in_pieces_of_any_length() {
        for array in [strings, decimals]
            .iter()
            .flat_map(|of| [of(1, false), of(3, true), of(256, true), of(256, false)])
        {
            for cut in [0, 1, 4097, 9_999] {
                let pieces = [array.slice(0, cut), array.slice(cut, 10_000 - cut)];
                let encoded = encode(&pieces).unwrap();
                assert_eq!(encoded.data_type(), &data_type(array.data_type()));
                assert_eq!(&decode(&encoded), &array);
                assert_eq!(
                    &decode(&encoded.slice(cut, 1.min(10_000 - cut))),
                    &array.slice(cut, 1.min(10_000 - cut))
                );
                let values = encoded.as_any_dictionary().values();
                let order = sort_to_indices(values, None, None).unwrap();
                assert!(order.values().is_sorted(), "the values ascend");
            }
        }
    }

    #[test]
    fn many_values_few_rows_and_other_types_have_none() {
        for array in [strings(257, false), decimals(257, true), strings(3, false).slice(0, ROWS_MIN - 1)] {
            assert!(encode(&[array]).is_none());
        }
        assert!(encode(&[Arc::new(StringViewArray::new_null(10_000)) as ArrayRef]).is_none());
        assert!(encode(&[Arc::new(UInt8Array::from(vec![1; 10_000])) as ArrayRef]).is_none());
    }

    #[test]
    fn rows_pass_as_their_values_do() {
        for with_nulls in [false, true] {
            let encoded = encode(&[strings(200, with_nulls)]).unwrap();
            let dictionary = encoded.as_dictionary::<UInt8Type>();
            let sliced = dictionary.keys().slice(33, 5_000);
            let choices: [fn(usize) -> bool; 7] = [
                |_| false,
                |_| true,
                |key| key == 0,
                |key| key == 199,
                |key| key < 70,
                |key| (20..30).contains(&key) || key > 190,
                |key| key % 3 == 0,
            ];
            for chosen in choices {
                let passes = BooleanBuffer::collect_bool(200, chosen);
                for null_passes in [false, true] {
                    let expected: BooleanBuffer = sliced
                        .iter()
                        .map(|key| key.map_or(null_passes, |key| chosen(usize::from(key))))
                        .collect();
                    assert_eq!(passing(&sliced, &passes, null_passes), expected);
                }
            }
        }
    }
}
