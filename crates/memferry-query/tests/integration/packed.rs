//! Bit-packed columns answer as plain ones do, and a column that ascends is searched.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Schema};
use arrow::util::pretty::pretty_format_batches;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use memferry::topology::Machine;
use memferry_query::{
    BitPacked, Layout, LoadError, PackedColumn, PackedColumns, Prefetch, SessionOptions, TableData,
    TableError, TieredScanExec, TieredTable, Tiers, load, session,
};

use crate::prefetch::two_tiers;

const ROWS: usize = 3_500;
const ROW_GROUP_ROWS: usize = 1024;

/// A column for each width of 1 to 64 bits; those of even widths have nulls.
fn rows() -> RecordBatch {
    let column = |width: u32| -> ArrayRef {
        let least = if width == 64 { i64::MIN } else { -3 };
        let bits = |row: usize| {
            (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_mul(u64::from(width) | 1)
                >> (64 - width)
        };
        let value = |row| (width % 2 == 1 || row % 5 != 0).then(|| least.wrapping_add(bits(row) as i64));
        Arc::new((0..ROWS).map(value).collect::<Int64Array>())
    };
    let id: ArrayRef = Arc::new(Int32Array::from_iter_values(1..=ROWS as i32));
    let name: ArrayRef = Arc::new(StringArray::from_iter_values((0..ROWS).map(|row| format!("row {row}"))));
    let mut columns = vec![("id".to_owned(), id, false), ("name".to_owned(), name, false)];
    columns.extend((1..=64).map(|width| (format!("w{width}"), column(width), true)));
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

fn table(rows: &RecordBatch, machine: &Arc<Machine>, packed: PackedColumns) -> Arc<TableData> {
    let middle = ROWS / 2 + 7;
    let partitions = [vec![rows.slice(0, middle)], vec![rows.slice(middle, ROWS - middle)]];
    let home = machine.nodes()[0].id;
    let layout = Layout { row_group_rows: ROW_GROUP_ROWS, packed, ..Layout::new(Arc::clone(machine), home) };
    Arc::new(load::from_batches(rows.schema(), &partitions, &layout).unwrap())
}

fn context(data: &Arc<TableData>, tiers: &Arc<Tiers>, prefetch: Prefetch) -> SessionContext {
    let options = SessionOptions { prefetch, partitions: 2, batch_rows: 300, ..SessionOptions::default() };
    let context = session(&options);
    let table = TieredTable::try_new(Arc::clone(data), Arc::clone(tiers)).unwrap();
    context.register_table("t", Arc::new(table)).unwrap();
    context
}

async fn answer(context: &SessionContext, sql: &str) -> String {
    let batches = context.sql(sql).await.unwrap().collect().await.unwrap();
    pretty_format_batches(&batches).unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packed_columns_answer_as_plain_ones() {
    let machine = two_tiers();
    let tiers = Tiers::builder(Arc::clone(&machine)).build().unwrap();
    let rows = rows();
    let (plain, packed) = (PackedColumns::None, PackedColumns::All);
    let (plain, packed) = (table(&rows, &machine, plain), table(&rows, &machine, packed));
    assert_eq!(plain.schema(), packed.schema());
    for group in packed.partitions().iter().flatten() {
        for width in 1..64 {
            let of_group =
                group.packed(1 + width as usize).unwrap_or_else(|| panic!("{width} bits are not packed"));
            assert!(of_group.width() <= width && of_group.value_type() == &DataType::Int64);
        }
        assert!(group.packed(1).is_none(), "a string has no bits to spare");
    }
    let plain = context(&plain, &tiers, Prefetch::Off);
    for prefetch in [Prefetch::Off, Prefetch::Always] {
        let packed = context(&packed, &tiers, prefetch);
        for width in 1..=64 {
            let constant = if width == 64 { 0 } else { (1_i64 << (width - 1)) - 3 };
            for sql in [
                format!("select id, w{width} from t where w{width} < {constant} order by id"),
                format!("select min(w{width}), max(w{width}), bit_xor(w{width}), count(w{width}) from t"),
                format!("select bit_xor(w{width}) from t where id % 50 = 1"),
                format!("select bit_xor(w{width}), min(name) from t where w3 >= 0 and w{width} is not null"),
                format!(
                    "select count(*) from t where w{width} = (select max(w{width}) from t) or w5 is null"
                ),
                format!(
                    "select id from t where w{width} is null and id between 1000 and 1100 order by id limit 9"
                ),
            ] {
                assert_eq!(answer(&packed, &sql).await, answer(&plain, &sql).await, "{sql}");
            }
        }
    }
}

#[tokio::test]
async fn packed_rows_come_back_in_batches() {
    let machine = two_tiers();
    let rows = rows();
    let packed = table(&rows, &machine, PackedColumns::All);
    let batches: Vec<RecordBatch> = packed.batches(500).into_iter().flatten().collect();
    assert_eq!(arrow::compute::concat_batches(&rows.schema(), &batches).unwrap(), rows);
    let plain = table(&rows, &machine, PackedColumns::None);
    assert!(
        packed.size_bytes() < plain.size_bytes() * 3 / 5,
        "{} of {}",
        packed.size_bytes(),
        plain.size_bytes()
    );
    // A planner counts the bytes of the values, whichever way they are kept.
    let bytes =
        |data: &TableData| *data.statistics(None, Some(&[5]), 500).total_byte_size.get_value().unwrap();
    assert_eq!(bytes(&packed), ROWS * size_of::<i64>());
    let nulls = |data: &TableData| data.statistics(None, None, 500).column_statistics[3].null_count;
    assert_eq!(nulls(&packed), nulls(&plain));
}

/// 50 million of them take 162.5 MB, as the paper's column does without its dictionary.
#[test]
fn random_numbers_up_to_50_million_take_26_bits() {
    let machine = two_tiers();
    let value = |row: u64| 1 + (row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as i32 % 50_000_000;
    let column: ArrayRef =
        Arc::new(Int32Array::from_iter_values((0..ROWS as u64).map(|row| value(row).abs())));
    let rows = RecordBatch::try_from_iter([("c1", column)]).unwrap();
    let data = table(&rows, &machine, PackedColumns::Named(vec!["c1".to_owned()]));
    let groups: Vec<_> = data.partitions().iter().flatten().collect();
    assert_eq!(groups[0].packed(0).unwrap().width(), 26);
    assert_eq!(groups[0].size_bytes(), ROW_GROUP_ROWS * 26 / 8);
}

#[tokio::test]
async fn columns_that_come_packed_stay_packed() {
    let machine = two_tiers();
    let rows = rows();
    let PackedColumn { packed, array, .. } = BitPacked::pack(&[Arc::clone(rows.column(11))]).unwrap();
    let fields = vec![rows.schema().field(0).clone(), packed.field("w10", true)];
    let batch =
        RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![Arc::clone(rows.column(0)), array]).unwrap();
    let data = table(&batch, &machine, PackedColumns::None);
    assert_eq!(data.schema().field(1).data_type(), &DataType::Int64);
    let group = &data.partitions()[0][0];
    assert!(group.packed(0).is_none() && group.packed(1).is_some());
    let tiers = Tiers::builder(Arc::clone(&machine)).build().unwrap();
    let packed = context(&data, &tiers, Prefetch::Off);
    let plain = context(&table(&rows, &machine, PackedColumns::None), &tiers, Prefetch::Off);
    let sql = "select id, w10 from t where w10 > 100 order by id";
    assert_eq!(answer(&packed, sql).await, answer(&plain, sql).await);
}

#[test]
fn columns_that_cannot_be_packed_are_refused() {
    let machine = two_tiers();
    let layout = |name: &str| Layout {
        packed: PackedColumns::Named(vec![name.to_owned()]),
        ..Layout::new(Arc::clone(&machine), machine.nodes()[0].id)
    };
    let rows = rows();
    for (name, says) in [("name", "\"name\" is of type Utf8"), ("nosuch", "no column \"nosuch\"")] {
        let error = load::from_batches(rows.schema(), &[], &layout(name)).unwrap_err();
        assert!(matches!(
            error,
            LoadError::Table(TableError::NotPackable { .. } | TableError::NoColumnToPack { .. })
        ));
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// The answer, and the row groups that scans left out.
async fn run(context: &SessionContext, sql: &str) -> (String, usize) {
    let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let batches = collect(Arc::clone(&plan), context.task_ctx()).await.unwrap();
    (pretty_format_batches(&batches).unwrap().to_string(), skipped(&*plan))
}

fn skipped(plan: &dyn ExecutionPlan) -> usize {
    let own = match plan.downcast_ref::<TieredScanExec>().and_then(|_| plan.metrics()) {
        Some(metrics) => metrics.sum_by_name("row_groups_skipped").map_or(0, |value| value.as_usize()),
        None => 0,
    };
    own + plan.children().into_iter().map(|child| skipped(&**child)).sum::<usize>()
}

#[tokio::test]
async fn a_column_that_ascends_is_searched() {
    let machine = two_tiers();
    let tiers = Tiers::builder(Arc::clone(&machine)).build().unwrap();
    let rows = rows();
    // Rows in an order in which no column ascends: nothing to search, and the same answers.
    let order = arrow::array::UInt32Array::from_iter_values((0..ROWS as u32).rev());
    let reversed = arrow::compute::take_record_batch(&rows, &order).unwrap();
    let unsorted = context(&table(&reversed, &machine, PackedColumns::None), &tiers, Prefetch::Off);
    for packed in [PackedColumns::None, PackedColumns::All] {
        let data = table(&rows, &machine, packed);
        let groups_count = data.partitions().iter().flatten().count();
        for prefetch in [Prefetch::Off, Prefetch::Always] {
            let sorted = context(&data, &tiers, prefetch);
            for (filter, read) in [
                ("id = 1", 1),
                ("id = 1024", 1),
                ("id = 1025", 1),
                ("id = 3500", 1),
                ("id = 0", 0),
                ("id = 3501", 0),
                ("1758 = id", 1),
                ("id > 3499", 1),
                ("id >= 3501", 0),
                ("id < 1", 0),
                ("id <= 1 or w7 = 5", groups_count),
                ("id between 1020 and 1030", 2),
                ("id > 100 and id < 50", 0),
                ("id > 1000 and w9 > 5 and id <= 1010", 1),
                ("id < 2000 and 1000 / (id - 2500) > -1", 3),
            ] {
                let sql = format!("select id, w9, name from t where {filter} order by id");
                let (expected, _) = run(&unsorted, &sql).await;
                let (found, skipped) = run(&sorted, &sql).await;
                assert_eq!(found, expected, "{sql}");
                assert_eq!(groups_count - skipped, read, "row groups read by {sql}");
            }
        }
    }
}

#[tokio::test]
async fn a_parameter_of_a_prepared_statement_is_searched_for() {
    let machine = two_tiers();
    let tiers = Tiers::builder(Arc::clone(&machine)).build().unwrap();
    let data = table(&rows(), &machine, PackedColumns::All);
    let context = context(&data, &tiers, Prefetch::Off);
    context.sql("prepare one as select w26 from t where id = $1").await.unwrap().collect().await.unwrap();
    for id in [1, 1024, 2000, 3500] {
        let (found, skipped) = run(&context, &format!("execute one({id})")).await;
        let (expected, _) = run(&context, &format!("select w26 from t where id + 0 = {id}")).await;
        assert_eq!((found, skipped), (expected, 3), "id {id}");
    }
}
