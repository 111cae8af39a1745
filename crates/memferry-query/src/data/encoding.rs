//! The ways in which a column of a row group is kept other than as its values are.

use std::cell::OnceCell;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, make_array};
use arrow::buffer::{BooleanBuffer, Buffer};
use arrow::compute::FilterPredicate;
use arrow::datatypes::{Field, FieldRef, UInt8Type};
use arrow::error::ArrowError;
use memferry_kernels::{Bits, Native, rows_of};

use super::dictionary;
use crate::packed::BitPacked;
use crate::scan::predicate_of;

/// Of a packed column, the rows that passed are unpacked one by one if they are at most one of so many; the whole run is
/// unpacked otherwise, several rows at a time.
const ROWS_PER_SELECTED_MIN: usize = 8;
/// The same if values are whole bytes: a row is then a load, as it is for a filter of the values.
const ROWS_PER_SELECTED_OF_BYTES_MIN: usize = 2;

/// The rows of a run that passed, in the forms in which columns are asked for them.
pub(crate) struct Selected<'a> {
    mask: &'a BooleanBuffer,
    count: usize,
    filter: OnceCell<FilterPredicate>,
    rows: OnceCell<Vec<u32>>,
}

impl<'a> Selected<'a> {
    /// Those whose bit is set: `count` of them.
    pub(crate) fn new(mask: &'a BooleanBuffer, count: usize) -> Selected<'a> {
        Selected { mask, count, filter: OnceCell::new(), rows: OnceCell::new() }
    }

    /// The values of a column of the run in these rows.
    ///
    /// # Errors
    /// Those of a filter that does not fit the array.
    pub(crate) fn of(&self, array: &ArrayRef, encoding: Option<&Encoding>) -> Result<ArrayRef, ArrowError> {
        match encoding {
            Some(encoding) => encoding.decode_selected(array, self),
            // Where most rows passed, a filter copies many at once.
            None if self.count <= array.len() / 2 => match of_rows(array, || self.rows()) {
                Some(values) => Ok(values),
                None => self.filter().filter(array),
            },
            None => self.filter().filter(array),
        }
    }

    /// In ascending order.
    fn rows(&self) -> &[u32] {
        self.rows.get_or_init(|| rows_of(self.mask.values(), self.mask.offset(), self.mask.len()))
    }

    fn filter(&self) -> &FilterPredicate {
        self.filter.get_or_init(|| predicate_of(self.mask))
    }
}

/// The values of a column of integers or floats in some rows; `None` for other types.
fn of_rows<'a>(array: &ArrayRef, rows: impl FnOnce() -> &'a [u32]) -> Option<ArrayRef> {
    let size_bytes = array.data_type().primitive_width().filter(|&bytes| bytes <= size_of::<u64>())?;
    let (data, rows) = (array.to_data(), rows());
    let bits = Bits {
        bytes: data.buffers()[0].as_slice(),
        start: 8 * size_bytes * data.offset(),
        width: 8 * size_bytes as u32,
    };
    let values = match size_bytes {
        1 => Buffer::from_vec(u8::unpack_rows(bits, 0, rows)),
        2 => Buffer::from_vec(u16::unpack_rows(bits, 0, rows)),
        4 => Buffer::from_vec(u32::unpack_rows(bits, 0, rows)),
        8 => Buffer::from_vec(u64::unpack_rows(bits, 0, rows)),
        _ => return None,
    };
    let nulls = array.nulls().map(|nulls| rows.iter().map(|&row| nulls.is_valid(row as usize)).collect());
    let builder = ArrayData::builder(array.data_type().clone()).len(rows.len()).nulls(nulls);
    let data = builder.add_buffer(values).build();
    Some(make_array(data.expect("there is a value and a bit of validity for each row")))
}

/// How the values of a column are in memory.
#[derive(Clone, Debug)]
pub(crate) enum Encoding {
    /// In as many bits as they need, because the user says so.
    Packed(BitPacked),
    /// In as few bytes as they need.
    Narrow(BitPacked),
    /// Each once, and a key of a byte for each row.
    Dictionary,
}

impl Encoding {
    /// The values of a column, or of a slice of one.
    pub(crate) fn decode(&self, array: &ArrayRef) -> ArrayRef {
        match self {
            Encoding::Packed(packed) | Encoding::Narrow(packed) => packed.unpack(array),
            Encoding::Dictionary => dictionary::decode(array),
        }
    }

