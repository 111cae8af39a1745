//! Rows lie where a placement says, from the load on and after moves, and queries see none of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, RecordBatchIterator};
use arrow::compute::concat_batches;
use arrow::util::pretty::pretty_format_batches;
use datafusion::catalog::{MemTable, TableProvider};
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::SessionContext;
use futures::{StreamExt, poll};
use memferry::model::PlacementVerdict;
use memferry::topology::{Machine, NodeId};
use memferry_query::load::{self, PartitionedSource, Progress};
use memferry_query::{
    Layout, LoadError, PlacementClause, PlacementError, Prefetch, RowGroup, SessionOptions, TableData,
    TableError, TablePlacement, TableWriter, TieredTable, Tiers, session,
};
use parquet::arrow::ArrowWriter;

use crate::dsa_support::{Dsa, with_dsa};
use crate::prefetch::{QUERIES, explain, options, plain, run, set, table, table_of, tiers, two_tiers};

const COLUMNS: [&str; 7] = ["a", "b", "s", "u", "d", "day", "flag"];

fn placement(text: &str) -> TablePlacement {
    text.parse().unwrap()
}

/// The node of a column in each row group, by partition.
fn nodes(data: &TableData, column: usize) -> Vec<Vec<u32>> {
    let of = |groups: &Vec<RowGroup>| groups.iter().map(|group| group.node(column).0).collect();
    data.partitions().iter().map(of).collect()
}

fn rows(data: &TableData) -> RecordBatch {
    concat_batches(data.schema(), data.batches(1024).iter().flatten()).unwrap()
}

/// A table of two partitions with three row groups each, on node 0 of a machine with two nodes.
fn six_groups() -> Arc<TableData> {
    let data = table_of(&two_tiers(), 6 * 1024, 2, 1024);
    assert_eq!(nodes(&data, 0), [[0; 3]; 2]);
    data
}

fn tiered(data: &Arc<TableData>) -> Arc<TieredTable> {
    Arc::new(TieredTable::try_new(Arc::clone(data), tiers(&two_tiers(), Dsa::None)).unwrap())
}

fn session_with(table: &Arc<TieredTable>, prefetch: Prefetch) -> SessionContext {
    let context = session(&options(prefetch));
    context.register_table("t", Arc::clone(table) as Arc<dyn TableProvider>).unwrap();
    context
}

async fn place(table: &TieredTable, text: &str) -> Result<u64, PlacementError> {
    table.place(&placement(text), Arc::new(())).await
}

/// Each source of a table, with the same layout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_loader_places_rows() {
    let unplaced = six_groups();
    let batches = unplaced.batches(1000);
    let schema = unplaced.schema();
    let machine = two_tiers();
    let home = machine.nodes()[0].id;
    let layout = Layout {
        placement: placement(
            "numa node (0, 1), column b numa node (1), column s rows 1024 to 4096 numa node (1)",
        ),
        partitions: 2,
        row_group_rows: 1024,
        ..Layout::new(machine, home)
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("t.parquet");
    let mut writer =
        ArrowWriter::try_new(std::fs::File::create(&file).unwrap(), schema.clone(), None).unwrap();
    batches.iter().flatten().for_each(|batch| writer.write(batch).unwrap());
    writer.close().unwrap();
    let mut writer = TableWriter::new(schema.clone(), layout.clone()).unwrap();
    for (partition, batches) in batches.iter().enumerate() {
        batches.iter().for_each(|batch| writer.push(partition, batch).unwrap());
    }
    let open = |part: usize, _: usize| -> load::PartitionReader {
        let batches: Vec<_> = batches[part].iter().cloned().map(Ok).collect();
        Box::new(RecordBatchIterator::new(batches, schema.clone()))
    };
    let source = PartitionedSource { rows: 6 * 1024, open: Box::new(open) };
    // A plan of as many partitions.
    let context = session(&SessionOptions { partitions: 2, ..options(Prefetch::Off) });
    let in_memory = MemTable::try_new(schema.clone(), batches.clone()).unwrap();
    context.register_table("t", Arc::new(in_memory)).unwrap();
    let plan = context.table("t").await.unwrap().create_physical_plan().await.unwrap();
    let loaded = [
        ("batches", load::from_batches(schema.clone(), &batches, &layout).unwrap()),
        ("parquet", load::from_parquet(&file, &layout, &()).unwrap()),
        ("writer", writer.finish().unwrap()),
        ("readers", load::from_readers(&[source], &layout, &()).unwrap().remove(0)),
        ("plan", load::from_plan(plan, &context.task_ctx(), &layout, Arc::new(())).await.unwrap()),
    ];
    for (source, data) in loaded {
        // Parquet has other types of strings.
        assert_eq!(data.rows(), unplaced.rows(), "{source}");
        if source != "parquet" {
            assert_eq!(rows(&data), rows(&unplaced), "{source}");
        }
        assert_eq!(nodes(&data, 0), [[0, 1, 0], [1, 0, 1]], "{source}: a, in turns");
        assert_eq!(nodes(&data, 1), [[1; 3]; 2], "{source}: b");
        assert_eq!(nodes(&data, 2), [[0, 1, 1], [1, 0, 1]], "{source}: s, by its rows, or else in turns");
    }
}

