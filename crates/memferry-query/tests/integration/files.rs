//! Tables that are files: answers equal DataFusion's, nothing is read that no row group needs, and every failure of a file
//! or store is an error of the query that met it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Float64Array, Int64Array, ListArray, RecordBatch, StringArray, StructArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int64Type, SchemaRef};
use arrow::util::pretty::pretty_format_batches;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::DataFusionError;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect, displayable};
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use memferry::internals::{DiskFaults, Measured};
use memferry::mover::{StorageEngine, StorageOptions};
use memferry::topology::{Machine, ReadRate, Storage};
use memferry_query::files::{FileReport, RegisterError, register};
use memferry_query::load::{self, LoadingTable};
use memferry_query::{Layout, LoadError, SessionOptions, TableData, Tiers, session};
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use tokio::task::JoinHandle;

use crate::domains::two_domains;
use crate::store_support::{Fault, TestStore};

pub(crate) const ROWS: i64 = 20_000;
const GROUP_ROWS: usize = 1000;

/// `id` ascends; `mixed` is a permutation of it; `text` is wide; the rest is nested, or null.
pub(crate) fn batch(ids: std::ops::Range<i64>) -> RecordBatch {
    let mixed = |id: i64| id * 7919 % ROWS;
    let lists = ids.clone().map(|id| (id % 3 != 0).then(|| (0..id % 4).map(Some).collect::<Vec<_>>()));
    let fields = vec![
        (Arc::new(Field::new("x", DataType::Int64, true)), {
            Arc::new(ids.clone().map(|id| (id % 5 != 0).then_some(id)).collect::<Int64Array>()) as ArrayRef
        }),
        (
            Arc::new(Field::new("y", DataType::Float64, false)),
            Arc::new(ids.clone().map(|id| id as f64 / 8.0).collect::<Float64Array>()) as ArrayRef,
        ),
    ];
    let columns: [(&str, ArrayRef, bool); 6] = [
        ("id", Arc::new(Int64Array::from_iter_values(ids.clone())), false),
        ("mixed", Arc::new(Int64Array::from_iter_values(ids.clone().map(mixed))), false),
        (
            "amount",
            Arc::new(ids.clone().map(|id| (id % 7 != 0).then_some(id as f64)).collect::<Float64Array>()),
            true,
        ),
        (
            "text",
            Arc::new(StringArray::from_iter_values(ids.clone().map(|id| {
                format!("{:x}", (id as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
            }))),
            false,
        ),
        ("list", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists)), true),
        ("pair", Arc::new(StructArray::from(fields)), false),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

pub(crate) fn parquet(batches: &[RecordBatch]) -> Vec<u8> {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .set_data_page_row_count_limit(200)
        .set_write_batch_size(100)
        .build();
    let mut writer = ArrowWriter::try_new(vec![], batches[0].schema(), Some(properties)).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.into_inner().unwrap()
}

pub(crate) fn directory_with(files: &[(&str, Vec<u8>)]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let path = directory.path().to_owned();
    (directory, path)
}

pub(crate) async fn set(context: &SessionContext, settings: &[&str]) {
    for setting in settings {
        context.sql(&format!("SET {setting}")).await.unwrap().collect().await.unwrap();
    }
}

/// A session with the table `t`.
async fn context(location: &str, settings: &[&str]) -> SessionContext {
    let context = session(&SessionOptions { partitions: 2, batch_rows: 512, ..SessionOptions::default() });
    set(&context, &["datafusion.optimizer.repartition_file_min_size = 0"]).await;
    set(&context, settings).await;
    register(&context, "t", location).await.unwrap();
    context
}

/// The answer as text, or the error.
pub(crate) async fn run(context: &SessionContext, sql: &str) -> Result<(String, FileReport), String> {
    let plan = context.sql(sql).await.map_err(|error| error.to_string())?;
    let plan = plan.create_physical_plan().await.map_err(|error| error.to_string())?;
    let batches = collect(Arc::clone(&plan), context.task_ctx()).await.map_err(|error| error.to_string())?;
    Ok((pretty_format_batches(&batches).unwrap().to_string(), FileReport::of(plan.as_ref())))
}

pub(crate) const QUERIES: [&str; 14] = [
    "select count(*), sum(id), sum(amount), min(text), max(text) from t",
    "select sum(amount), count(text) from t where mixed < 100",
    "select id, text from t where id between 3456 and 3470 order by id",
    "select text from t where mixed = 17 and amount > 0",
    "select id, mixed, text from t order by mixed limit 7",
    "select id, text from t order by id desc limit 5",
    "select sum(pair['x']), sum(pair['y']) from t where id % 2 = 0",
    "select count(*) from (select unnest(list) as v from t) where v = 2",
    "select a.id, b.text from t a join t b on a.mixed = b.id where a.id < 10 order by a.id",
    "select sum(length(text)) from t where mixed < -1",
    "select id, text from t where mixed < 9000 and amount > 4000 and text like '%7%' and id % 5 = 1 order by id",
    "select count(*) from t where mixed >= 100 and amount < 15000",
    "select count(*) from (select id from t where mixed > 100 and amount > 10 limit 777)",
    "select count(amount), sum(id) from t where id >= 0 and mixed >= 0",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_datafusion() {
    let (_directory, path) = directory_with(&[("t.parquet", parquet(&[batch(0..ROWS)]))]);
    let location = path.join("t.parquet").display().to_string();
    for pushdown in ["false", "true"] {
        let pushdown = format!("datafusion.execution.parquet.pushdown_filters = {pushdown}");
        let plain = context(&location, &[&pushdown, "memferry.read_files = false"]).await;
        let ways = [
            context(&location, &[&pushdown]).await,
            context(&location, &[&pushdown, "memferry.read_ahead = false"]).await,
            context(&location, &[&pushdown, "memferry.read_ahead_bytes = 1"]).await,
            context(&location, &[&pushdown, "memferry.pushdown = 'on'"]).await,
            context(&location, &[&pushdown, "memferry.pushdown = 'off'"]).await,
        ];
        for sql in QUERIES {
            let (expected, untouched) = run(&plain, sql).await.unwrap();
            assert_eq!(untouched.scans, 0, "plain DataFusion reads by itself");
            for (way, context) in ways.iter().enumerate() {
                let (answer, report) = run(context, sql).await.unwrap();
                assert_eq!(answer, expected, "{sql}, way {way}, {pushdown}");
                assert!(report.scans > 0, "{sql}");
                assert!(way != 1 || report.bytes_read_ahead == 0, "{report:?}");
            }
        }
    }
}

/// How the plan of a query says where the filter of its scan runs.
/// Rows that a join above a limit rejects count for the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_below_a_join_count_the_rows_that_it_rejects() {
    let (_directory, path) = directory_with(&[("t.parquet", parquet(&[batch(0..ROWS)]))]);
    let file = path.join("t.parquet");
    for settings in [vec!["memferry.read_files = false"], vec![], vec!["memferry.pushdown = 'on'"]] {
        let context = session(&SessionOptions { partitions: 1, ..SessionOptions::default() });
        set(&context, &settings).await;
        let create = format!(
            "CREATE EXTERNAL TABLE t STORED AS PARQUET WITH ORDER (id ASC) LOCATION '{}'",
            file.display()
        );
        // `mixed` of the rows 50, 5000 and 15000.
        let wanted = "CREATE TABLE wanted AS VALUES (15950), (15000), (5000)";
        for statement in [create.as_str(), wanted] {
            context.sql(statement).await.unwrap().collect().await.unwrap();
        }
        for filter in ["", "where mixed >= 0"] {
            let of_first = format!("select id, mixed from t {filter} order by id limit 100");
            let sql = format!("select count(*) as c from wanted join ({of_first}) on column1 = mixed");
            let (answer, _) = run(&context, &sql).await.unwrap();
            assert!(answer.contains("| 1 |"), "{settings:?}, {filter}: {answer}");
        }
    }
}

/// Writers leave NaNs out of the statistics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floats_that_are_not_all_alike_are_no_constant() {
    let f: ArrayRef = Arc::new(Float64Array::from(vec![1.0, f64::NAN, 1.0, f64::NAN]));
    let rows = RecordBatch::try_from_iter([("f", f)]).unwrap();
    let (_directory, path) = directory_with(&[("t.parquet", parquet(&[rows]))]);
    let context = context(&path.join("t.parquet").display().to_string(), &[]).await;
    let (answer, _) = run(&context, "select count(*) as c from t where isnan(f)").await.unwrap();
    assert!(answer.contains("| 2 |"), "{answer}");
    let (answer, _) = run(&context, "select max(f), min(f) from t").await.unwrap();
    assert!(answer.contains("| NaN      | 1.0      |"), "{answer}");
    let machine = Arc::new(Machine::discover().unwrap());
    let layout = Layout::new(Arc::clone(&machine), machine.nodes()[0].id);
    let plan = context.table("t").await.unwrap().create_physical_plan().await.unwrap();
    let table = load::from_plan(plan, &context.task_ctx(), &layout, Arc::new(())).await.unwrap();
    let loaded: Vec<RecordBatch> = table.batches(8192).into_iter().flatten().collect();
    let loaded = pretty_format_batches(&loaded).unwrap().to_string();
    assert_eq!(loaded.matches("NaN").count(), 2, "{loaded}");
}

/// 0.0 and -0.0 are equal in a join, whatever evaluates its filter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zeros_of_either_sign_join() {
    let floats = (0..ROWS).map(|id| match id % 1000 {
        0 => 0.0,
        1 => -0.0,
        _ => id as f64,
    });
    let f: ArrayRef = Arc::new(Float64Array::from_iter_values(floats));
    let (_directory, path) =
        directory_with(&[("t.parquet", parquet(&[RecordBatch::try_from_iter([("f", f)]).unwrap()]))]);
    let location = path.join("t.parquet").display().to_string();
    for setting in ["memferry.pushdown = 'auto'", "memferry.pushdown = 'on'"] {
        let context = context(&location, &[setting]).await;
        let wanted = "CREATE TABLE wanted AS VALUES (cast('-0' as double)), (3500.0)";
        context.sql(wanted).await.unwrap().collect().await.unwrap();
        let sql = "select count(*) as c from wanted join t on column1 = f";
        let (answer, _) = run(&context, sql).await.unwrap();
        assert!(answer.contains("| 41 |"), "{setting}: {answer}");
        let decision = pushdown_of(&context, sql).await;
        assert!(decision.starts_with("pushdown=off (part of the filter is found"), "{decision}");
    }
}

