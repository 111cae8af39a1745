//! Tables on several nodes, as the kernel reports for each page: before, during and after moves.

#[path = "../../memferry/tests/numa_support/mod.rs"]
mod numa_support;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, Int64Array, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Int64Type};
use arrow::util::pretty::pretty_format_batches;
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::physical_plan::{ExecutionPlan, collect, execute_stream};
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use memferry::internals::{Measured, Parameter, nodes_of_pages};
use memferry::model::{PlacementRules, PlacementVerdict};
use memferry::topology::{Machine, NodeId};
use memferry_query::load::Progress;
use memferry_query::schedule::{Binding, Domains, Stealing};
use memferry_query::{
    Layout, PlacementClause, PlacementError, Prefetch, QueryDomains, SessionOptions, TableData,
    TablePlacement, TieredTable, Tiers, load, session,
};
use memferry_testing::{Needs, skip};
use numa_support::{a_node_that_is_already_full, assert_no_strays, fill_for_good, node_free, several_nodes};
use tokio::sync::Mutex as AsyncMutex;

/// Tests that fill nodes take turns with the others.
static ALONE: AsyncMutex<()> = AsyncMutex::const_new(());

/// Row groups of 512 KiB a column, so that a column has pages of its own.
const GROUP_ROWS: usize = 64 * 1024;
const GROUPS: usize = 4;
const ROWS: usize = GROUP_ROWS * GROUPS;

fn table(machine: &Arc<Machine>, home: NodeId, placement: &str) -> TableData {
    let integers = |factor: i64| Int64Array::from_iter_values((0..ROWS as i64).map(|row| row * factor));
    let string = |row| format!("a string too long for its view {}", row % 5000);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("a", Arc::new(integers(1))),
        ("b", Arc::new(integers(3))),
        ("s", Arc::new(StringViewArray::from_iter_values((0..ROWS).map(string)))),
    ];
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    let placement: TablePlacement =
        if placement.is_empty() { TablePlacement::default() } else { placement.parse().unwrap() };
    let layout = Layout {
        placement,
        partitions: 1,
        row_group_rows: GROUP_ROWS,
        // In eight bytes each.
        narrow: false,
        ..Layout::new(Arc::clone(machine), home)
    };
    load::from_batches(rows.schema(), &[vec![rows]], &layout).unwrap()
}

fn each_buffer(data: &ArrayData, look: &mut impl FnMut(&[u8])) {
    data.buffers().iter().for_each(|buffer| look(buffer.as_slice()));
    data.child_data().iter().for_each(|child| each_buffer(child, look));
}

/// Every page that a column has for itself is on the node of the column. Its first and last page may also have bytes of its
/// neighbours on the same node, so they are looked at too.
#[track_caller]
fn assert_in_place(data: &TableData) {
    for (index, group) in data.partitions().iter().flatten().enumerate() {
        for column in 0..group.batch().num_columns() {
            each_buffer(&group.column(column).to_data(), &mut |bytes| {
                let nodes = nodes_of_pages(bytes).unwrap();
                let expected = group.node(column);
                assert!(
                    nodes.iter().all(|&node| node == Some(expected)),
                    "column {column} of row group {index} is to be on node {expected}, and is on {nodes:?}"
                );
            });
        }
    }
}

#[track_caller]
fn nodes(data: &TableData, column: usize) -> Vec<NodeId> {
    data.partitions().iter().flatten().map(|group| group.node(column)).collect()
}

async fn place(table: &TieredTable, text: &str) -> Result<u64, PlacementError> {
    table.place(&text.parse().unwrap(), Arc::new(())).await
}

fn tiered(machine: &Arc<Machine>, data: TableData) -> Arc<TieredTable> {
    let tiers = Tiers::builder(Arc::clone(machine)).budget_bytes(Some(8 << 20)).build().unwrap();
    Arc::new(TieredTable::try_new(Arc::new(data), tiers).unwrap())
}

async fn answer(context: &SessionContext) -> String {
    let rows = context.sql("select sum(a), sum(b), max(s) from t").await.unwrap().collect().await.unwrap();
    pretty_format_batches(&rows).unwrap().to_string()
}

