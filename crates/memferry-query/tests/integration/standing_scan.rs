//! The scan in memory with dictionaries and statistics of blocks answers as plain DataFusion does, and leaves rows out.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Date32Array, Decimal128Array, Float64Array, Int64Array, RecordBatch,
    StringViewArray,
};
use arrow::compute::concat_batches;
use arrow::datatypes::DataType;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use memferry_query::{
    Layout, PackedColumns, Prefetch, SessionOptions, TableData, TieredScanExec, TieredTable, Tiers, load,
    session,
};

use crate::prefetch::two_tiers;

const ROWS: usize = 40_000;
const ROW_GROUP_ROWS: usize = 8192;
const SEED: u64 = 18;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % end
    }

    /// Nothing for one of seven.
    fn optional<T>(&mut self, value: impl FnOnce(&mut Random) -> T) -> Option<T> {
        (self.below(7) != 0).then(|| value(self))
    }
}

/// A key that ascends, numbers of which neighbours are alike, and columns with few and with many values; all but the key with
/// nulls, one block of them with nulls only.
fn rows(random: &mut Random) -> RecordBatch {
    let blank = 1024..1536;
    let value = |row: usize, random: &mut Random| -> Option<u64> {
        let value = random.optional(|random| random.below(1_000));
        value.filter(|_| !blank.contains(&row))
    };
    let float = |number: u64| match number % 20 {
        0 => f64::NAN,
        1 => -0.0,
        2 => 0.0,
        3 => f64::NEG_INFINITY,
        _ => number as f64 / 8.0 - 60.0,
    };
    let text = |number: u64| match number % 7 {
        0 => String::new(),
        of => format!("{}{}", "letters ".repeat(of as usize), number % 5),
    };
    let near = |row: usize, number: u64| (row / 700) as i64 * 40 + number as i64 % 50;
    let decimals = |values: Decimal128Array| values.with_precision_and_scale(15, 2).unwrap();
    // Each column has values of its own: a row, and its value if it has one.
    let mut values =
        || -> Vec<(usize, Option<u64>)> { (0..ROWS).map(|row| (row, value(row, random))).collect() };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("key", Arc::new(Int64Array::from_iter_values((0..ROWS as i64).map(|row| row / 3)))),
        ("near", {
            let near = |(row, value): (usize, Option<u64>)| Some(near(row, value?));
            Arc::new(values().into_iter().map(near).collect::<Int64Array>())
        }),
        ("day", {
            let day = |(row, value): (usize, Option<u64>)| Some(near(row, value?) as i32);
            Arc::new(values().into_iter().map(day).collect::<Date32Array>())
        }),
        ("float", {
            Arc::new(values().into_iter().map(|(_, value)| value.map(float)).collect::<Float64Array>())
        }),
        ("few", {
            let few = |(_, value): (usize, Option<u64>)| Some(i128::from(value? % 11) - 5);
            Arc::new(decimals(values().into_iter().map(few).collect()))
        }),
        ("many", {
            let many = |(row, value): (usize, Option<u64>)| Some(i128::from(value?) * row as i128);
            Arc::new(decimals(values().into_iter().map(many).collect()))
        }),
        ("word", {
            Arc::new(values().into_iter().map(|(_, value)| value.map(text)).collect::<StringViewArray>())
        }),
        ("name", {
            let name = |(row, value): (usize, Option<u64>)| Some(format!("name {row} of {}", text(value?)));
            Arc::new(values().into_iter().map(name).collect::<StringViewArray>())
        }),
    ];
    let with_nulls = columns.into_iter().map(|(name, column)| (name, column, name != "key"));
    RecordBatch::try_from_iter_with_nullable(with_nulls).unwrap()
}

