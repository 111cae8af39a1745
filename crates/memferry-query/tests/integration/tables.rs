//! Tables from every source hold their rows, in groups with the promised layout.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, FixedSizeBinaryArray, FixedSizeListArray, Int32Array, Int64Array,
    ListArray, MapArray, NullArray, RecordBatch, RecordBatchIterator, RecordBatchOptions, StringArray,
    StringViewArray, StructArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{
    DataType, Field, Fields, Int32Type, Int64Type, IntervalUnit, Schema, TimeUnit, UnionFields, UnionMode,
};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSource;
use memferry::topology::{Machine, NodeId};
use memferry_query::load::{self, PartitionedSource, Progress};
use memferry_query::{Layout, LoadError, TableData, TableError, TableWriter};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, GzipLevel, ZstdLevel};
use parquet::file::properties::WriterProperties;

/// A layout with small groups, so that small tables have several.
pub(crate) fn layout(partitions: usize, row_group_rows: usize) -> Layout {
    let machine = Arc::new(Machine::discover().unwrap());
    let home = machine.nodes()[0].id;
    Layout { partitions, row_group_rows, ..Layout::new(machine, home) }
}

/// SplitMix64 without its second multiplication: good enough for test data.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((value ^ (value >> 31)) % end as u64) as usize
    }
}

/// A random column of each supported kind of type; all but the first have nulls.
pub(crate) fn batch_of_all_types(random: &mut Random, rows: usize) -> RecordBatch {
    let null = |random: &mut Random| random.below(5) == 0;
    let nulls = |random: &mut Random| NullBuffer::from_iter((0..rows).map(|_| !null(random)));
    let integers = |random: &mut Random, rows: usize| -> ArrayRef {
        Arc::new((0..rows).map(|_| (!null(random)).then(|| random.below(100) as i64)).collect::<Int64Array>())
    };
    let text = |random: &mut Random, rows: usize| -> ArrayRef {
        let text = |random: &mut Random| "x".repeat(random.below(30)) + &random.below(1000).to_string();
        Arc::new((0..rows).map(|_| (!null(random)).then(|| text(random))).collect::<StringArray>())
    };
    let lengths: Vec<usize> = (0..rows).map(|_| random.below(4)).collect();
    let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
    let values = lengths.iter().sum();

    let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from_iter_values(0..rows as i64))];
    for data_type in [
        DataType::Boolean,
        DataType::Int8,
        DataType::UInt16,
        DataType::Int32,
        DataType::Int64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Decimal128(12, 2),
        DataType::Decimal256(40, 2),
        DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        DataType::Duration(TimeUnit::Second),
    ] {
        columns.push(cast(&integers(random, rows), &data_type).unwrap());
    }
    let days = cast(&integers(random, rows), &DataType::Int32).unwrap();
    columns.extend(
        [DataType::Date32, DataType::Time32(TimeUnit::Second), DataType::Interval(IntervalUnit::YearMonth)]
            .map(|data_type| cast(&days, &data_type).unwrap()),
    );
    for data_type in [
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Utf8View,
        DataType::Binary,
        DataType::LargeBinary,
        DataType::BinaryView,
        DataType::Dictionary(Box::new(DataType::Int16), Box::new(DataType::Utf8)),
        DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8View)),
    ] {
        columns.push(cast(&text(random, rows), &data_type).unwrap());
    }
    let item = |data_type| Arc::new(Field::new_list_field(data_type, true));
    columns.push(Arc::new(FixedSizeBinaryArray::new(3, vec![7u8; 3 * rows].into(), Some(nulls(random)))));
    columns.push(Arc::new(FixedSizeListArray::new(
        item(DataType::Int64),
        2,
        integers(random, 2 * rows),
        Some(nulls(random)),
    )));
    let views = cast(&text(random, values), &DataType::Utf8View).unwrap();
    columns.push(Arc::new(ListArray::new(
        item(DataType::Utf8View),
        offsets.clone(),
        views,
        Some(nulls(random)),
    )));
    let list = columns.last().unwrap();
    columns.push(cast(list, &DataType::LargeList(item(DataType::Utf8))).unwrap());
    let fields =
        Fields::from(vec![Field::new("x", DataType::Int64, true), Field::new("y", DataType::Utf8, true)]);
    let children = vec![integers(random, rows), text(random, rows)];
    columns.push(Arc::new(StructArray::new(fields, children, Some(nulls(random)))));
    let fields =
        Fields::from(vec![Field::new("k", DataType::Int64, false), Field::new("v", DataType::Utf8, true)]);
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..values as i64));
    let entries = StructArray::new(fields.clone(), vec![keys, text(random, values)], None);
    let entry = Arc::new(Field::new("entries", DataType::Struct(fields), false));
    columns.push(Arc::new(MapArray::new(entry, offsets, entries, Some(nulls(random)), false)));
    columns.push(Arc::new(NullArray::new(rows)));

    let names = (0..columns.len()).map(|index| format!("c{index}"));
    let names: Vec<_> =
        names.zip(columns).enumerate().map(|(index, (name, column))| (name, column, index > 0)).collect();
    RecordBatch::try_from_iter_with_nullable(names).unwrap()
}

