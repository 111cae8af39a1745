//! Scans are read in the order in which the plan needs them: the beginning of the next one is in flight before DataFusion opens
//! it, little of that is in vain, and nothing is left behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::SessionContext;
use memferry_query::files::{FileReport, register};
use memferry_query::{SessionOptions, session};
use object_store::{ObjectStoreExt, PutPayload};

use crate::files::{ROWS, batch, chunk_bytes, parquet, run, set, wait_until};
use crate::store_support::{Fault, TestStore};

/// Rows of the table `build`, in two row groups.
const BUILD_ROWS: i64 = 2000;

/// Every row group of `probe` has values of `mixed` from the whole range, so no filter on it excludes one.
const JOIN: &str =
    "select count(*), sum(p.amount) from build b join probe p on b.id = p.mixed where b.amount > 3";

/// A session over a store with the tables `tiny` (one row group), `build`, `probe` and `third`, in that order of size.
async fn tables(partitions: usize, settings: &[&str]) -> (Arc<TestStore>, SessionContext) {
    let store = TestStore::new(Duration::ZERO);
    let context = session(&SessionOptions { partitions, batch_rows: 512, ..SessionOptions::default() });
    context.register_object_store(&"test://bucket".try_into().unwrap(), Arc::clone(&store) as _);
    set(&context, &["datafusion.optimizer.repartition_file_min_size = 0", "memferry.plan_ahead = true"])
        .await;
    set(&context, settings).await;
    for (name, rows) in [("tiny", 1000), ("build", BUILD_ROWS), ("probe", ROWS), ("third", ROWS + 2000)] {
        let file = format!("{name}.parquet");
        let content = parquet(&[batch(0..rows)]);
        store.put(&file.as_str().into(), PutPayload::from(content)).await.unwrap();
        register(&context, name, &format!("test://bucket/{file}")).await.unwrap();
    }
    store.forget();
    (store, context)
}

async fn explained(context: &SessionContext, sql: &str) -> String {
    let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    displayable(plan.as_ref()).indent(false).to_string()
}

/// The scans of a plan by position, with the scans that end before.
fn turns(plan: &str) -> Vec<(String, String)> {
    let mut turns = vec![];
    for line in plan.lines().filter(|line| line.contains("ContainExec")) {
        let (name, rest) = line.split("; ").nth(1).unwrap().split_once(" is scan ").unwrap();
        let (position, rest) = rest.split_once(" of ").unwrap();
        let after = rest.split_once(", needed after ").map_or("", |(_, after)| after);
        turns.push((position.parse::<usize>().unwrap(), name.to_owned(), after.to_owned()));
    }
    turns.sort();
    turns.into_iter().map(|(_, name, after)| (name, after)).collect()
}

