//! Decoded columns that stay in memory: answers equal DataFusion's whatever is kept, nothing is read or decoded that is kept,
//! the budget holds at every moment, and no answer is of an older version of a file.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use futures::future::try_join_all;
use memferry::cache::Cache;
use memferry::topology::Machine;
use memferry_query::files::{FileReport, register};
use memferry_query::{SessionOptions, Tiers, session};

use crate::files::{QUERIES, ROWS, batch, directory_with, parquet, run, set};

const KEEP: &str = "memferry.keep_decoded = true";
const GROUPS: u64 = 20;

fn tiers(budget_bytes: u64) -> Arc<Tiers> {
    let machine = Arc::new(Machine::discover().unwrap());
    Tiers::builder(machine).budget_bytes(Some(budget_bytes)).build().unwrap()
}

/// A session over `tiers` with the table `t`.
async fn context(tiers: &Arc<Tiers>, location: &Path, settings: &[&str]) -> SessionContext {
    let tiers = Some(Arc::clone(tiers));
    let options = SessionOptions { partitions: 2, batch_rows: 512, tiers, ..SessionOptions::default() };
    let context = session(&options);
    set(&context, &["datafusion.optimizer.repartition_file_min_size = 0"]).await;
    set(&context, settings).await;
    register(&context, "t", location.to_str().unwrap()).await.unwrap();
    context
}

async fn plain(location: &Path) -> SessionContext {
    context(&tiers(1 << 20), location, &["memferry.read_files = false"]).await
}