/// Cuts a batch into pieces of random lengths, some of them empty.
fn cut_at_random(random: &mut Random, batch: &RecordBatch) -> Vec<RecordBatch> {
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < batch.num_rows() {
        let rows = random.below(700).min(batch.num_rows() - start);
        pieces.push(batch.slice(start, rows));
        start += rows;
    }
    pieces
}

fn rows_of(table: &TableData) -> RecordBatch {
    let batches: Vec<_> = table.batches(1000).into_iter().flatten().collect();
    concat_batches(table.schema(), &batches).unwrap()
}

fn buffers_of(data: &ArrayData) -> Vec<&[u8]> {
    let nulls = data.nulls().map(|nulls| nulls.buffer());
    let own = nulls.into_iter().chain(data.buffers()).map(|buffer| buffer.as_slice());
    own.chain(data.child_data().iter().flat_map(buffers_of)).collect()
}

/// Every buffer starts at a multiple of 64 bytes, buffers do not overlap, and their sum is the size of the group.
fn check_groups(table: &TableData, row_group_rows: usize) {
    for groups in table.partitions() {
        for (index, group) in groups.iter().enumerate() {
            let is_last = index + 1 == groups.len();
            assert!(
                group.rows() == row_group_rows || (is_last && (1..row_group_rows).contains(&group.rows()))
            );
            let columns: Vec<_> = group.batch().columns().iter().map(|column| column.to_data()).collect();
            for column in &columns {
                column.validate_full().unwrap();
                assert_eq!(column.offset(), 0);
            }
            let mut buffers: Vec<_> =
                columns.iter().flat_map(buffers_of).filter(|bytes| !bytes.is_empty()).collect();
            buffers.sort_unstable_by_key(|bytes| bytes.as_ptr());
            let mut end = buffers.first().map_or(0, |bytes| bytes.as_ptr().addr());
            for bytes in &buffers {
                assert!(bytes.as_ptr().addr().is_multiple_of(64), "{:p} is not aligned", *bytes);
                assert_eq!(bytes.as_ptr().addr(), end, "a gap, or two buffers over one another");
                end += bytes.len().next_multiple_of(64);
            }
            let size_bytes: usize = buffers.iter().map(|bytes| bytes.len().next_multiple_of(64)).sum();
            assert_eq!(group.size_bytes(), size_bytes);
        }
    }
}