/// Partitions of different lengths; one is empty.
fn partitions(rows: &RecordBatch) -> Vec<Vec<RecordBatch>> {
    let (rows_count, cut) = (rows.num_rows(), rows.num_rows() / 4);
    vec![
        vec![rows.slice(0, cut), rows.slice(cut, 7)],
        vec![],
        vec![rows.slice(cut + 7, rows_count - cut - 7)],
    ]
}

fn table(rows: &RecordBatch, dictionaries: bool) -> Arc<TableData> {
    table_with(rows, |layout| Layout { dictionaries, ..layout })
}

fn table_with(rows: &RecordBatch, with: impl Fn(Layout) -> Layout) -> Arc<TableData> {
    let machine = two_tiers();
    let home = machine.nodes()[0].id;
    let layout = with(Layout { row_group_rows: ROW_GROUP_ROWS, ..Layout::new(machine, home) });
    Arc::new(load::from_batches(rows.schema(), &partitions(rows), &layout).unwrap())
}

/// Nothing chosen by the table: each column is kept as its values are.
fn as_it_is(layout: Layout) -> Layout {
    Layout { dictionaries: false, narrow: false, ..layout }
}

fn options(prefetch: Prefetch) -> SessionOptions {
    SessionOptions { prefetch, partitions: 3, batch_rows: 1000, ..SessionOptions::default() }
}

/// The table `t`, and `wanted` with a few keys and floats for joins.
fn tiered(data: &Arc<TableData>, prefetch: Prefetch) -> SessionContext {
    let context = session(&options(prefetch));
    let tiers = Tiers::builder(two_tiers()).build().unwrap();
    let table = TieredTable::try_new(Arc::clone(data), tiers).unwrap();
    context.register_table("t", Arc::new(table)).unwrap();
    register_wanted(&context);
    context
}

fn plain(rows: &RecordBatch) -> SessionContext {
    let context = session(&options(Prefetch::Off));
    let table = MemTable::try_new(rows.schema(), partitions(rows)).unwrap();
    context.register_table("t", Arc::new(table)).unwrap();
    register_wanted(&context);
    context
}

fn register_wanted(context: &SessionContext) {
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![Some(7), Some(9_000), None, Some(13_000)]));
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![Some(-0.0), Some(3.5), Some(7.0), None]));
    let columns = [("wanted_key", keys, true), ("wanted_float", floats, true)];
    let wanted = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let table = MemTable::try_new(wanted.schema(), vec![vec![wanted]]).unwrap();
    context.register_table("wanted", Arc::new(table)).unwrap();
}

async fn answer(context: &SessionContext, sql: &str) -> (RecordBatch, Skipped) {
    let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let batches = collect(Arc::clone(&plan), context.task_ctx()).await.unwrap();
    (concat_batches(&plan.schema(), &batches).unwrap(), Skipped::by(plan.as_ref()))
}

#[derive(Default)]
struct Skipped {
    groups: usize,
    rows: usize,
}

impl Skipped {
    fn by(plan: &dyn ExecutionPlan) -> Skipped {
        let mut skipped = Skipped::default();
        if plan.downcast_ref::<TieredScanExec>().is_some()
            && let Some(metrics) = plan.metrics()
        {
            let count = |name| metrics.sum_by_name(name).map_or(0, |value| value.as_usize());
            skipped = Skipped { groups: count("row_groups_skipped"), rows: count("rows_skipped") };
        }
        for child in plan.children() {
            let of_child = Skipped::by(child.as_ref());
            skipped.groups += of_child.groups;
            skipped.rows += of_child.rows;
        }
        skipped
    }
}

