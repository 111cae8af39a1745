//! Ascending integers of a row group, to be searched: the rows of a range of values without a look at the others.

use std::ops::{Range, RangeInclusive};

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::datatypes::{
    DataType, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type,
};

use crate::packed::BitPacked;

/// A column of integers up to `i64` without nulls.
pub(crate) struct Sorted<'a> {
    values: Values<'a>,
    rows: usize,
}

enum Values<'a> {
    Int8(&'a [i8]),
    Int16(&'a [i16]),
    Int32(&'a [i32]),
    Int64(&'a [i64]),
    UInt8(&'a [u8]),
    UInt16(&'a [u16]),
    UInt32(&'a [u32]),
    Packed(&'a ArrayRef, &'a BitPacked),
}

impl<'a> Sorted<'a> {
    /// `None` for other types, and with nulls. Whether it [is sorted](Sorted::is_sorted) is yet to be found.
    pub(super) fn new(array: &'a ArrayRef, packed: Option<&'a BitPacked>) -> Option<Sorted<'a>> {
        fn of<T: ArrowPrimitiveType>(array: &ArrayRef) -> &[T::Native] {
            array.as_primitive::<T>().values()
        }
        if array.null_count() > 0 {
            return None;
        }
        let values = match (packed, array.data_type()) {
            (Some(packed), _) if is_integer(packed.value_type()) => Values::Packed(array, packed),
            (None, DataType::Int8) => Values::Int8(of::<Int8Type>(array)),
            (None, DataType::Int16) => Values::Int16(of::<Int16Type>(array)),
            (None, DataType::Int32) => Values::Int32(of::<Int32Type>(array)),
            (None, DataType::Int64) => Values::Int64(of::<Int64Type>(array)),
            (None, DataType::UInt8) => Values::UInt8(of::<UInt8Type>(array)),
            (None, DataType::UInt16) => Values::UInt16(of::<UInt16Type>(array)),
            (None, DataType::UInt32) => Values::UInt32(of::<UInt32Type>(array)),
            _ => return None,
        };
        Some(Sorted { values, rows: array.len() })
    }

    /// Whether no value is smaller than the one before it. Cost: the rows up to the first that is.
    pub(super) fn is_sorted(&self) -> bool {
        match &self.values {
            Values::Int8(values) => values.is_sorted(),
            Values::Int16(values) => values.is_sorted(),
            Values::Int32(values) => values.is_sorted(),
            Values::Int64(values) => values.is_sorted(),
            Values::UInt8(values) => values.is_sorted(),
            Values::UInt16(values) => values.is_sorted(),
            Values::UInt32(values) => values.is_sorted(),
            Values::Packed(..) => (0..self.rows).map(|row| self.value(row)).is_sorted(),
        }
    }

    /// The rows with values in `range`. Cost: two binary searches.
    pub(crate) fn rows(&self, range: &RangeInclusive<i64>) -> Range<usize> {
        let start = self.partition_point(|value| value < *range.start());
        let end = self.partition_point(|value| value <= *range.end());
        start..end.max(start)
    }

    fn partition_point(&self, is_before: impl Fn(i64) -> bool) -> usize {
        let (mut start, mut end) = (0, self.rows);
        while start < end {
            let middle = start + (end - start) / 2;
            if is_before(self.value(middle)) {
                start = middle + 1;
            } else {
                end = middle;
            }
        }
        start
    }

    fn value(&self, row: usize) -> i64 {
        match &self.values {
            Values::Int8(values) => values[row].into(),
            Values::Int16(values) => values[row].into(),
            Values::Int32(values) => values[row].into(),
            Values::Int64(values) => values[row],
            Values::UInt8(values) => values[row].into(),
            Values::UInt16(values) => values[row].into(),
            Values::UInt32(values) => values[row].into(),
            Values::Packed(array, packed) => packed.integer(array, row),
        }
    }
}

/// Whether all values of a type are integers that fit into `i64`.
pub(crate) fn is_integer(data_type: &DataType) -> bool {
    data_type.is_integer() && data_type != &DataType::UInt64
}