/// The answer; it equals that of `expected` up to the order of rows that the query leaves open.
async fn checked(context: &SessionContext, expected: &SessionContext, sql: &str) -> FileReport {
    let (expected, _) = run(expected, sql).await.unwrap();
    let (answer, report) = run(context, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!(sorted(&answer), sorted(&expected), "{sql}");
    report
}

fn sorted(answer: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = answer.lines().collect();
    lines.sort_unstable();
    lines
}

fn used_bytes(cache: &Cache) -> usize {
    let stats = cache.stats();
    let usage = stats.nodes[0];
    assert!(usage.peak_bytes <= usage.budget_bytes, "{usage:?}");
    usage.used_bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_datafusion() {
    let (_directory, path) = directory_with(&[("t.parquet", parquet(&[batch(0..ROWS)]))]);
    let file = path.join("t.parquet");
    let expected = plain(&file).await;
    let ample = tiers(64 << 20);
    let keeping = context(&ample, &file, &[KEEP]).await;
    for sql in QUERIES.iter().chain(&QUERIES).chain(&QUERIES) {
        checked(&keeping, &expected, sql).await;
    }
    let working_set_bytes = used_bytes(ample.cache()) as u64;
    let half = working_set_bytes / 2;
    for (budget_bytes, setting) in [
        (96 << 10, "memferry.pushdown = 'auto'"),
        (half, "memferry.pushdown = 'auto'"),
        (half, "memferry.pushdown = 'on'"),
        (half, "datafusion.execution.parquet.pushdown_filters = true"),
        (half, "datafusion.execution.target_partitions = 1"),
        (half, "memferry.plan_ahead = true"),
        (64 << 20, "memferry.pushdown = 'on'"),
    ] {
        let tiers = tiers(budget_bytes);
        let keeping = context(&tiers, &file, &[KEEP, setting]).await;
        for sql in QUERIES.iter().chain(&QUERIES).chain(&QUERIES) {
            checked(&keeping, &expected, sql).await;
            used_bytes(tiers.cache());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_row_groups_are_neither_read_nor_decoded() {
    let (_directory, path) = directory_with(&[("t.parquet", parquet(&[batch(0..ROWS)]))]);
    let file = path.join("t.parquet");
    let (tiers, expected) = (tiers(64 << 20), plain(&file).await);
    let keeping = context(&tiers, &file, &[KEEP]).await;

    let sql = "select sum(id), count(text) from t where amount > 100";
    // What is needed once is not kept.
    let first = checked(&keeping, &expected, sql).await;
    assert!(first.decoded_bytes_kept == 0 && first.bytes_requested > 0, "{first:?}");
    let second = checked(&keeping, &expected, sql).await;
    assert!(second.decoded_bytes_kept > 0 && second.bytes_requested > 0, "{second:?}");
    assert_eq!((second.scans, second.decoded_row_groups), (1, 0), "{second:?}");
    let third = checked(&keeping, &expected, sql).await;
    assert_eq!((third.scans, third.decoded_row_groups), (1, GROUPS), "{third:?}");
    assert_eq!((third.requests, third.bytes_requested, third.decoded_bytes_kept), (0, 0, 0), "{third:?}");

    // Statistics exclude row groups that are kept.
    let pruned =
        checked(&keeping, &expected, "select sum(id), count(text) from t where amount > 18500").await;
    assert_eq!((pruned.decoded_row_groups, pruned.bytes_requested), (2, 0), "{pruned:?}");

    // Of another query only the missing column is read, and kept at its second use.
    let mixed = "select sum(mixed) from t";
    let alone = run(&context(&self::tiers(1 << 20), &file, &[]).await, mixed).await.unwrap().1;
    let both = checked(&keeping, &expected, "select sum(mixed), sum(id) from t").await;
    assert_eq!((both.bytes_requested, both.decoded_row_groups), (alone.bytes_requested, 0), "{both:?}");
    assert_eq!(both.decoded_bytes_kept, 0, "{both:?}");
    let again = checked(&keeping, &expected, mixed).await;
    assert_eq!((again.decoded_bytes_kept, again.decoded_row_groups), (8 * ROWS as u64, 0), "{again:?}");
    assert_eq!(checked(&keeping, &expected, mixed).await.decoded_row_groups, GROUPS);

    // Without the setting nothing changes.
    let other = context(&tiers, &file, &[]).await;
    let report = checked(&other, &expected, sql).await;
    assert_eq!((report.decoded_row_groups, report.decoded_bytes_kept), (0, 0), "{report:?}");
    assert!(report.bytes_requested > 0, "{report:?}");
}

/// What EXPLAIN says of the scan.
async fn explain(context: &SessionContext, sql: &str) -> String {
    run(context, &format!("explain {sql}")).await.unwrap().0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_says_what_is_kept() {
    let (_directory, path) = directory_with(&[("t.parquet", parquet(&[batch(0..ROWS)]))]);
    let file = path.join("t.parquet");
    let tiers = tiers(64 << 20);
    let keeping = context(&tiers, &file, &[KEEP]).await;
    let sql = "select sum(id) from t where id >= 5000";
    let before = explain(&keeping, sql).await;
    assert!(before.contains("; decoded columns may be kept"), "{before}");
    for _ in 0..2 {
        run(&keeping, sql).await.unwrap();
    }
    let after = explain(&keeping, sql).await;
    assert!(after.contains("; 15 of 15 row groups are kept decoded"), "{after}");
    let all = explain(&keeping, "select sum(id) from t").await;
    assert!(all.contains("; 15 of 20 row groups are kept decoded"), "{all}");
    let (analyzed, _) = run(&keeping, &format!("explain analyze {sql}")).await.unwrap();
    assert!(analyzed.contains("decoded_row_groups=15"), "{analyzed}");
    for (sql, why) in [
        ("select pair['x'] from t", "of nested columns, leaves are decoded"),
        ("select id from t limit 3", "a limit ends the scan early"),
        ("select id, text from t order by id desc limit 5", "row groups are read backwards"),
    ] {
        let text = explain(&keeping, sql).await;
        assert!(!text.contains("decoded columns") && !text.contains("kept decoded"), "{why}: {text}");
    }
}

/// Files of which the older lack a column, and that have another type of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_and_missing_columns() {
    let column = |rows: std::ops::Range<i64>| Arc::new(Int64Array::from_iter_values(rows)) as ArrayRef;
    let text =
        Arc::new(StringArray::from_iter_values((0..3000).map(|row| format!("text {row}")))) as ArrayRef;
    let old = RecordBatch::try_from_iter([("a", column(0..3000))]).unwrap();
    let new = RecordBatch::try_from_iter_with_nullable([("a", column(3000..6000), false), ("b", text, true)])
        .unwrap();
    let (_directory, path) =
        directory_with(&[("year=2024/x.parquet", parquet(&[old])), ("year=2025/x.parquet", parquet(&[new]))]);
    let (tiers, expected) = (tiers(64 << 20), plain(&path).await);
    let keeping = context(&tiers, &path, &[KEEP]).await;
    for _ in 0..3 {
        for sql in [
            "select year, count(*), sum(a), count(b), max(b) from t group by year order by year",
            "select year, a, b from t where a % 1000 = 7 order by a",
            "select sum(a) from t where year = 2025 and b > 'text 5'",
            "select count(*) from t where b is null",
            "select a + cast(year as int) as c, b || '-' || cast(year as varchar) from t where a > 5990 order by c",
            "select year from t where a = 17",
            "select b, year from t where a between 2990 and 3010 order by a",
        ] {
            checked(&keeping, &expected, sql).await;
        }
    }
    let report = checked(&keeping, &expected, "select sum(a), count(b) from t").await;
    assert_eq!((report.decoded_row_groups, report.bytes_requested), (6, 0), "{report:?}");

    // The same column as another type, of another table over the same files.
    let location = path.join("year=2025/x.parquet");
    let create = "create external table u (a int, b varchar) stored as parquet location";
    for context in [&keeping, &expected] {
        let sql = format!("{create} '{}'", location.display());
        context.sql(&sql).await.unwrap().collect().await.unwrap();
    }
    for _ in 0..2 {
        let sql = "select sum(a), min(b), arrow_typeof(max(a)) from u";
        checked(&keeping, &expected, sql).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_columns_of_a_changed_file_are_not_used() {
    let content = parquet(&[batch(0..ROWS)]);
    let (_directory, path) = directory_with(&[("t.parquet", content.clone())]);
    let file = path.join("t.parquet");
    let tiers = tiers(64 << 20);
    let keeping = context(&tiers, &file, &[KEEP]).await;
    let sql = "select sum(id) from t";
    for _ in 0..2 {
        assert!(run(&keeping, sql).await.unwrap().0.contains("199990000"));
    }
    // A plan from before the change, of which all columns are kept.
    let plan = keeping.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    fs::write(&file, parquet(&[batch(5..ROWS)])).unwrap();
    let error = collect(plan, keeping.task_ctx()).await.unwrap_err().to_string();
    assert!(error.contains("changed while"), "{error}");
    for decoded in [0, 0, GROUPS] {
        let (answer, report) = run(&keeping, sql).await.unwrap();
        assert!(answer.contains("199989990"), "{answer}");
        assert_eq!(report.decoded_row_groups, decoded, "{report:?}");
    }
    // A change in the middle of a query.
    let plan = keeping.sql("select id from t").await.unwrap().create_physical_plan().await.unwrap();
    let mut batches = plan.execute(0, keeping.task_ctx()).unwrap();
    batches.next().await.unwrap().unwrap();
    fs::write(&file, &content).unwrap();
    let error = loop {
        match batches.next().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => break error.to_string(),
            None => panic!("the file changed"),
        }
    };
    assert!(error.contains("changed while"), "{error}");
    let plan = keeping.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    fs::remove_file(&file).unwrap();
    let error = collect(plan, keeping.task_ctx()).await.unwrap_err().to_string();
    assert!(error.contains("was removed while a query read it"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sessions_share_what_is_kept() {
    let (_directory, path) = directory_with(&[("t.parquet", parquet(&[batch(0..ROWS)]))]);
    let file = path.join("t.parquet");
    let ample = tiers(64 << 20);
    let sql = "select sum(id), min(text) from t";
    // The uses of all sessions count.
    run(&context(&ample, &file, &[KEEP]).await, sql).await.unwrap();
    let (_, second) = run(&context(&ample, &file, &[KEEP]).await, sql).await.unwrap();
    assert!(second.decoded_bytes_kept > 0, "{second:?}");
    let (_, third) = run(&context(&ample, &file, &[KEEP]).await, sql).await.unwrap();
    assert_eq!((third.decoded_row_groups, third.bytes_requested), (GROUPS, 0), "{third:?}");

    // At the same time, also with too little room.
    let expected = plain(&file).await;
    let alone = context(&ample, &file, &[KEEP]).await;
    for sql in QUERIES.iter().chain(&QUERIES).chain(&QUERIES) {
        checked(&alone, &expected, sql).await;
    }
    let half = tiers(used_bytes(ample.cache()) as u64 / 2);
    for tiers in [&half, &self::tiers(64 << 20)] {
        let tasks = (0..6).map(|session| {
            let (tiers, file, expected) = (Arc::clone(tiers), file.clone(), expected.clone());
            tokio::spawn(async move {
                let context = context(&tiers, &file, &[KEEP]).await;
                for query in 0..3 * QUERIES.len() {
                    checked(&context, &expected, QUERIES[(session * 5 + query) % QUERIES.len()]).await;
                    used_bytes(tiers.cache());
                }
            })
        });
        try_join_all(tasks).await.unwrap();
        // Each column is kept once; merged reads may overlap.
        let (together, alone) = (used_bytes(tiers.cache()), used_bytes(ample.cache()));
        assert!(together <= alone + alone / 4, "{together} instead of {alone} bytes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_when_the_cache_ends() {
    let (_directory, path) = directory_with(&[("t.parquet", parquet(&[batch(0..ROWS)]))]);
    let file = path.join("t.parquet");
    let tiers = tiers(64 << 20);
    let cache = tiers.cache().clone();
    let keeping = context(&tiers, &file, &[KEEP]).await;
    let sql = "select id, text from t";
    // Dropped in the middle of decoding, and in the middle of kept columns.
    for _ in 0..3 {
        let plan = keeping.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let mut batches = plan.execute(0, keeping.task_ctx()).unwrap();
        for _ in 0..5 {
            batches.next().await.unwrap().unwrap();
        }
    }
    let expected = plain(&file).await;
    for _ in 0..2 {
        checked(&keeping, &expected, "select sum(id), count(text) from t").await;
    }
    let report = checked(&keeping, &expected, "select sum(id), count(text) from t").await;
    assert_eq!(report.decoded_row_groups, GROUPS, "{report:?}");

    // A batch that a program holds keeps its columns, and nothing else.
    let plan = keeping.sql("select id from t").await.unwrap().create_physical_plan().await.unwrap();
    let batch = plan.execute(0, keeping.task_ctx()).unwrap().next().await.unwrap().unwrap();
    drop((plan, keeping, tiers));
    let held_bytes = used_bytes(&cache);
    assert!((8000..=16384).contains(&held_bytes), "the column of one row group: {held_bytes}");
    assert_eq!(batch.num_rows(), 512);
    drop(batch);
    assert_eq!(used_bytes(&cache), 0);
}