#[test]
fn a_load_with_a_wrong_placement_says_why() {
    let data = six_groups();
    let machine = two_tiers();
    let home = machine.nodes()[0].id;
    let load = |text: &str| {
        let layout = Layout { placement: placement(text), ..Layout::new(Arc::clone(&machine), home) };
        match load::from_batches(data.schema().clone(), &data.batches(1024), &layout).unwrap_err() {
            LoadError::Table(TableError::Placement(error)) => error.to_string(),
            other => panic!("{text}: {other}"),
        }
    };
    assert!(load("numa node (7)").contains("node 7"), "{}", load("numa node (7)"));
    assert!(load("column x numa node (1)").contains("no column x; it has a, b"));
    assert!(load("rows 0 to 6145 numa node (1)").contains("6144 rows"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moves_change_places_and_no_answer() {
    let data = table(&two_tiers());
    let (mut expected, plain) = (vec![], plain(&data));
    for sql in QUERIES {
        expected.push(run(&plain, sql).await.0);
    }
    for dsa in [Dsa::None, Dsa::Emulated { seed: Some(5) }, Dsa::Emulated { seed: Some(6) }] {
        let table = TieredTable::try_new(Arc::clone(&data), tiers(&two_tiers(), dsa)).unwrap();
        let table = Arc::new(table);
        for (prefetch, text) in [
            (Prefetch::Off, "column b numa node (1)"),
            (Prefetch::Always, "numa node (0, 1)"),
            (Prefetch::Always, "column s rows 0 to 5000 numa node (1), column u numa node (1, 0 weight 2)"),
            (Prefetch::Always, "numa node (0)"),
        ] {
            let before = table.data();
            place(&table, text).await.unwrap();
            assert_eq!(rows(&table.data()), rows(&data), "{dsa:?}: {text}");
            let context = session_with(&table, prefetch);
            set(&context, "memferry.wait_us_max = 10000000").await;
            for (sql, expected) in QUERIES.iter().zip(&expected) {
                assert_eq!(&run(&context, sql).await.0, expected, "{dsa:?}, {text}: {sql}");
            }
            assert!(!Arc::ptr_eq(&before, &table.data()));
        }
        assert!(
            (0..COLUMNS.len()).all(|column| nodes(&table.data(), column).concat().iter().all(|&it| it == 0))
        );
    }
}

/// What is not moved is shared, and what is moved has new memory.
#[tokio::test]
async fn only_what_is_elsewhere_is_copied() {
    let table = tiered(&six_groups());
    let before = table.data();
    let moved =
        place(&table, "column b rows 1000 to 3072 numa node (1), column a numa node (0)").await.unwrap();
    let after = table.data();
    assert_eq!(nodes(&after, 1), [[0, 1, 1], [0, 0, 0]]);
    let pointer = |data: &TableData, index: usize, column: usize| {
        data.partitions()[0][index].column(column).to_data().buffers()[0].as_ptr()
    };
    for index in 0..3 {
        assert_eq!(pointer(&before, index, 0), pointer(&after, index, 0), "a, group {index}");
        assert_eq!(pointer(&before, index, 1) == pointer(&after, index, 1), index == 0, "b, group {index}");
    }
    let places: Vec<_> = after.places().into_iter().filter(|place| place.column == "b").collect();
    assert_eq!((places[0].node, places[0].row_groups), (NodeId(0), 4));
    assert_eq!(places[0].rows, [0..1024, 3072..6144]);
    assert_eq!((places[1].node, places[1].row_groups, places[1].size_bytes), (NodeId(1), 2, moved));
    assert_eq!(places[1].rows, std::slice::from_ref(&(1024..3072)));
    assert_eq!(after.places().len(), COLUMNS.len() + 1);
    // All of it is there already.
    assert_eq!(place(&table, "column b rows 1024 to 3072 numa node (1)").await.unwrap(), 0);
    assert!(Arc::ptr_eq(&after, &table.data()));
    // Most bytes are on node 0, until they are not.
    assert_eq!(after.home(), NodeId(0));
    place(&table, "numa node (1)").await.unwrap();
    assert_eq!(table.data().home(), NodeId(1));
}

/// A query that was planned before a move reads the old memory to its end, which is freed then.
#[tokio::test]
async fn a_query_keeps_its_snapshot() {
    // One partition, so that the order of rows is known.
    let table = tiered(&table_of(&two_tiers(), 6 * 1024, 1, 1024));
    let context = session_with(&table, Prefetch::Off);
    let sql = "select a, b, s from t";
    let expected = run(&context, sql).await.0;
    let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let mut stream = execute_stream(plan, context.task_ctx()).unwrap();
    let mut batches = vec![stream.next().await.unwrap().unwrap()];
    let before = Arc::downgrade(&table.data());
    place(&table, "numa node (1)").await.unwrap();
    assert!(before.upgrade().is_some(), "the query reads it");
    while let Some(batch) = stream.next().await {
        batches.push(batch.unwrap());
    }
    drop(stream);
    assert!(before.upgrade().is_none(), "nobody reads it");
    assert_eq!(pretty_format_batches(&batches).unwrap().to_string(), expected);
    assert_eq!(run(&context, sql).await.0, expected);
}

#[tokio::test]
async fn what_cannot_be_placed_leaves_the_table_as_it_was() {
    let table = tiered(&six_groups());
    place(&table, "column b numa node (1)").await.unwrap();
    let before = table.data();
    for (text, says) in [
        ("numa node (2)", "node 2"),
        ("column x numa node (1)", "no column x"),
        ("rows 0 to 6145 numa node (1)", "ROWS 0 TO 6145 is not a range of the table's 6144 rows"),
        ("rows 7 to 7 numa node (1)", "ROWS 7 TO 7 is not a range"),
        ("rows 1025 to 2048 numa node (1)", "row groups start at row 1024 and row 2048"),
        ("rows 5121 to 6144 numa node (1)", "row groups start at row 5120"),
        ("rows 0 to 2000 numa node (1), rows 1999 to 3000 numa node (0)", "both apply to some rows"),
        ("numa node (0, 0)", "each once"),
        ("numa node (0, 1) by bandwidth", "memferry calibrate"),
    ] {
        let error = place(&table, text).await.unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
        assert!(Arc::ptr_eq(&before, &table.data()), "{text}");
    }
}

/// Node 1 has no memory, and node 3 has one MiB.
#[tokio::test]
async fn nodes_without_memory_or_room_are_refused() {
    let text = include_str!("../../../memferry/machines/made-up-odd-nodes.json").replace("2048,", "1,");
    let machine = Arc::new(Machine::from_profile_text("odd", &text).unwrap());
    let data = table_of(&machine, 40_000, 2, 1024);
    let table = TieredTable::try_new(data, Tiers::builder(machine).build().unwrap()).unwrap();
    let before = table.data();
    let error = place(&table, "column a numa node (1)").await.unwrap_err();
    assert!(error.to_string().contains("node 1 has no memory"), "{error}");
    let error = place(&table, "numa node (3)").await.unwrap_err();
    assert!(matches!(error, PlacementError::Full { node: NodeId(3), .. }), "{error}");
    assert!(Arc::ptr_eq(&before, &table.data()));
    place(&table, "column flag numa node (3)").await.unwrap();
    assert!(!Arc::ptr_eq(&before, &table.data()));
}

#[tokio::test]
async fn a_column_is_moved_by_one_at_a_time() {
    let table = tiered(&six_groups());
    let (b, other) = (placement("column b numa node (1)"), placement("column a numa node (1)"));
    let mut first = Box::pin(table.place(&b, Arc::new(())));
    assert!(poll!(&mut first).is_pending(), "memory is allocated by another thread");
    let error = place(&table, "numa node (1)").await.unwrap_err();
    assert_eq!(error.to_string(), "column b is being moved; wait until it is there");
    table.place(&other, Arc::new(())).await.unwrap();
    assert_eq!(
        (nodes(&table.data(), 0), nodes(&table.data(), 1)),
        (vec![vec![1; 3]; 2], vec![vec![0; 3]; 2])
    );
    first.await.unwrap();
    let (a, b) = (nodes(&table.data(), 0), nodes(&table.data(), 1));
    assert_eq!((a, b), (vec![vec![1; 3]; 2], vec![vec![1; 3]; 2]), "neither undoes the other");
    place(&table, "numa node (0)").await.unwrap();
}

#[tokio::test]
async fn a_cancelled_move_leaves_the_table_as_it_was() {
    let table = tiered(&six_groups());
    let before = table.data();
    let everything = placement("numa node (1)");
    let mut first = Box::pin(table.place(&everything, Arc::new(())));
    assert!(poll!(&mut first).is_pending());
    drop(first);
    assert!(Arc::ptr_eq(&before, &table.data()));
    place(&table, "column b numa node (1)").await.unwrap();
    assert_eq!(nodes(&table.data(), 0), [[0; 3]; 2]);
}

/// What a move reports.
#[derive(Default)]
struct Counted(Mutex<(u64, u64)>);

impl Progress for Counted {
    fn total(&self, rows: u64) {
        self.0.lock().unwrap().0 += rows;
    }

    fn advance(&self, rows: u64) {
        self.0.lock().unwrap().1 += rows;
    }
}

/// Queries that are planned while a move runs would otherwise read tables that nobody asked for.
#[tokio::test]
async fn nobody_sees_a_part_of_a_move() {
    let table = tiered(&six_groups());
    let before = table.data();
    let (everything, counted) = (placement("numa node (1)"), Arc::new(Counted::default()));
    // After the first of six row groups it pauses for a minute.
    let mut moving = Box::pin(table.place_within(&everything, 1e-9, Arc::clone(&counted) as _));
    while counted.0.lock().unwrap().1 == 0 {
        assert!(poll!(&mut moving).is_pending());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(Arc::ptr_eq(&before, &table.data()), "one row group is copied");
    drop(moving);
    assert!(Arc::ptr_eq(&before, &table.data()), "it was cancelled");
}

#[tokio::test]
async fn progress_counts_the_rows_that_move() {
    let table = tiered(&six_groups());
    let counted = Arc::new(Counted::default());
    let some = placement("column b rows 1024 to 4096 numa node (1), column a rows 0 to 2048 numa node (1)");
    table.place(&some, Arc::clone(&counted) as _).await.unwrap();
    assert_eq!(*counted.0.lock().unwrap(), (4096, 4096));
}

/// On the thesis's machine a copy of a column on another node pays, because it does not compete with the filter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_sees_where_columns_lie() {
    let machine = Arc::new(Machine::from_profile("xeon-max-9468-2s-flat").unwrap());
    let numbers = |factor: i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values((0..1_200_000).map(|row| row * factor % 1000)))
    };
    let rows = RecordBatch::try_from_iter([("a", numbers(7)), ("b", numbers(3))]).unwrap();
    let partitions: Vec<_> = (0..12).map(|part| vec![rows.slice(part * 100_000, 100_000)]).collect();
    let layout = Layout::new(Arc::clone(&machine), NodeId(0));
    let data = Arc::new(load::from_batches(rows.schema(), &partitions, &layout).unwrap());
    let tiers = with_dsa(Tiers::builder(machine), Dsa::Emulated { seed: None }).build().unwrap();
    let table = Arc::new(TieredTable::try_new(data, tiers).unwrap());
    let context = session_with(&table, Prefetch::Auto);
    let sql = "select sum(b) from t where a < 300";
    let plan = explain(&context, sql).await;
    assert!(plan.contains("prefetch=none (b, ") && plan.contains("same node as the running scan"), "{plan}");
    assert!(!plan.contains("places="), "{plan}");

    table.place(&PlacementClause::column("b", NodeId(1)).into(), Arc::new(())).await.unwrap();
    let plan = explain(&context, sql).await;
    assert!(plan.contains("places=[a on node 0 (same node), b on node 1 (other node)]"), "{plan}");
    assert!(plan.contains("prefetch=auto to node 8 (b, ") && plan.contains(", pays "), "{plan}");
    let (_, report) = run(&context, sql).await;
    assert!(report.bytes_prefetched > 0, "{report:?}");

    table.place(&placement("column b numa node (4, 8)"), Arc::new(())).await.unwrap();
    let plan = explain(&context, sql).await;
    assert!(plan.contains("b on node 4 (other socket) and node 8 (same node)]"), "{plan}");
    assert!(plan.contains("(b on node 4, "), "only that part is not near: {plan}");

    table.place(&placement("column b numa node (8)"), Arc::new(())).await.unwrap();
    let plan = explain(&context, sql).await;
    assert!(plan.contains("prefetch=none (no node is faster than home node 8)"), "{plan}");
}

/// Two columns of 400 000 integers on node 0 of the thesis's machine, read by its CPUs.
fn on_xeon_max() -> Arc<TieredTable> {
    let machine = Arc::new(Machine::from_profile("xeon-max-9468-2s-flat").unwrap());
    let numbers = |factor: i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values((0..400_000).map(|row| row * factor % 1000)))
    };
    let rows = RecordBatch::try_from_iter([("a", numbers(7)), ("b", numbers(3))]).unwrap();
    let parts: Vec<_> = (0..4).map(|part| vec![rows.slice(part * 100_000, 100_000)]).collect();
    // Eight bytes a value, as counted below.
    let layout = Layout { narrow: false, ..Layout::new(Arc::clone(&machine), NodeId(0)) };
    let data = Arc::new(load::from_batches(rows.schema(), &parts, &layout).unwrap());
    let tiers = Tiers::builder(machine).budget_bytes(Some(64 << 20)).build().unwrap();
    Arc::new(TieredTable::try_new(data, tiers).unwrap())
}