#[test]
fn rows_of_every_type_come_back_from_aligned_groups() {
    for seed in 0..12 {
        println!("seed {seed}");
        let random = &mut Random(seed);
        let rows = [0, 1, 63, 512, 513, 2048, 3000][random.below(7)];
        // Two batches, so that dictionaries differ within a group.
        let batches = [batch_of_all_types(random, rows), batch_of_all_types(random, rows / 2)];
        let schema = batches[0].schema();
        let mut writer = TableWriter::new(schema.clone(), layout(1, 1024)).unwrap();
        for piece in batches.iter().flat_map(|batch| cut_at_random(random, batch)) {
            writer.push(0, &piece).unwrap();
        }
        let table = writer.finish().unwrap();
        assert_eq!(table.rows(), rows + rows / 2);
        check_groups(&table, 1024);
        let expected = concat_batches(&schema, &batches).unwrap();
        for (index, column) in rows_of(&table).columns().iter().enumerate() {
            assert_eq!(column, expected.column(index), "seed {seed}, column {index}");
        }
    }
}

#[test]
fn a_group_keeps_no_bytes_of_other_rows() {
    let strings: Vec<String> =
        (0..100_000).map(|row| format!("a string that is long enough: {row:06}")).collect();
    let views: ArrayRef = Arc::new(StringViewArray::from_iter_values(&strings));
    let offsets: ArrayRef = Arc::new(StringArray::from_iter_values(&strings));
    let batch = RecordBatch::try_from_iter([("views", views), ("offsets", offsets)]).unwrap();
    let part = batch.slice(40_000, 10);
    let table = load::from_batches(batch.schema(), &[vec![part.clone()]], &layout(1, 512)).unwrap();
    assert_eq!(rows_of(&table), part);
    // 10 views, 10 strings twice, 11 offsets, each rounded to 64 bytes.
    assert_eq!(table.size_bytes(), 192 + 384 + 64 + 384);
    // Strings of nulls do not count.
    let (views, buffers, _) = batch.column(0).as_string_view().clone().into_parts();
    let null = StringViewArray::new(views, buffers, Some(NullBuffer::new_null(100_000)));
    let batch = RecordBatch::try_from_iter([("views", Arc::new(null.slice(0, 512)) as ArrayRef)]).unwrap();
    let table = load::from_batches(batch.schema(), &[vec![batch]], &layout(1, 512)).unwrap();
    assert_eq!(table.size_bytes(), 512 * 16 + 64);
}

#[test]
fn tables_may_be_empty() {
    let schema = batch_of_all_types(&mut Random(1), 0).schema();
    for partitions in [vec![], vec![vec![]], vec![vec![], vec![RecordBatch::new_empty(schema.clone())]]] {
        let table = load::from_batches(schema.clone(), &partitions, &layout(3, 512)).unwrap();
        assert_eq!((table.rows(), table.size_bytes(), table.partitions().len()), (0, 0, partitions.len()));
        assert!(table.batches(8192).iter().all(|batches| batches.is_empty()));
        check_statistics(&table);
    }
    // Rows without columns are rows: `select count(*)`.
    let options = RecordBatchOptions::new().with_row_count(Some(1000));
    let empty = Arc::new(Schema::empty());
    let batch = RecordBatch::try_new_with_options(empty.clone(), vec![], &options).unwrap();
    let table = load::from_batches(empty, &[vec![batch]], &layout(1, 512)).unwrap();
    assert_eq!((table.rows(), table.size_bytes()), (1000, 0));
}

#[test]
fn partitions_are_kept_apart_and_in_order() {
    let batch = |rows: std::ops::Range<i64>| {
        RecordBatch::try_from_iter([("a", Arc::new(Int64Array::from_iter_values(rows)) as ArrayRef)]).unwrap()
    };
    let partitions: Vec<Vec<_>> = (0..7)
        .map(|p| (0..4).map(|b| batch(p * 4000 + b * 1000..p * 4000 + (b + 1) * 1000)).collect())
        .collect();
    let table = load::from_batches(batch(0..0).schema(), &partitions, &layout(1, 1536)).unwrap();
    check_groups(&table, 1536);
    for (partition, batches) in table.batches(100).iter().enumerate() {
        let values: Vec<i64> =
            batches.iter().flat_map(|b| b.column(0).as_primitive::<Int64Type>().values().to_vec()).collect();
        let start = partition as i64 * 4000;
        assert_eq!(values, (start..start + 4000).collect::<Vec<_>>());
        // 1536 + 1536 + 928 rows: no batch spans two groups.
        assert_eq!(batches.len(), 16 + 16 + 10);
    }
}

