//! Modelled rows: queries on a machine that need not be here.
//!
//! The table, its placement and the decision of the scan are those of the product, with emulated devices in the places of the
//! machine's. Times are those of the model.

use std::sync::Arc;

use memferry::mover::{DsaEngine, DsaOptions};
use memferry::topology::Machine;
use memferry_bench::harness::Row;
use memferry_bench::model::{TwoNodes, two_nodes};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
use memferry_query::{Layout, PlacementClause, ScanReport, SessionOptions, Tiers};
use tokio::runtime::Runtime;

use crate::{Dsa, QueryError, QueryRunner, QueryTiers, paper_query, paper_table};

/// Rows of the table from which the scan decides: 8 MiB a column, in one row group for each of eight partitions.
const ROWS: u64 = 1 << 20;

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
    let mut builder = Tiers::builder(Arc::clone(machine)).home(a);
    for node in machine.accelerators().iter().filter_map(|device| device.node) {
        let config = DeviceConfig::one_shared_queue().on_node(node.0);
        let device = Emulator::start(&config, FaultPlan::none())?;
        builder = builder.engine(Arc::new(DsaEngine::new(vec![device.portal(0)], DsaOptions::default())?));
    }
    let tiers = QueryTiers { tiers: builder.build()?, dsa: Dsa::Emulated { seed: None } };
    let layout = Layout {
        partitions: 8,
        placement: PlacementClause::column("b", b).into(),
        ..Layout::new(Arc::clone(machine), a)
    };
    let tables = [("ab".to_owned(), Arc::new(paper_table(ROWS, 1, &layout, &())?))];
    let options = SessionOptions { partitions: layout.partitions, ..SessionOptions::default() };
    let runner = QueryRunner::tiered("auto", &tables, &tiers, &options, options.prefetch)?;
    let runtime = Runtime::new().map_err(QueryError::Threads)?;
    let ScanReport { decisions, time_predicted, time_predicted_without, .. } =
        runtime.block_on(runner.run_cold(&paper_query(SELECTIVITY)))?.report;
    let is_copied = decisions.iter().any(|decision| decision.starts_with("auto to node"));
    let peer = "the same placement without copies";
    let row = |name: &str, ratio: f64| Row::modelled(name, ratio, "x").against(peer, 1.0, ratio);
    Ok(vec![
        row("papers_two_nodes_auto", if is_copied { alone_s / advised_s } else { 1.0 }),
        row(
            "papers_two_nodes_predicted",
            time_predicted_without.as_secs_f64() / time_predicted.as_secs_f64(),
        ),
    ])
}
