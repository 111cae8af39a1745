//! Arrays of each type and width come back, whole, sliced and selected.

use arrow::array::{Array, ArrayRef, Int8Array, Int32Array, Int64Array, UInt64Array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{cast, concat, filter};
use arrow::datatypes::{Int64Type, TimeUnit};

use super::*;

/// 300 values of which the largest is `2^width - 1` above the least, in no order.
fn values(width: u32, least: i64) -> Int64Array {
    let mask = u64::MAX >> (64 - width);
    let mix = |row: u64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - width);
    let bits = (0..300).map(|row| match row {
        10 => 0,
        20 => mask,
        row => mix(row) & mask,
    });
    Int64Array::from_iter_values(bits.map(|value| least.wrapping_add(value as i64)))
}

fn with_nulls(array: &Int64Array) -> ArrayRef {
    Arc::new(
        array.iter().enumerate().map(|(row, value)| value.filter(|_| row % 7 != 3)).collect::<Int64Array>(),
    )
}

fn check(array: &ArrayRef, width: u32) {
    let pieces = [array.slice(0, 77), array.slice(77, 1), array.slice(78, array.len() - 78)];
    let PackedColumn { packed, array: bits, values } = BitPacked::pack(&pieces).unwrap();
    assert_eq!((packed.width(), packed.value_type()), (width, array.data_type()));
    assert_eq!(&packed.unpack(&bits), array);
    if let (Some(values), true) = (values, array.data_type() == &DataType::Int64) {
        let array = array.as_primitive::<Int64Type>();
        let known = arrow::compute::min(array).zip(arrow::compute::max(array));
        assert_eq!(known, Some((*values.start(), *values.end())));
    }
    let lists = bits.as_fixed_size_list();
    let bytes = lists.values().as_boolean().values().values().len();
    assert_eq!(bytes, (array.len() * width as usize).div_ceil(8), "no byte is wasted");
    for (start, rows) in [(0, 0), (1, 50), (7, 200), (64, 64), (299, 1), (300, 0)] {
        let (slice, bits) = (array.slice(start, rows), bits.slice(start, rows));
        assert_eq!(&packed.unpack(&bits), &slice, "{packed:?} from row {start}");
        let mask = BooleanBuffer::collect_bool(rows, |row| row % 3 == 0);
        let expected = filter(&slice, &BooleanArray::new(mask.clone(), None)).unwrap();
        assert_eq!(&packed.unpack_selected(&bits, &mask), &expected, "{packed:?} from row {start}");
        for row in (0..rows).filter(|&row| slice.is_valid(row)).step_by(17) {
            // Values beyond `i64` become nulls.
            if let Ok(value) = cast(&slice.slice(row, 1), &DataType::Int64)
                && value.is_valid(0)
            {
                assert_eq!(packed.integer(&bits, row), value.as_primitive::<Int64Type>().value(0));
            }
        }
    }
    let field = packed.field("c", true);
    assert_eq!(BitPacked::of_field(&field).unwrap(), Some(packed), "{field:?}");
}

#[test]
fn arrays_of_each_width_come_back() {
    for width in 1..=64 {
        for least in [0, -5, 1_000_000_007] {
            // The whole range of the type begins at its least value, and half of it ends at the largest one.
            let least = match width {
                64 => i64::MIN,
                63 => least.min(0),
                _ => least,
            };
            let array = values(width, least);
            check(&with_nulls(&array), width);
            check(&(Arc::new(array) as ArrayRef), width);
        }
    }
}

#[test]
fn arrays_of_each_type_come_back() {
    let small = values(7, 0);
    for data_type in [
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::UInt8,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
        DataType::Date64,
        DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())),
        DataType::Duration(TimeUnit::Second),
        DataType::Time64(TimeUnit::Nanosecond),
    ] {
        check(&cast(&with_nulls(&small), &data_type).unwrap(), 7);
    }
    check(&cast(&cast(&small, &DataType::Int32).unwrap(), &DataType::Date32).unwrap(), 7);
    let ends: ArrayRef =
        Arc::new(UInt64Array::from_iter_values((0..300).map(|row| if row == 9 { 0 } else { u64::MAX })));
    check(&ends, 64);
    let ends: ArrayRef =
        Arc::new(Int8Array::from_iter_values((0..300).map(|row| if row == 9 { -128 } else { 127 })));
    check(&ends, 8);
}

