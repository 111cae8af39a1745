//! Prefetching, with every engine and every option, does not change the answers of plain DataFusion.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Int64Array, RecordBatch, StringArray,
    StringViewArray,
};
use arrow::util::pretty::pretty_format_batches;
use datafusion::catalog::MemTable;
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::SessionContext;
use memferry::mover::{DsaEngine, DsaOptions, Engine, EngineKind};
use memferry::topology::Machine;
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
use memferry_query::{
    BudgetTooSmall, Layout, Prefetch, ScanReport, SessionOptions, TableData, TieredTable, Tiers, load,
    session,
};

use crate::dsa_support::{Dsa, with_dsa};
use crate::rates_support::two_tiers_with_rates;

const ROWS: i64 = 20_000;
pub(crate) const PARTITIONS: usize = 3;

/// Filters that pass all, none, some; on every type; joins, limits, counts.
pub(crate) const QUERIES: &[&str] = &[
    "select sum(b), count(*) from t where a < 300",
    "select count(*) from t",
    "select count(*) from t where a < 500",
    "select a, b, s from t where a < 20 and b > 100 order by a, b, s",
    "select max(s), min(u), count(b) from t where s like 'long string number 1%' and a > 10",
    "select sum(d), max(day) from t where d < 50.00 and day >= date '1994-01-01' and day < date '1995-01-01'",
    "select count(*), sum(a) from t where b is null",
    "select count(*), sum(a) from t where flag or s is null",
    "select sum(b) from t where a >= 0",
    "select sum(b) from t where a < 0",
    "select s, count(*), sum(b) from t where u in ('u1', 'u7', 'u42') group by s order by s, 2, 3",
    "select sum(b) from t where a between 200 and 300 and a % 7 = 3",
    "select t.b, other.a from t join t other on t.b = other.b where t.a = 7 and other.a < 9 order by 1, 2",
    "select count(*), sum(t.b) from t join (select a from t where b = 90 group by a) x on t.a = x.a",
    "select b, s from t where a < 900 order by b desc nulls last, s desc nulls last limit 7",
    "select count(*) from (select a from t limit 5 offset 10)",
    "select count(*) from (select b from t where a < (select avg(a) from t) limit 3)",
    "select a from t where a <> 0 order by 1000 / a, a limit 5",
    "select count(*) from (select a from t where a < 100 limit 11)",
    "select a, count(*) from t group by a having count(*) > 20 order by a limit 20",
    "select count(*) from t where a < (select avg(a) from t)",
    "select distinct u from t where substr(u, 2) = '13' or a = 3 order by u",
    "select a from t where exists (select 1 from t x where x.b = t.b and x.a < 5) and a < 50 order by a limit 9",
    "select u, day, d, s, flag from t where flag and a between 100 and 110 order by u, day, d, s",
];

