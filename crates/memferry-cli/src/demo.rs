//! `memferry demo`: shows this machine, and what prefetching gains or costs on it.
//!
//! It runs some TPC-H queries and the query of the papers in five sessions over the same batches: plain DataFusion, and
//! memferry with prefetching off, auto, always by the CPU, and always by a DSA of this machine or an emulated one. Every
//! answer is compared with plain DataFusion.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use memferry::model;
use memferry::mover::MoverError;
use memferry::topology::{Machine, NodeId};
use memferry_bench::harness::{geomean, median};
use memferry_bench_query::{
    CarriedBytes, Dsa, NamedTable, QueryError, QueryRunner, QueryTiers, answers_equal, paper_query, tpch,
};
use memferry_query::load::Progress as _;
use memferry_query::{Prefetch, ScanReport, SessionOptions, Tiers};
use tokio::runtime::Runtime;

use crate::options::{scale, session_options};
use crate::output::{Align, Table, number, size};
use crate::progress::Bar;
use crate::query::{self, query_error};
use crate::report::papers_query;
use crate::topology;
use memferry_bench::harness::Provenance;

/// Shows on TPC-H data what prefetching gains or costs on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// TPC-H scale of the data; 1 takes about 1.7 GiB.
    #[arg(long, value_name = "SCALE", value_parser = scale, allow_negative_numbers = true, default_value = "1", conflicts_with = "quick")]
    scale: f64,
    /// Use little data (scale 0.01); takes seconds.
    #[arg(long)]
    quick: bool,
    /// Rates of this machine: a file of `memferry calibrate --out FILE`, or a published profile of such a machine [env:
    /// MEMFERRY_CALIBRATION].
    #[arg(long, value_name = "FILE")]
    calibration: Option<String>,
}

const QUICK_SCALE: f64 = 0.01;

/// Share of rows that pass the filter of the papers' query.
const PAPER_SELECTIVITY: f64 = 0.02;

/// Timed runs of each query in each session, after an untimed run.
const RUNS: usize = 5;
const RUNS_QUICK: usize = 2;

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let (scale, runs) = if arguments.quick { (QUICK_SCALE, RUNS_QUICK) } else { (arguments.scale, RUNS) };
    let runtime = Runtime::new().context("cannot start the threads for the queries")?;
    let machine = Arc::new(topology::open_calibrated(None, arguments.calibration.as_deref())?);
    let options = session_options(None);
    writeln!(out, "{}", topology::draw(&machine))?;
    out.flush()?;

    let tiers = Tiers::builder(Arc::clone(&machine)).build()?;
    let tables = generate(scale, &tiers, options.partitions, out)?;
    let ways = ways(&machine, &tables, &options)?;
    let results = measure(&runtime, &ways, scale, runs)?;
    write!(out, "{}", table(&ways, &results))?;
    write!(out, "\n{}", summary(&ways, &results, &tiers, runs))?;
    write!(out, "\n{}", elsewhere(&tables)?)?;
    writeln!(
        out,
        "\n`memferry report --out DIR` writes a page about this machine: what it is, what to set, its benchmarks, and \
         the\nfigures of the publications beside what the model says."
    )?;
    Ok(())
}

/// The machine for which the papers' query is modelled.
const ELSEWHERE: &str = "xeon-max-9468-2s-flat";

/// Modelled times of the papers' query on a machine with HBM and DSAs, for columns of this size.
fn elsewhere(tables: &[NamedTable]) -> Result<String> {
    let machine = Machine::from_profile(ELSEWHERE)?;
    let home = machine.node(NodeId(0))?;
    let bytes =
        tables.iter().find(|(name, _)| name == "ab").map_or(0, |(_, data)| data.size_bytes() as u64 / 2);
    let mut table = Table::new("columns | prefetch | ms: | ratio: | ").indent(2);
    for (what, second) in [("on one node", 0), ("on two nodes", 1)] {
        let advice = model::advise(&machine, &papers_query(home, NodeId(second), bytes))?;
        let ms = |seconds: f64| number(seconds * 1e3);
        let ratio = |seconds: f64| format!("{:.2}", advice.baseline_s / seconds);
        let line = |what: &str, prefetch: &str, seconds, note: &str| {
            vec![what.to_owned(), prefetch.to_owned(), ms(seconds), ratio(seconds), note.to_owned()]
        };
        table.row(line(what, "off", advice.baseline_s, ""));
        if let Some(all) = advice.alternatives.first() {
            table.row(line("", "always", all.predicted_s, "copies b to HBM"));
        }
        let verdict = if advice.chosen.is_some() { "copies what pays" } else { "copies nothing" };
        table.row(line("", "auto", advice.predicted_s(), verdict));
    }
    Ok(format!(
        "The papers' query over two such columns ({} each) on a Xeon Max with HBM and eight DSAs, modelled: memories,\n\
         CPUs and devices only, both columns read as a whole (`memferry sim table-6.2` is the thesis's own).\n\n{table}",
        size(bytes)
    ))
}