#[test]
fn bad_tables_are_refused() {
    let schema = |data_type, nullable| Arc::new(Schema::new(vec![Field::new("c", data_type, nullable)]));
    let union = DataType::Union(UnionFields::empty(), UnionMode::Sparse);
    let nested = DataType::List(Arc::new(Field::new_list_field(union, true)));
    let error = TableWriter::new(schema(nested, true), layout(1, 512)).unwrap_err();
    assert!(matches!(&error, TableError::UnsupportedType { column, .. } if column == "c"), "{error}");

    for rows in [0, 100, 1000] {
        let error = TableWriter::new(schema(DataType::Int32, true), layout(1, rows)).unwrap_err();
        assert!(error.to_string().contains("multiple of 512"), "{error}");
    }
    let error = TableWriter::new(schema(DataType::Int32, true), layout(0, 512)).unwrap_err();
    assert!(matches!(error, TableError::NoPartition));

    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None]));
    let batch = RecordBatch::try_from_iter([("c", numbers)]).unwrap();
    let mut writer = TableWriter::new(schema(DataType::Int64, true), layout(1, 512)).unwrap();
    let error = writer.push(0, &batch).unwrap_err();
    assert_eq!(error.to_string(), "a batch does not fit its table: expected c Int64, found c Int32");

    let error = load::from_batches(schema(DataType::Int32, false), &[vec![batch.clone()]], &layout(1, 512))
        .unwrap_err();
    assert!(matches!(error, LoadError::Table(TableError::Arrow(_))), "{error}");

    let nowhere = Layout { home: NodeId(4711), ..layout(1, 512) };
    let error = load::from_batches(batch.schema(), &[vec![batch]], &nowhere).unwrap_err();
    assert!(matches!(error, LoadError::Table(TableError::Memory(_))), "{error}");
}

/// The statistics are those of DataFusion's own source over the same batches.
fn check_statistics(table: &TableData) {
    let columns = table.schema().fields().len();
    let projections = [None, Some(vec![]), Some((0..columns).rev().step_by(2).collect())];
    for batch_size in [100, 512, 8192] {
        for projection in &projections {
            let batches = table.batches(batch_size);
            let source =
                MemorySourceConfig::try_new(&batches, table.schema().clone(), projection.clone()).unwrap();
            let partitions = (0..=batches.len()).map(Some).chain([None]);
            for partition in partitions {
                let expected = source.partition_statistics(partition).unwrap();
                let found = table.statistics(partition, projection.as_deref(), batch_size);
                assert_eq!(found, *expected, "partition {partition:?} of {projection:?} in {batch_size}");
            }
        }
    }
}

#[test]
fn statistics_are_those_of_datafusion() {
    let random = &mut Random(3);
    let batches: Vec<_> = [700, 0, 1500, 2048].map(|rows| vec![batch_of_all_types(random, rows)]).into();
    let table = load::from_batches(batches[0][0].schema(), &batches, &layout(1, 1024)).unwrap();
    check_statistics(&table);
}

#[derive(Default)]
struct Counter {
    total: AtomicU64,
    done: AtomicU64,
}

impl Progress for Counter {
    fn total(&self, rows: u64) {
        self.total.fetch_add(rows, Ordering::Relaxed);
    }