    fn decode_selected(&self, array: &ArrayRef, selected: &Selected) -> Result<ArrayRef, ArrowError> {
        match self {
            Encoding::Packed(packed) | Encoding::Narrow(packed) => {
                let rows_min = match packed.width() {
                    8 | 16 | 32 | 64 => ROWS_PER_SELECTED_OF_BYTES_MIN,
                    _ => ROWS_PER_SELECTED_MIN,
                };
                match selected.count <= array.len() / rows_min {
                    true => Ok(packed.unpack_rows(array, selected.rows())),
                    false => selected.filter().filter(&packed.unpack(array)),
                }
            }
            Encoding::Dictionary => {
                let dictionary = array.as_dictionary::<UInt8Type>();
                let keys = selected.filter().filter(dictionary.keys())?;
                Ok(dictionary::values_of(dictionary.values(), &keys))
            }
        }
    }

    /// Bytes of a value that is kept as it is.
    pub(super) fn value_bytes(&self) -> usize {
        match self {
            Encoding::Packed(packed) | Encoding::Narrow(packed) => packed.value_bytes(),
            Encoding::Dictionary => dictionary::VALUE_BYTES,
        }
    }

    /// Whether tables choose it by themselves: planners then see the bytes of a column that is kept as its values are.
    pub(super) fn is_chosen(&self) -> bool {
        !matches!(self, Encoding::Packed(_))
    }

    /// Whether decoded rows refer to the buffers of the column: views to the strings of a dictionary.
    pub(crate) fn outlives_decoding(&self, array: &ArrayRef) -> bool {
        match self {
            Encoding::Packed(_) | Encoding::Narrow(_) => false,
            Encoding::Dictionary => {
                let values = array.as_any_dictionary().values();
                values.as_string_view_opt().is_some_and(|strings| !strings.data_buffers().is_empty())
            }
        }
    }

    /// The field of a column that is kept like this.
    pub(super) fn field(&self, of_values: &FieldRef) -> FieldRef {
        let (name, is_nullable) = (of_values.name(), of_values.is_nullable());
        Arc::new(match self {
            Encoding::Packed(packed) | Encoding::Narrow(packed) => packed.field(name, is_nullable),
            Encoding::Dictionary => {
                Field::new(name, dictionary::data_type(of_values.data_type()), is_nullable)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float32Array, Int64Array, StringArray};
    use arrow::compute::cast;
    use arrow::datatypes::DataType;

    use super::*;

    #[test]
    fn selected_rows_are_those_of_a_filter() {
        let numbers: ArrayRef = Arc::new(
            (0..1000).map(|row| (row % 7 != 3).then_some(row * 31 % 1000 - 500)).collect::<Int64Array>(),
        );
        let floats: ArrayRef =
            Arc::new(Float32Array::from_iter_values((0..1000).map(|row| row as f32 / 8.0)));
        let strings: ArrayRef = Arc::new(StringArray::from_iter_values((0..1000).map(|row| row.to_string())));
        let decimals = cast(&numbers, &DataType::Decimal128(15, 2)).unwrap();
        let narrow = BitPacked::narrow(&[Arc::clone(&decimals)]).unwrap();
        let bits = BitPacked::pack(&[Arc::clone(&numbers)]).unwrap();
        let packed = [
            (narrow.array, Some(Encoding::Narrow(narrow.packed)), Arc::clone(&decimals)),
            (bits.array, Some(Encoding::Packed(bits.packed)), Arc::clone(&numbers)),
        ];
        let as_they_are =
            [numbers.clone(), cast(&numbers, &DataType::Int16).unwrap(), floats, strings, decimals.clone()]
                .map(|values| (Arc::clone(&values), None, values));
        for (array, encoding, values) in as_they_are.into_iter().chain(packed) {
            for step in [1, 2, 3, 40] {
                for (start, rows) in [(0, 1000), (13, 777)] {
                    let mask =
                        BooleanBuffer::collect_bool(start + rows, |row| row % step == 0).slice(start, rows);
                    let selected = Selected::new(&mask, mask.count_set_bits());
                    let found = selected.of(&array.slice(start, rows), encoding.as_ref()).unwrap();
                    let expected = predicate_of(&mask).filter(&values.slice(start, rows)).unwrap();
                    assert_eq!(&found, &expected, "{encoding:?} {}, one of {step}", values.data_type());
                }
            }
        }
    }
}