/// Conditions over each column, of which none can fail.
fn conditions(random: &mut Random) -> Vec<String> {
    let number = |random: &mut Random, end: u64| random.below(end) as i64;
    let operator = |random: &mut Random| ["=", "<>", "<", "<=", ">", ">="][random.below(6) as usize];
    let mut conditions = vec![
        "word = ''".to_owned(),
        "word in ('', 'letters 3', 'nothing')".to_owned(),
        "word like '%letters letters 1' or word is null".to_owned(),
        "word is not null".to_owned(),
        "word <> 'letters letters letters letters letters 0'".to_owned(),
        "word = 'nowhere'".to_owned(),
        "few is null".to_owned(),
        "few is distinct from 0.01".to_owned(),
        "float = 0.0".to_owned(),
        "float = cast('NaN' as double)".to_owned(),
        "float < -1000".to_owned(),
        "float >= cast('NaN' as double)".to_owned(),
        "name < 'name 2'".to_owned(),
        "few < many".to_owned(),
        "many < 3 and few > 0".to_owned(),
        "key in (1, 5000, 12000)".to_owned(),
        "near in (5, 1200) or near is null".to_owned(),
        "near in (7, 8, 2000) and near <> 8".to_owned(),
        "near >= 100 and near < 900 and near <> 500 and near <> 501".to_owned(),
        // No value is beyond these constants.
        "near <= 9223372036854775807 and near > -9223372036854775808".to_owned(),
        "near < -9223372036854775807".to_owned(),
        "many < 9999999999999.99 and many > -9999999999999.99".to_owned(),
        "many > 9999999999999.98".to_owned(),
    ];
    for _ in 0..4 {
        conditions.push(format!("near {} {}", operator(random), number(random, 2_400)));
        conditions.push(format!("day {} to_date({})", operator(random), number(random, 2_400)));
        conditions.push(format!("float {} {}", operator(random), number(random, 120) - 60));
        conditions.push(format!("few {} {}", operator(random), (number(random, 14) - 7) as f64 / 100.0));
        conditions.push(format!("many {} {}", operator(random), number(random, 300_000)));
        conditions.push(format!("key {} {}", operator(random), number(random, 14_000)));
    }
    conditions
}

