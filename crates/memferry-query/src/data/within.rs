//! The rows whose key lies in a range, found in the form in which a column is kept.
//!
//! ```text
//! price between 100.00 and 199.99        Decimal128(15, 2) from 901.00 in 32 bits
//! keys          10000..=19999            unscaled
//! kept          -80100..=-70101          minus the smallest value: no bit pattern is in it, so no row is looked at
//! ```
//!
//! Keys are those of [blocks](super::blocks) without floats: the order of keys is then that of values, and so is equality.

use std::ops::RangeInclusive;

use arrow::array::{Array, ArrayRef};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, TimeUnit};
use memferry_kernels::Bits;

use super::Encoding;
use crate::packed::bits_of;

/// Whether a comparison of keys of this type is one of values.
pub(crate) fn has_exact_keys(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Decimal128(..)) || integers(data_type).is_some()
}

/// The rows of a column with a key in `range`, no null among them. `None` if the form of the column has no bits of keys.
pub(crate) fn within(
    array: &ArrayRef,
    encoding: Option<&Encoding>,
    range: &RangeInclusive<i64>,
) -> Option<BooleanBuffer> {
    let found = match encoding {
        Some(Encoding::Packed(packed) | Encoding::Narrow(packed)) if has_exact_keys(packed.value_type()) => {
            packed.within(array, range)
        }
        Some(_) => return None,
        None => of_integers(array, range)?,
    };
    Some(match array.nulls() {
        Some(nulls) => &found & nulls.inner(),
        None => found,
    })
}

/// The bytes of a type that is kept as integers, and their least and largest.
fn integers(data_type: &DataType) -> Option<(usize, RangeInclusive<i64>)> {
    Some(match data_type {
        DataType::Int8 => (1, i8::MIN.into()..=i8::MAX.into()),
        DataType::Int16 => (2, i16::MIN.into()..=i16::MAX.into()),
        DataType::Int32 | DataType::Date32 => (4, i32::MIN.into()..=i32::MAX.into()),
        DataType::Int64
        | DataType::Date64
        | DataType::Timestamp(
            TimeUnit::Second | TimeUnit::Millisecond | TimeUnit::Microsecond | TimeUnit::Nanosecond,
            _,
        ) => (8, i64::MIN..=i64::MAX),
        DataType::UInt8 => (1, 0..=u8::MAX.into()),
        DataType::UInt16 => (2, 0..=u16::MAX.into()),
        DataType::UInt32 => (4, 0..=u32::MAX.into()),
        _ => return None,
    })
}

