//! Modelled rows: queries on a machine that need not be here.
//!
//! The table, its placement and the decision of the scan are those of the product, with emulated devices in the places of the
//! machine's. Times are those of the model.

use std::sync::Arc;

use memferry::internals::{Hardware, Part, queries_per_s};
use memferry::mover::{DsaEngine, DsaOptions};
use memferry::topology::{Machine, NodeId};
use memferry_bench::harness::Row;
use memferry_bench::model::{TwoNodes, two_nodes};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
use memferry_query::{Layout, PlacementClause, ScanReport, SessionOptions, Tiers};
use tokio::runtime::Runtime;

use crate::{Dsa, QueryError, QueryRunner, QueryTiers, paper_query, paper_table, tpch, tpch_tables};

/// Rows of the table from which the scan decides: 8 MiB a column, in one row group for each of eight partitions.
const ROWS: u64 = 1 << 20;

const WITHOUT_COPIES: &str = "the same placement without copies";

/// Share of the rows that pass. The model does not know it: it assumes that all rows pass.
const SELECTIVITY: f64 = 0.02;

/// The papers' query with its columns on two nodes, prefetching `auto` against the same placement without copies.
///
/// `papers_two_nodes_auto` is the gain in the thesis's shape, with groups of threads that drift apart. It is 1 if the scan
/// decides against copies. `papers_two_nodes_predicted` is the gain that the scan itself predicts, and that EXPLAIN shows; it
/// leaves the drift out.
///
/// # Errors
/// [`QueryError::Model`]: the machine lacks the nodes of the thesis's machine, or rates. Others as the query.
pub fn papers_two_nodes(machine: &Arc<Machine>) -> Result<Vec<Row>, QueryError> {
    let TwoNodes { homes: [a, b], alone_s, advised_s, .. } = two_nodes(machine)?;
    let tiers = tiers_with_devices(machine, a, |_| true)?;
    let layout = Layout {
        partitions: 8,
        placement: PlacementClause::column("b", b).into(),
        // The papers' columns have eight bytes a value.
        narrow: false,
        ..Layout::new(Arc::clone(machine), a)
    };
    let tables = [("ab".to_owned(), Arc::new(paper_table(ROWS, 1, &layout, &())?))];
    let options = SessionOptions { partitions: layout.partitions, ..SessionOptions::default() };
    let runner = QueryRunner::tiered("auto", &tables, &tiers, &options, options.prefetch)?;
    let runtime = Runtime::new().map_err(QueryError::Threads)?;
    let ScanReport { decisions, time_predicted, time_predicted_without, .. } =
        runtime.block_on(runner.run_cold(&paper_query(SELECTIVITY)))?.report;
    let is_copied = decisions.iter().any(|decision| decision.starts_with("auto to node"));
    let row = |name: &str, ratio: f64| Row::modelled(name, ratio, "x").against(WITHOUT_COPIES, 1.0, ratio);
    Ok(vec![
        row("papers_two_nodes_auto", if is_copied { alone_s / advised_s } else { 1.0 }),
        row(
            "papers_two_nodes_predicted",
            time_predicted_without.as_secs_f64() / time_predicted.as_secs_f64(),
        ),
    ])
}

/// Memory with an emulated device in the place of each of the machine's devices on nodes that `has_device` names.
fn tiers_with_devices(
    machine: &Arc<Machine>,
    home: NodeId,
    has_device: impl Fn(NodeId) -> bool,
) -> Result<QueryTiers, QueryError> {
    let mut builder = Tiers::builder(Arc::clone(machine)).home(home);
    for node in machine.accelerators().iter().filter_map(|device| device.node).filter(|&it| has_device(it)) {
        let config = DeviceConfig::one_shared_queue().on_node(node.0);
        let device = Emulator::start(&config, FaultPlan::none())?;
        builder = builder.engine(Arc::new(DsaEngine::new(vec![device.portal(0)], DsaOptions::default())?));
    }
    Ok(QueryTiers { tiers: builder.build()?, dsa: Dsa::Emulated { seed: None } })
}

/// TPC-H queries that mostly scan.
const SCANS: [usize; 5] = [1, 6, 12, 14, 19];

/// TPC-H scale of the tables of each domain. The decision depends on the sizes of columns; it is the same from here on.
const DOMAIN_SCALE: f64 = 0.05;

