//! Tables lie on their home node, and late columns are copied to the near node, as the kernel reports for each page.

#[path = "../../memferry/tests/numa_support/mod.rs"]
mod numa_support;

mod dsa_support;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, StringViewArray};
use arrow::util::pretty::pretty_format_batches;
use datafusion::catalog::MemTable;
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::SessionContext;
use dsa_support::{Dsa, with_dsa};
use memferry::internals::nodes_of_pages;
use memferry::topology::{Machine, NodeId};
use memferry_query::{
    Layout, Prefetch, ScanReport, SessionOptions, TableData, TieredTable, Tiers, load, session,
};
use numa_support::{
    assert_no_strays, fill_for_good, numa_balancing, pages_preferring, pairs, several_nodes, with_figures,
};
use tokio::sync::Mutex;

/// Tests that fill nodes or look at all of this process' mappings take turns.
static ALONE: Mutex<()> = Mutex::const_new(());

const ROWS: i64 = 32_000;
const PARTITIONS: usize = 2;
const QUERY: &str = "select sum(b), count(s), max(s) from t where a < 300";
/// The late columns of the query: `b` and, at least, the views of `s`.
const LATE_BYTES_MIN: u64 = ROWS as u64 * (8 + 16);

fn table(machine: &Arc<Machine>, home: NodeId) -> Arc<TableData> {
    let mix = |row: i64, salt: i64| row.wrapping_mul(2_654_435_761).wrapping_add(salt) >> 7;
    let integers = |salt| Int64Array::from_iter_values((0..ROWS).map(|row| mix(row, salt).rem_euclid(1000)));
    let string = |row| format!("a string too long for its view {}", mix(row, 3).rem_euclid(5000));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("a", Arc::new(integers(1))),
        ("b", Arc::new(integers(2))),
        ("s", Arc::new(StringViewArray::from_iter_values((0..ROWS).map(string)))),
    ];
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    let half = rows.num_rows() / PARTITIONS;
    let partitions: Vec<_> = (0..PARTITIONS).map(|part| vec![rows.slice(part * half, half)]).collect();
    let layout =
        Layout { partitions: PARTITIONS, row_group_rows: 8 * 1024, ..Layout::new(Arc::clone(machine), home) };
    Arc::new(load::from_batches(rows.schema(), &partitions, &layout).unwrap())
}

fn tiers(machine: &Arc<Machine>, home: NodeId, dsa: Dsa) -> Arc<Tiers> {
    let tiers = Tiers::builder(Arc::clone(machine)).home(home).budget_bytes(Some(8 << 20));
    with_dsa(tiers, dsa).build().unwrap()
}

fn options(prefetch: Prefetch) -> SessionOptions {
    SessionOptions { prefetch, partitions: PARTITIONS, batch_rows: 1024, ..SessionOptions::default() }
}

/// The scan waits for its copies, so that rows do come from them.
async fn tiered(prefetch: Prefetch, data: &Arc<TableData>, tiers: &Arc<Tiers>) -> SessionContext {
    let context = session(&options(prefetch));
    let table = TieredTable::try_new(Arc::clone(data), Arc::clone(tiers)).unwrap();
    context.register_table("t", Arc::new(table)).unwrap();
    context.sql("set memferry.wait_us_max = 10000000").await.unwrap().collect().await.unwrap();
    context
}

async fn run(context: &SessionContext) -> (String, ScanReport) {
    let (answer, report, _) = run_explained(context).await;
    (answer, report)
}

/// Also the plan as EXPLAIN shows it.
async fn run_explained(context: &SessionContext) -> (String, ScanReport, String) {
    let plan = context.sql(QUERY).await.unwrap().create_physical_plan().await.unwrap();
    let explained = displayable(plan.as_ref()).indent(true).to_string();
    let answer = collect(Arc::clone(&plan), context.task_ctx()).await.unwrap();
    (pretty_format_batches(&answer).unwrap().to_string(), ScanReport::of(plan.as_ref()), explained)
}

async fn expected(data: &TableData) -> String {
    let context = session(&options(Prefetch::Off));
    let table = MemTable::try_new(Arc::clone(data.schema()), data.batches(1024)).unwrap();
    context.register_table("t", Arc::new(table)).unwrap();
    run(&context).await.0
}

