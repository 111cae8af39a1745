//! Least and largest values of blocks of 512 rows, in the order of 64-bit integers.
//!
//! Integers, dates and times are their own keys. A decimal is its unscaled integer. A float is mapped to an integer in the total
//! order of IEEE 754 except that both zeros have one key. So a comparison of values is false wherever that of keys, with equality, is.
//! A null has no key: no comparison with it is true.

use std::ops::RangeInclusive;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{
    DataType, Date32Type, Date64Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type,
};
use datafusion::common::ScalarValue;

use super::ROW_GROUP_ROWS_STEP;

/// Rows of a block, the last one of a row group may be shorter.
pub(crate) const BLOCK_ROWS: usize = ROW_GROUP_ROWS_STEP;

/// The least and the largest key of each block of a column; of a block that has only nulls, the least exceeds the largest.
#[derive(Debug)]
pub(crate) struct Blocks(Vec<(i64, i64)>);

impl Blocks {
    /// Those of a column that is kept as its values are; `None` if they have no keys.
    ///
    /// Cost: a pass over the rows.
    pub(super) fn of(array: &ArrayRef) -> Option<Blocks> {
        Some(Blocks(match array.data_type() {
            DataType::Int8 => blocks::<Int8Type>(array, |value| Some(value.into())),
            DataType::Int16 => blocks::<Int16Type>(array, |value| Some(value.into())),
            DataType::Int32 => blocks::<Int32Type>(array, |value| Some(value.into())),
            DataType::Int64 => blocks::<Int64Type>(array, Some),
            DataType::UInt8 => blocks::<UInt8Type>(array, |value| Some(value.into())),
            DataType::UInt16 => blocks::<UInt16Type>(array, |value| Some(value.into())),
            DataType::UInt32 => blocks::<UInt32Type>(array, |value| Some(value.into())),
            DataType::Date32 => blocks::<Date32Type>(array, |value| Some(value.into())),
            DataType::Date64 => blocks::<Date64Type>(array, Some),
            DataType::Timestamp(TimeUnit::Second, _) => blocks::<TimestampSecondType>(array, Some),
            DataType::Timestamp(TimeUnit::Millisecond, _) => blocks::<TimestampMillisecondType>(array, Some),
            DataType::Timestamp(TimeUnit::Microsecond, _) => blocks::<TimestampMicrosecondType>(array, Some),
            DataType::Timestamp(TimeUnit::Nanosecond, _) => blocks::<TimestampNanosecondType>(array, Some),
            DataType::Decimal128(..) => blocks::<Decimal128Type>(array, |value| i64::try_from(value).ok()),
            DataType::Float32 => blocks::<Float32Type>(array, |value| Some(key_of_real(value))),
            DataType::Float64 => blocks::<Float64Type>(array, |value| Some(key_of_float(value))),
            _ => return None,
        }?))
    }

    /// The keys of a block lie within these. Empty if it has only nulls.
    pub(crate) fn keys(&self, block: usize) -> RangeInclusive<i64> {
        let (least, most) = self.0[block];
        least..=most
    }

    /// The keys of all rows lie within these.
    pub(super) fn all_keys(&self) -> RangeInclusive<i64> {
        let (least, most) = self.0.iter().fold(EMPTY, |all, block| (all.0.min(block.0), all.1.max(block.1)));
        least..=most
    }
}

const EMPTY: (i64, i64) = (i64::MAX, i64::MIN);

/// `None` if a value has no key.
fn blocks<T: ArrowPrimitiveType>(
    array: &ArrayRef,
    key: impl Fn(T::Native) -> Option<i64>,
) -> Option<Vec<(i64, i64)>> {
    let array = array.as_primitive::<T>();
    let nulls: Option<&NullBuffer> = array.nulls().filter(|nulls| nulls.null_count() > 0);
    let mut found = Vec::with_capacity(array.len().div_ceil(BLOCK_ROWS));
    for (block, values) in array.values().chunks(BLOCK_ROWS).enumerate() {
        let (mut least, mut most) = EMPTY;
        // A plain loop, because the profile of development inlines no iterators.
        for (row, &value) in values.iter().enumerate() {
            if nulls.is_some_and(|nulls| nulls.is_null(block * BLOCK_ROWS + row)) {
                continue;
            }
            let key = key(value)?;
            least = least.min(key);
            most = most.max(key);
        }
        found.push((least, most));
    }
    Some(found)
}

