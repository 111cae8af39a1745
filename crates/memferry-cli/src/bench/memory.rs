//! `memferry bench memory`: latency and bandwidth of each memory, idle and under load, beside loops in C.

use std::io::Write;

use anyhow::Result;
use clap::ValueEnum;
use memferry::topology::{Machine, NodeId};
use memferry_bench::harness::{Record, Row};
use memferry_bench::memory::{Figure, MemoryBench, MemoryOptions, MemoryRow, Pages, Peers, Place, Traffic};
use memferry_bench::telemetry::beside;
use memferry_query::load::Progress as _;
use serde_json::json;

use super::{BUILD_PROFILE, Keep, effort, start_record};
use crate::error::usage;
use crate::options::size_bytes;
use crate::output::{Table, number, wrapped};
use crate::progress::Bar;

/// Latency and bandwidth from each domain of CPUs to each memory, idle and under load, beside loops in C.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Small and short: checks that it works; not for records.
    #[arg(long)]
    quick: bool,
    /// Measure only the CPUs and the memories of these nodes [default: all].
    #[arg(long, value_name = "NODE,...", value_delimiter = ',')]
    nodes: Option<Vec<u32>>,
    /// Threads of each domain, each on a CPU of its own [default: one on each CPU].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Memory that each thread reads, writes or follows, as a multiple of 2 MiB, rounded up [default: several times the largest
    /// cache, among all threads].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    size: Option<u64>,
    /// Kinds of pages [default: both].
    #[arg(long, value_name = "KIND,...", value_delimiter = ',', value_enum)]
    pages: Option<Vec<Kind>>,
    /// Seed of the chain's order, and of the confidence intervals.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Transparent huge pages of 2 MiB.
    Huge,
    /// Pages of 4 KiB.
    Small,
}

impl Arguments {
    fn options(&self) -> MemoryOptions {
        let pages = Pages::ALL.into_iter().zip([Kind::Huge, Kind::Small]);
        let is_wanted = |kind: Kind| self.pages.as_ref().is_none_or(|kinds| kinds.contains(&kind));
        MemoryOptions {
            nodes: self.nodes.as_ref().map(|nodes| nodes.iter().copied().map(NodeId).collect()),
            threads: self.threads.map(|threads| threads as usize),
            size_bytes: self.size.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            pages: pages.filter(|(_, kind)| is_wanted(*kind)).map(|(pages, _)| pages).collect(),
            effort: effort(self.quick),
            seed: self.seed,
        }
    }
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let directory = arguments.keep.directory(arguments.quick)?;
    let machine = Machine::discover()?;
    let options = arguments.options();
    let pages = options.pages.clone();
    let bench = MemoryBench::new(&machine, options).map_err(usage)?;
    let peers = Peers::compile("cc");
    let started: Record<MemoryRow> =
        start_record("memory", machine.clone(), arguments.seed, serde_json::Value::Null);
    let bar = Bar::of("measuring memory", bench.steps_count());
    let telemetry = arguments.keep.telemetry();
    let (measured, counts) = telemetry.watch(|| bench.run(peers.as_ref(), &mut || bar.advance(1)));
    drop(bar);
    let mut measured = measured?;
    let rows = beside(measured.rows.iter().map(|row| row.row.clone()).collect(), counts);
    measured.rows.iter_mut().zip(rows).for_each(|(of, row)| of.row = row);
    let options = json!({
        "quick": arguments.quick,
        "nodes": arguments.nodes,
        "threads": arguments.threads,
        "size_bytes": measured.region_bytes,
        "chain_bytes": measured.chain_bytes,
        "pages": pages,
        "copy_method": measured.copy_method,
        "vector_bits": measured.vector_bits,
        "compiler": peers.as_ref().ok().map(Peers::compiler),
        "notes": measured.notes,
        "profile": BUILD_PROFILE,
    });
    let record = Record { options, rows: measured.rows, ..started };
    let text = |rows: &[MemoryRow]| {
        let notes: String = measured.notes.iter().map(|note| wrapped(note, 0)).collect();
        let gap = if notes.is_empty() { "" } else { "\n" };
        format!("{}{gap}{notes}", text(rows))
    };
    arguments.keep.finish_with(record.bench, &record, directory, out, text)
}