fn context(table: &Arc<TieredTable>) -> SessionContext {
    let context = session(&SessionOptions { partitions: 1, ..SessionOptions::default() });
    context.register_table("t", Arc::clone(table) as _).unwrap();
    context
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loaded_tables_lie_where_the_placement_says() {
    let Some((machine, with_memory)) = several_nodes() else { return };
    let _alone = ALONE.lock().await;
    let (one, other) = (with_memory[0], with_memory[with_memory.len() - 1]);
    let data = table(&machine, one, "");
    assert_in_place(&data);
    assert_eq!(nodes(&data, 1), [one; GROUPS]);
    let text = format!(
        "numa node ({one}, {other}), column b numa node ({other}), column s rows 0 to {GROUP_ROWS} numa node ({other})"
    );
    let data = table(&machine, one, &text);
    assert_in_place(&data);
    assert_eq!(nodes(&data, 0), [one, other, one, other]);
    assert_eq!(nodes(&data, 1), [other; GROUPS]);
    assert_eq!(nodes(&data, 2), [other, other, one, other]);
    // Weights: three row groups of four, and for another column the other way round.
    let text = format!(
        "numa node ({one} weight 3, {other}), column b numa node ({one} weight 10, {other} weight 30)"
    );
    let data = table(&machine, one, &text);
    assert_in_place(&data);
    assert_eq!(nodes(&data, 0).iter().filter(|node| **node == one).count(), 3, "{:?}", nodes(&data, 0));
    assert_eq!(nodes(&data, 1).iter().filter(|node| **node == one).count(), 1, "{:?}", nodes(&data, 1));
}

/// Looks at the table whenever a row group was copied: nothing has changed for readers yet.
struct Look {
    table: Arc<TieredTable>,
    before: Arc<TableData>,
    looked: Mutex<usize>,
}

impl Progress for Look {
    fn total(&self, _rows: u64) {}

    fn advance(&self, _rows: u64) {
        assert!(Arc::ptr_eq(&self.table.data(), &self.before), "the table changes at once, at the end");
        assert_in_place(&self.before);
        *self.looked.lock().unwrap() += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_before_during_and_after_a_move() {
    let Some((machine, with_memory)) = several_nodes() else { return };
    let _alone = ALONE.lock().await;
    let home = with_memory[0];
    let table = tiered(&machine, table(&machine, home, ""));
    let context = context(&table);
    let expected = answer(&context).await;
    for &node in with_memory.iter().skip(1).chain([&home]) {
        let before = table.data();
        assert_in_place(&before);
        // A query of which one batch has been read.
        let plan = context.sql("select b from t").await.unwrap().create_physical_plan().await.unwrap();
        let mut running = execute_stream(plan, context.task_ctx()).unwrap();
        let mut rows = running.next().await.unwrap().unwrap().num_rows();
        let look = Arc::new(Look {
            table: Arc::clone(&table),
            before: Arc::clone(&before),
            looked: Mutex::default(),
        });
        let text: TablePlacement = format!("column b numa node ({node})").parse().unwrap();
        table.place(&text, Arc::clone(&look) as _).await.unwrap();
        assert_eq!(*look.looked.lock().unwrap(), GROUPS);
        assert_in_place(&before);
        let after = table.data();
        assert_in_place(&after);
        assert_eq!((nodes(&after, 0), nodes(&after, 1)), (vec![home; GROUPS], vec![node; GROUPS]));
        while let Some(batch) = running.next().await {
            rows += batch.unwrap().num_rows();
        }
        assert_eq!((rows, answer(&context).await), (ROWS, expected.clone()));
    }
}

/// The memory of a column that was moved away is free, although other columns of its row groups stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_moves_away_frees_its_memory() {
    let Some((machine, with_memory)) = several_nodes() else { return };
    let _alone = ALONE.lock().await;
    let (one, other) = (with_memory[0], with_memory[1]);
    let table = tiered(&machine, table(&machine, one, ""));
    let before = table.data();
    let column = |data: &TableData| -> Vec<*const u8> {
        let of = |group: &memferry_query::RowGroup| group.column(1).to_data().buffers()[0].as_ptr();
        data.partitions().iter().flatten().map(of).collect()
    };
    let old = column(&before);
    drop(before);
    place(&table, &format!("column b numa node ({other})")).await.unwrap();
    for (start, group) in old.into_iter().zip(table.data().partitions().iter().flatten()) {
        // Its first and last page may be shared with its neighbours.
        let bytes = GROUP_ROWS * 8 - 2 * numa_support::PAGE;
        let pages = nodes_at(start.wrapping_add(numa_support::PAGE), bytes);
        assert!(pages.iter().all(Option::is_none), "of the old column: {pages:?}");
        assert_eq!(group.node(0), one);
    }
    assert_in_place(&table.data());
}

/// The nodes of the pages of memory that may have no pages any more. It is mapped, because other columns of the row group lie
/// in the same mapping.
fn nodes_at(start: *const u8, size_bytes: usize) -> Vec<Option<NodeId>> {
    // SAFETY: the mapping is private, anonymous and readable, and nobody writes there: the bytes are zeros or as before.
    nodes_of_pages(unsafe { std::slice::from_raw_parts(start, size_bytes) }).unwrap()
}

/// The error of a placement for which the node `full` has no room. The table stays where it was.
async fn refused(table: &TieredTable, text: &str, full: NodeId) -> PlacementError {
    let before = table.data();
    let error = place(table, text).await.unwrap_err();
    assert!(
        matches!(error, PlacementError::Full { .. } | PlacementError::Memory(_)),
        "{text}: node {full} has no room: {error}"
    );
    assert!(Arc::ptr_eq(&before, &table.data()));
    assert_in_place(&before);
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_node_leaves_the_table_where_it_was() {
    let Some((machine, with_memory)) = several_nodes() else { return };
    let _alone = ALONE.lock().await;
    let (home, full) = (with_memory[0], with_memory[with_memory.len() - 1]);
    let table = tiered(&machine, table(&machine, home, ""));
    let context = context(&table);
    let expected = answer(&context).await;
    let free_before = node_free(home);
    let hog = fill_for_good(&machine, full);
    refused(&table, &format!("numa node ({full})"), full).await;
    assert_eq!(answer(&context).await, expected);
    assert!(node_free(home).abs_diff(free_before) < 64 << 20, "nothing is left of it");
    drop(hog);
    place(&table, &format!("numa node ({full})")).await.unwrap();
    assert_in_place(&table.data());
    assert_eq!(nodes(&table.data(), 0), [full; GROUPS]);
}

/// A node that was full before the program began, as a node of the machine is whose memory belongs to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_already_full_refuses_a_move() {
    let Some((machine, with_memory)) = several_nodes() else { return };
    let _alone = ALONE.lock().await;
    let Some(full) = a_node_that_is_already_full(&machine) else { return };
    let home = with_memory[0];
    assert_ne!(home, full);
    let table = tiered(&machine, table(&machine, home, ""));
    let context = context(&table);
    let expected = answer(&context).await;
    for text in [format!("numa node ({full})"), format!("column s numa node ({home}, {full})")] {
        let error = refused(&table, &text, full).await;
        assert!(error.to_string().contains(&format!("node {full}")), "{text}: {error}");
    }
    assert_eq!(answer(&context).await, expected);
    let advice = table.placement_rules().room_bytes;
    assert!(advice.get(&full).is_none_or(|&room| room < 8 << 20), "no advice names it: {advice:?}");
}

/// Row groups in turns on all nodes with CPUs and memory: each domain copies those beside it to its own near node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_are_on_the_near_node_of_the_reading_domain() {
    let Some((machine, with_memory)) = several_nodes() else { return };
    let _alone = ALONE.lock().await;
    let domains = Domains::of(&machine).unwrap();
    let homes: Vec<NodeId> = (0..domains.len())
        .map(|index| domains[index].cpu_node)
        .filter(|node| with_memory.contains(node))
        .collect();
    let partitions = domains.len();
    let rows = RecordBatch::try_from_iter(["a", "b"].map(|name| -> (&str, ArrayRef) {
        (
            name,
            Arc::new(Int64Array::from_iter_values((0..(partitions * 4 * 8192) as i64).map(|row| row % 1000))),
        )
    }));
    let rows = rows.unwrap();
    let parts: Vec<_> = (0..partitions).map(|part| vec![rows.slice(part * 4 * 8192, 4 * 8192)]).collect();
    let layout = Layout {
        placement: PlacementClause::on(&homes).into(),
        partitions,
        row_group_rows: 8192,
        narrow: false,
        ..Layout::new(Arc::clone(&machine), homes[0])
    };
    let data = Arc::new(load::from_batches(rows.schema(), &parts, &layout).unwrap());
    assert_in_place(&data);
    let budget_bytes = Some(64 << 20);
    let tiers =
        Tiers::builder(Arc::clone(&machine)).home(homes[0]).budget_bytes(budget_bytes).near_of_domains(true);
    let tiers = tiers.build().unwrap();
    let context = session(&SessionOptions {
        prefetch: Prefetch::Always,
        partitions,
        domains: Some(QueryDomains::new(domains)),
        binding: Binding::Opportunistic,
        stealing: Stealing::Off,
        ..SessionOptions::default()
    });
    let table = TieredTable::try_new(Arc::clone(&data), Arc::clone(&tiers)).unwrap();
    context.register_table("t", Arc::new(table)).unwrap();
    context.sql("set memferry.wait_us_max = 10000000").await.unwrap().collect().await.unwrap();
    let sql = "select sum(b) from t where a < 300";
    let sum = context.sql(sql).await.unwrap().collect().await.unwrap();
    let expected: i64 =
        (0..(partitions * 4 * 8192) as i64).map(|row| row % 1000).filter(|it| *it < 300).sum();
    assert_eq!(sum[0].column(0).as_primitive::<Int64Type>().value(0), expected);
    let usage = tiers.cache().stats().nodes;
    for &home in &homes {
        let beside = data.partitions().iter().flatten().filter(|group| group.node(1) == home).count();
        let near = usage.iter().find(|usage| usage.node == tiers.near_of(home)).unwrap();
        assert!(beside > 0 && near.entries_count >= beside, "home {home}: {beside} row groups, {usage:?}");
        assert_eq!(machine.node(near.node).unwrap().cpu_node, home, "its near node is beside it");
    }
    let copies: usize = usage.iter().map(|usage| usage.entries_count).sum();
    assert_eq!(copies, partitions * 4);
    assert_no_strays(&machine);
}

/// The sum of a metric over the operators of a plan.
fn metric(plan: &dyn ExecutionPlan, name: &str) -> usize {
    let own = plan.metrics().and_then(|metrics| metrics.sum_by_name(name)).map_or(0, |sum| sum.as_usize());
    own + plan.children().into_iter().map(|child| metric(child.as_ref(), name)).sum::<usize>()
}

/// A table beside one domain, read by partitions on all: by `memferry.stealing` the domain alone, its socket, or all. The
/// expressions of partitions that are bound always are evaluated on the CPUs of their domain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_groups_are_read_as_far_away_as_stealing_allows() {
    let Some((machine, with_memory)) = several_nodes() else { return };
    let _alone = ALONE.lock().await;
    let domains = Domains::of(&machine).unwrap();
    let home = domains[0].cpu_node;
    if domains.len() < 2 || !with_memory.contains(&home) {
        skip(Needs::Nodes, "two nodes need CPUs for this process, and the first of them memory");
        return;
    }
    let (partitions, rows_each) = (domains.len(), 8 * 1024);
    let count = (partitions * rows_each) as i64;
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..count));
    let rows = RecordBatch::try_from_iter([("a", column)]).unwrap();
    let parts: Vec<_> = (0..partitions).map(|it| vec![rows.slice(it * rows_each, rows_each)]).collect();
    let layout = Layout { partitions, row_group_rows: 1024, ..Layout::new(Arc::clone(&machine), home) };
    let data = Arc::new(load::from_batches(rows.schema(), &parts, &layout).unwrap());
    let tiers = Tiers::builder(Arc::clone(&machine)).budget_bytes(Some(8 << 20)).build().unwrap();
    let socket = |node: NodeId| machine.node(node).unwrap().socket;
    for (stealing, metrics) in [
        (Stealing::Off, ["row_groups_local"].as_slice()),
        (Stealing::Neighbour, &["row_groups_local", "row_groups_same_socket"]),
        (Stealing::Any, &["row_groups_local", "row_groups_same_socket", "row_groups_remote"]),
    ] {
        let context = session(&SessionOptions {
            prefetch: Prefetch::Off,
            partitions,
            domains: Some(QueryDomains::new(domains.clone())),
            binding: Binding::Always,
            stealing,
            ..SessionOptions::default()
        });
        let table = Arc::new(TieredTable::try_new(Arc::clone(&data), Arc::clone(&tiers)).unwrap());
        context.register_table("t", Arc::clone(&table) as _).unwrap();
        // Thread and node of each evaluation.
        let seen: Arc<Mutex<BTreeSet<_>>> = Arc::default();
        let (here, on) = (Arc::clone(&seen), Arc::clone(&machine));
        context.register_udf(create_udf(
            "seen",
            vec![DataType::Int64],
            DataType::Int64,
            Volatility::Volatile,
            Arc::new(move |arguments: &[ColumnarValue]| {
                let name = std::thread::current().name().unwrap_or_default().to_owned();
                here.lock().unwrap().insert((name, on.current_node()));
                Ok(arguments[0].clone())
            }),
        ));
        let plan =
            context.sql("select sum(seen(a)) from t").await.unwrap().create_physical_plan().await.unwrap();
        let sum = collect(Arc::clone(&plan), context.task_ctx()).await.unwrap();
        assert_eq!(sum[0].column(0).as_primitive::<Int64Type>().value(0), (0..count).sum::<i64>());
        let all = ["row_groups_local", "row_groups_same_socket", "row_groups_remote"];
        let read: usize = all.iter().map(|name| metric(plan.as_ref(), name)).sum();
        let allowed: usize = metrics.iter().map(|name| metric(plan.as_ref(), name)).sum();
        assert_eq!((read, allowed), (partitions * 8, partitions * 8), "{stealing}");
        for (thread, node) in seen.lock().unwrap().iter() {
            let domain = thread.strip_prefix("domain-").and_then(|index| index.parse::<usize>().ok());
            let domain = domain.unwrap_or_else(|| panic!("{stealing}: evaluated by the thread {thread}"));
            assert_eq!(*node, Some(domains[domain].cpu_node), "{stealing}: {thread}");
        }
        let readers: BTreeSet<NodeId> =
            table.reads().windows.iter().flat_map(|window| &window.reads).map(|read| read.cpus).collect();
        let may_read = |node: NodeId| match stealing {
            Stealing::Off => node == home,
            Stealing::Neighbour => socket(node) == socket(home),
            _ => true,
        };
        assert!(
            readers.contains(&home) && readers.iter().all(|&node| may_read(node)),
            "{stealing}: {readers:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_outside_the_machine_or_without_memory_are_refused() {
    let Some((machine, with_memory)) = several_nodes() else { return };
    let _alone = ALONE.lock().await;
    let table = tiered(&machine, table(&machine, with_memory[0], ""));
    let before = table.data();
    let missing = machine.nodes().last().unwrap().id.0 + 1;
    let without = machine.nodes().iter().filter(|node| !node.has_memory()).map(|node| node.id.0);
    for node in without.chain([missing]) {
        let error = place(&table, &format!("column b numa node ({node})")).await.unwrap_err();
        assert!(error.to_string().contains(&format!("node {node}")), "{error}");
        assert!(Arc::ptr_eq(&before, &table.data()));
    }
}

/// The machine with figures, by which memory of another socket is slower than its own: a tenth of the 133.8 GB/s of the cores of a
/// node is less than any memory has.
fn with_slow_sockets(machine: &Machine) -> Machine {
    let published = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
    let rate = |name: &str, value: f64| Parameter::assumed(name, value, "made up for a test");
    let of_core = published.parameter("core_mb_per_s").unwrap();
    let parameters = vec![
        rate("dram_mb_per_s", published.parameter("dram_mb_per_s").unwrap()),
        rate("hbm_mb_per_s", published.parameter("hbm_mb_per_s").unwrap()),
        rate("core_mb_per_s", 12.0 * of_core),
        rate("core_copy_mb_per_s", 10e3),
        rate("remote_latency_ratio", 10.0),
    ];
    let reference = ("made up".to_owned(), "for a test".to_owned());
    machine.clone().with_measured(Measured { reference, parameters, ..Measured::default() }).unwrap()
}

/// Only the CPUs of the last domain read a table beside the first one. The columns that they read come beside them, and then
/// nothing is proposed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skewed_reads_lead_to_a_move_and_to_no_second_one() {
    let Some((machine, with_memory)) = several_nodes() else { return };
    let _alone = ALONE.lock().await;
    let machine = Arc::new(with_slow_sockets(&machine));
    let domains = Domains::of(&machine).unwrap();
    let beside = |index: usize| domains[index].cpu_node;
    let with_cpus: Vec<NodeId> =
        (0..domains.len()).map(beside).filter(|node| with_memory.contains(node)).collect();
    let (home, far) = (with_cpus[0], with_cpus[with_cpus.len() - 1]);
    let socket = |node: NodeId| machine.node(node).unwrap().socket;
    let table = tiered(&machine, table(&machine, home, ""));
    let context = session(&SessionOptions {
        prefetch: Prefetch::Off,
        partitions: 1,
        domains: Some(QueryDomains::new(domains.on(&[far]).unwrap())),
        binding: Binding::Opportunistic,
        stealing: Stealing::Any,
        ..SessionOptions::default()
    });
    context.register_table("t", Arc::clone(&table) as _).unwrap();
    // Not column s.
    let sql = "select sum(a), sum(b) from t";
    let read = async || {
        let rows = context.sql(sql).await.unwrap().collect().await.unwrap();
        pretty_format_batches(&rows).unwrap().to_string()
    };
    let expected = read().await;
    let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    collect(Arc::clone(&plan), context.task_ctx()).await.unwrap();
    assert_eq!(metric(plan.as_ref(), "bytes_local"), 0, "the table is beside other CPUs");
    let by_distance = match socket(home) == socket(far) {
        true => "bytes_same_socket",
        false => "bytes_remote",
    };
    // Arrow counts its own structures, too.
    let read_bytes = metric(plan.as_ref(), by_distance);
    assert!((2 * 8 * ROWS..2 * 8 * ROWS + numa_support::PAGE).contains(&read_bytes), "{read_bytes} bytes");
    let reads = table.reads();
    let mut counted = reads.windows.iter().flat_map(|window| &window.reads);
    assert!(counted.all(|read| (read.cpus, read.node) == (far, home) && read.column < 2), "{reads:?}");
    // Time in a guest is not that of a machine, and its memories are equally fast.
    let advise = || {
        let rules = PlacementRules { evidence: 0.0, payback_s: 1e6, ..table.placement_rules() };
        table.advise(&rules).unwrap()
    };
    let advice = advise();
    let rate = |node: NodeId| machine.memory_bytes_per_s(node).unwrap_or(0);
    let is_faster = machine.nearest_faster(far).is_some_and(|node| rate(node.id) > rate(home) / 10 * 12);
    let is_on_other_socket = matches!((socket(home), socket(far)), (Some(one), Some(other)) if one != other);
    if !is_faster && !is_on_other_socket {
        assert_eq!(
            advice.verdict,
            PlacementVerdict::Keep,
            "reads of the same socket move nothing: {advice:?}"
        );
        return;
    }
    assert_eq!(advice.verdict, PlacementVerdict::Move, "home {home}, CPUs {far}: {advice:?}");
    let moved: Vec<usize> = advice.moves.iter().map(|it| it.column).collect();
    assert!(moved.contains(&0) && moved.contains(&1) && moved.len() == 2, "{advice:?}");
    let before = node_free(home);
    table.place_within(&table.placement_of(&advice), 0.5, Arc::new(())).await.unwrap();
    let data = table.data();
    assert_in_place(&data);
    for it in &advice.moves {
        let [node] = it.nodes.as_slice() else { panic!("one reader, one node: {advice:?}") };
        // Not always beside them: the firmware tells the latency of a memory for the CPUs beside it alone, and the model takes
        // the unknown one of others for that of DDR, so that they seem to be faster.
        assert_eq!(socket(*node), socket(far), "on the socket of the CPUs that read: {advice:?}");
        assert_eq!(nodes(&data, it.column), [*node; GROUPS]);
    }
    assert_eq!(nodes(&data, 2), [home; GROUPS], "nobody reads it");
    assert!(node_free(home) + (8 << 20) > before, "the old memory is free");
    // As many reads as before the move.
    for _ in 0..2 {
        assert_eq!(read().await, expected);
    }
    let after = advise();
    assert_eq!((after.verdict, after.moves.len()), (PlacementVerdict::Keep, 0), "{after:?}");
    assert!((after.before_s / advice.after_s - 1.0).abs() < 0.01, "as predicted: {advice:?} {after:?}");
}
