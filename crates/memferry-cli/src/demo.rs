//! `memferry demo`: shows this machine, and what reading ahead gains on it.
//!
//! It writes TPC-H as Parquet files once, and runs some queries over them in two ways: by plain DataFusion and by memferry.
//! The files are first cold (on the disk only), then warm (in the page cache). All answers are compared.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use memferry::topology::{Machine, NodeId};
use memferry_bench::harness::geomean;
use memferry_bench_query::{
    ColdBenchmark, ComparedQuery, QueryError, RunSummary, Temperature, tpch_file, tpch_table_names,
};

use crate::bench::BUILD_PROFILE;
use crate::doctor::Cpu;
use crate::options::{scale, session_options};
use crate::output::{Table, number, size};
use crate::progress::Bar;
use crate::query::{files_directory, query_error, write_tpch};
use crate::report::papers_query;
use crate::topology;

/// Shows on TPC-H files what reading ahead gains or costs on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// TPC-H scale of the files; 1 takes 360 MB of disk.
    #[arg(long, value_name = "SCALE", value_parser = scale, allow_negative_numbers = true, default_value = "1", conflicts_with = "quick")]
    scale: f64,
    /// Use little data (scale 0.01); takes seconds.
    #[arg(long)]
    quick: bool,
    /// Directory of the files, on a disk; they are written if they are missing [default: memferry/tpch in XDG_CACHE_HOME or
    /// ~/.cache].
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
}

const QUICK_SCALE: f64 = 0.01;

/// From scans of most columns to filters that few rows pass.
const QUERIES: [&str; 7] = ["q01", "q03", "q06", "q12", "q14", "q19", "selective"];

/// Timed runs of each query in each way, after an untimed run.
const RUNS: usize = 5;
const RUNS_QUICK: usize = 2;

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let (scale, runs) = if arguments.quick { (QUICK_SCALE, RUNS_QUICK) } else { (arguments.scale, RUNS) };
    let machine = Arc::new(topology::open_calibrated(None, None)?);
    writeln!(out, "{}", topology::draw(&machine))?;
    out.flush()?;

    let files = write_tpch(scale, &files_directory(arguments.files.as_deref())?)?;
    writeln!(
        out,
        "TPC-H at scale {scale}: {} of Parquet files in {}\n`rm -r {}` removes them.\n",
        size(files_bytes(&files)),
        files.display(),
        files.display(),
    )?;
    out.flush()?;

    let mut bench = ColdBenchmark::new(machine, files, scale, session_options(None)).map_err(query_error)?;
    bench.rounds_count = runs;
    bench.queries = QUERIES.map(String::from).into();
    let mut means = Vec::new();
    match bench.disk_rate() {
        Ok(rate) => {
            let title = format!("Cold: the files are on the disk only, which gives {}/s.", size(rate as u64));
            means.push(("cold", section(&bench, Temperature::Cold, &title, out)?));
        }
        Err(QueryError::Invalid(reason)) => writeln!(out, "No cold runs: {reason}.\n")?,
        Err(error) => return Err(query_error(error)),
    }
    let title = "Warm: the files are in the page cache of the kernel, nothing is decoded.";
    means.push(("warm", section(&bench, Temperature::Warm, title, out)?));
    write!(out, "{}", summary(&means, runs))?;
    write!(out, "\n{}", elsewhere()?)?;
    writeln!(
        out,
        "\n`memferry bench cold` measures all queries, also beside other engines. `memferry report --out DIR` writes a page\n\
         about this machine: what it is, what to set, its benchmarks, and the figures of the publications."
    )?;
    Ok(())
}

fn files_bytes(files: &Path) -> u64 {
    let bytes = |table| tpch_file(files, table).metadata().map_or(0, |metadata| metadata.len());
    tpch_table_names().map(bytes).sum()
}

/// Runs the queries, prints their chart and returns the geometric mean of their ratios.
fn section(bench: &ColdBenchmark, temperature: Temperature, title: &str, out: &mut dyn Write) -> Result<f64> {
    let compared = bench.compare(temperature, &Bar::new("running queries")).map_err(query_error)?;
    writeln!(out, "{title}\n\n{}", chart(&compared))?;
    out.flush()?;
    Ok(geomean(compared.iter().map(ratio)))
}

