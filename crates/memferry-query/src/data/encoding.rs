//! The ways in which a column of a row group is kept other than as its values are.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::BooleanBuffer;
use arrow::compute::FilterPredicate;
use arrow::datatypes::{Field, FieldRef, UInt8Type};
use arrow::error::ArrowError;

use super::dictionary;
use crate::packed::BitPacked;

/// Of a packed column, the rows that passed are unpacked one by one if they are at most one of so many; the whole run is
/// unpacked otherwise, several rows at a time.
const ROWS_PER_SELECTED_MIN: usize = 8;
/// The same if values are whole bytes: a row is then a load, as it is for a filter of the values.
const ROWS_PER_SELECTED_OF_BYTES_MIN: usize = 2;

/// How the values of a column are in memory.
#[derive(Clone, Debug)]
pub(crate) enum Encoding {
    /// In as many bits as they need.
    Packed(BitPacked),
    /// Each once, and a key of a byte for each row.
    Dictionary,
}

impl Encoding {
    /// The values of a column, or of a slice of one.
    pub(crate) fn decode(&self, array: &ArrayRef) -> ArrayRef {
        match self {
            Encoding::Packed(packed) => packed.unpack(array),
            Encoding::Dictionary => dictionary::decode(array),
        }
    }

    /// The values of the rows whose bit is set in `mask`, of which `filter` was made.
    ///
    /// # Errors
    /// Those of a filter that does not fit the array.
    pub(crate) fn decode_selected(
        &self,
        array: &ArrayRef,
        mask: &BooleanBuffer,
        filter: &FilterPredicate,
    ) -> Result<ArrayRef, ArrowError> {
        match self {
            Encoding::Packed(packed) => {
                let rows_min = match packed.width() {
                    8 | 16 | 32 | 64 => ROWS_PER_SELECTED_OF_BYTES_MIN,
                    _ => ROWS_PER_SELECTED_MIN,
                };
                match filter.count() <= array.len() / rows_min {
                    true => Ok(packed.unpack_selected(array, mask)),
                    false => filter.filter(&packed.unpack(array)),
                }
            }
            Encoding::Dictionary => {
                let dictionary = array.as_dictionary::<UInt8Type>();
                let keys = filter.filter(dictionary.keys())?;
                Ok(dictionary::values_of(dictionary.values(), &keys))
            }
        }
    }

    /// Bytes of a value that is kept as it is.
    pub(super) fn value_bytes(&self) -> usize {
        match self {
            Encoding::Packed(packed) => packed.value_bytes(),
            Encoding::Dictionary => dictionary::VALUE_BYTES,
        }
    }

    /// Whether tables choose it by themselves: planners then see the bytes of a column that is kept as its values are.
    pub(super) fn is_chosen(&self) -> bool {
        match self {
            Encoding::Packed(packed) => packed.value_type().is_decimal(),
            Encoding::Dictionary => true,
        }
    }

    /// Whether decoded rows refer to the buffers of the column: views to the strings of a dictionary.
    pub(crate) fn outlives_decoding(&self, array: &ArrayRef) -> bool {
        match self {
            Encoding::Packed(_) => false,
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
            Encoding::Packed(packed) => packed.field(name, is_nullable),
            Encoding::Dictionary => {
                Field::new(name, dictionary::data_type(of_values.data_type()), is_nullable)
            }
        })
    }
}