const COLUMNS: &str = "key, near, day, float, few, many, word, name";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_plain_datafusion() {
    let random = &mut Random(SEED);
    println!("seed {SEED}");
    let rows = rows(random);
    let plain = plain(&rows);
    let ways = [
        tiered(&table(&rows, true), Prefetch::Off),
        tiered(&table(&rows, true), Prefetch::Always),
        tiered(&table(&rows, false), Prefetch::Off),
        tiered(&table_with(&rows, as_it_is), Prefetch::Off),
        tiered(
            &table_with(&rows, |layout| Layout { packed: PackedColumns::All, ..layout }),
            Prefetch::Always,
        ),
    ];
    let conditions = conditions(random);
    let one = |random: &mut Random| conditions[random.below(conditions.len() as u64) as usize].clone();
    let mut filters = conditions.clone();
    for _ in 0..24 {
        let joint = ["and", "or", "and not"][random.below(3) as usize];
        filters.push(format!("({}) {joint} ({}) and {}", one(random), one(random), one(random)));
    }
    // More gaps than are worth a pass for each range between them.
    for (column, end) in [("key", 14_000), ("near", 2_400), ("few", 1)] {
        let gaps: Vec<String> =
            (0..6).map(|gap| format!("{column} <> {}", random.below(end) + 2 * gap)).collect();
        filters.push(gaps.join(" and "));
        filters.push(format!("{} and {column} >= 2 and {column} < {}", gaps.join(" and "), end / 2));
    }
    for filter in filters {
        let sql = format!("select {COLUMNS} from t where {filter} order by {COLUMNS}");
        let (expected, _) = answer(&plain, &sql).await;
        for (index, way) in ways.iter().enumerate() {
            assert!(answer(way, &sql).await.0 == expected, "way {index} answers differently: {sql}");
        }
    }
    for sql in [
        "select word, few, count(*), sum(many) from t group by word, few order by word, few",
        "select key, word, name from t join wanted on key = wanted_key order by key, word, name",
        "select key, few from t order by near desc nulls last, key, few limit 20",
        "select count(*) from t where key in (select wanted_key from wanted) and few > 0",
        "select max(word), min(few), count(distinct word) from t where key > 100",
        "select count(*) from t where not (word < 'letters 3')",
        // 0.0 and -0.0 are equal.
        "select count(*), sum(key) from t join wanted on float = wanted_float",
        "select count(*), sum(key) from t join wanted on float = wanted_float and near % 2 = wanted_key % 2",
    ] {
        let (expected, _) = answer(&plain, sql).await;
        for (index, way) in ways.iter().enumerate() {
            assert!(answer(way, sql).await.0 == expected, "way {index} answers differently: {sql}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_row_can_pass_is_left_out() {
    let rows = rows(&mut Random(SEED));
    let tiered = tiered(&table(&rows, true), Prefetch::Off);
    let plain = plain(&rows);
    let groups = table(&rows, true).partitions().iter().flatten().count();
    for (sql, groups_min, rows_min) in [
        // Neighbours are alike: 700 rows have one range of 50 numbers.
        ("select count(*) from t where near between 1000 and 1010", 3, 4_000),
        ("select count(*) from t where day = to_date(1000)", 3, 4_000),
        ("select count(*) from t where near = 123456", groups, 0),
        // Few keys far apart, as constants and from a join.
        ("select count(*) from t where key in (7, 9000, 13000)", 2, 10_000),
        ("select count(name) from t join wanted on key = wanted_key", 2, 10_000),
        ("select name from t order by key, name limit 5", 0, 0),
    ] {
        let (found, skipped) = answer(&tiered, sql).await;
        assert!(found == answer(&plain, sql).await.0, "{sql}");
        assert!(
            skipped.groups >= groups_min && skipped.rows >= rows_min,
            "{} groups and {} rows: {sql}",
            skipped.groups,
            skipped.rows
        );
    }
}

#[test]
fn columns_with_few_values_are_dictionaries() {
    let rows = rows(&mut Random(SEED));
    let (with, without) = (table(&rows, true), table(&rows, false));
    let is_dictionary = |array: &ArrayRef| matches!(array.data_type(), DataType::Dictionary(..));
    for group in with.partitions().iter().flatten().filter(|group| group.rows() >= 4096) {
        let kept: Vec<bool> = (0..8).map(|column| is_dictionary(group.column(column))).collect();
        assert_eq!(kept, [false, false, false, false, true, false, true, false]);
        assert!(group.column(6).as_any_dictionary().values().len() <= 36, "each value once");
    }
    let short = table(&rows.slice(0, 4000), true);
    assert!(short.partitions().iter().flatten().all(|group| !is_dictionary(group.column(6))), "few rows");
    assert!(without.partitions().iter().flatten().all(|group| !is_dictionary(group.column(6))));
    let as_it_is = table_with(&rows, as_it_is);
    assert!(with.size_bytes() < as_it_is.size_bytes() * 4 / 5, "{} bytes", with.size_bytes());
    for data in [&with, &without] {
        assert_eq!(data.schema(), &rows.schema());
        let batches: Vec<RecordBatch> = data.batches(1000).into_iter().flatten().collect();
        assert_eq!(concat_batches(&rows.schema(), &batches).unwrap(), rows);
    }
    // A planner sees the bytes of the values, in this or that form.
    let bytes =
        |data: &TableData| *data.statistics(None, Some(&[4]), 1000).total_byte_size.get_value().unwrap();
    assert!(bytes(&with) <= bytes(&without) && bytes(&with) > bytes(&without) * 4 / 5);
}

/// The width of a column that is bit-packed.
fn width(array: &ArrayRef) -> Option<i32> {
    match array.data_type() {
        DataType::FixedSizeList(_, width) => Some(*width),
        _ => None,
    }
}

/// One row group whose values fit into 16 bits, one beyond 64 bits, one with few values, one with nulls only, and one that is short.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_row_group_keeps_decimals_in_its_own_form() {
    let least = i128::from(i64::MIN);
    let value = |row: usize| match row / ROW_GROUP_ROWS {
        _ if row % 11 == 3 => None,
        0 => Some(row as i128 - 4000),
        1 => Some((row as i128 - 12_000) * (1 << 62)),
        2 => Some(row as i128 % 5),
        3 => None,
        _ => Some(least + row as i128 % 3),
    };
    let rows_count = 4 * ROW_GROUP_ROWS + 700;
    let column: Decimal128Array = (0..rows_count).map(value).collect();
    let column: ArrayRef = Arc::new(column.with_precision_and_scale(38, 0).unwrap());
    let rows = RecordBatch::try_from_iter_with_nullable([("d", column, true)]).unwrap();
    let machine = two_tiers();
    let home = machine.nodes()[0].id;
    let layout = Layout { row_group_rows: ROW_GROUP_ROWS, ..Layout::new(machine, home) };
    let pieces = vec![vec![rows.clone()]];
    let data = Arc::new(load::from_batches(rows.schema(), &pieces, &layout).unwrap());
    let groups = &data.partitions()[0];
    let forms: Vec<_> = groups.iter().map(|group| width(group.column(0))).collect();
    assert_eq!(forms, [Some(16), None, None, Some(8), None]);
    assert!(matches!(groups[2].column(0).data_type(), DataType::Dictionary(..)));
    assert_eq!(concat_batches(&rows.schema(), &data.batches(1000)[0]).unwrap(), rows);
    // Stored row groups can be loaded again, each in its own form.
    let stored: Vec<RecordBatch> = groups[..2].iter().map(|group| group.batch().clone()).collect();
    let again = load::from_batches(stored[0].schema(), &[stored], &layout).unwrap();
    let forms: Vec<_> = again.partitions()[0].iter().map(|group| width(group.column(0))).collect();
    assert_eq!(forms, [Some(16), None]);
    assert_eq!(
        concat_batches(&rows.schema(), &again.batches(1000)[0]).unwrap(),
        rows.slice(0, 2 * ROW_GROUP_ROWS)
    );
    let kept_as_it_is = Arc::new(load::from_batches(rows.schema(), &pieces, &as_it_is(layout)).unwrap());
    assert!(
        kept_as_it_is.partitions()[0]
            .iter()
            .all(|group| group.column(0).data_type() == rows.column(0).data_type())
    );
    // A planner sees the bytes of the values.
    let bytes = |data: &TableData| *data.statistics(None, None, 1000).total_byte_size.get_value().unwrap();
    assert!(bytes(&data) <= bytes(&kept_as_it_is) && bytes(&data) > bytes(&kept_as_it_is) * 4 / 5);

    let context = tiered(&data, Prefetch::Off);
    let plain = session(&options(Prefetch::Off));
    plain.register_table("t", Arc::new(MemTable::try_new(rows.schema(), pieces).unwrap())).unwrap();
    for constant in [
        "-4001",
        "-4000",
        "-4",
        "0",
        "2",
        "4191",
        "4192",
        "65536",
        "-9223372036854775808",
        "-9223372036854775807",
        "9223372036854775807",
        "9223372036854775808",
        "99999999999999999999999999999999999999",
        "-99999999999999999999999999999999999999",
    ] {
        for operator in ["=", "<>", "<", "<=", ">", ">="] {
            let sql = format!(
                "select count(*), sum(d), min(d) from t where d {operator} cast('{constant}' as decimal(38, 0))"
            );
            assert!(answer(&context, &sql).await.0 == answer(&plain, &sql).await.0, "{sql}");
        }
    }
    for sql in [
        "select count(d), sum(d), max(d) from t",
        "select d from t where d between 5 and 900 and d <> 17 order by d",
        "select count(*) from t where d is null",
    ] {
        assert!(answer(&context, sql).await.0 == answer(&plain, sql).await.0, "{sql}");
    }
}