#[test]
fn nulls_and_equal_values_take_a_bit() {
    check(&(Arc::new(Int32Array::from(vec![None; 300])) as ArrayRef), 1);
    check(&(Arc::new(Int32Array::from(vec![i32::MIN; 300])) as ArrayRef), 1);
    let empty: ArrayRef = Arc::new(Int32Array::from(Vec::<i32>::new()));
    let packed = BitPacked::pack(&[Arc::clone(&empty)]).unwrap();
    assert_eq!(&packed.packed.unpack(&packed.array), &empty);
}

#[test]
fn a_value_beyond_i64_has_no_range_of_i64() {
    let values =
        |values: Vec<u64>| BitPacked::pack(&[Arc::new(UInt64Array::from(values)) as _]).unwrap().values;
    assert_eq!(values(vec![3, u64::MAX]), None);
    assert_eq!(values(vec![3, 7]), Some(3..=7));
}

#[test]
fn values_of_eight_bytes_become_narrow_if_they_fit() {
    let seconds = DataType::Timestamp(TimeUnit::Second, None);
    for data_type in [DataType::Int64, DataType::UInt64, seconds, DataType::Duration(TimeUnit::Second)] {
        for (width, kept) in
            [(1, Some(8)), (8, Some(8)), (9, Some(16)), (17, Some(32)), (32, Some(32)), (33, None)]
        {
            let array = cast(&with_nulls(&values(width, 1_000_000_007)), &data_type).unwrap();
            let narrow = BitPacked::narrow(&[array.slice(0, 77), array.slice(77, 223)]);
            assert_eq!(
                narrow.as_ref().map(|column| column.packed.width()),
                kept,
                "{data_type}, {width} bits"
            );
            if let Some(PackedColumn { packed, array: bytes, .. }) = narrow {
                assert_eq!(&packed.unpack(&bytes), &array, "{data_type}, {width} bits");
            }
        }
    }
    let whole_range: ArrayRef = Arc::new(Int64Array::from(vec![i64::MIN, i64::MAX]));
    assert!(BitPacked::narrow(&[whole_range]).is_none());
    let small: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
    assert!(BitPacked::narrow(&[small]).is_none(), "four bytes and less stay");
}

/// The bits mean the same to readers of Arrow that do not know the extension.
#[test]
fn its_storage_is_an_array_like_others() {
    let array: ArrayRef = Arc::new(values(26, 1));
    let PackedColumn { packed, array: bits, .. } = BitPacked::pack(&[Arc::clone(&array)]).unwrap();
    let parts: Vec<ArrayRef> = [200, 0, 100].map(|start| bits.slice(start, 100)).to_vec();
    let parts: Vec<&dyn Array> = parts.iter().map(|part| &**part).collect();
    let joined = concat(&parts).unwrap();
    let expected: Vec<ArrayRef> = [200, 0, 100].map(|start| array.slice(start, 100)).to_vec();
    let expected: Vec<&dyn Array> = expected.iter().map(|part| &**part).collect();
    assert_eq!(&packed.unpack(&joined), &concat(&expected).unwrap());
}

#[test]
fn wrong_fields_and_types_are_refused() {
    let field = BitPacked::pack(&[Arc::new(values(9, 0)) as _]).unwrap().packed.field("c", false);
    let metadata = |text: &str| {
        let mut metadata = field.metadata().clone();
        metadata.insert(METADATA_KEY.to_owned(), text.to_owned());
        field.clone().with_metadata(metadata)
    };
    for wrong in [
        metadata(""),
        metadata("0"),
        metadata("x Int64"),
        metadata("-1 UInt64"),
        metadata("0 Utf8"),
        field.clone().with_data_type(DataType::Int64),
    ] {
        let error = BitPacked::of_field(&wrong).unwrap_err().to_string();
        assert!(error.contains("\"c\"") && error.contains("'100 Int32'"), "{error}");
    }
    assert_eq!(BitPacked::of_field(&Field::new("c", DataType::Int64, false)).unwrap(), None);
    let text: ArrayRef = Arc::new(arrow::array::StringArray::from(vec!["a"]));
    for (pieces, says) in [(vec![], "at least one"), (vec![text], "Utf8 cannot be packed")] {
        let error = BitPacked::pack(&pieces).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let mixed: Vec<ArrayRef> = vec![Arc::new(Int8Array::from(vec![1])), Arc::new(Int32Array::from(vec![1]))];
    assert!(BitPacked::pack(&mixed).unwrap_err().to_string().contains("Int8 and Int32"));
}
