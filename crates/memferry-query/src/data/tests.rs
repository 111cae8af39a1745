//! Groups that must be smaller than requested, which needs a private limit.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, DictionaryArray, Int8Array, Int64Array, RecordBatch, StringArray,
    StringViewArray, UInt64Array,
};
use arrow::compute::{cast, concat_batches, take};
use arrow::datatypes::DataType;
use memferry::cache::{Cache, Keep};
use memferry::mover::Mover;
use memferry::topology::Machine;

use super::{KeptArray, Layout, PartitionWriter, RowGroup, TableData, TableError};

fn groups_of(batches: &[RecordBatch], offset_max: usize) -> Result<Vec<RowGroup>, TableError> {
    let machine = Arc::new(Machine::discover().unwrap());
    let home = machine.nodes()[0].id;
    // The columns as they come.
    let layout = Layout { row_group_rows: 4096, dictionaries: false, ..Layout::new(machine, home) };
    let mut writer = PartitionWriter::new(batches[0].schema(), &layout)?;
    writer.offset_max = offset_max;
    batches.iter().try_for_each(|batch| writer.push(batch))?;
    writer.finish()
}

fn rows_of(groups: &[RowGroup]) -> Vec<usize> {
    groups.iter().map(RowGroup::rows).collect()
}

#[test]
fn strings_beyond_32_bit_offsets_make_smaller_groups() {
    let text: ArrayRef = Arc::new(StringArray::from_iter_values((0..5000).map(|row| format!("{row:020}"))));
    for data_type in [DataType::Utf8, DataType::Utf8View, DataType::Binary] {
        let column = cast(&text, &data_type).unwrap();
        let batch = RecordBatch::try_from_iter([("text", column)]).unwrap();
        let halves = [batch.slice(0, 700), batch.slice(700, 4300)];
        assert_eq!(rows_of(&groups_of(&halves, 4096 * 20).unwrap()), [4096, 904]);
        let groups = groups_of(&halves, 4096 * 20 - 1).unwrap();
        assert_eq!(rows_of(&groups), [2048, 2048, 904]);
        let batches: Vec<_> = groups.iter().map(|group| group.batch().clone()).collect();
        assert_eq!(concat_batches(&batch.schema(), &batches).unwrap(), batch);
        let error = groups_of(&halves, 512 * 20 - 1).unwrap_err();
        assert!(matches!(error, TableError::TooLong { rows: 512, .. }), "{data_type}: {error}");
    }
    // 64-bit offsets have no such limit.
    let batch = RecordBatch::try_from_iter([("text", cast(&text, &DataType::LargeUtf8).unwrap())]).unwrap();
    assert_eq!(rows_of(&groups_of(&[batch], 100).unwrap()), [4096, 904]);
}

/// Blocks have the bytes of earlier entries.
#[test]
fn columns_are_kept_in_memory_that_was_used_before() {
    const BUDGET_BYTES: usize = 1 << 20;
    let machine = Arc::new(Machine::discover().unwrap());
    let node = machine.nodes()[0].id;
    let mover = Mover::builder(machine).build().unwrap();
    let cache = Cache::builder(mover).budget(node, BUDGET_BYTES).build().unwrap();
    let how = Keep { node, rounds: 1, evicts: false };
    let text = |row: usize| (!row.is_multiple_of(3)).then(|| format!("{row}: {:x}", row << 40));
    let texts: ArrayRef = Arc::new((0..777).map(text).collect::<StringArray>());
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new((0..777).map(|row| (row % 5 != 0).then_some(row % 2 == 0)).collect::<BooleanArray>()),
        Arc::new((0..777).map(|row| (row % 7 != 0).then_some(row)).collect::<Int64Array>()),
    ];
    for data_type in [DataType::Utf8, DataType::LargeUtf8, DataType::Binary, DataType::Utf8View] {
        columns.push(cast(&texts, &data_type).unwrap());
    }
    for column in &columns {
        let before = cache.register_made();
        let filled = cache.keep(&before, BUDGET_BYTES, how, |bytes| bytes.fill(0xff)).unwrap();
        drop((filled.expect("the cache is empty"), before));
        let made = Arc::new(cache.register_made());
        let pieces = [column.slice(0, 301), column.slice(301, 476)];
        let kept = KeptArray::keep(&cache, &made, &pieces, how).unwrap();
        let array = kept.array(&cache).expect("nothing was evicted");
        array.to_data().validate_full().unwrap();
        assert_eq!(&array, column, "{}", column.data_type());
    }
}