/// A number as the key of its place in the total order of IEEE 754 (section 5.10), zeros as one.
fn key_of_float(value: f64) -> i64 {
    let bits = if value == 0.0 { 0 } else { value.to_bits() as i64 };
    // Negative numbers descend with their bits.
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

/// The same of its own bits: in eight bytes a signalling NaN becomes a quiet one, which has another place.
fn key_of_real(value: f32) -> i64 {
    let bits = if value == 0.0 { 0 } else { value.to_bits() as i32 };
    i64::from(bits ^ ((bits >> 31) as u32 >> 1) as i32)
}

/// The key of a constant that is compared with a column of this type; `None` without one.
pub(crate) fn key_of(value: &ScalarValue, column: &DataType) -> Option<i64> {
    if value.data_type() != *column {
        return None;
    }
    match *value {
        ScalarValue::Int8(value) => value.map(i64::from),
        ScalarValue::Int16(value) => value.map(i64::from),
        ScalarValue::Int32(value) | ScalarValue::Date32(value) => value.map(i64::from),
        ScalarValue::Int64(value)
        | ScalarValue::Date64(value)
        | ScalarValue::TimestampSecond(value, _)
        | ScalarValue::TimestampMillisecond(value, _)
        | ScalarValue::TimestampMicrosecond(value, _)
        | ScalarValue::TimestampNanosecond(value, _) => value,
        ScalarValue::UInt8(value) => value.map(i64::from),
        ScalarValue::UInt16(value) => value.map(i64::from),
        ScalarValue::UInt32(value) => value.map(i64::from),
        ScalarValue::Decimal128(value, ..) => i64::try_from(value?).ok(),
        ScalarValue::Float32(value) => value.map(key_of_real),
        ScalarValue::Float64(value) => value.map(key_of_float),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Decimal128Array, Float64Array, Int32Array, StringArray};

    use super::*;

    #[test]
    fn keys_of_floats_have_their_order() {
        let numbers = [
            -f64::NAN,
            f64::NEG_INFINITY,
            -1.5,
            -f64::MIN_POSITIVE,
            0.0,
            f64::MIN_POSITIVE,
            2.0,
            f64::INFINITY,
            f64::NAN,
        ];
        let keys = numbers.map(key_of_float);
        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
        assert_eq!(key_of_float(-0.0), key_of_float(0.0));
        let signalling = f32::from_bits(0x7f80_0001);
        let reals =
            [-f32::NAN, f32::NEG_INFINITY, -1.5, 0.0, 1e-40, 2.0, f32::INFINITY, signalling, f32::NAN];
        assert!(reals.is_sorted_by(|a, b| key_of_real(*a) < key_of_real(*b)));
        assert_eq!(key_of_real(-0.0), key_of_real(0.0));
    }

    #[test]
    fn blocks_know_their_least_and_largest_values() {
        let value = |row: i32| (row % 3 != 0 && !(512..1024).contains(&row)).then_some(row * 7 % 1000 - 500);
        let column: ArrayRef = Arc::new((0..1100).map(value).collect::<Int32Array>());
        let blocks = Blocks::of(&column).unwrap();
        assert_eq!(blocks.0.len(), 3);
        for (block, rows) in [(0, 0..512), (1, 512..1024), (2, 1024..1100)] {
            let values = || rows.clone().filter_map(value).map(i64::from);
            let expected = values().min().unwrap_or(i64::MAX)..=values().max().unwrap_or(i64::MIN);
            assert_eq!(blocks.keys(block), expected);
        }
        let all = || (0..1100).filter_map(value).map(i64::from);
        assert_eq!(blocks.all_keys(), all().min().unwrap()..=all().max().unwrap());
    }

    #[test]
    fn values_without_keys_have_no_blocks() {
        let wide: ArrayRef = Arc::new(Decimal128Array::from(vec![1, i128::MAX / 1000]));
        let narrow: ArrayRef = Arc::new(Decimal128Array::from(vec![Some(-3), None, Some(9)]));
        assert!(Blocks::of(&wide).is_none());
        assert_eq!(Blocks::of(&narrow).unwrap().keys(0), -3..=9);
        assert!(Blocks::of(&(Arc::new(StringArray::from(vec!["a"])) as ArrayRef)).is_none());
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN, 1.0]));
        assert_eq!(Blocks::of(&floats).unwrap().keys(0), key_of_float(1.0)..=key_of_float(f64::NAN));
    }

    #[test]
    fn constants_of_other_types_have_no_key() {
        let decimal = ScalarValue::Decimal128(Some(7), 15, 2);
        assert_eq!(key_of(&decimal, &DataType::Decimal128(15, 2)), Some(7));
        assert_eq!(key_of(&decimal, &DataType::Decimal128(15, 3)), None);
        assert_eq!(key_of(&ScalarValue::Int32(None), &DataType::Int32), None);
    }
}