fn rows(count: i64) -> RecordBatch {
    let mix = |row: i64, salt: u64| {
        let bits = (row as u64).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(salt << 40);
        (bits.rotate_left(23).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16) as i64
    };
    let column = |salt| (0..count).map(move |row| mix(row, salt));
    let string = |v: i64| match v % 4 {
        0 => None,
        1 => Some(String::from("short")),
        _ => Some(format!("long string number {}", v % 1000)),
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("a", Arc::new(Int64Array::from_iter_values(column(1).map(|v| v % 1000)))),
        ("b", Arc::new(Int64Array::from_iter(column(2).map(|v| (v % 7 != 0).then_some(v % 5000))))),
        ("s", Arc::new(StringViewArray::from_iter(column(3).map(string)))),
        ("u", Arc::new(StringArray::from_iter_values(column(4).map(|v| format!("u{}", v % 50))))),
        (
            "d",
            Arc::new(
                Decimal128Array::from_iter_values(column(5).map(|v| i128::from(v % 10_000)))
                    .with_precision_and_scale(15, 2)
                    .unwrap(),
            ),
        ),
        ("day", Arc::new(Date32Array::from_iter_values(column(6).map(|v| 8035 + (v % 2500) as i32)))),
        ("flag", Arc::new(BooleanArray::from_iter(column(7).map(|v| (v % 11 != 0).then_some(v % 3 == 0))))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .unwrap()
}

/// Many row groups, three partitions.
pub(crate) fn table(machine: &Arc<Machine>) -> Arc<TableData> {
    table_of(machine, ROWS, PARTITIONS, 1024)
}

pub(crate) fn table_of(
    machine: &Arc<Machine>,
    count: i64,
    partitions: usize,
    row_group_rows: usize,
) -> Arc<TableData> {
    let rows = rows(count);
    let cut = rows.num_rows().div_ceil(partitions);
    let starts = (0..partitions).map(|p| p * cut);
    let partitions: Vec<_> =
        starts.map(|start| vec![rows.slice(start, cut.min(rows.num_rows() - start))]).collect();
    let home = machine.nodes()[0].id;
    let layout = Layout {
        partitions: partitions.len(),
        row_group_rows,
        // In eight bytes each.
        narrow: false,
        ..Layout::new(Arc::clone(machine), home)
    };
    Arc::new(load::from_batches(rows.schema(), &partitions, &layout).unwrap())
}

pub(crate) fn two_tiers() -> Arc<Machine> {
    Arc::new(Machine::two_tiers().unwrap())
}

/// The same with rates.
fn told(device_mb_per_s: f64) -> Arc<Machine> {
    Arc::new(Machine::from_profile_text("with rates", &two_tiers_with_rates(device_mb_per_s)).unwrap())
}

/// The device copies all of a column while two cores filter a column of the same size.
const FAST_COPIES: f64 = 20e3;
const BY_DEVICE: Dsa = Dsa::Emulated { seed: None };

pub(crate) fn tiers(machine: &Arc<Machine>, dsa: Dsa) -> Arc<Tiers> {
    with_dsa(Tiers::builder(Arc::clone(machine)).budget_bytes(Some(64 << 20)), dsa).build().unwrap()
}

pub(crate) fn options(prefetch: Prefetch) -> SessionOptions {
    SessionOptions { prefetch, partitions: PARTITIONS, batch_rows: 256, ..SessionOptions::default() }
}

fn tiered(prefetch: Prefetch, data: &Arc<TableData>, tiers: &Arc<Tiers>) -> SessionContext {
    let context = session(&options(prefetch));
    let table = TieredTable::try_new(Arc::clone(data), Arc::clone(tiers)).unwrap();
    context.register_table("t", Arc::new(table)).unwrap();
    context
}

pub(crate) fn plain(data: &TableData) -> SessionContext {
    let context = session(&options(Prefetch::Off));
    let table = MemTable::try_new(Arc::clone(data.schema()), data.batches(256)).unwrap();
    context.register_table("t", Arc::new(table)).unwrap();
    context
}

/// The answer as text, and the report of the scans.
pub(crate) async fn run(context: &SessionContext, sql: &str) -> (String, ScanReport) {
    let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let answer = collect(Arc::clone(&plan), context.task_ctx()).await;
    let answer = answer.unwrap_or_else(|e| panic!("{sql}: {e}\n{}", displayable(plan.as_ref()).indent(true)));
    (pretty_format_batches(&answer).unwrap().to_string(), ScanReport::of(plan.as_ref()))
}

pub(crate) async fn explain(context: &SessionContext, sql: &str) -> String {
    let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    displayable(plan.as_ref()).indent(true).to_string()
}

pub(crate) async fn set(context: &SessionContext, assignment: &str) {
    context.sql(&format!("set {assignment}")).await.unwrap().collect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_plain_datafusion() {
    let machine = told(FAST_COPIES);
    let data = table(&machine);
    let plain = plain(&data);
    let mut expected = vec![];
    for sql in QUERIES {
        expected.push(run(&plain, sql).await.0);
    }
    let mut setups = vec![
        (Prefetch::Off, Dsa::None),
        (Prefetch::Auto, Dsa::None),
        (Prefetch::Auto, BY_DEVICE),
        (Prefetch::Always, Dsa::None),
        (Prefetch::Always, Dsa::Emulated { seed: None }),
    ];
    setups.extend((1..=6).map(|seed| (Prefetch::Always, Dsa::Emulated { seed: Some(seed) })));
    for (prefetch, dsa) in setups {
        let context = tiered(prefetch, &data, &tiers(&machine, dsa));
        for (sql, expected) in QUERIES.iter().zip(&expected) {
            assert_eq!(&run(&context, sql).await.0, expected, "{prefetch} {dsa:?}: {sql}");
        }
    }
}

/// Row groups large enough that bitmaps are copied as well, and scans that wait, so that rows do come from near copies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_from_near_copies_are_those_of_plain_datafusion() {
    let machine = two_tiers();
    let data = table_of(&machine, 120_000, 2, 64 * 1024);
    let plain = plain(&data);
    for dsa in [Dsa::None, Dsa::Emulated { seed: Some(11) }, Dsa::Emulated { seed: Some(12) }] {
        let tiers = tiers(&machine, dsa);
        let context = tiered(Prefetch::Always, &data, &tiers);
        set(&context, "memferry.wait_us_max = 10000000").await;
        for sql in QUERIES {
            let (answer, report) = run(&context, sql).await;
            assert_eq!(answer, run(&plain, sql).await.0, "{dsa:?}: {sql}");
            assert_eq!(report.late_bytes_near, report.late_bytes, "{dsa:?}: {sql}: {report:?}");
        }
        let carried = tiers.mover().stats().bytes_by(EngineKind::Dsa);
        assert_eq!(carried > 0, dsa != Dsa::None, "{dsa:?} carried {carried} bytes");
    }
}

/// With one partition nothing above the scan stops a query at its limit: the scan must.
#[tokio::test]
async fn limits_hold_over_one_partition() {
    let machine = two_tiers();
    let data = table_of(&machine, 3000, 1, 1024);
    let context = tiered(Prefetch::Always, &data, &tiers(&machine, Dsa::None));
    let rows = async |sql: &str| -> usize {
        let batches = context.sql(sql).await.unwrap().collect().await.unwrap();
        batches.iter().map(RecordBatch::num_rows).sum()
    };
    assert_eq!(rows("select a from t limit 5 offset 10").await, 5);
    assert_eq!(rows("select a from t where a >= 0 limit 5 offset 2998").await, 2);
    assert_eq!(rows("select b from t where a < (select avg(a) from t) limit 3").await, 3);
    let plain = plain(&data);
    for sql in QUERIES {
        assert_eq!(run(&context, sql).await.0, run(&plain, sql).await.0, "{sql}");
    }
}

/// A limit ends a scan while copies are in flight; its report includes them.
#[tokio::test]
async fn copies_of_an_ended_scan_are_reported() {
    let machine = two_tiers();
    let data = table_of(&machine, 3000, 1, 1024);
    let context = tiered(Prefetch::Always, &data, &tiers(&machine, Dsa::None));
    let (_, report) = run(&context, "select b from t where a < 900 limit 7").await;
    assert!(report.columns_prefetched > 0 && report.bytes_prefetched > 0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_option_changes_an_answer() {
    let machine = two_tiers();
    let data = table(&machine);
    let (plain, tiers) = (plain(&data), tiers(&machine, Dsa::None));
    for assignment in [
        "memferry.split_filters = false",
        "memferry.reorder_filters = false",
        "memferry.sparse_filters = false",
        "memferry.compare_kept = false",
        "memferry.merge_batches = false",
        "memferry.dynamic_filters = false",
        "memferry.chunk_rows = 1",
        "memferry.chunk_rows = 18446744073709551615",
        "memferry.window_groups = 0",
        "memferry.window_groups = 18446744073709551615",
        "memferry.wait_us_max = 1000000",
        "datafusion.execution.batch_size = 7",
        "datafusion.execution.batch_size = 100000",
    ] {
        let context = tiered(Prefetch::Always, &data, &tiers);
        set(&context, assignment).await;
        for sql in QUERIES {
            assert_eq!(run(&context, sql).await.0, run(&plain, sql).await.0, "{assignment}: {sql}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_columns_are_read_near_and_reused() {
    let machine = told(FAST_COPIES);
    let data = table(&machine);
    let context = tiered(Prefetch::Auto, &data, &tiers(&machine, Dsa::None));
    set(&context, "memferry.wait_us_max = 10000000").await;
    // Then all are included.
    set(&context, "memferry.reads_to_come = 1000").await;
    let sql = "select sum(b), max(s) from t where a < 300";

    let (_, first) = run(&context, sql).await;
    assert_eq!(first.hit_ratio(), Some(1.0), "{first:?}");
    assert_eq!(first.bytes_by_engine.iter().map(|(_, bytes)| bytes).sum::<u64>(), first.bytes_prefetched);
    let b_and_s = 2 * data.partitions().iter().map(Vec::len).sum::<usize>() as u64;
    assert_eq!(first.columns_prefetched, b_and_s);
    assert!(first.bytes_prefetched > 8 * ROWS as u64, "{first:?}");

    let plan = explain(&context, sql).await;
    assert!(plan.contains("prefetch=none (b is near already; s is near already)"), "{plan}");
    let (_, second) = run(&context, sql).await;
    assert_eq!((second.hit_ratio(), second.bytes_prefetched), (Some(1.0), 0), "{second:?}");
    assert_eq!(second.time_predicted, second.time_predicted_without, "{second:?}");
    assert!(second.time_predicted < first.time_predicted_without, "{second:?}, {first:?}");

    // One of two columns.
    let plan = explain(&context, "select sum(b), max(d) from t where a < 300").await;
    assert!(plan.contains("prefetch=auto to node 1 (b is near already; d, "), "{plan}");
}

/// A plan is executed and shown as decided: its own copies do not change the decision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_after_the_run_says_what_was_decided_before() {
    let machine = told(FAST_COPIES);
    let context = tiered(Prefetch::Auto, &table(&machine), &tiers(&machine, BY_DEVICE));
    let sql = "select sum(b) from t where a < 300";
    let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    collect(Arc::clone(&plan), context.task_ctx()).await.unwrap();
    let shown = displayable(plan.as_ref()).indent(true).to_string();
    assert!(shown.contains("prefetch=auto to node 1 (b, "), "{shown}");
    assert!(explain(&context, sql).await.contains("b is near already"), "the next one knows");
}

/// Plain DataFusion divides by zero here, because it evaluates both sides of AND on all rows of a batch.
#[tokio::test]
async fn a_guard_protects_what_may_fail() {
    let machine = two_tiers();
    let data = table(&machine);
    let context = tiered(Prefetch::Always, &data, &tiers(&machine, Dsa::None));
    let (expected, _) = run(&plain(&data), "select sum(b) from t where a > 0 and a <= 47").await;
    for guarded in
        ["a > 0 and 1000 / a > 20", "1000 / a > 20 and a > 0", "a <> 0 and a >= 0 and 1000 / a > 20"]
    {
        assert_eq!(
            run(&context, &format!("select sum(b) from t where {guarded}")).await.0,
            expected,
            "{guarded}"
        );
    }
}

#[tokio::test]
async fn prefetching_refused_touches_no_cache_state() {
    let machine = two_tiers();
    let data = table(&machine);
    let home = machine.nodes()[0].id;
    let no_faster_node = Tiers::builder(Arc::clone(&machine)).near(Some(home)).build().unwrap();
    for (prefetch, tiers) in [(Prefetch::Off, tiers(&machine, Dsa::None)), (Prefetch::Auto, no_faster_node)] {
        let context = tiered(prefetch, &data, &tiers);
        let before = tiers.cache().stats();
        for sql in QUERIES {
            run(&context, sql).await;
        }
        assert_eq!(tiers.cache().stats(), before, "{prefetch}");
    }
}

#[tokio::test]
async fn auto_prefetches_only_to_a_faster_node_with_room() {
    let sql = "select sum(b) from t where a < 300";
    let machine = told(FAST_COPIES);
    let data = table(&machine);

    let faster = explain(&tiered(Prefetch::Auto, &data, &tiers(&machine, BY_DEVICE)), sql).await;
    assert!(faster.contains("late=[b]") && faster.contains("prefetch=auto to node 1"), "{faster}");

    let home = machine.nodes()[0].id;
    let same_node = Tiers::builder(Arc::clone(&machine)).near(Some(home)).build().unwrap();
    let same_node = explain(&tiered(Prefetch::Auto, &data, &same_node), sql).await;
    assert!(same_node.contains("prefetch=none (copies to home node 0 itself gain nothing)"), "{same_node}");

    let small = Tiers::builder(Arc::clone(&machine)).budget_bytes(Some(128 << 10)).build().unwrap();
    let context = tiered(Prefetch::Auto, &data, &small);
    set(&context, "memferry.window_groups = 50").await;
    let small = explain(&context, sql).await;
    assert!(small.contains("does not fit the budget"), "{small}");
}

/// A faster node alone is no reason to copy: the gain is not known.
#[tokio::test]
async fn auto_copies_nothing_without_figures() {
    let sql = "select sum(b) from t where a < 300";
    let machine = two_tiers();
    let data = table(&machine);
    for dsa in [Dsa::None, Dsa::Emulated { seed: None }] {
        let tiers = tiers(&machine, dsa);
        assert!(tiers.near_is_faster());
        let context = tiered(Prefetch::Auto, &data, &tiers);
        for reads_to_come in [0, 1000] {
            set(&context, &format!("memferry.reads_to_come = {reads_to_come}")).await;
            let plan = explain(&context, sql).await;
            let words = "prefetch=none (the gain of copies to node 1 is unknown: ";
            assert!(plan.contains(words), "{plan}");
            let (_, report) = run(&context, sql).await;
            assert!(
                report.decisions.iter().all(|it| plan.contains(it)) && report.decisions.len() == 1,
                "{report:?}"
            );
            assert_eq!((report.bytes_prefetched, report.time_predicted), (0, Duration::ZERO), "{report:?}");
        }
        assert_eq!(tiers.cache().stats().submissions, 0);
        // On this machine the message recommends a calibration, for a profile it does not.
        assert!(!explain(&context, sql).await.contains("calibrate"));
    }
}

/// Copies at a third of the rate of the filter: a third of the column arrives before it is read. The rest would compete
/// with its reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_a_column_is_an_answer() {
    let sql = "select sum(b) from t where a < 300";
    let machine = told(6e3);
    // Row groups of 8 KiB.
    let data = table_of(&machine, 48 * 1024, 2, 1024);
    let column_bytes = 48 * 8192;
    let tiers = tiers(&machine, BY_DEVICE);
    let context = tiered(Prefetch::Auto, &data, &tiers);
    set(&context, "memferry.wait_us_max = 10000000").await;
    let plan = explain(&context, sql).await;
    let (_, words) = plan.split_once("prefetch=auto to node 1 (b, ").unwrap_or_else(|| panic!("{plan}"));
    let (kib, words) = words.split_once(" KiB, read after the filter, to node 1 by one device, ").unwrap();
    assert!(words.contains("pays 1."), "{plan}");
    let advised_bytes = kib.parse::<u64>().unwrap() << 10;
    assert!((column_bytes / 5..column_bytes / 2).contains(&advised_bytes), "{plan}");

    let (answer, report) = run(&context, sql).await;
    assert_eq!(answer, run(&plain(&data), sql).await.0);
    // Whole row groups, in each of two partitions.
    let copied_bytes = report.bytes_prefetched;
    assert!((advised_bytes - 2 * 8192..=advised_bytes).contains(&copied_bytes), "{report:?}, {plan}");
    assert_eq!(report.late_bytes_near, copied_bytes, "{report:?}");
    assert_eq!(report.columns_prefetched, copied_bytes / 8192, "{report:?}");
    assert_eq!(report.time_predicted, report.time_predicted_with, "{report:?}");
    assert!(report.time_predicted < report.time_predicted_without, "{report:?}");

    let percent = copied_bytes * 100 / column_bytes;
    let again = explain(&context, sql).await;
    assert!(again.contains(&format!("of b {percent} % are near already; b, ")), "{again}");
}

/// EXPLAIN names the engines that copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_take_the_route_that_was_advised() {
    let machine = Arc::new(Machine::from_profile("xeon-max-9468-2s-flat").unwrap());
    let device = |node: u32| -> Arc<dyn Engine> {
        let emulator =
            Emulator::start(&DeviceConfig::one_shared_queue().on_node(node), FaultPlan::none()).unwrap();
        Arc::new(DsaEngine::new(vec![emulator.portal(0)], DsaOptions::default()).unwrap())
    };
    // 16 bytes a row: small row groups go to the devices in turn, those of 2 MiB are split.
    for (nodes, row_group_rows, words, took_part) in [
        (&[0, 1, 2, 3][..], 1024, "by all devices in turn", &[true, true, true, true][..]),
        (&[0, 1, 2, 3], 128 * 1024, "by push-pull", &[true, true, false, false]),
        (&[2, 0], 1024, "by all devices in turn", &[true, true]),
        (&[2], 1024, "by one device", &[true]),
    ] {
        let data = decimals(&machine, row_group_rows);
        let tiers =
            nodes.iter().fold(Tiers::builder(Arc::clone(&machine)), |it, &node| it.engine(device(node)));
        let tiers = tiers.budget_bytes(Some(256 << 20)).build().unwrap();
        let context = tiered(Prefetch::Auto, &data, &tiers);
        set(&context, "memferry.reads_to_come = 1000").await;
        let sql = "select sum(d) from t where a < 300";
        let plan = explain(&context, sql).await;
        assert!(plan.contains("to node 8 ") && plan.contains(words), "{nodes:?}: {plan}");
        run(&context, sql).await;
        tiers.mover().drain().wait().unwrap();
        let stats = tiers.mover().stats();
        let copied: Vec<bool> = stats.engines[..nodes.len()].iter().map(|engine| engine.bytes > 0).collect();
        assert_eq!(copied, took_part, "{nodes:?}: {plan}");
        assert_eq!(stats.bytes_by(EngineKind::Cpu), 0, "{nodes:?}: {stats:?}");
    }
}

/// Two columns in 16 partitions of one row group each.
fn decimals(machine: &Arc<Machine>, row_group_rows: usize) -> Arc<TableData> {
    let rows = row_group_rows as i64;
    let a = Int64Array::from_iter_values((0..rows).map(|row| row % 1000));
    let d = Decimal128Array::from_iter_values((0..rows).map(i128::from));
    let columns: [(&str, ArrayRef); 2] =
        [("a", Arc::new(a)), ("d", Arc::new(d.with_precision_and_scale(20, 0).unwrap()))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let partitions = vec![vec![batch.clone()]; 16];
    let home = machine.nodes()[0].id;
    // In 16 bytes each.
    let narrow = false;
    let layout = Layout { partitions: 16, row_group_rows, narrow, ..Layout::new(Arc::clone(machine), home) };
    Arc::new(load::from_batches(batch.schema(), &partitions, &layout).unwrap())
}

/// With known rates the model decides. Both columns lie on one node: a copy of one during the scan of the other gains
/// nothing now, and something if the column is read again.
#[tokio::test]
async fn auto_prefetches_what_pays_by_the_model() {
    let sql = "select sum(b) from t where a < 300";
    let machine = Arc::new(Machine::from_profile("xeon-max-9468-2s-flat").unwrap());
    let data = table_of(&machine, ROWS, 16, 1024);
    for (dsa, who) in [(Dsa::None, "the CPU"), (Dsa::Emulated { seed: None }, "device")] {
        let tiers = tiers(&machine, dsa);
        let context = tiered(Prefetch::Auto, &data, &tiers);
        let once = explain(&context, sql).await;
        let words =
            ["prefetch=none (b, ", "read after the filter, to node 8", who, "same node as the running scan"];
        assert!(words.iter().all(|word| once.contains(word)), "{once}");
        let (answer, report) = run(&context, sql).await;
        assert_eq!(report.bytes_prefetched, 0, "{report:?}");
        // The prediction with copies is known as well.
        assert_eq!(report.time_predicted, report.time_predicted_without, "{report:?}");
        assert!(Duration::ZERO < report.time_predicted_without, "{report:?}");
        assert!(report.time_predicted_without < report.time_predicted_with, "{report:?}");

        set(&context, "memferry.reads_to_come = 100").await;
        let often = explain(&context, sql).await;
        assert!(
            ["prefetch=auto to node 8 (b, ", "pays 1."].iter().all(|word| often.contains(word)),
            "{often}"
        );
        let (again, report) = run(&context, sql).await;
        assert_eq!(again, answer);
        assert!(report.bytes_prefetched > 0 && report.time_working > Duration::ZERO, "{report:?}");
        assert_eq!(report.time_predicted, report.time_predicted_with, "{report:?}");
        assert!(
            report.time_predicted > report.time_predicted_without,
            "a loss now, for a gain later: {report:?}"
        );

        // Ready copies are read, with and without further copies.
        tiers.mover().drain().wait().unwrap();
        set(&context, "memferry.reads_to_come = 0").await;
        let near = explain(&context, sql).await;
        assert!(near.contains("prefetch=none (b is near already)"), "{near}");
        let before = tiers.cache().stats();
        assert_eq!(run(&context, sql).await.0, answer);
        let after = tiers.cache().stats();
        assert!(after.hits_ready > before.hits_ready, "{after:?}");
        assert_eq!(after.submissions, before.submissions);
    }
}

#[tokio::test]
async fn a_budget_below_one_row_group_is_refused() {
    let machine = two_tiers();
    let data = table(&machine);
    let tiers = Tiers::builder(machine).budget_bytes(Some(8192)).build().unwrap();
    let error = TieredTable::try_new(data, tiers).unwrap_err();
    assert!(matches!(error, BudgetTooSmall { budget_bytes: 8192, .. }), "{error}");
}

/// A consumer that keeps every batch must not keep the near node full: beyond a share of the budget, rows that leave
/// the scan unfiltered are slices of home memory.
#[tokio::test]
async fn kept_batches_pin_only_their_share_of_the_budget() {
    let machine = two_tiers();
    let data = table(&machine);
    let budget = 512 << 10;
    let tiers = Tiers::builder(machine).budget_bytes(Some(budget)).build().unwrap();
    let context = tiered(Prefetch::Always, &data, &tiers);
    set(&context, "memferry.wait_us_max = 10000000").await;
    let held_bytes = || -> u64 {
        tiers.cache().flush();
        tiers.cache().stats().nodes.iter().map(|node| node.used_bytes as u64).sum()
    };
    // All rows, as slices; and filtered rows, whose views refer to the strings of all rows.
    for sql in ["select b, s, d from t where a >= 0", "select s from t where a < 900"] {
        let kept = context.sql(sql).await.unwrap().collect().await.unwrap();
        let held = held_bytes();
        assert!(held > 0, "{sql}: some rows leave near");
        // Pools round blocks up to whole pages; the buffers here are a few pages each.
        assert!(held <= budget / 2, "{sql}: {held} bytes of {budget} are held");
        drop(kept);
        assert_eq!(held_bytes(), 0, "{sql}");
    }
}