async fn pushdown_of(context: &SessionContext, sql: &str) -> String {
    let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let text = displayable(plan.as_ref()).indent(false).to_string();
    let start = text.find("pushdown=").unwrap_or_else(|| panic!("no decision in {text}"));
    text[start..].lines().next().unwrap().to_owned()
}

#[tokio::test]
async fn filters_are_pushed_down_only_where_statistics_say_that_it_pays() {
    let (_directory, path) = directory_with(&[("t.parquet", parquet(&[batch(0..ROWS)]))]);
    let context = context(&path.join("t.parquet").display().to_string(), &[]).await;
    let columns = "text, list, pair, id, amount";
    for (sql, expected) in [
        (format!("select {columns} from t where mixed < 20"), "on (by statistics 0.1 % of the rows pass)"),
        (
            format!("select {columns} from t where mixed < 10000"),
            "off (by statistics 50.0 % of the rows pass)",
        ),
        (
            "select text from t where mixed < 20".to_owned(),
            "off (late columns have 16 bytes a row and those of the filter 8)",
        ),
        (
            format!("select {columns} from t where mixed % 9 = 3"),
            "off (statistics do not tell how many rows pass)",
        ),
        (
            format!("select {columns}, mixed from t where mixed < 20 order by mixed limit 3"),
            "off (part of the filter is found while the query runs)",
        ),
    ] {
        assert_eq!(pushdown_of(&context, &sql).await, format!("pushdown={expected}"), "{sql}");
    }
    let wide = format!("select {columns} from t where mixed < 20");
    let narrow = "select text from t where mixed < 20";
    for (setting, sql, expected) in [
        ("memferry.pushdown = 'off'", wide.as_str(), "off (set by memferry.pushdown)"),
        ("memferry.pushdown = 'on'", narrow, "on (set by memferry.pushdown)"),
    ] {
        set(&context, &[setting]).await;
        assert_eq!(pushdown_of(&context, sql).await, format!("pushdown={expected}"), "{sql}");
    }
}

#[tokio::test]
async fn filters_of_several_conjuncts_are_evaluated_one_by_one() {
    let (_directory, path) = directory_with(&[("t.parquet", parquet(&[batch(0..ROWS)]))]);
    let context = context(&path.join("t.parquet").display().to_string(), &[]).await;
    let plan = async |sql: &str| {
        let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        displayable(plan.as_ref()).indent(false).to_string()
    };
    let several = "select text from t where mixed < 20 and amount > 5";
    assert!(plan(several).await.contains("ConjunctsExec, in place of FilterExec: "));
    assert!(!plan("select text from t where mixed < 20").await.contains("ConjunctsExec"));
    assert!(!plan("select text from t where mixed < 20 and random() < 2").await.contains("ConjunctsExec"));
    // DataFusion may divide before it compares.
    let guarded = "select count(*) from t where id <> 0 and 1000 / id > 20";
    assert!(run(&context, guarded).await.unwrap().0.contains("| 47 "));
    set(&context, &["memferry.split_filters = false"]).await;
    assert!(!plan(several).await.contains("ConjunctsExec"));
}