/// The sums of all windows: CPUs, column, node and bytes, by column.
fn sums(table: &TieredTable) -> Vec<(u32, usize, u32, u64)> {
    let mut sums = BTreeMap::new();
    for read in table.reads().windows.iter().flat_map(|window| &window.reads) {
        *sums.entry((read.column, read.cpus.0, read.node.0)).or_insert(0) += read.size_bytes;
    }
    sums.into_iter().map(|((column, cpus, node), bytes)| (cpus, column, node, bytes)).collect()
}

const COLUMN_BYTES: u64 = 8 * 400_000;

#[track_caller]
fn assert_about(bytes: u64, expected: u64) {
    // Shares of a row group are rounded down, and Arrow rounds buffers up.
    assert!((expected / 100 * 99..expected / 100 * 102).contains(&bytes), "{bytes} of {expected}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_at_home_are_counted_and_near_copies_are_not() {
    let table = on_xeon_max();
    let context = session_with(&table, Prefetch::Off);
    assert!(table.reads().windows.is_empty());
    run(&context, "select sum(b) from t where a < 300").await;
    let counted = sums(&table);
    let [(0, 0, 0, a), (0, 1, 0, b)] = counted.as_slice() else { panic!("{counted:?}") };
    assert_about(*a, COLUMN_BYTES);
    assert_about(*b, COLUMN_BYTES);
    run(&context, "select sum(b) from t").await;
    assert_about(sums(&table)[1].3, 2 * COLUMN_BYTES);

    let context = session_with(&table, Prefetch::Always);
    set(&context, "memferry.wait_us_max = 10000000").await;
    run(&context, "select sum(b) from t where a < 300").await;
    let counted = sums(&table);
    assert_about(counted[0].3, 2 * COLUMN_BYTES);
    assert_about(counted[1].3, 2 * COLUMN_BYTES);
}

/// A move by the advice, which has no more to say then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn advice_is_followed_once() {
    let table = on_xeon_max();
    let context = session_with(&table, Prefetch::Off);
    let sql = "select sum(a), sum(b) from t";
    let expected = run(&context, sql).await.0;
    let advice = table.advise(&table.placement_rules()).unwrap();
    assert!(matches!(advice.verdict, PlacementVerdict::Wait { .. }), "one query is not enough: {advice:?}");
    let moved =
        |table: &TieredTable| table.reads().columns.iter().map(|it| it.moves_count).collect::<Vec<_>>();
    assert_eq!(moved(&table), [0, 0]);
    for _ in 0..3 {
        run(&context, sql).await;
    }
    let advice = table.advise(&table.placement_rules()).unwrap();
    assert_eq!(advice.verdict, PlacementVerdict::Move, "{advice:?}");
    let placement = table.placement_of(&advice);
    assert_eq!(placement.clauses.len(), 2, "{placement}");
    table.place(&placement, Arc::new(())).await.unwrap();
    for column in 0..2 {
        let nodes = nodes(&table.data(), column);
        assert!(
            nodes.iter().flatten().all(|&node| node == 8 + column as u32),
            "two fast memories of the socket: {nodes:?}"
        );
    }
    assert_eq!((moved(&table), table.reads().windows.len()), (vec![1, 1], 0));
    for _ in 0..20 {
        assert_eq!(run(&context, sql).await.0, expected);
    }
    assert_eq!(sums(&table)[0].2, 8);
    let advice = table.advise(&table.placement_rules()).unwrap();
    assert_eq!((advice.verdict, advice.moves.len()), (PlacementVerdict::Keep, 0), "{advice:?}");
}

#[tokio::test]
async fn advice_needs_the_rates_of_memories() {
    let table = tiered(&six_groups());
    run(&session_with(&table, Prefetch::Off), "select sum(b) from t").await;
    let error = table.advise(&table.placement_rules()).unwrap_err().to_string();
    assert!(error.contains("the rate of the memory of node 0 is not known"), "{error}");
}

#[tokio::test]
async fn a_share_of_the_bandwidth_slows_a_move() {
    let table = tiered(&six_groups());
    let mut times = Vec::new();
    for node in [1, 0, 1, 0, 1] {
        let started = Instant::now();
        place(&table, &format!("numa node ({node})")).await.unwrap();
        times.push(started.elapsed());
    }
    let fastest = times.into_iter().min().unwrap();
    let started = Instant::now();
    table.place_within(&placement("numa node (0)"), 0.02, Arc::new(())).await.unwrap();
    let slow = started.elapsed();
    assert_eq!(nodes(&table.data(), 1), [[0; 3]; 2]);
    // Five pauses of 49 copies each, against three copies of two row groups.
    assert!(slow > fastest * 5, "{slow:?} and {fastest:?}");
}