fn generate(scale: f64, tiers: &Tiers, partitions: usize, out: &mut dyn Write) -> Result<Vec<NamedTable>> {
    let started = Instant::now();
    let tables = query::tpch(scale, tiers, partitions)?;
    let bytes: usize = tables.iter().map(|(_, data)| data.size_bytes()).sum();
    let rows: usize = tables.iter().map(|(_, data)| data.rows()).sum();
    let papers = query::papers_table(scale, tiers, partitions)?;
    writeln!(
        out,
        "TPC-H at scale {scale}: {rows} rows, {} on node {}, generated in {:.1} s.\n",
        size(bytes as u64),
        tiers.home(),
        started.elapsed().as_secs_f64()
    )?;
    out.flush()?;
    Ok(tables.into_iter().chain([papers]).collect())
}

/// Plain DataFusion, and the ways that are compared with it.
fn ways(machine: &Arc<Machine>, tables: &[NamedTable], options: &SessionOptions) -> Result<Vec<QueryRunner>> {
    let tiers = |dsa| QueryTiers::build(Tiers::builder(Arc::clone(machine)), dsa);
    let (auto, name, by_dsa) = match tiers(Dsa::System) {
        Err(QueryError::Dsa(MoverError::NoDsa { .. })) => {
            (tiers(Dsa::None)?, "always, by emulated DSA", tiers(Dsa::Emulated { seed: None })?)
        }
        own => {
            let own = own?;
            (own.clone(), "always, by this machine's DSA", own)
        }
    };
    let tiered = [
        ("off", Prefetch::Off, tiers(Dsa::None)?),
        ("auto", Prefetch::Auto, auto),
        ("always, by the CPU", Prefetch::Always, tiers(Dsa::None)?),
        (name, Prefetch::Always, by_dsa),
    ];
    let mut ways = vec![QueryRunner::plain(tables, options)?];
    for (name, prefetch, tiers) in tiered {
        ways.push(QueryRunner::tiered(name, tables, &tiers, options, prefetch).map_err(query_error)?);
    }
    Ok(ways)
}

/// The times of a query in one session.
#[derive(Default)]
struct Timed {
    times_ms: Vec<f64>,
    /// From the last run; every run starts with an empty cache.
    report: ScanReport,
    carried: CarriedBytes,
}

struct QueryResult {
    name: String,
    /// One for each session.
    timed: Vec<Timed>,
}

fn measure(runtime: &Runtime, ways: &[QueryRunner], scale: f64, runs: usize) -> Result<Vec<QueryResult>> {
    let queries = queries(scale);
    let bar = Bar::of("running queries", queries.len() * (runs + 1) * ways.len());
    let mut results = Vec::new();
    for (name, sql) in queries {
        let mut timed: Vec<Timed> = ways.iter().map(|_| Timed::default()).collect();
        let mut expected = None;
        for pass in 0..=runs {
            // Sessions take turns, forwards and backwards, so that none is always first.
            let mut order: Vec<usize> = (0..ways.len()).collect();
            if pass % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let outcome = runtime.block_on(ways[index].run_cold(&sql))?;
                // The first pass begins with plain DataFusion.
                if let Err(difference) =
                    answers_equal(expected.get_or_insert_with(|| outcome.batches.clone()), &outcome.batches)
                {
                    let way = ways[index].name;
                    bail!("{name} answers differently with `{way}` ({difference}); please report this");
                }
                if pass > 0 {
                    timed[index].times_ms.push(outcome.elapsed.as_secs_f64() * 1e3);
                }
                timed[index].report = outcome.report;
                timed[index].carried = outcome.carried;
                bar.advance(1);
            }
        }
        results.push(QueryResult { name, timed });
    }
    Ok(results)
}