/// Every page of every buffer of every column.
#[track_caller]
fn assert_at_home(data: &TableData) {
    for group in data.partitions().iter().flatten() {
        for column in group.batch().columns() {
            for buffer in column.to_data().buffers() {
                let nodes = nodes_of_pages(buffer.as_slice()).unwrap();
                assert!(
                    nodes.iter().all(|&node| node == Some(data.home())),
                    "{nodes:?}, not {}",
                    data.home()
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_come_to_the_node_beside_the_tables_home() {
    let Some((machine, _)) = several_nodes() else { return };
    let _alone = ALONE.lock().await;
    let machine = Arc::new(with_figures(&machine));
    for (home, _) in pairs(&machine) {
        let data = table(&machine, home);
        assert_at_home(&data);
        let expected = expected(&data).await;
        let tiers = tiers(&machine, home, Dsa::None);
        let context = tiered(Prefetch::Auto, &data, &tiers).await;
        // Then nothing is left out.
        context.sql("set memferry.reads_to_come = 1000").await.unwrap().collect().await.unwrap();
        let (answer, report, plan) = run_explained(&context).await;
        assert_eq!(answer, expected, "home {home}");
        match machine.nearest_faster(home) {
            Some(near) => {
                let words = format!("prefetch=auto to node {} (", near.id);
                assert!(
                    plan.contains(&words)
                        && plan.contains("by the CPU, same node as the running scan, pays "),
                    "home {home}: {plan}"
                );
                assert_eq!((tiers.near(), near.cpu_node), (near.id, home));
                assert!(report.bytes_prefetched >= LATE_BYTES_MIN, "home {home}: {report:?}");
                assert_eq!(report.late_bytes_near, report.late_bytes, "home {home}: {report:?}");
                let pages = pages_preferring(near.id);
                assert!(pages[&near.id] as u64 * 4096 >= LATE_BYTES_MIN, "home {home}: {pages:?}");
            }
            None => assert_eq!(report.bytes_prefetched, 0, "`auto` has nowhere to bring columns: {report:?}"),
        }
        assert_no_strays(&machine);
    }
}

/// The kernel of the guest reports the faster memory but not the copy rate of a core, so the gain is not known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_figures_nothing_is_copied() {
    let Some((machine, _)) = several_nodes() else { return };
    let _alone = ALONE.lock().await;
    for (home, _) in pairs(&machine) {
        let data = table(&machine, home);
        let tiers = tiers(&machine, home, Dsa::None);
        let context = tiered(Prefetch::Auto, &data, &tiers).await;
        let (answer, report, plan) = run_explained(&context).await;
        assert_eq!(answer, expected(&data).await, "home {home}");
        assert_eq!((report.bytes_prefetched, tiers.cache().stats().submissions), (0, 0), "{report:?}");
        match machine.nearest_faster(home) {
            Some(near) => {
                let words = format!("prefetch=none (the gain of copies to node {} is unknown: ", near.id);
                assert!(plan.contains(&words) && plan.contains("memferry calibrate"), "home {home}: {plan}");
            }
            None => assert!(plan.contains("no node is faster than home node"), "{plan}"),
        }
    }
}

/// `always` copies to the given node, even if it is slower.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emulated_device_copies_between_nodes() {
    let Some((machine, _)) = several_nodes() else { return };
    let _alone = ALONE.lock().await;
    let (home, near) = *pairs(&machine).last().unwrap();
    let data = table(&machine, home);
    let tiers = Tiers::builder(Arc::clone(&machine)).home(home).near(Some(near));
    let tiers = with_dsa(tiers.budget_bytes(Some(8 << 20)), Dsa::Emulated { seed: Some(3) }).build().unwrap();
    let context = tiered(Prefetch::Always, &data, &tiers).await;
    let (answer, report) = run(&context).await;
    assert_eq!(answer, expected(&data).await);
    assert!(report.late_bytes_near > 0 && report.late_bytes_near == report.late_bytes, "{report:?}");
    assert!(pages_preferring(near)[&near] as u64 * 4096 >= LATE_BYTES_MIN);
    assert_no_strays(&machine);
}

/// Another program uses the near node: the query reads from home and reports it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_near_node_costs_nothing_but_the_hits() {
    let Some((machine, _)) = several_nodes() else { return };
    let _alone = ALONE.lock().await;
    let (home, near) = pairs(&machine)[0];
    let data = table(&machine, home);
    let expected = expected(&data).await;
    let (mut hog, mut attempts) = (Vec::new(), 0);
    let (tiers, context, report) = loop {
        hog.extend(fill_for_good(&machine, near));
        let tiers = Tiers::builder(Arc::clone(&machine)).home(home).near(Some(near));
        let tiers = tiers.budget_bytes(Some(8 << 20)).build().unwrap();
        let context = tiered(Prefetch::Always, &data, &tiers).await;
        let (answer, report) = run(&context).await;
        assert_eq!(answer, expected);
        attempts += 1;
        if report.bytes_prefetched == 0 || attempts == 10 {
            break (tiers, context, report);
        }
        // The kernel gives pages back seconds later that each CPU had kept for itself: they have to be filled as well. The
        // next attempt has another cache, since this one's pool keeps the pages.
    };
    assert_eq!((report.late_bytes_near, report.bytes_prefetched), (0, 0), "{report:?}");
    assert!(tiers.cache().stats().no_room > 0, "{:?}", tiers.cache().stats());
    drop(hog);
    let (_, report) = run(&context).await;
    assert!(report.late_bytes_near > 0, "the next query finds room: {report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn automatic_numa_balancing_changes_no_answer() {
    let Some((machine, _)) = several_nodes() else { return };
    let _alone = ALONE.lock().await;
    let Some(balancing) = numa_balancing() else { return };
    let (home, near) = pairs(&machine)[0];
    let data = table(&machine, home);
    let expected = expected(&data).await;
    let tiers = Tiers::builder(Arc::clone(&machine)).home(home).near(Some(near));
    let tiers = tiers.budget_bytes(Some(8 << 20)).build().unwrap();
    let context = tiered(Prefetch::Always, &data, &tiers).await;
    // Until the kernel has looked at this process more than once.
    let until = std::time::Instant::now() + balancing.settles_in;
    while std::time::Instant::now() < until {
        assert_eq!(run(&context).await.0, expected);
        tiers.cache().flush();
    }
    assert_at_home(&data);
    assert_no_strays(&machine);
}