    fn advance(&self, rows: u64) {
        self.done.fetch_add(rows, Ordering::Relaxed);
    }
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn write_parquet(path: &Path, batch: &RecordBatch, compression: Compression) {
    let properties =
        WriterProperties::builder().set_compression(compression).set_max_row_group_row_count(Some(1000));
    let file = fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

fn numbers_and_text(rows: i64) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let text: ArrayRef = Arc::new(
        (0..rows).map(|i| (i % 5 > 0).then(|| format!("row {i} of the table"))).collect::<StringArray>(),
    );
    RecordBatch::try_from_iter_with_nullable([("number", numbers, false), ("text", text, true)]).unwrap()
}

#[test]
fn parquet_files_come_back_with_every_codec() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet");
    let batch = numbers_and_text(5500);
    let text = cast(batch.column(1), &DataType::Utf8View).unwrap();
    for compression in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::ZSTD(ZstdLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
    ] {
        write_parquet(&path, &batch, compression);
        for partitions in [1, 2, 7] {
            let counter = Counter::default();
            let table = load::from_parquet(&path, &layout(partitions, 512), &counter).unwrap();
            check_groups(&table, 512);
            let rows: Vec<usize> =
                table.batches(8192).iter().map(|p| p.iter().map(RecordBatch::num_rows).sum()).collect();
            assert_eq!(rows.len(), partitions);
            assert!(rows.iter().max().unwrap() - rows.iter().min().unwrap() <= 1, "{rows:?}");
            assert_eq!(rows_of(&table).column(0), batch.column(0));
            assert_eq!(rows_of(&table).column(1), &text);
            assert_eq!((counter.total.into_inner(), counter.done.into_inner()), (5500, 5500));
        }
    }
    // Fewer rows than a group: one partition. No rows: no groups.
    assert_eq!(load::from_parquet(&path, &layout(7, 131_072), &()).unwrap().partitions().len(), 1);
    write_parquet(&path, &batch.slice(0, 0), Compression::SNAPPY);
    assert_eq!(load::from_parquet(&path, &layout(7, 512), &()).unwrap().rows(), 0);
}

#[test]
fn parquet_files_of_another_writer_are_read() {
    let table = load::from_parquet(&data("types.parquet"), &layout(3, 512), &()).unwrap();
    check_groups(&table, 512);
    let rows = rows_of(&table);
    assert_eq!(rows.num_rows(), 1000);
    let column = |name: &str| rows.column_by_name(name).unwrap();
    for i in 0..1000 {
        row_of_another_writer(&column, i);
    }
}

/// The values of row `i` from tests/data/make.py.
fn row_of_another_writer<'a>(column: &impl Fn(&str) -> &'a ArrayRef, i: usize) {
    assert_eq!(column("id").as_primitive::<Int64Type>().value(i), i as i64);
    let text = |name: &str| arrow::util::display::array_value_to_string(column(name), i).unwrap();
    for name in [
        "flag", "tiny", "real", "price", "day", "at", "short", "long", "bytes", "mode", "list", "pair", "map",
    ] {
        assert_eq!(column(name).is_null(i), i.is_multiple_of(7), "{name} of row {i}");
    }
    if i.is_multiple_of(7) {
        return;
    }
    assert_eq!(text("flag"), i.is_multiple_of(3).to_string());
    assert_eq!(text("tiny"), (i % 100).to_string());
    assert_eq!(text("real").parse::<f64>().unwrap(), i as f64 / 4.0);
    assert_eq!(text("price"), format!("{}.{:02}", i / 100, i % 100));
    assert_eq!(
        cast(column("day"), &DataType::Int32).unwrap().as_primitive::<Int32Type>().value(i),
        10_957 + i as i32
    );
    assert_eq!(text("at"), format!("1970-01-01T00:{:02}:{:02}Z", i / 60, i % 60));
    assert_eq!(column("short").as_string_view().value(i), format!("s{i}"));
    assert_eq!(column("long").as_string_view().value(i), format!("a string of more than twelve bytes, {i}"));
    assert_eq!(column("bytes").as_binary_view().value(i), vec![i as u8; i % 20]);
    assert_eq!(text("mode"), ["AIR", "RAIL", "TRUCK"][i % 3]);
    let list = column("list").as_list::<i32>().value(i);
    assert_eq!(list.as_primitive::<Int32Type>().values(), &(0..i as i32 % 5).collect::<Vec<_>>()[..]);
    assert_eq!(text("pair"), format!("{{x: {i}, y: {i}}}"));
    assert_eq!(text("map"), format!("{{k: {i}}}"));
    assert!(column("none").logical_nulls().unwrap().is_null(i));
}