/// Threads of a domain for each part that it reads, in the model of execution on domains.
const THREADS_PER_PART: usize = 2;

/// Later queries that read the same columns, in the rows `tpch_domains_QUERY_again`.
const READS_TO_COME: u32 = 3;

/// TPC-H queries over tables whose row groups lie in turns on all nodes with CPUs: rows, and the decision of each domain.
///
/// Each domain reads the row groups of its own node, with its own device and near memory. As its part of a table is a table
/// on its node, the scan of the product decides over such a table, for each domain in turn.
///
/// - `tpch_domains_QUERY_auto`: the time that the scans predict without copies, divided by the time as decided; of the slowest
///   domain each. Without late columns, or if no copy pays, it is 1. The model leaves out joins and aggregates, drift
///   between threads, and the bookkeeping of copies.
/// - `tpch_domains_QUERY_again`: the same for the query and `READS_TO_COME` later ones of the same columns, which the session
///   expects (`memferry.reads_to_come`). A copy that costs more than it gains in one query may then pay. The later ones are
///   predicted by the scan that finds the copies.
/// - `tpch_domains_QUERY_local`: scans by the CPUs beside their row groups, against threads on no domain, which read row groups
///   of all nodes. The model knows bytes only: it leaves out hops between domains and the cost of filters, which takes the same
///   time in both. So this row depends on the machine, and not on the query. It is 1 if no link limits the reads, as on a machine
///   whose links have no known rate.
///
/// # Errors
/// [`QueryError::Invalid`]: the machine has one such node. [`QueryError::Model`]: it lacks rates. Others as the queries.
pub fn tpch_on_domains(machine: &Arc<Machine>) -> Result<(Vec<Row>, Vec<String>), QueryError> {
    let hardware = Hardware::of(machine)?;
    let has_both = machine.nodes().iter().filter(|node| !node.cpus.is_empty() && node.has_memory());
    let homes: Vec<(NodeId, usize)> = has_both.map(|node| (node.id, node.cpus.len())).collect();
    if homes.len() < 2 {
        return Err(QueryError::Invalid(format!(
            "{} has one node with CPUs and memory, so that tables cannot span nodes; choose another --machine",
            machine.name()
        )));
    }
    let runtime = Runtime::new().map_err(QueryError::Threads)?;
    let mut reports: Vec<Vec<ScanReport>> = vec![Vec::new(); SCANS.len()];
    // The first query that expects later ones, and one of these.
    let mut expecting: Vec<Vec<[ScanReport; 2]>> = vec![Vec::new(); SCANS.len()];
    for &(home, cpus_count) in &homes {
        let tiers = tiers_with_devices(machine, home, |node| node == home)?;
        let layout = Layout { partitions: cpus_count, ..Layout::new(Arc::clone(machine), home) };
        let tables = tpch_tables(DOMAIN_SCALE, &layout, &())?;
        let tables: Vec<_> = tables.into_iter().map(|(name, data)| (name, Arc::new(data))).collect();
        let options = SessionOptions { partitions: cpus_count, ..SessionOptions::default() };
        let runner = QueryRunner::tiered("auto", &tables, &tiers, &options, options.prefetch)?;
        let again = QueryRunner::tiered("again", &tables, &tiers, &options, options.prefetch)?;
        runtime.block_on(again.run(&format!("set memferry.reads_to_come = {READS_TO_COME}")))?;
        for ((reports, expecting), query) in reports.iter_mut().zip(&mut expecting).zip(SCANS) {
            let sql = tpch::query(query, DOMAIN_SCALE);
            reports.push(runtime.block_on(runner.run_cold(&sql))?.report);
            let first = runtime.block_on(again.run_cold(&sql))?.report;
            expecting.push([first, runtime.block_on(again.run(&sql))?.report]);
        }
    }
    let (mut rows, mut reasons) = (Vec::new(), Vec::new());
    let homes: Vec<NodeId> = homes.into_iter().map(|(home, _)| home).collect();
    for ((reports, expecting), query) in reports.iter().zip(&expecting).zip(SCANS) {
        let slowest = |time: fn(&ScanReport) -> std::time::Duration| {
            reports.iter().map(|report| time(report).as_secs_f64()).fold(0.0, f64::max)
        };
        let (auto_s, without_s) = (slowest(|it| it.time_predicted), slowest(|it| it.time_predicted_without));
        // No scan that asks the model has a late column.
        let gain = if auto_s > 0.0 { without_s / auto_s } else { 1.0 };
        let row = |name: &str, peer: &str, ratio: f64| {
            Row::modelled(format!("tpch_domains_q{query:02}_{name}"), ratio, "x").against(peer, 1.0, ratio)
        };
        rows.push(row("auto", WITHOUT_COPIES, gain));
        rows.push(row("again", WITHOUT_COPIES, gain_of_all(expecting)));
        let bytes: u64 = reports.iter().map(|report| report.late_bytes).sum();
        // Of scale 100, so that streams of few bytes are not rounded.
        let local = execution_on_domains(&hardware, &homes, bytes as f64 / DOMAIN_SCALE * 100.0)?;
        rows.push(row("local", "threads on no domain", local));
        for (home, report) in homes.iter().zip(reports) {
            reasons.push(format!("Q{query}, CPUs of node {home}: {}", report.decisions.join("; ")));
        }
        for (home, [first, _]) in homes.iter().zip(expecting) {
            let decisions = first.decisions.join("; ");
            reasons.push(format!(
                "Q{query} with {READS_TO_COME} reads to come, CPUs of node {home}: {decisions}"
            ));
        }
    }
    Ok((rows, reasons))
}