fn of_integers(array: &ArrayRef, range: &RangeInclusive<i64>) -> Option<BooleanBuffer> {
    let (size_bytes, all) = integers(array.data_type())?;
    let (first, last) = (*range.start().max(all.start()), *range.end().min(all.end()));
    let rows = array.len();
    if range.is_empty() || first > last {
        return Some(BooleanBuffer::new_unset(rows));
    }
    let data = array.to_data();
    let bits = Bits {
        bytes: data.buffers()[0].as_slice(),
        start: 8 * size_bytes * data.offset(),
        width: 8 * size_bytes as u32,
    };
    // The low bits of a negative integer are its bits as one without sign.
    Some(bits_of(memferry_kernels::within(bits, rows, first as u64, last as u64), rows))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{AsArray, Decimal128Array, Float64Array, Int64Array, UInt64Array};
    use arrow::compute::cast;
    use arrow::datatypes::Decimal128Type;

    use super::*;
    use crate::packed::{BitPacked, PackedColumn};

    /// Numbers in no order, the bounds of `i8` among them, each seventh one a null.
    fn numbers() -> Int64Array {
        let number = |row: u64| match row % 50 {
            1 => i64::from(i8::MIN),
            2 => i64::from(i8::MAX),
            _ => (row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57) as i64 - 64,
        };
        (0..1000).map(|row| (row % 7 != 3).then(|| number(row))).collect()
    }

    fn ranges() -> Vec<RangeInclusive<i64>> {
        let bounds = [i64::MIN, -129, -128, -100, -1, 0, 1, 60, 127, 128, 255, 256, 1 << 40, i64::MAX];
        let ranges = bounds.iter().flat_map(|&first| bounds.iter().map(move |&last| first..=last));
        ranges.collect() // also the empty ones
    }

    fn check(array: &ArrayRef, encoding: Option<&Encoding>, values: &Int64Array) {
        for range in ranges() {
            for (start, rows) in [(0, 1000), (512, 400), (13, 900), (1000, 0)] {
                let found = within(&array.slice(start, rows), encoding, &range).unwrap();
                let expected: BooleanBuffer = values
                    .slice(start, rows)
                    .iter()
                    .map(|key| key.is_some_and(|key| range.contains(&key)))
                    .collect();
                assert_eq!(
                    found,
                    expected,
                    "{} {encoding:?} in {range:?}, {rows} from {start}",
                    array.data_type()
                );
            }
        }
    }

    #[test]
    fn rows_within_a_range_are_those_of_the_values() {
        let signed = numbers();
        let unsigned: Int64Array = signed.iter().map(|value| value.map(|value| value + 128)).collect();
        let time = |unit| DataType::Timestamp(unit, None);
        for (values, types) in [
            (
                &signed,
                vec![
                    DataType::Int8,
                    DataType::Int16,
                    DataType::Int32,
                    DataType::Int64,
                    DataType::Date64,
                    time(TimeUnit::Second),
                    time(TimeUnit::Millisecond),
                    time(TimeUnit::Microsecond),
                    time(TimeUnit::Nanosecond),
                ],
            ),
            (&unsigned, vec![DataType::UInt8, DataType::UInt16, DataType::UInt32]),
        ] {
            let values_array: ArrayRef = Arc::new(values.clone());
            for data_type in types {
                let array = cast(&values_array, &data_type).unwrap();
                check(&array, None, values);
                let PackedColumn { packed, array, .. } = BitPacked::pack(&[array]).unwrap();
                check(&array, Some(&Encoding::Packed(packed)), values);
            }
            let days = cast(&cast(&values_array, &DataType::Int32).unwrap(), &DataType::Date32).unwrap();
            check(&days, None, values);
            let decimals: Decimal128Array = values.iter().map(|value| value.map(i128::from)).collect();
            let decimals: ArrayRef = Arc::new(decimals.with_precision_and_scale(15, 2).unwrap());
            let PackedColumn { packed, array, .. } = BitPacked::narrow(&[decimals]).unwrap();
            assert_eq!(packed.width(), 8);
            check(&array, Some(&Encoding::Packed(packed)), values);
        }
    }

    /// A reference of `i64::MIN` makes differences that 64 bits with sign do not hold.
    #[test]
    fn far_values_and_constants_do_not_overflow() {
        let far = [i64::MIN, -1, 0, i64::MAX];
        let values: Int64Array = far.iter().cycle().take(1000).map(|&value| Some(value)).collect();
        let array: ArrayRef = Arc::new(values.clone());
        check(&array, None, &values);
        let PackedColumn { packed, array, .. } = BitPacked::pack(&[array]).unwrap();
        check(&array, Some(&Encoding::Packed(packed)), &values);
        for least in [i64::MIN, i64::MAX - 255] {
            let values: Int64Array = (0..1000).map(|row| Some(least + row % 256)).collect();
            let array: ArrayRef = Arc::new(values.clone());
            let PackedColumn { packed, array, .. } = BitPacked::pack(&[array]).unwrap();
            assert_eq!(packed.width(), 8);
            check(&array, Some(&Encoding::Packed(packed)), &values);
        }
    }

    #[test]
    fn values_without_exact_keys_are_not_compared_by_them() {
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
        let large: ArrayRef = Arc::new(UInt64Array::from(vec![1]));
        let decimals: ArrayRef = Arc::new(Decimal128Array::from(vec![1]));
        for array in [&floats, &large, &decimals] {
            assert!(within(array, None, &(0..=1)).is_none(), "{}", array.data_type());
        }
        assert!(!has_exact_keys(&DataType::Float64) && !has_exact_keys(&DataType::UInt64));
        let PackedColumn { packed, array, .. } = BitPacked::pack(&[large]).unwrap();
        assert!(within(&array, Some(&Encoding::Packed(packed)), &(0..=1)).is_none());
        let wide = Decimal128Array::from(vec![0, i128::from(i64::MAX) + 1]);
        assert!(BitPacked::narrow(&[Arc::new(wide)]).is_none(), "beyond 64 bits");
        let null = Decimal128Array::new(vec![i128::MAX, 3].into(), Some(vec![false, true].into()));
        let PackedColumn { packed, array, .. } = BitPacked::narrow(&[Arc::new(null)]).unwrap();
        let values = packed.unpack(&array);
        assert_eq!(values.as_primitive::<Decimal128Type>().iter().collect::<Vec<_>>(), [None, Some(3)]);
    }
}