/// The time of plain DataFusion divided by memferry's; above 1 memferry is faster.
fn ratio(query: &ComparedQuery) -> f64 {
    query.plain.ms / query.memferry.ms
}

/// Length of the longest bar.
const BAR_CELLS: usize = 32;

/// A bar for each query and way, as long as its time.
fn chart(compared: &[ComparedQuery]) -> Table {
    let longest = compared.iter().map(|query| query.plain.ms.max(query.memferry.ms)).fold(0.0, f64::max);
    let mut table = Table::new("query | by | time | ms: | ratio: | read: | ahead: | hits:");
    for (position, query) in compared.iter().enumerate() {
        if position > 0 {
            table.gap();
        }
        let mut row = |name: &str, way: &str, run: &RunSummary, ratio: String| {
            let report = &run.report;
            let ahead =
                (report.bytes_read > 0).then(|| report.bytes_read_ahead as f64 / report.bytes_read as f64);
            table.row(vec![
                name.to_owned(),
                way.to_owned(),
                bar(run.ms / longest),
                format!("{:.1}", run.ms),
                ratio,
                size(run.bytes_read),
                percent(ahead),
                percent(report.hit_ratio()),
            ]);
        };
        row(&title(&query.name), "DataFusion", &query.plain, String::new());
        row("", "memferry", &query.memferry, format!("{:.2}", ratio(query)));
    }
    table
}

/// `Q6` for `q06`.
fn title(name: &str) -> String {
    match name.strip_prefix('q').and_then(|number| number.parse::<u32>().ok()) {
        Some(number) => format!("Q{number}"),
        None => name.to_owned(),
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or(String::new(), |share| format!("{:.0} %", share * 100.0))
}

/// A bar of `share` of the longest, in eighths of a cell.
fn bar(share: f64) -> String {
    let eighths = ((share * (BAR_CELLS * 8) as f64).round() as usize).max(1);
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    "█".repeat(eighths / 8) + rest
}

fn summary(means: &[(&str, f64)], runs: usize) -> String {
    let mut text = format!(
        "All answers agree: {} queries, {} ways.\n\
         ms: median of {runs} runs in turns, each in a new session, planning included; measured here, build profile \
         {BUILD_PROFILE}.\n\
         ratio: DataFusion's time divided by memferry's; above 1 memferry is faster.\n\
         read: from the disk, by the kernel's count. ahead: share of memferry's reads that started before the decoder asked.\n\
         hits: share of the bytes that the decoder asked for that were there or on their way.\n\
         selective: select sum(l_extendedprice) from lineitem where l_quantity < 2\n\n\
         Geometric mean of the ratios: ",
        QUERIES.len(),
        2 * means.len(),
    );
    let means: Vec<_> = means.iter().map(|(name, mean)| format!("{name} {mean:.2}")).collect();
    text += &means.join(", ");
    text += ".\n";
    if Cpu::of_this_machine().is_virtual() {
        text += "This is a virtual machine: its host may hold the disk's blocks in memory, and cold reads are then faster.\n";
    }
    text
}

/// The machine for which the papers' query is modelled.
const ELSEWHERE: &str = "xeon-max-9468-2s-flat";

/// Size of each of the two columns of the papers' query there.
const COLUMN_BYTES: u64 = 48 << 20;

/// Modelled times of the papers' query on a machine with HBM and DSAs.
fn elsewhere() -> Result<String> {
    let machine = Machine::from_profile(ELSEWHERE)?;
    let home = machine.node(NodeId(0))?;
    let mut table = Table::new("columns | prefetch | ms: | ratio: | ").indent(2);
    for (what, second) in [("on one node", 0), ("on two nodes", 1)] {
        let advice = papers_query(home, NodeId(second), COLUMN_BYTES).advise(&machine)?;
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
        "Modelled, not measured: the papers' query, sum(b) where a < x, over two columns of {} in memory on a\n\
         Xeon Max with HBM and eight DSAs (`memferry sim table-6.2` is the thesis's own).\n\n{table}",
        size(COLUMN_BYTES)
    ))
}