/// Rows that the operators named `name` put out, each of them.
fn rows_put_out(plan: &dyn ExecutionPlan, name: &str) -> Vec<usize> {
    let mut rows: Vec<usize> =
        plan.children().into_iter().flat_map(|child| rows_put_out(child.as_ref(), name)).collect();
    if plan.name() == name {
        rows.extend(plan.metrics().and_then(|metrics| metrics.output_rows()));
    }
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_no_join_wants_do_not_leave_the_filter_above_a_scan() {
    let (_directory, path) = directory_with(&[("t.parquet", parquet(&[batch(0..ROWS)]))]);
    // Without page pruning, which would leave small batches: the filter is refused if it costs much for each row.
    let no_pages = "datafusion.execution.parquet.enable_page_index = false";
    let context = context(path.join("t.parquet").to_str().unwrap(), &[no_pages]).await;
    // Ids below 10 are on the build side. By its statistics, `mixed` may have them in half of the row groups. The condition is
    // on another column than the join's, or it would be inferred for `mixed`.
    let of_joins =
        "select sum(b.amount), max(b.text) from t a join t b on a.id = b.mixed where a.amount < 10";
    let with_own = format!("{of_joins} and b.amount > 3");
    for sql in [of_joins, &with_own] {
        let mut answers = vec![];
        // On a busy machine a filter may seem to cost more than it saves.
        for attempt in 1.. {
            let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
            let text = displayable(plan.as_ref()).indent(false).to_string();
            assert_eq!(text.matches("filters of joins=1").count(), 1, "{text}");
            let batches = collect(Arc::clone(&plan), context.task_ctx()).await.unwrap();
            answers.push(pretty_format_batches(&batches).unwrap().to_string());
            let rows = rows_put_out(plan.as_ref(), "ConjunctsExec");
            if rows[0] < ROWS as usize / 2 {
                break;
            }
            assert!(attempt < 50, "{rows:?} {sql}");
        }
        set(&context, &["memferry.dynamic_filters = false"]).await;
        let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        assert!(!displayable(plan.as_ref()).indent(false).to_string().contains("filters of joins"));
        let expected = run(&context, sql).await.unwrap().0;
        assert!(answers.iter().all(|answer| *answer == expected), "{sql}");
        set(&context, &["memferry.dynamic_filters = true"]).await;
    }
    // Filters of minima, maxima and TopK are not among them, nor those of joins above a limit, which would reject rows that it
    // counts.
    for sql in [
        "select max(text) from t where amount > -1",
        "select id from t order by mixed limit 3",
        "select count(*) from t a join (select id, mixed from t where amount > 3 and id > 5 limit 9000) b on a.id = b.mixed \
         where a.mixed < 10",
    ] {
        let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let text = displayable(plan.as_ref()).indent(false).to_string();
        assert!(!text.contains("filters of joins"), "{text}");
    }
}

/// Bytes of the columns `leaves` in the row groups `groups` of a file.
pub(crate) fn chunk_bytes(file: &[u8], groups: std::ops::Range<usize>, leaves: &[usize]) -> u64 {
    let reader = SerializedFileReader::new(bytes::Bytes::copy_from_slice(file)).unwrap();
    let group = |group| {
        let group = reader.metadata().row_group(group);
        leaves.iter().map(|&leaf| group.column(leaf).byte_range().1).sum::<u64>()
    };
    groups.map(group).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_the_needed_columns_of_the_needed_row_groups_once() {
    let file = parquet(&[batch(0..ROWS)]);
    let (_directory, path) = directory_with(&[("t.parquet", file.clone())]);
    for page_index in ["true", "false"] {
        let page_index = format!("datafusion.execution.parquet.enable_page_index = {page_index}");
        let context = context(path.join("t.parquet").to_str().unwrap(), &[&page_index]).await;
        for (sql, groups, leaves) in [
            ("select sum(amount), max(text) from t", 0..20, vec![2, 3]),
            ("select sum(amount) from t where id >= 5000 and id < 8000", 5..8, vec![0, 2]),
            // Neither statistics nor the page index prove or refute it: all pages are selected.
            ("select sum(amount), max(text) from t where amount > -1", 0..20, vec![2, 3]),
            ("select sum(pair['y']) from t", 0..20, vec![6]),
            ("select sum(mixed) from t where id > 19999999", 0..0, vec![]),
        ] {
            let (_, report) = run(&context, sql).await.unwrap();
            let needed_bytes = chunk_bytes(&file, groups, &leaves);
            assert_eq!(report.bytes_requested, needed_bytes, "{sql}, {page_index}: {report:?}");
            assert_eq!(report.bytes_in_vain, 0, "{sql}, {page_index}: {report:?}");
            assert_eq!(report.bytes_read_ahead > 0, needed_bytes > 0, "{sql}, {page_index}: {report:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn little_is_read_ahead_that_a_dynamic_filter_excludes() {
    let file = parquet(&[batch(0..ROWS)]);
    let (_directory, path) = directory_with(&[("t.parquet", file.clone())]);
    let context = context(path.join("t.parquet").to_str().unwrap(), &[]).await;
    // The largest text so far excludes row groups by their statistics.
    let (_, report) = run(&context, "select max(text) from t where amount > -1").await.unwrap();
    let group_bytes = chunk_bytes(&file, 0..20, &[2, 3]) / 20;
    assert!(report.bytes_requested < 20 * group_bytes, "some are excluded: {report:?}");
    // Each of two partitions has one row group ahead, which each change of the filter may exclude.
    assert!(report.bytes_in_vain <= 6 * group_bytes, "{report:?}, {group_bytes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_columns_are_not_read_ahead_where_no_row_passes() {
    let (store, context) = store_with_table(Duration::ZERO, &[]).await;
    set(&context, &["datafusion.execution.parquet.pushdown_filters = true"]).await;
    set(&context, &["datafusion.execution.target_partitions = 1"]).await;
    store.forget();
    // No statistics tell it: every row group has values around 7.5.
    let sql = "select max(upper(text)) from t where mixed % 1000 = 1001";
    let (_, report) = run(&context, sql).await.unwrap();
    assert!(report.bytes_in_vain > 0, "the late columns of the first row group are read ahead: {report:?}");
    let text_bytes_of_a_group = GROUP_ROWS as u64 * 40;
    assert!(report.bytes_in_vain < 2 * text_bytes_of_a_group, "only of the first one: {report:?}");
}

async fn store_with_table(latency: Duration, settings: &[&str]) -> (Arc<TestStore>, SessionContext) {
    let store = TestStore::new(latency);
    let content = parquet(&[batch(0..ROWS)]);
    store.put(&"t.parquet".into(), PutPayload::from(content)).await.unwrap();
    let context = session(&SessionOptions { partitions: 2, batch_rows: 512, ..SessionOptions::default() });
    let url = "test://bucket".try_into().unwrap();
    context.register_object_store(&url, Arc::clone(&store) as _);
    set(&context, settings).await;
    register(&context, "t", "test://bucket/t.parquet").await.unwrap();
    store.forget();
    (store, context)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_store_is_read_by_several_requests_at_a_time() {
    let latency = Duration::from_millis(30);
    let sql = "select sum(amount), max(text) from t";
    let mut times = vec![];
    let mut answers = vec![];
    for settings in ["memferry.read_files = false", "memferry.read_files = true"] {
        let (store, context) = store_with_table(latency, &[settings]).await;
        let start = Instant::now();
        answers.push(run(&context, sql).await.unwrap().0);
        times.push(start.elapsed());
        if settings.ends_with("true") {
            assert!(store.in_flight_max.load(Ordering::Relaxed) > 2, "{store:?}");
        }
    }
    assert_eq!(answers[0], answers[1]);
    let ratio = times[0].as_secs_f64() / times[1].as_secs_f64();
    assert!(ratio > 1.5, "20 row groups of 30 ms each, in turn {:?}, ahead {:?}", times[0], times[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_file_is_read_while_one_is_decoded() {
    // One row group each: within a file nothing can be read ahead.
    let files: Vec<Vec<u8>> = (0..10).map(|file| parquet(&[batch(file * 1000..(file + 1) * 1000)])).collect();
    for settings in ["memferry.read_ahead = false", "memferry.read_ahead = true"] {
        let store = TestStore::new(Duration::from_millis(30));
        for (index, content) in files.iter().enumerate() {
            store.put(&format!("t/{index}.parquet").into(), PutPayload::from(content.clone())).await.unwrap();
        }
        let context = session(&SessionOptions { partitions: 1, ..SessionOptions::default() });
        context.register_object_store(&"test://bucket".try_into().unwrap(), Arc::clone(&store) as _);
        set(&context, &[settings]).await;
        register(&context, "t", "test://bucket/t/").await.unwrap();
        for sql in [
            "select sum(amount), max(upper(text)) from t",
            "select max(upper(text)) from t where mixed + id > 5",
        ] {
            let (_, report) = run(&context, sql).await.unwrap();
            assert_eq!((report.bytes_in_vain, report.requests), (0, 10), "{report:?}");
            let is_ahead = report.bytes_hit * 10 > report.bytes_requested * 8;
            assert_eq!(is_ahead, settings.ends_with("true"), "{report:?}");
        }
    }
    // A limit may end the scan before the next file.
    let content = files[0].clone();
    let (_directory, path) = directory_with(&[("a.parquet", content.clone()), ("b.parquet", content)]);
    let context = context(path.to_str().unwrap(), &["datafusion.execution.target_partitions = 1"]).await;
    let (_, report) = run(&context, "select text from t limit 5").await.unwrap();
    assert_eq!(report.bytes_read, report.bytes_requested, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_file_of_a_partition_is_of_its_own_files_without_work_stealing() {
    let content = parquet(&[batch(0..1000)]);
    let names = ["a.parquet", "b.parquet", "c.parquet", "d.parquet"];
    let (_directory, path) = directory_with(&names.map(|name| (name, content.clone())));
    for steals in [true, false] {
        let steals_setting = format!("datafusion.execution.enable_file_stream_work_stealing = {steals}");
        let settings = ["datafusion.optimizer.repartition_file_scans = false", &steals_setting];
        let context = context(path.to_str().unwrap(), &settings).await;
        let plan = context.sql("select text from t").await.unwrap().create_physical_plan().await.unwrap();
        assert_eq!(plan.output_partitioning().partition_count(), 2);
        let batches: Vec<_> = plan.execute(1, context.task_ctx()).unwrap().collect().await;
        let rows: usize = batches.iter().map(|batch| batch.as_ref().unwrap().num_rows()).sum();
        assert_eq!(rows, if steals { 4000 } else { 2000 });
        let report = FileReport::of(plan.as_ref());
        assert_eq!((report.bytes_in_vain, report.bytes_read), (0, report.bytes_requested), "{report:?}");
        assert!(report.bytes_hit > 0, "{report:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_reads_of_a_file_that_is_not_opened_are_counted() {
    let content = parquet(&[batch(0..1000)]);
    let (_directory, path) = directory_with(&["a.parquet", "b.parquet"].map(|name| (name, content.clone())));
    let context = context(path.to_str().unwrap(), &["datafusion.execution.target_partitions = 1"]).await;
    let plan = context.sql("select text from t").await.unwrap().create_physical_plan().await.unwrap();
    let mut batches = plan.execute(0, context.task_ctx()).unwrap();
    batches.next().await.unwrap().unwrap();
    let report = || FileReport::of(plan.as_ref());
    let bytes = chunk_bytes(&content, 0..1, &[3]);
    wait_until(|| report().bytes_in_vain > 0).await;
    drop(batches);
    let report = report();
    assert_eq!((report.bytes_requested, report.bytes_in_vain), (bytes, bytes), "{report:?}");
    assert_eq!((report.bytes_read, report.bytes_read_ahead), (2 * bytes, bytes), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_of_a_store_are_errors_of_the_query() {
    for (fault, expected) in [
        (Fault::Refused, "cannot read t.parquet: Generic test error: the store is on fire; check"),
        (Fault::Hangs, "within 0.2 s; run the query again, or raise memferry.store_timeout_ms"),
        (Fault::Short, "bytes of t.parquet for a request of"),
        (Fault::OtherVersion, "t.parquet changed while a query read it (entity tag other instead of"),
        (Fault::Gone, "t.parquet was removed while a query read it"),
    ] {
        let (store, context) = store_with_table(Duration::ZERO, &["memferry.store_timeout_ms = 200"]).await;
        // The footer, which is cached already, is not below this.
        store.fail(fault, 300_000);
        let error = run(&context, "select sum(amount), max(text) from t").await.unwrap_err();
        assert!(error.contains(expected), "{fault:?}: {error}");
        let names_columns =
            error.contains("cannot read row group") && error.contains(", columns amount, text: ");
        assert_eq!(names_columns, !matches!(fault, Fault::OtherVersion | Fault::Gone), "{fault:?}: {error}");
        store.fail(Fault::None, 0);
        run(&context, "select sum(amount), max(text) from t").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_query_stops_its_requests() {
    let (store, context) = store_with_table(Duration::ZERO, &[]).await;
    store.fail(Fault::Hangs, u64::MAX);
    let running = tokio::spawn(async move { run(&context, "select sum(amount), max(text) from t").await });
    wait_until(|| store.in_flight.load(Ordering::Relaxed) >= 3).await;
    running.abort();
    wait_until(|| store.in_flight.load(Ordering::Relaxed) == 0).await;
    assert!(store.cancelled.load(Ordering::Relaxed) >= 3);
    let requests = store.requests.lock().unwrap().len();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(store.requests.lock().unwrap().len(), requests, "none started after the end");
    assert!(store.bytes_requested() > 0);
}

pub(crate) async fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited 20 s");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_changed_since_the_plan_fail_the_query_and_not_the_next_one() {
    let content = parquet(&[batch(0..ROWS)]);
    let (_directory, path) = directory_with(&[("t.parquet", content.clone())]);
    let file = path.join("t.parquet");
    let context = context(file.to_str().unwrap(), &[]).await;
    let sql = "select count(*), sum(id) from t";
    let plan = async || context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let changes: [(&dyn Fn(), &str); 3] = [
        (&|| fs::write(&file, parquet(&[batch(0..ROWS / 2)])).unwrap(), "changed while a query read it"),
        (&|| fs::write(&file, &content[..content.len() / 2]).unwrap(), "changed while a query read it"),
        (&|| fs::remove_file(&file).unwrap(), "was removed while a query read it"),
    ];
    for (change, expected) in changes {
        let plan = plan().await;
        change();
        let error = collect(plan, context.task_ctx()).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        fs::write(&file, &content).unwrap();
        let (answer, _) = run(&context, sql).await.unwrap();
        assert!(answer.contains("| 20000    | 199990000 |"), "{answer}");
    }
    fs::write(&file, parquet(&[batch(0..10)])).unwrap();
    let (answer, _) = run(&context, sql).await.unwrap();
    assert!(answer.contains("45"), "a new version is read by the next query: {answer}");
}

/// A session over near memory of `budget_bytes`, with the table `t`.
async fn near_context(file: &Path, budget_bytes: u64) -> SessionContext {
    let machine = Arc::new(Machine::discover().unwrap());
    let tiers = Tiers::builder(machine).budget_bytes(Some(budget_bytes)).build().unwrap();
    let context = session(&SessionOptions { partitions: 2, tiers: Some(tiers), ..SessionOptions::default() });
    set(&context, &["datafusion.optimizer.repartition_file_min_size = 0"]).await;
    register(&context, "t", file.to_str().unwrap()).await.unwrap();
    context
}

/// A session as that of `near_context`, with a storage that was calibrated with this rate.
async fn calibrated_context(file: &Path, mb_per_s: f64, engine: StorageEngine) -> SessionContext {
    let rate = ReadRate { size_bytes: 4096, depth: 1, mb_per_s };
    let directory = file.parent().unwrap().to_owned();
    let storage = Storage::new(directory, 1e5, vec![rate], "a test".to_owned()).unwrap();
    let reference = ("a test".to_owned(), "of this file".to_owned());
    let measured = Measured { storage: vec![storage], reference, ..Measured::default() };
    let machine = Arc::new(Machine::discover().unwrap().with_measured(measured).unwrap());
    let tiers = Tiers::builder(machine).budget_bytes(Some(128 << 20)).engine(Arc::new(engine)).build();
    let options = SessionOptions { partitions: 2, tiers: Some(tiers.unwrap()), ..SessionOptions::default() };
    let context = session(&options);
    set(&context, &["datafusion.optimizer.repartition_file_min_size = 0"]).await;
    register(&context, "t", file.to_str().unwrap()).await.unwrap();
    context
}

/// Runs a query: the words of its plan before and after, the answer, and the report.
async fn run_explained(context: &SessionContext, sql: &str) -> ([String; 2], String, FileReport) {
    let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let words = || displayable(plan.as_ref()).indent(false).to_string();
    let before = words();
    let answer = collect(Arc::clone(&plan), context.task_ctx()).await.unwrap();
    let answer = pretty_format_batches(&answer).unwrap().to_string();
    ([before, words()], answer, FileReport::of(plan.as_ref()))
}

/// A disk on which each read takes 20 ms.
#[derive(Debug)]
struct SlowDisk;

impl DiskFaults for SlowDisk {
    fn result(&self, _offset: u64, _size_bytes: usize, result: i32) -> i32 {
        std::thread::sleep(Duration::from_millis(20));
        result
    }
}

/// Scans over a storage with another speed than its calibration says see it, and decide again how far to read ahead. Answers
/// stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_decide_again_when_the_storage_has_another_speed() {
    let (_directory, path) = directory_with(&[("t.parquet", parquet(&[batch(0..ROWS)]))]);
    let (file, query) = (path.join("t.parquet"), "select sum(id), min(text) from t");
    let near = near_context(&file, 8 << 20).await;
    let ([before, after], expected, report) = run_explained(&near, query).await;
    assert!(!before.contains("predicted") && !after.contains("predicted"), "not calibrated: {after}");
    assert_eq!((report.time_predicted, report.time_actual), (Duration::ZERO, Duration::ZERO));

    // One thread, so that reads wait for each other.
    let options =
        StorageOptions { page_cache: false, io_uring: false, threads_count: 1, ..Default::default() };
    let slow = StorageEngine::with_faults(options, Arc::new(SlowDisk)).unwrap();
    // Slower than calibrated: it is waited for, and read farther ahead.
    let context = calibrated_context(&file, 1000.0, slow).await;
    let ([before, after], answer, report) = run_explained(&context, query).await;
    assert_eq!(answer, expected);
    assert!(before.contains("; predicted ") && before.contains(" ms a partition (storage "), "{before}");
    assert!(before.contains(" on demand, reading "), "{before}");
    assert!(report.time_predicted > Duration::ZERO, "{report:?}");
    assert!(report.time_actual > report.time_predicted * 2, "{report:?}");
    assert!(report.time_actual >= report.time_waiting, "{report:?}");
    assert!((1..=3).contains(&report.decisions_again), "{report:?}");
    assert!(!after.contains(" on demand") && after.contains(" ms, took "), "{after}");
    let (_, windows) = after.split_once(" times: reading ").expect(&after);
    let numbers: Vec<u64> = windows.split([' ', ';', '\n']).filter_map(|word| word.parse().ok()).collect();
    assert!(numbers[1] > numbers[0], "read farther ahead: {after}");

    // Faster than calibrated.
    let context = calibrated_context(&file, 0.1, StorageEngine::new(options).unwrap()).await;
    let ([_, after], answer, report) = run_explained(&context, query).await;
    assert_eq!(answer, expected);
    // 0.1 MB/s for the bytes that were read, by either partition at a time.
    assert!(report.time_predicted > Duration::from_micros(10 * report.bytes_read), "{report:?}");
    assert!(report.time_actual > Duration::ZERO, "{report:?}");
    assert!(report.time_actual < report.time_predicted / 2, "{report:?}");
    assert!((1..=3).contains(&report.decisions_again), "{report:?}");
    assert!(after.contains(" ms a partition, decided "), "{after}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_files_have_near_copies() {
    let content = parquet(&[batch(0..ROWS)]);
    let (_directory, path) = directory_with(&[("t.parquet", content.clone())]);
    let file = path.join("t.parquet");
    let needed_bytes = chunk_bytes(&content, 0..20, &[2, 3]);
    let sql = "select sum(amount), max(text) from t";
    let (expected, _) =
        run(&context(file.to_str().unwrap(), &["memferry.read_files = false"]).await, sql).await.unwrap();

    let context = near_context(&file, 64 << 20).await;
    let (answer, cold) = run(&context, sql).await.unwrap();
    assert_eq!(answer, expected);
    assert_eq!((cold.bytes_requested, cold.bytes_uncached, cold.bytes_in_vain), (needed_bytes, 0, 0));
    assert!(cold.bytes_read_ahead > 0 && cold.bytes_hit > 0, "{cold:?}");
    let (answer, warm) = run(&context, sql).await.unwrap();
    assert_eq!(answer, expected);
    assert_eq!((warm.bytes_read, warm.bytes_hit), (0, needed_bytes), "{warm:?}");
    // Entries are shared between queries of other columns.
    let (_, other) = run(&context, "select sum(amount) from t").await.unwrap();
    assert_eq!(other.bytes_read, 0, "{other:?}");

    let context = near_context(&file, 4096).await;
    let (answer, report) = run(&context, sql).await.unwrap();
    assert_eq!(answer, expected);
    assert!(report.bytes_uncached > 0, "no row group fits: {report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_loaded_in_the_order_of_their_rows_and_nothing_of_the_files_is_kept() {
    let files = [0..7000, 7000..7001, 7001..ROWS].map(|ids| parquet(&[batch(ids)]));
    let [a, b, c] = files;
    let (_directory, path) = directory_with(&[("a.parquet", a), ("b.parquet", b), ("c.parquet", c)]);
    let machine = Arc::new(Machine::discover().unwrap());
    let tiers = Tiers::builder(Arc::clone(&machine)).build().unwrap();
    let options =
        SessionOptions { tiers: Some(Arc::clone(&tiers)), batch_rows: 300, ..SessionOptions::default() };
    let context = session(&options);
    set(&context, &["datafusion.optimizer.repartition_file_min_size = 0"]).await;
    register(&context, "t", path.to_str().unwrap()).await.unwrap();
    // One row group of the files has 1000 rows: less, about as many, and more than one in memory.
    for (partitions, row_group_rows, groups_count) in
        [(1, 512, 41), (2, 2048, 12), (3, 1024, 21), (3, 65_536, 3)]
    {
        let layout = Layout { partitions, row_group_rows, ..Layout::new(Arc::clone(&machine), tiers.home()) };
        let plan = context.table("t").await.unwrap().create_physical_plan().await.unwrap();
        let table = load::from_plan(plan, &context.task_ctx(), &layout, Arc::new(())).await.unwrap();
        if partitions == 1 {
            let (_, report) = run(&context, "select sum(amount) from t").await.unwrap();
            assert!(report.bytes_read >= report.bytes_requested, "{report:?}");
        }
        let groups: Vec<_> = table.partitions().iter().flatten().collect();
        assert!(groups.iter().all(|group| group.rows() <= row_group_rows));
        assert_eq!(groups.len(), groups_count, "{partitions} partitions, {row_group_rows} rows");
        let most =
            table.partitions().iter().map(|groups| groups.iter().map(|it| it.rows()).sum::<usize>()).max();
        assert!(most.unwrap() <= ROWS as usize / table.partitions().len() + 2 * row_group_rows.max(1000));
        let rows: Vec<RecordBatch> = table.batches(8192).into_iter().flatten().collect();
        let rows = concat_batches(table.schema(), &rows).unwrap();
        let expected = context.sql("select * from t order by id").await.unwrap().collect().await.unwrap();
        assert_eq!(rows, concat_batches(table.schema(), &expected).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_group_without_rows_is_loaded() {
    let rows = RecordBatch::try_from_iter([("id", Arc::new(Int64Array::from(vec![1, 2, 3])) as ArrayRef)]);
    let rows = rows.unwrap();
    let schema = Arc::new(parse_message_type("message empty { REQUIRED INT64 id; }").unwrap());
    let mut empty = SerializedFileWriter::new(vec![], schema, Arc::default()).unwrap();
    let mut group = empty.next_row_group().unwrap();
    while let Some(column) = group.next_column().unwrap() {
        column.close().unwrap();
    }
    group.close().unwrap();
    let empty = empty.into_inner().unwrap();
    let files = [("a.parquet", parquet(std::slice::from_ref(&rows))), ("b.parquet", empty)];
    let (_directory, path) = directory_with(&files);
    let context = context(path.to_str().unwrap(), &[]).await;
    let machine = Arc::new(Machine::discover().unwrap());
    let home = machine.nodes()[0].id;
    for partitions in [1, 3] {
        let layout = Layout { partitions, row_group_rows: 512, ..Layout::new(Arc::clone(&machine), home) };
        let plan = context.table("t").await.unwrap().create_physical_plan().await.unwrap();
        let table = load::from_plan(plan, &context.task_ctx(), &layout, Arc::new(())).await.unwrap();
        let loaded: Vec<RecordBatch> = table.batches(8192).into_iter().flatten().collect();
        assert_eq!(concat_batches(&rows.schema(), &loaded).unwrap(), rows);
    }
}

/// Progress that stops a load after `rows` rows until it is released.
struct Stop {
    rows: u64,
    seen: AtomicU64,
    released: AtomicBool,
}

impl load::Progress for Stop {
    fn total(&self, _rows: u64) {}

    fn advance(&self, rows: u64) {
        let seen = self.seen.fetch_add(rows, Ordering::SeqCst) + rows;
        while seen > self.rows && !self.released.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Releases it, also when the test fails: its runtime waits for the load.
struct Release(Arc<Stop>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.released.store(true, Ordering::SeqCst);
    }
}

/// Starts to load `table`; returns when more than `rows` rows have been loaded.
async fn load_until(
    rows: u64,
    table: &Arc<LoadingTable>,
    context: &SessionContext,
    layout: &Layout,
) -> (Release, JoinHandle<Result<TableData, LoadError>>) {
    let progress = Arc::new(Stop { rows, seen: AtomicU64::new(0), released: AtomicBool::new(false) });
    let release = Release(Arc::clone(&progress));
    let (table, context, layout) = (Arc::clone(table), context.clone(), layout.clone());
    let load = tokio::spawn(async move { table.load(&context, &layout, progress).await });
    wait_until(|| release.0.seen.load(Ordering::SeqCst) > rows).await;
    (release, load)
}

/// A table of the files of `context`'s table `t`, which it replaces; it can be loaded.
async fn loading_table(context: &SessionContext, tiers: &Arc<Tiers>) -> Arc<LoadingTable> {
    let source = context.table_provider("t").await.unwrap();
    let table = Arc::new(LoadingTable::try_new(source, None, Arc::clone(tiers)).unwrap());
    context.deregister_table("t").unwrap();
    context.register_table("t", Arc::clone(&table) as _).unwrap();
    table
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn queries_use_what_is_loaded_and_read_the_rest() {
    let content = parquet(&[batch(0..ROWS)]);
    let (_directory, path) = directory_with(&[("a.parquet", content.clone()), ("b.parquet", content)]);
    let machine = Arc::new(Machine::discover().unwrap());
    let tiers = Tiers::builder(Arc::clone(&machine)).build().unwrap();
    let context = context(path.to_str().unwrap(), &[]).await;
    let mut expected = Vec::new();
    for query in QUERIES {
        expected.push(run(&context, query).await.unwrap().0);
    }
    let scan = "select sum(id), count(text) from t";
    let whole = run(&context, scan).await.unwrap().1.bytes_requested;
    let layout = Layout { partitions: 1, row_group_rows: 1024, ..Layout::new(machine, tiers.home()) };
    let table = loading_table(&context, &tiers).await;
    for is_cancelled in [true, false] {
        let (release, load) = load_until(25_500, &table, &context, &layout).await;
        for (query, expected) in QUERIES.iter().zip(&expected) {
            assert_eq!(
                &run(&context, query).await.unwrap().0,
                expected,
                "{query}, while the table is loaded"
            );
        }
        let (answer, _) = run(&context, "select count(*) from t").await.unwrap();
        assert!(answer.contains("| 40000 "), "{answer}");
        let read = run(&context, scan).await.unwrap().1.bytes_requested;
        assert!(
            read < whole / 2 && read > whole / 4,
            "25 of 40 row groups are in memory: {read} of {whole} bytes"
        );
        if is_cancelled {
            load.abort();
        }
        drop(release);
        assert_eq!(load.await.is_err(), is_cancelled);
        let read = run(&context, scan).await.unwrap().1.bytes_requested;
        assert_eq!(read, if is_cancelled { whole } else { 0 });
    }
    for (query, expected) in QUERIES.iter().zip(&expected) {
        assert_eq!(&run(&context, query).await.unwrap().0, expected, "{query}, from memory");
    }
    // Another version of a file is read, whatever was loaded of the one before.
    fs::write(path.join("b.parquet"), parquet(&[batch(0..10)])).unwrap();
    let (answer, report) = run(&context, "select count(*), sum(id) from t where id < 12").await.unwrap();
    assert!(answer.contains("| 22 ") && answer.contains("| 111 "), "{answer}");
    assert!(report.bytes_requested > 0);
    context.deregister_table("t").unwrap();
    assert_eq!(Arc::strong_count(&table), 1, "a load that has ended holds its table, and so the memory");
}

/// A load on domains was once ready at its end only.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn queries_use_what_is_loaded_on_domains() {
    let Some(domains) = two_domains() else { return };
    let (_directory, path) = directory_with(&[("t.parquet", parquet(&[batch(0..ROWS)]))]);
    let machine = Arc::new(Machine::discover().unwrap());
    let tiers = Tiers::builder(Arc::clone(&machine)).build().unwrap();
    let layout = Layout { partitions: 1, row_group_rows: 1024, ..Layout::new(machine, tiers.home()) };
    let scan = "select count(*), sum(id), count(text) from t";
    for (binding, confined) in
        [("none", ""), ("preferred", ""), ("opportunistic", ""), ("always", ""), ("opportunistic", "1")]
    {
        let options = SessionOptions { domains: Some(Arc::clone(&domains)), ..SessionOptions::default() };
        let context = session(&options);
        let settings =
            [format!("memferry.binding = '{binding}'"), format!("memferry.domains = '{confined}'")];
        set(&context, &settings.each_ref().map(String::as_str)).await;
        register(&context, "t", path.to_str().unwrap()).await.unwrap();
        let (expected, whole) = run(&context, scan).await.unwrap();
        let table = loading_table(&context, &tiers).await;
        let (release, load) = load_until(10_500, &table, &context, &layout).await;
        let (answer, rest) = run(&context, scan).await.unwrap();
        assert_eq!(answer, expected, "{binding} '{confined}'");
        let (rest, whole) = (rest.bytes_requested, whole.bytes_requested);
        assert!(rest > 0 && rest < whole * 2 / 3, "{binding} '{confined}': {rest} of {whole} bytes");
        drop(release);
        load.await.unwrap().unwrap();
        assert_eq!(run(&context, scan).await.unwrap().0, expected, "{binding} '{confined}'");
    }
}

/// A table whose scans begin with `before`, which is given the number of scans that were planned before.
struct Planned<F> {
    table: Arc<dyn TableProvider>,
    scans: AtomicU64,
    before: F,
}

impl<F> Planned<F> {
    /// Takes the place of the table t.
    fn replace(context: &SessionContext, before: F)
    where
        F: Fn(u64) -> datafusion::common::Result<()> + Send + Sync + 'static,
    {
        let table = context.deregister_table("t").unwrap().unwrap();
        let planned = Planned { table, scans: AtomicU64::new(0), before };
        context.register_table("t", Arc::new(planned)).unwrap();
    }
}

impl<F> fmt::Debug for Planned<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.fmt(f)
    }
}

#[async_trait::async_trait]
impl<F: Fn(u64) -> datafusion::common::Result<()> + Send + Sync + 'static> TableProvider for Planned<F> {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn table_type(&self) -> TableType {
        self.table.table_type()
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> datafusion::common::Result<Arc<dyn ExecutionPlan>> {
        (self.before)(self.scans.fetch_add(1, Ordering::SeqCst))?;
        self.table.scan(state, projection, filters, limit).await
    }
}

/// Regression: a query failed with "Invalid Parquet file. Corrupt footer" or "Requested range was invalid" if a file was
/// replaced after planning had listed it and before it had read the footer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_replaced_while_it_is_planned_is_planned_again() {
    let (_directory, path) = directory_with(&[("t.parquet", parquet(&[batch(0..ROWS)]))]);
    for (times, is_answered) in [(1, true), (2, true), (3, false)] {
        let context = context(path.to_str().unwrap(), &[]).await;
        Planned::replace(&context, move |scan| {
            if scan < times {
                let error = ParquetError::General("Invalid Parquet file. Corrupt footer".to_owned());
                return Err(DataFusionError::ParquetError(Box::new(error)));
            }
            Ok(())
        });
        let answer = run(&context, "select count(*), sum(id) from t").await;
        assert_eq!(answer.is_ok(), is_answered, "replaced {times} times: {answer:?}");
        if let Ok((answer, _)) = answer {
            assert!(answer.contains("| 20000    | 199990000 |"), "{answer}");
        }
    }
}

/// Regression: a query of a file that was replaced each time it was planned failed with "Out of range of file", without the reason, and
/// with some replacements without the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_footer_that_is_not_the_listed_one_is_an_error_of_the_file() {
    let content = parquet(&[batch(0..ROWS)]);
    let (_directory, path) = directory_with(&[("t.parquet", content.clone())]);
    let file = path.join("t.parquet");
    let state = session(&SessionOptions::default()).state();
    let store: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new());
    let location = object_store::path::Path::from_filesystem_path(&file).unwrap();
    let schema = batch(0..1).schema();
    let damaged = [&content[..content.len() - 4], b"PARX"].concat();
    let cases: [(Option<&[u8]>, &str); 6] = [
        (Some(&content[..content.len() - 3]), "t.parquet changed while a query read it (size "),
        (Some(&content[..content.len() / 2]), "t.parquet changed while a query read it (size "),
        (Some(&[&[0; 9], &content[..]].concat()), "t.parquet changed while a query read it (size "),
        (Some(&damaged), "t.parquet changed while a query read it ("),
        (None, "t.parquet was removed while a query read it"),
        // Listed with this content.
        (Some(&damaged), "t.parquet is damaged in its metadata"),
    ];
    for (index, (changed, expected)) in cases.into_iter().enumerate() {
        let is_listed_before = index < 5;
        fs::write(&file, if is_listed_before { &content } else { &damaged }).unwrap();
        let listed = store.head(&location).await.unwrap();
        match changed {
            Some(changed) if is_listed_before => {
                // Times of files have the resolution of the kernel's clock.
                std::thread::sleep(Duration::from_millis(20));
                fs::write(&file, changed).unwrap();
            }
            Some(_) => {}
            None => fs::remove_file(&file).unwrap(),
        }
        let format = state.get_file_format_factory("parquet").unwrap().default();
        let error = format.infer_stats(&state, &store, Arc::clone(&schema), &listed).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        let error = format.infer_stats_and_ordering(&state, &store, Arc::clone(&schema), &listed).await;
        let error = error.err().unwrap().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

/// Regression: two scans of one query read two versions of a file, if it was replaced between their listings and again before they
/// read it. The query then had a wrong answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_of_one_query_are_planned_for_one_version_of_a_file() {
    for (times, answer) in [(0, Some(ROWS)), (1, Some(ROWS - 2)), (2, Some(ROWS - 4)), (3, None)] {
        let (_directory, path) = directory_with(&[("t.parquet", parquet(&[batch(0..ROWS)]))]);
        let context = context(path.to_str().unwrap(), &[]).await;
        let file = path.join("t.parquet");
        // Before the second scan of each plan.
        Planned::replace(&context, move |scan| {
            if scan % 2 == 1 && scan / 2 < times {
                let rows = ROWS - 1 - i64::try_from(scan).unwrap();
                // At once: the other scan, which is planned meanwhile, must not list a file of no bytes.
                let other = file.with_extension("new");
                fs::write(&other, parquet(&[batch(0..rows)])).unwrap();
                fs::rename(&other, &file).unwrap();
            }
            Ok(())
        });
        let sql = "select count(*) from t as a join t as b on a.id = b.id";
        match (run(&context, sql).await, answer) {
            (Ok((text, _)), Some(rows)) => assert!(text.contains(&format!("| {rows} ")), "{times}: {text}"),
            (Err(error), None) => {
                let text = error.to_string();
                assert!(text.contains("t.parquet changed while"), "{text}");
            }
            (other, _) => panic!("replaced {times} times: {other:?}"),
        }
    }
}

/// A disk whose reads fail while it is told so.
#[derive(Debug, Default)]
struct FailingDisk(AtomicBool);

impl DiskFaults for FailingDisk {
    fn result(&self, _offset: u64, _size_bytes: usize, result: i32) -> i32 {
        const EIO: i32 = 5;
        if self.0.load(Ordering::SeqCst) { -EIO } else { result }
    }
}

/// What happens to a directory of files, and the error.
type Case<'a> = (&'a dyn Fn(&Path), &'a str);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_load_whose_files_fail_leaves_the_table_of_files() {
    let content = parquet(&[batch(0..ROWS)]);
    let mut rewritten = content.clone();
    rewritten[100] ^= 1;
    let disk = Arc::new(FailingDisk::default());
    let options = StorageOptions { page_cache: false, ..StorageOptions::default() };
    let engine = StorageEngine::with_faults(options, Arc::clone(&disk) as _).unwrap();
    let machine = Arc::new(Machine::discover().unwrap());
    let tiers = Tiers::builder(Arc::clone(&machine)).engine(Arc::new(engine)).build().unwrap();
    let layout = Layout { partitions: 1, row_group_rows: 1024, ..Layout::new(machine, tiers.home()) };
    let needed_bytes = 2 * chunk_bytes(&content, 0..20, &[0, 3]);
    let shrink = |file: PathBuf| fs::File::options().write(true).open(file).unwrap().set_len(1000).unwrap();
    // The load has read the first two row groups of a.parquet.
    let cases: [Case; 5] = [
        (&|path| fs::write(path.join("a.parquet"), &rewritten).unwrap(), "a.parquet changed while"),
        (&|path| shrink(path.join("a.parquet")), "a.parquet changed while"),
        (
            &|path| fs::remove_file(path.join("a.parquet")).unwrap(),
            "a.parquet changed while it was in use: it was removed",
        ),
        (
            &|path| fs::remove_file(path.join("b.parquet")).unwrap(),
            "b.parquet was removed while a query read it",
        ),
        (&|_| disk.0.store(true, Ordering::SeqCst), "cannot read row group 2, column"),
    ];
    for (change, expected) in cases {
        let files = ["a.parquet", "b.parquet"].map(|name| (name, content.clone()));
        let (_directory, path) = directory_with(&files);
        let tiers = Arc::clone(&tiers);
        let options = SessionOptions {
            partitions: 2,
            batch_rows: 512,
            tiers: Some(Arc::clone(&tiers)),
            ..SessionOptions::default()
        };
        let context = session(&options);
        set(&context, &["memferry.read_ahead = false"]).await;
        register(&context, "t", path.to_str().unwrap()).await.unwrap();
        let table = loading_table(&context, &tiers).await;
        let (release, load) = load_until(1500, &table, &context, &layout).await;
        let progress = Arc::clone(&release.0);
        change(&path);
        drop(release);
        let error = load.await.unwrap().unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(".parquet"), "{expected}: {error}");
        assert_eq!(Arc::strong_count(&progress), 1, "{expected}: a task of the load holds its rows");
        assert_eq!(Arc::strong_count(&table), 2, "{expected}: so does the load");

        disk.0.store(false, Ordering::SeqCst);
        for (name, content) in &files {
            let file = path.join(name);
            if fs::read(&file).ok().as_ref() != Some(content) {
                fs::write(file, content).unwrap();
            }
        }
        let scan = "select count(*), sum(id), count(text) from t";
        let (answer, report) = run(&context, scan).await.unwrap();
        assert!(answer.contains("| 40000    | 399980000 | 40000 "), "{expected}: {answer}");
        assert_eq!(report.bytes_requested, needed_bytes, "{expected}: nothing loaded is used");
        table.load(&context, &layout, Arc::new(())).await.unwrap();
        let (again, report) = run(&context, scan).await.unwrap();
        assert_eq!((again, report.bytes_requested), (answer, 0), "{expected}");
    }
}

/// A task of a cancelled load ends when it next waits. It once gave its rows to the load that had begun meanwhile, and they
/// were there twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cancelled_load_adds_nothing_to_the_next_one() {
    let content = parquet(&[batch(0..ROWS)]);
    let (_directory, path) = directory_with(&[("t.parquet", content)]);
    let machine = Arc::new(Machine::discover().unwrap());
    let tiers = Tiers::builder(Arc::clone(&machine)).build().unwrap();
    let context = context(path.to_str().unwrap(), &[]).await;
    let layout = Layout { partitions: 1, row_group_rows: 1024, ..Layout::new(machine, tiers.home()) };
    let table = loading_table(&context, &tiers).await;
    // At the last rows of a section.
    let (release, cancelled) = load_until(900, &table, &context, &layout).await;
    cancelled.abort();
    assert!(cancelled.await.is_err());
    let (_release, _load) = load_until(5500, &table, &context, &layout).await;
    let progress = Arc::clone(&release.0);
    drop(release);
    wait_until(|| Arc::strong_count(&progress) == 1).await;
    let (answer, _) = run(&context, "select count(*), sum(id) from t").await.unwrap();
    assert!(answer.contains("| 20000    | 199990000 |"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn near_copies_of_a_changed_file_are_not_used() {
    let content = parquet(&[batch(0..ROWS)]);
    let (_directory, path) = directory_with(&[("t.parquet", content.clone())]);
    let file = path.join("t.parquet");
    let context = near_context(&file, 64 << 20).await;
    let sql = "select sum(id) from t where id >= 0";
    assert!(run(&context, sql).await.unwrap().0.contains("199990000"));
    let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    fs::write(&file, parquet(&[batch(5..ROWS)])).unwrap();
    let error = collect(plan, context.task_ctx()).await.unwrap_err().to_string();
    assert!(error.contains("changed while"), "{error}");
    let (answer, report) = run(&context, sql).await.unwrap();
    assert!(answer.contains("199989990") && report.bytes_read > 0, "{answer} {report:?}");
    let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    fs::remove_file(&file).unwrap();
    let error = collect(plan, context.task_ctx()).await.unwrap_err().to_string();
    assert!(error.contains("was removed while a query read it"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_globs_and_partitions_are_tables() {
    let part = |ids| parquet(&[batch(ids)]);
    let (_directory, path) = directory_with(&[
        ("plain/a.parquet", part(0..1500)),
        ("plain/b.parquet", part(1500..3000)),
        ("plain/notes.txt", b"not a table".to_vec()),
        ("hive/year=2024/a.parquet", part(0..1500)),
        ("hive/year=2025/b.parquet", part(1500..3000)),
        ("noname/data", part(0..10)),
        ("deep/a.parquet", part(0..1500)),
        ("deep/more/2025/b.parquet", part(1500..3000)),
    ]);
    let root = path.display();
    for (location, sql, expected) in [
        (format!("{root}/plain"), "select count(*), sum(id) from t", "4498500"),
        (format!("{root}/plain/"), "select count(*), sum(id) from t", "4498500"),
        (format!("{root}/plain/a*.parquet"), "select count(*), sum(id) from t", "1124250"),
        (format!("{root}/hive"), "select sum(id) from t where year = 2025", "3374250"),
        (format!("{root}/noname/data"), "select sum(id) from t", "45"),
        (format!("{root}/deep"), "select sum(id) from t", "4498500"),
        (format!("{root}/deep/more/"), "select sum(id) from t", "3374250"),
        (format!("file://{root}/plain/b.parquet"), "select sum(id) from t", "3374250"),
    ] {
        let context = context(&location, &[]).await;
        let (answer, _) = run(&context, sql).await.unwrap();
        assert!(answer.contains(expected), "{location}: {answer}");
    }
    let context = session(&SessionOptions::default());
    let create = format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{root}/plain/'");
    context.sql(&create).await.unwrap().collect().await.unwrap();
    let (answer, report) = run(&context, "select sum(id) from t").await.unwrap();
    assert!(answer.contains("4498500") && report.scans == 1, "{answer} {report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrow_files_are_tables() {
    let batch = batch(0..3000);
    let (_directory, path) = directory_with(&[]);
    let plain = session(&SessionOptions::default());
    plain.register_batch("source", batch).unwrap();
    let file = path.join("t.arrow");
    let copy = format!("COPY source TO '{}' STORED AS ARROW", file.display());
    plain.sql(&copy).await.unwrap().collect().await.unwrap();
    let context = context(file.to_str().unwrap(), &[]).await;
    let sql = |table| format!("select sum(id) as s, max(pair['x']) as m from {table} where mixed < 9000");
    let (answer, _) = run(&context, &sql("t")).await.unwrap();
    let (expected, _) = run(&plain, &sql("source")).await.unwrap();
    assert_eq!(answer, expected);
}

#[tokio::test]
async fn what_is_no_table_is_refused_with_the_reason() {
    let schema_a = parquet(&[batch(0..10)]);
    let other: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    let schema_b = parquet(&[RecordBatch::try_from_iter([("id", other)]).unwrap()]);
    let (_directory, path) = directory_with(&[
        ("mixed/a.parquet", schema_a.clone()),
        ("mixed/b.parquet", schema_b),
        ("empty/notes.txt", b"x".to_vec()),
        ("bad/a.parquet", b"PAR1 and nothing else".to_vec()),
        ("text/table", b"a,b,c".to_vec()),
        ("nothing.parquet", vec![]),
        ("named/a.parquet", schema_a.clone()),
        ("named/b.parq", schema_a.clone()),
        ("short/a.parquet", schema_a[..schema_a.len() - 3].to_vec()),
    ]);
    let context = session(&SessionOptions::default());
    let refused = async |location: &str| {
        let location = path.join(location).display().to_string();
        register(&context, "t", &location).await.unwrap_err()
    };
    let error = refused("mixed").await;
    let RegisterError::MixedSchemas { column, type_a, type_b, file_a, file_b, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((column.as_str(), type_a.as_str()), ("id", "Int64"));
    assert!(type_b.starts_with("Utf8") && file_a.ends_with("a.parquet") && file_b.ends_with("b.parquet"));
    let error = refused("named").await;
    let RegisterError::MixedExtensions { file_a, file_b } = &error else { panic!("{error}") };
    assert!(file_a.ends_with("named/a.parquet") && file_b.ends_with("named/b.parq"), "{error}");
    assert!(matches!(refused("empty").await, RegisterError::NoFiles { .. }));
    assert!(matches!(refused("missing").await, RegisterError::Path { .. }));
    assert!(matches!(refused("text/table").await, RegisterError::Format { .. }));
    assert!(matches!(refused("nothing.parquet").await, RegisterError::Format { .. }));
    for damaged in ["bad/a.parquet", "short/a.parquet"] {
        let error = refused(damaged).await;
        let RegisterError::Schema { location, .. } = &error else { panic!("{error}") };
        assert!(location.ends_with(damaged), "{error}");
    }
    assert!(matches!(
        register(&context, "t", "nostore://x/y.parquet").await,
        Err(RegisterError::Location { .. })
    ));
    assert!(context.table("t").await.is_err(), "nothing was registered");
}

/// Runs a query over a damaged file. Returns the answer, or `None` for an error.
async fn damaged(path: &Path, content: &[u8]) -> Option<String> {
    fs::write(path, content).unwrap();
    let context = session(&SessionOptions { partitions: 1, ..SessionOptions::default() });
    register(&context, "t", path.to_str().unwrap()).await.ok()?;
    Some(run(&context, "select sum(a), max(b) from t where a > 3").await.ok()?.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_pages_name_the_file_the_row_group_and_the_columns() {
    let content = parquet(&[batch(0..ROWS)]);
    let chunk = |group: usize, leaf: usize| {
        let reader = SerializedFileReader::new(bytes::Bytes::from(content.clone())).unwrap();
        let (start, length) = reader.metadata().row_group(group).column(leaf).byte_range();
        start as usize..(start + length) as usize
    };
    let (_directory, path) = directory_with(&[
        ("a.parquet", content.clone()),
        ("b.parquet", content.clone()),
        ("c.parquet", content.clone()),
    ]);
    let file = path.join("b.parquet");
    let machine = Arc::new(Machine::discover().unwrap());
    let tiers = Tiers::builder(Arc::clone(&machine)).build().unwrap();
    for (byte, pushdown) in [(0xff, "off"), (0, "off"), (0xff, "on"), (0, "on")] {
        // `mixed` is the column of the filter.
        for (sql, leaf, columns) in [
            ("select max(upper(text)) from t", 3, ", column text"),
            ("select max(upper(text)) from t where mixed >= 0 and id <> 7", 3, "text"),
            ("select max(upper(text)) from t where mixed >= 0", 1, "mixed"),
        ] {
            let mut damaged = content.clone();
            damaged[chunk(7, leaf)][..60].fill(byte);
            fs::write(&file, &damaged).unwrap();
            let context =
                context(path.to_str().unwrap(), &[&format!("memferry.pushdown = '{pushdown}'")]).await;
            let error = run(&context, sql).await.unwrap_err();
            let place = "b.parquet is damaged in row group 7, column";
            assert!(error.contains(place) && error.contains(columns), "{byte}, {pushdown}, {sql}: {error}");
            let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
            let layout = Layout::new(Arc::clone(&machine), tiers.home());
            let loaded = load::from_plan(plan, &context.task_ctx(), &layout, Arc::new(())).await;
            let error = loaded.unwrap_err().to_string();
            assert!(error.contains(place), "{error}");
        }
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_opened_is_named_and_not_the_one_before() {
    let content = parquet(&[batch(0..ROWS)]);
    let (_directory, path) =
        directory_with(&[("a.parquet", content.clone()), ("b.parquet", content.clone())]);
    let settings =
        ["datafusion.execution.target_partitions = 1", "datafusion.execution.collect_statistics = false"];
    let context = context(path.to_str().unwrap(), &settings).await;
    // The schema of the table is known. That in the footer is no longer base64, which DataFusion sees when it opens the file.
    let key = b"ARROW:schema";
    let start = content.windows(key.len()).position(|bytes| bytes == key).unwrap() + 40;
    let mut damaged = content.clone();
    damaged[start..start + 8].fill(b'!');
    fs::write(path.join("b.parquet"), &damaged).unwrap();
    let error = run(&context, "select max(upper(text)) from t").await.unwrap_err();
    assert!(error.contains("b.parquet is damaged: "), "{error}");
}

#[tokio::test]
async fn each_byte_of_a_footer_changed_is_an_error_or_the_right_answer() {
    let columns: [(&str, ArrayRef); 2] = [
        ("a", Arc::new(Int64Array::from_iter_values(0..50))),
        ("b", Arc::new(StringArray::from_iter_values((0..50).map(|row| format!("text {row}"))))),
    ];
    let file = parquet(&[RecordBatch::try_from_iter(columns).unwrap()]);
    let footer_bytes = u32::from_le_bytes(file[file.len() - 8..][..4].try_into().unwrap()) as usize + 8;
    let (_directory, path) = directory_with(&[]);
    let path = path.join("t.parquet");
    let right = damaged(&path, &file).await.unwrap();
    let (mut errors, mut same, mut other) = (0, 0, vec![]);
    for offset in file.len() - footer_bytes..file.len() {
        let mut content = file.clone();
        content[offset] ^= 0xff;
        match damaged(&path, &content).await {
            None => errors += 1,
            Some(answer) if answer == right => same += 1,
            Some(answer) => other.push((offset, answer)),
        }
    }
    assert!(errors > 0 && same > 0, "{errors} errors, {same} right answers");
    assert!(other.is_empty(), "{other:?}");
}