/// The order in EXPLAIN is that in which DataFusion opens the scans.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_are_ordered_as_datafusion_opens_them() {
    for (sql, settings, expected) in [
        ("select count(*) from build b join probe p on b.id = p.mixed", vec![], vec![
            ("build", ""),
            ("probe", "the build side (build)"),
        ]),
        (
            "select count(*) from build b join probe p on b.id = p.mixed join third t on t.mixed = p.id + 1",
            vec![],
            vec![
                ("build", ""),
                ("probe", "the build side (build)"),
                ("third", "the build side (build, probe)"),
            ],
        ),
        ("select count(*) from build b join probe p on b.id < p.mixed where b.id < 50", vec![], vec![
            ("build", ""),
            ("probe", "the build side (build)"),
        ]),
        ("select sum(b.id), sum(p.id) from build b cross join probe p where b.id < 50", vec![], vec![
            ("build", ""),
            ("probe", "the build side (build)"),
        ]),
        ("select count(*) from probe where amount > (select avg(amount) from third)", vec![], vec![
            ("third", ""),
            ("probe", "the subquery (third)"),
        ]),
        (
            "select count(*) from build b join probe p on b.id = p.mixed",
            vec!["datafusion.optimizer.prefer_hash_join = false", "datafusion.execution.target_partitions = 2"],
            vec![("build", ""), ("probe", "")],
        ),
        ("select id from build union all select id from probe", vec![], vec![("build", ""), ("probe", "")]),
        (
            "select id from (select p.id from build b join probe p on b.id = p.mixed union all select id from third)
             order by id limit 3",
            vec![],
            vec![("build", ""), ("third", ""), ("probe", "the build side (build)")],
        ),
    ] {
        let (store, context) = tables(1, &["memferry.read_ahead = false"]).await;
        set(&context, &settings).await;
        let plan = explained(&context, sql).await;
        let found = turns(&plan);
        let found: Vec<(&str, &str)> =
            found.iter().map(|(name, after)| (name.as_str(), after.as_str())).collect();
        assert_eq!(found, expected, "{sql}\n{plan}");
        let (_, report) = run(&context, sql).await.unwrap();
        assert_eq!(report.bytes_read_ahead, 0, "{report:?}");
        let mut opened = store.files.lock().unwrap().clone();
        opened.dedup();
        let waits = found.iter().filter(|(_, after)| !after.is_empty());
        for (name, after) in waits {
            let position = |wanted: &str| {
                let is_it = |file: &String| file.strip_suffix(".parquet") == Some(wanted);
                opened.iter().position(is_it).unwrap_or_else(|| panic!("{wanted} is not read: {opened:?}"))
            };
            let before = after.split_once('(').unwrap().1.trim_end_matches(')').split(", ");
            assert!(before.clone().all(|before| position(before) < position(name)), "{sql}: {opened:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_probe_side_is_in_flight_before_the_build_side_ends() {
    for (setting, is_ahead) in [("memferry.plan_ahead = true", true), ("memferry.plan_ahead = false", false)]
    {
        let (store, context) = tables(2, &[setting]).await;
        // The build side never ends.
        store.fail_in("build.parquet", Fault::Hangs);
        let running = tokio::spawn(async move { run(&context, JOIN).await });
        wait_until(|| store.requests_of("build.parquet") == 2).await;
        match is_ahead {
            true => wait_until(|| store.requests_of("probe.parquet") == 2).await,
            false => tokio::time::sleep(Duration::from_millis(30)).await,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        let expected = if is_ahead { 2 } else { 0 };
        assert_eq!(store.requests_of("probe.parquet"), expected, "one row group of each partition");
        running.abort();
        wait_until(|| store.in_flight.load(Ordering::Relaxed) == 0).await;
        assert!(store.cancelled.load(Ordering::Relaxed) >= 2, "the build side was cancelled");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_before_the_open_are_hits_and_not_in_vain() {
    let probe = parquet(&[batch(0..ROWS)]);
    let largest = (0..20).map(|group| chunk_bytes(&probe, group..group + 1, &[1, 2])).max().unwrap();
    let (_, context) = tables(2, &[]).await;
    let (answer, report) = run(&context, JOIN).await.unwrap();
    assert!(report.bytes_read_before_open > largest, "of both partitions: {report:?}");
    assert!(report.bytes_read_before_open <= 2 * largest, "one row group of each partition: {report:?}");
    assert_eq!(report.bytes_in_vain, 0, "{report:?}");
    set(&context, &["memferry.plan_ahead = false"]).await;
    let (expected, without) = run(&context, JOIN).await.unwrap();
    assert_eq!(answer, expected);
    assert_eq!((without.bytes_read_before_open, without.bytes_read), (0, report.bytes_read), "{without:?}");
    assert!(without.bytes_hit < report.bytes_hit, "{without:?}, {report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_window_is_that_of_the_plan() {
    let probe = parquet(&[batch(0..ROWS)]);
    let (_, context) = tables(2, &[]).await;
    let group_bytes = chunk_bytes(&probe, 0..1, &[1, 2]);
    for (window_bytes, least, most) in [
        (1, 0, 0),
        // A read that does not fit is not started: one of each partition is half of the window at most.
        (group_bytes, 0, group_bytes),
        (4 * group_bytes, group_bytes + 1, 2 * group_bytes + group_bytes / 2),
    ] {
        set(&context, &[&format!("memferry.read_ahead_bytes = {window_bytes}")]).await;
        let (_, report) = run(&context, JOIN).await.unwrap();
        let ahead = report.bytes_read_before_open;
        assert!((least..=most).contains(&ahead), "{window_bytes}: {report:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_read_before_the_open_that_may_be_excluded() {
    let (store, context) = tables(2, &[]).await;
    let sql = "select p.text from build b join probe p on b.id = p.mixed limit 5";
    let reason = "read ahead from file once open: a limit may end the query before";
    let plan = explained(&context, sql).await;
    assert!(plan.contains(reason), "{plan}");
    for (sql, is_ahead) in [
        (sql, false),
        // The operators above a limit do not change that; those that read all rows do.
        (
            "select sum(a) from (select p.amount as a from build b join probe p on b.id = p.mixed limit 5)",
            false,
        ),
        ("select p.id, p.text from build b join probe p on b.id = p.mixed order by p.text limit 5", true),
    ] {
        let (_, report) = run(&context, sql).await.unwrap();
        assert_eq!(report.bytes_read_before_open > 0, is_ahead, "{sql}: {report:?}");
    }
    assert!(store.requests_of("probe.parquet") > 0);

    // Each row group of `probe` has a range of `id` of its own.
    let sql = "select count(*), sum(p.amount) from build b join probe p on b.mixed = p.id where b.amount > 3";
    let reason = "read ahead from file once open: a filter found by then may exclude row groups";
    let plan = explained(&context, sql).await;
    assert!(plan.contains(reason), "{plan}");
    // The build side never ends: once the filter is known, row groups that pass may be read before the open.
    store.forget();
    store.fail_in("build.parquet", Fault::Hangs);
    let running = tokio::spawn(async move { run(&context, sql).await });
    wait_until(|| store.requests_of("build.parquet") == 2).await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(store.requests_of("probe.parquet"), 0);
    running.abort();
    wait_until(|| store.in_flight.load(Ordering::Relaxed) == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_build_side_leaves_nothing_behind() {
    let probe = parquet(&[batch(0..ROWS)]);
    let largest = (0..20).map(|group| chunk_bytes(&probe, group..group + 1, &[1, 2])).max().unwrap();
    let (store, context) = tables(2, &[]).await;
    // No statistics tell that no row passes.
    let sql = JOIN.replace("b.amount > 3", "b.mixed % 1000 = 1001");
    // Reads of the probe side that hang neither delay the query nor outlive it, although the plan does.
    store.fail_in("probe.parquet", Fault::Hangs);
    let plan = context.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
    let batches = collect(Arc::clone(&plan), context.task_ctx()).await.unwrap();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 1);
    wait_until(|| store.in_flight.load(Ordering::Relaxed) == 0).await;
    let report = FileReport::of(plan.as_ref());
    assert!(report.bytes_read_before_open > largest, "of both partitions: {report:?}");
    assert_eq!(report.bytes_in_vain, report.bytes_read_before_open, "{report:?}");
    assert!(report.bytes_in_vain <= 2 * largest, "one row group of each partition: {report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_tables_are_begun_one_after_the_other() {
    let (store, context) = tables(2, &[]).await;
    store.fail_in("tiny.parquet", Fault::Hangs);
    // The first scan that is not whole stops it: `third` comes after all reads of `probe`.
    let sql = "select count(*) from tiny a join tiny b on a.id = b.mixed join probe p on b.mixed = p.mixed
               join third t on p.mixed = t.mixed";
    let running = tokio::spawn(async move { run(&context, sql).await });
    wait_until(|| store.requests_of("probe.parquet") == 2).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(store.requests_of("tiny.parquet"), 2, "two scans of one row group");
    assert_eq!(store.requests_of("third.parquet"), 0);
    running.abort();
    wait_until(|| store.in_flight.load(Ordering::Relaxed) == 0).await;
}

/// A table in memory asks for nothing, so the scan after it is begun when it is executed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_probe_side_of_a_table_in_memory_is_begun_at_once() {
    let (_, context) = tables(2, &[]).await;
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..2000));
    context.register_batch("keys", RecordBatch::try_from_iter([("key", keys)]).unwrap()).unwrap();
    let sql = "select count(*), sum(p.amount) from keys join probe p on key = p.mixed";
    let (_, report) = run(&context, sql).await.unwrap();
    assert!(report.bytes_read_before_open > 0, "{report:?}");
    assert_eq!(report.bytes_in_vain, 0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_do_not_depend_on_it() {
    let (_, context) = tables(2, &[]).await;
    for settings in [
        [
            "datafusion.optimizer.prefer_hash_join = true",
            "datafusion.optimizer.hash_join_single_partition_threshold = 1000000",
        ],
        [
            "datafusion.optimizer.prefer_hash_join = true",
            "datafusion.optimizer.hash_join_single_partition_threshold = 0",
        ],
        [
            "datafusion.optimizer.prefer_hash_join = false",
            "datafusion.optimizer.hash_join_single_partition_threshold = 0",
        ],
    ] {
        set(&context, &settings).await;
        for sql in [
            JOIN,
            "select b.id, p.text, t.amount from build b join probe p on b.id = p.mixed join third t on t.mixed = p.id
             order by b.id, t.id limit 20",
            "select count(*) from probe p where p.mixed in (select id from build where amount > 100)",
            "select count(*) from probe p where p.id not in (select id from build where amount > 100)",
            "select count(*), count(b.id), count(p.id) from build b full join probe p on b.id = p.mixed - 1000",
            "select count(*), sum(b.id) from build b cross join (select * from probe where id < 50) p",
            "select count(*), sum(p.id) from build b join probe p on b.mixed < p.id - 19000",
            "select count(*) from probe where amount > (select avg(amount) from third) and id < (select max(id) from build)",
            "select id from (select p.id from build b join probe p on b.id = p.mixed union all select id from third)
             order by id desc limit 30",
            "select sum(x) from (select p.id as x from build b join probe p on b.id = p.mixed where b.id < 0)",
            "select count(*) from (select p.id from build b join probe p on b.id = p.mixed limit 100)",
        ] {
            set(&context, &["memferry.plan_ahead = false"]).await;
            let (expected, without) = run(&context, sql).await.unwrap();
            assert_eq!(without.bytes_read_before_open, 0, "{sql}: {without:?}");
            set(&context, &["memferry.plan_ahead = true"]).await;
            let (answer, report) = run(&context, sql).await.unwrap();
            assert_eq!(answer, expected, "{sql}, {settings:?}");
            assert!(report.bytes_read_before_open <= report.bytes_read_ahead, "{sql}: {report:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_says_what_a_scan_reads_and_when() {
    let (_, context) = tables(1, &["memferry.pushdown = 'on'"]).await;
    let sql = "select sum(p.amount), max(p.text), max(p.id) from build b join probe p on b.id = p.mixed where p.id < 4000";
    let plan = explained(&context, sql).await;
    let probe = plan.lines().find(|line| line.contains("probe is scan 2 of 2")).unwrap();
    assert!(probe.contains("needed after the build side (build); id, mixed: "), "{plan}");
    assert!(
        probe.contains(" KiB, then amount, text: ")
            && probe.contains(" KiB in 4 row groups; read ahead from file before it is open; pushdown=on"),
        "{plan}"
    );
    assert!(
        plan.contains("build is scan 1 of 2; id: 19 KiB in 2 row groups; read ahead from file\n"),
        "{plan}"
    );
}