#[test]
fn dictionaries_that_fill_their_keys_make_smaller_groups() {
    // Two dictionaries of 100 values each, too many together for keys of 8 bits.
    let batch = |prefix: &str| {
        let keys: Int8Array = (0..512).map(|row| (row % 100) as i8).collect();
        let values = StringArray::from_iter_values((0..100).map(|value| format!("{prefix}{value}")));
        let column: ArrayRef = Arc::new(DictionaryArray::new(keys, Arc::new(values)));
        RecordBatch::try_from_iter([("word", column)]).unwrap()
    };
    let groups = groups_of(&[batch("a"), batch("b")], i32::MAX as usize).unwrap();
    assert_eq!(rows_of(&groups), [512, 512]);
    let word = |group: usize, row: usize| {
        let column = cast(groups[group].column(0), &DataType::Utf8).unwrap();
        column.as_string::<i32>().value(row).to_owned()
    };
    assert_eq!((word(0, 101), word(1, 511)), ("a1".to_owned(), "b11".to_owned()));
    assert_eq!(groups[0].column(0).null_count(), 0);
}

#[test]
fn strings_that_rows_share_are_stored_once() {
    let words = |prefix: &str| -> ArrayRef {
        let words =
            StringViewArray::from_iter_values((0..3).map(|word| format!("{prefix} {word}, long enough")));
        let rows = UInt64Array::from_iter_values((0..1500).map(|row| row % 3));
        take(&words, &rows, None).unwrap()
    };
    let (first, second) = (words("first"), words("second"));
    let own: ArrayRef =
        Arc::new(StringViewArray::from_iter_values((0..1000).map(|row| format!("{row:020}"))));
    let batch = |column: &ArrayRef| RecordBatch::try_from_iter([("text", Arc::clone(column))]).unwrap();
    for (pieces, buffers_count) in [
        (vec![&first], 1),
        // The second piece has the buffer of the first.
        (vec![&first, &second, &first], 2),
        // No string is shared: they are stored one after the other.
        (vec![&own], 1),
        // `own` has two buffers, of 8 and 16 KiB.
        (vec![&first, &own], 3),
    ] {
        let batches: Vec<_> = pieces.into_iter().map(batch).collect();
        let groups = groups_of(&batches, i32::MAX as usize).unwrap();
        let joined: Vec<_> = groups.iter().map(|group| group.batch().clone()).collect();
        let schema = batches[0].schema();
        assert_eq!(concat_batches(&schema, &joined).unwrap(), concat_batches(&schema, &batches).unwrap());
        assert_eq!(groups[0].column(0).as_string_view().data_buffers().len(), buffers_count);
    }
}

#[test]
fn integers_of_a_table_span_its_groups() {
    let value = |row: i64| row * 7919 % 5000 - 100;
    let integers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..5000).map(value)));
    let nulls: ArrayRef = Arc::new(Int64Array::from_iter((0..5000).map(|row| (row != 4999).then_some(row))));
    let unsigned: ArrayRef = Arc::new(UInt64Array::from_iter_values(0..5000));
    let days = cast(&cast(&integers, &DataType::Int32).unwrap(), &DataType::Date32).unwrap();
    let narrow = cast(&integers, &DataType::Int16).unwrap();
    let columns = [integers, narrow, nulls, unsigned, days];
    let names = ["integers", "narrow", "nulls", "unsigned", "days"];
    let batch = RecordBatch::try_from_iter(names.into_iter().zip(columns)).unwrap();
    let groups = groups_of(std::slice::from_ref(&batch), i32::MAX as usize).unwrap();
    assert_eq!(rows_of(&groups), [4096, 904]);
    let home = Machine::discover().unwrap().nodes()[0].id;
    let table = TableData::new(batch.schema(), vec![groups[..1].to_vec(), groups[1..].to_vec()], home);
    let found: Vec<_> = (0..5).map(|column| table.integers(column)).collect();
    assert_eq!(found, [Some(-100..=4899), Some(-100..=4899), None, None, None]);
    assert_eq!(TableData::new(batch.schema(), vec![vec![]], home).integers(0), None);
}