/// The rows beside loops in C, a line for each cell of the matrices, and a table for each pair of curves.
fn text(rows: &[MemoryRow]) -> String {
    let of = |figure: Figure| rows.iter().filter(move |row| row.figure == figure);
    let compared: Vec<Row> = of(Figure::Compared).map(|row| row.row.clone()).collect();
    let value = |figure: Figure, place: Place, traffic: Option<Traffic>| {
        let row = of(figure).find(|row| row.place == place && row.traffic == traffic);
        row.map_or(String::new(), |row| number(row.row.value))
    };
    let mut cells = Table::new(
        "CPUs of node: | memory of node: | pages | idle, ns: | read, MB/s: | write, MB/s: | copy, MB/s: | 2:1 mix, MB/s:",
    );
    for row in of(Figure::Latency) {
        let Place { cpus, memory, pages } = row.place;
        let mut line = vec![cpus.to_string(), memory.to_string(), pages.to_string(), number(row.row.value)];
        line.extend(Traffic::ALL.map(|traffic| value(Figure::Bandwidth, row.place, Some(traffic))));
        cells.row(line);
    }
    let mut text = format!("{}\n{cells}", super::table(&compared));
    let of_places: Vec<&MemoryRow> = of(Figure::LoadedLatency).collect();
    for of_place in of_places.chunk_by(|one, other| one.place == other.place) {
        let Place { cpus, memory, pages } = of_place[0].place;
        let mut curves = Table::new("traffic | delay: | load, MB/s: | latency, ns:");
        for row in of_place {
            curves.row(vec![
                row.traffic.map_or("", Traffic::name).to_owned(),
                row.delay.map_or(String::new(), |delay| delay.to_string()),
                row.load_mb_per_s.map_or(String::new(), number),
                number(row.row.value),
            ]);
        }
        text +=
            &format!("\nunder load, CPUs of node {cpus}, memory of node {memory}, {pages} pages:\n{curves}");
    }
    text
}

#[cfg(test)]
mod tests {
    use memferry_bench::harness::Provenance;

    use super::*;

    #[test]
    fn matrices_and_curves_are_tables() {
        let place = |pages| Place { cpus: NodeId(0), memory: NodeId(8), pages };
        let row = |figure, pages, value: f64, traffic| MemoryRow {
            row: Row::median("name", "unit", Provenance::Measured, &[value]),
            figure,
            place: place(pages),
            traffic,
            threads: 2,
            delay: None,
            load_mb_per_s: None,
        };
        let mut rows = vec![row(Figure::Compared, Pages::Huge, 101.0, None)];
        for (pages, factor) in [(Pages::Huge, 1.0), (Pages::Small, 2.0)] {
            rows.push(row(Figure::Latency, pages, 100.0 * factor, None));
            for (index, traffic) in Traffic::ALL.into_iter().enumerate() {
                rows.push(row(Figure::Bandwidth, pages, (1000 * (index + 1)) as f64 * factor, Some(traffic)));
            }
        }
        let loaded = row(Figure::LoadedLatency, Pages::Huge, 140.0, Some(Traffic::Mix));
        rows.push(MemoryRow { delay: Some(50), load_mb_per_s: Some(9000.0), ..loaded });
        let text = text(&rows);
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for line in [
            "name 101.00 unit measured",
            "0 8 huge 100.00 1000 2000 3000 4000",
            "0 8 small 200.00 2000 4000 6000 8000",
            "under load, CPUs of node 0, memory of node 8, huge pages:",
            "mix 50 9000 140.00",
        ] {
            assert!(lines.iter().any(|it| it == line), "{line:?} is not in:\n{text}");
        }
    }
}