/// The time of a query and the later ones without copies, divided by that as decided; of the slowest domain each.
fn gain_of_all(domains: &[[ScanReport; 2]]) -> f64 {
    let later = f64::from(READS_TO_COME);
    let slowest = |time: &dyn Fn(&[ScanReport; 2]) -> f64| domains.iter().map(time).fold(0.0, f64::max);
    let without_s = slowest(&|[first, _]| (1.0 + later) * first.time_predicted_without.as_secs_f64());
    let with_s = slowest(&|[first, next]| {
        first.time_predicted.as_secs_f64() + later * next.time_predicted.as_secs_f64()
    });
    if with_s > 0.0 { without_s / with_s } else { 1.0 }
}

/// The rate of scans in which each domain reads its own node, divided by that in which all read all.
fn execution_on_domains(hardware: &Hardware, homes: &[NodeId], bytes: f64) -> Result<f64, QueryError> {
    let count = homes.len();
    let column_bytes = bytes / (count * count * THREADS_PER_PART) as f64;
    let part = |cpus, node, columns_count| Part { cpus, node, columns_count };
    let local: Vec<Part> = homes.iter().map(|&home| part(home, home, count * THREADS_PER_PART)).collect();
    let of_cpus = |&cpus: &NodeId| homes.iter().map(move |&node| part(cpus, node, THREADS_PER_PART));
    let unbound: Vec<Part> = homes.iter().flat_map(of_cpus).collect();
    let rate = |parts: &[Part]| queries_per_s(hardware, 1, column_bytes, parts);
    Ok(rate(&local)? / rate(&unbound)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes read half of their bytes from each other, and a link allows less than half of a memory's rate. Rates of links of
    /// the Xeon Max are not published.
    #[test]
    fn domains_gain_where_links_are_slow() {
        let gain = |profile: &str, nodes: u32, bytes: f64| {
            let hardware = Hardware::of(&Machine::from_profile(profile).unwrap()).unwrap();
            let homes: Vec<NodeId> = (0..nodes).map(NodeId).collect();
            execution_on_domains(&hardware, &homes, bytes).unwrap()
        };
        let broadwell = gain("broadwell-2699v4-cod-off", 2, 1e10);
        assert!((1.005..1.1).contains(&broadwell), "{broadwell}");
        let once_more = gain("broadwell-2699v4-cod-off", 2, 2e10);
        assert!((broadwell / once_more - 1.0).abs() < 1e-6, "it does not depend on the bytes");
        assert!((gain("xeon-max-9468-2s-flat", 8, 1e10) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn one_domain_is_no_placement() {
        let one = Arc::new(Machine::two_tiers().unwrap());
        let error = tpch_on_domains(&one).unwrap_err().to_string();
        assert!(error.contains("choose another --machine"), "{error}");
    }
}