/// A damaged or unsupported file: an error of one line that names the file, and no panic.
#[test]
fn bad_parquet_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet");
    let refused = |path: &Path| {
        let error = load::from_parquet(path, &layout(2, 512), &()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()) && !text.contains('\n'), "{text}");
        error
    };
    assert!(matches!(refused(&path), LoadError::Read { .. }));
    assert!(matches!(refused(directory.path()), LoadError::Directory { .. }));
    for content in ["", "PAR", "a,b\n1,2\n", "PK\x03\x04 this is a zip file PAR1"] {
        fs::write(&path, content).unwrap();
        assert!(matches!(refused(&path), LoadError::NotParquet { .. }), "{content:?}");
    }
    for content in ["PAR1", "PAR1PAR1", "PAR1\u{7f}\u{7f}\u{7f}\u{7f}PAR1"] {
        fs::write(&path, content).unwrap();
        assert!(matches!(refused(&path), LoadError::Parquet { .. }), "{content:?}");
    }
    let brotli = refused(&data("brotli.parquet"));
    assert!(matches!(&brotli, LoadError::Codec { codec, .. } if codec == "brotli"), "{brotli}");

    write_parquet(&path, &numbers_and_text(3000), Compression::SNAPPY);
    let whole = fs::read(&path).unwrap();
    for length in [4, 5, 100, whole.len() / 2, whole.len() - 9, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        let error = refused(&path);
        assert!(
            matches!(error, LoadError::Truncated { .. } | LoadError::Parquet { .. }),
            "{length}: {error}"
        );
    }
    // Damaged pages may be readable by accident; a panic is the only failure.
    for seed in 0..200 {
        println!("seed {seed}");
        let random = &mut Random(seed);
        let mut damaged = whole.clone();
        for _ in 0..1 + random.below(8) {
            let at = 4 + random.below(whole.len() - 8);
            damaged[at] ^= 1 << random.below(8);
        }
        fs::write(&path, damaged).unwrap();
        if load::from_parquet(&path, &layout(2, 512), &()).is_err() {
            refused(&path);
        }
    }
}

#[test]
fn readers_fill_tables_partition_by_partition() {
    let rows = 5500_usize;
    let batch = numbers_and_text(rows as i64);
    let open = |part: usize, parts: usize| -> load::PartitionReader {
        let (start, end) = (rows * part / parts, rows * (part + 1) / parts);
        let batches = [batch.slice(start, 100), batch.slice(start + 100, end - start - 100)].map(Ok);
        Box::new(RecordBatchIterator::new(batches, batch.schema()))
    };
    let sources = [rows, 1].map(|rows| PartitionedSource { rows: rows as u64, open: Box::new(open) });
    let counter = Counter::default();
    let tables = load::from_readers(&sources, &layout(3, 1024), &counter).unwrap();
    let partitions: Vec<usize> = tables.iter().map(|table| table.partitions().len()).collect();
    assert_eq!(partitions, [3, 1], "the number of rows decides");
    for table in &tables {
        check_groups(table, 1024);
        assert_eq!(rows_of(table), batch);
    }
    assert_eq!((counter.total.into_inner(), counter.done.into_inner()), (5501, 11_000));
}