fn queries(scale: f64) -> Vec<(String, String)> {
    let tpch = [1, 6, 12, 14, 19].map(|number| (format!("Q{number}"), tpch::query(number, scale)));
    let paper = ("sum(b) where a < x".to_owned(), paper_query(PAPER_SELECTIVITY));
    tpch.into_iter().chain([paper]).collect()
}

/// The median time of plain DataFusion divided by that of `way`; above 1 the session `way` is faster.
fn ratio(result: &QueryResult, way: usize) -> f64 {
    median(&result.timed[0].times_ms) / median(&result.timed[way].times_ms)
}

fn table(ways: &[QueryRunner], results: &[QueryResult]) -> Table {
    let mut table = Table::new("query | prefetch | ms: | ratio: | near: | brought near");
    for (position, result) in results.iter().enumerate() {
        if position > 0 {
            table.gap();
        }
        for (index, (way, timed)) in ways.iter().zip(&result.timed).enumerate() {
            table.row(vec![
                if index == 0 { result.name.clone() } else { String::new() },
                way.name.to_owned(),
                format!("{:.1}", median(&timed.times_ms)),
                if index == 0 { String::new() } else { format!("{:.2}", ratio(result, index)) },
                near_share(&timed.report),
                brought_near(timed, way),
            ]);
        }
    }
    table
}

/// Share of the late bytes that were read from copies; empty without prefetched columns.
fn near_share(report: &ScanReport) -> String {
    match report.hit_ratio() {
        Some(ratio) if report.columns_prefetched > 0 => format!("{:.0} %", 100.0 * ratio),
        _ => String::new(),
    }
}

/// Which engine carried how many bytes to which node.
fn brought_near(timed: &Timed, way: &QueryRunner) -> String {
    match &way.tiers {
        Some(tiers) if timed.carried.shares().next().is_some() => {
            format!("{} to node {}", query::carried_text(&timed.carried), tiers.near())
        }
        _ => String::new(),
    }
}

fn summary(ways: &[QueryRunner], results: &[QueryResult], tiers: &Tiers, runs: usize) -> String {
    let build = if cfg!(debug_assertions) { "a development build" } else { "a release build" };
    let mut text = format!(
        "All answers agree: {} queries, {} ways.\n\
         ms: median of {runs} runs from an empty cache, planning included, measured on this machine with {build}.\n\
         ratio: plain DataFusion's time divided by this one; above 1 memferry is faster.\n\
         near: share of the late columns' bytes that had arrived when they were read.\n\n\
         Geometric means of the ratios:\n",
        results.len(),
        ways.len(),
    );
    let mut means = Table::plain(vec![Align::Left, Align::Right]).indent(2);
    for (index, way) in ways.iter().enumerate().skip(1) {
        means.row(vec![
            way.name.to_owned(),
            format!("{:.2}", geomean(results.iter().map(|r| ratio(r, index)))),
        ]);
    }
    text += &means.to_string();
    text += &if tiers.near_is_faster() {
        format!(
            "\n`auto` brings columns from node {} to the faster node {} where that is known to pay. What is known is what \
             `memferry\ncalibrate --out FILE` measured, for `memferry demo --calibration FILE`.\n",
            tiers.home(),
            tiers.near()
        )
    } else {
        format!(
            "\nNo memory of this machine is known to be faster than node {home}'s, so `auto` has nowhere to bring \
             columns\nand does nothing: it is `off`. `always` copies within node {home}, which cannot gain anything here; \
             the means\nsay what it costs.\n",
            home = tiers.home()
        )
    };
    let dsa =
        ways.iter().filter_map(|way| way.tiers.as_ref()).map(|tiers| tiers.dsa).find(|&dsa| dsa != Dsa::None);
    if dsa.is_some_and(|dsa| dsa.provenance() == Provenance::Emulated) {
        text += "The emulated DSA shows the way through a DSA, and its speed is that of the emulation.\n";
    }
    text
}
