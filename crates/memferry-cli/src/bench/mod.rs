//! `memferry bench NAME`: benchmarks and their records.

mod bindings;
mod cache;
mod cases;
mod cluster;
mod cold;
mod domains;
mod dsa;
mod emulate;
mod ending;
mod isa;
mod measured;
mod memory;
mod mover;
mod offload;
mod papers;
mod peers;
mod processes;
mod query;
mod serve;
mod sncdb;
mod soak;
mod workload;

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use memferry::topology::Machine;
use memferry_bench::harness::{CsvRow, Effort, Provenance, Record, Row, check_writable};
pub(crate) use memferry_bench::harness::{machine_slug, rfc3339};
use memferry_bench::telemetry::{Kernel, SystemKernel, Telemetry};
use serde_json::{Value, json};

pub(crate) use isa::LIMITED;

use crate::output::{self, Table};

/// The build profile of this command: numbers of different profiles are not comparable.
pub(crate) const BUILD_PROFILE: &str = if cfg!(debug_assertions) { "dev" } else { "release" };

/// Measures memferry on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, clap::Subcommand)]
enum Bench {
    #[command(flatten)]
    Paper(papers::Paper),
    Qdp(Box<papers::qdp::Arguments>),
    Atomics(papers::atomics::Arguments),
    Bindings(bindings::Arguments),
    Cache(cache::Arguments),
    Cases(cases::Arguments),
    Cold(cold::Arguments),
    Domains(domains::Arguments),
    Dsa(dsa::Arguments),
    Emulate(emulate::Arguments),
    Memory(memory::Arguments),
    Mover(mover::Arguments),
    Offload(offload::Arguments),
    Processes(processes::Arguments),
    Query(query::Arguments),
    Serve(serve::Arguments),
    Cluster(cluster::Arguments),
    Sncdb(sncdb::Arguments),
    Soak(soak::Arguments),
    Workload(workload::Arguments),
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    match &arguments.bench {
        Bench::Paper(paper) => papers::run(paper, out),
        Bench::Qdp(arguments) => papers::qdp::run(arguments, out),
        Bench::Atomics(arguments) => papers::atomics::run(arguments, out),
        Bench::Bindings(arguments) => bindings::run(arguments, out),
        Bench::Cache(arguments) => cache::run(arguments, out),
        Bench::Cases(arguments) => cases::run(arguments, out),
        Bench::Cold(arguments) => cold::run(arguments, out),
        Bench::Domains(arguments) => domains::run(arguments, out),
        Bench::Dsa(arguments) => dsa::run(arguments, out),
        Bench::Emulate(arguments) => emulate::run(arguments, out),
        Bench::Memory(arguments) => memory::run(arguments, out),
        Bench::Mover(arguments) => mover::run(arguments, out),
        Bench::Offload(arguments) => offload::run(arguments, out),
        Bench::Processes(arguments) => processes::run(arguments, out),
        Bench::Query(arguments) => query::run(arguments, out),
        Bench::Serve(arguments) => serve::run(arguments, out),
        Bench::Cluster(arguments) => cluster::run(arguments, out),
        Bench::Sncdb(arguments) => sncdb::run(arguments, out),
        Bench::Soak(arguments) => soak::run(arguments, out),
        Bench::Workload(arguments) => workload::run(arguments, out),
    }
}

/// An empty record of a run that starts now.
pub(crate) fn start_record<R>(bench: &'static str, machine: Machine, seed: u64, options: Value) -> Record<R> {
    Record::start(bench, env!("MEMFERRY_COMMIT"), machine, seed, options)
}

/// The effort that `--quick` selects.
fn effort(is_quick: bool) -> Effort {
    if is_quick { Effort::Quick } else { Effort::Full }
}

/// Options for the output of a record.
#[derive(Debug, clap::Args)]
pub(crate) struct Keep {
    /// Prints the record as one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Directory of records; `none` keeps nothing [default: results; none with --quick].
    #[arg(long, value_name = "DIR|none")]
    pub(crate) out: Option<String>,
    /// Does not record what the monitors of the machine count meanwhile (see `memferry doctor --telemetry`).
    #[arg(long)]
    pub(crate) no_telemetry: bool,
}

impl Keep {
    /// The directory of the record, checked before the run: hours of measurements must not be lost to a typing error.
    pub(crate) fn directory(&self, quick: bool) -> Result<Option<&Path>> {
        let default = if quick { "none" } else { "results" };
        let directory =
            Some(self.out.as_deref().unwrap_or(default)).filter(|out| *out != "none").map(Path::new);
        directory.map(check_writable).transpose()?;
        Ok(directory)
    }

    /// The monitors of this machine, for the rows that are taken on it.
    pub(crate) fn telemetry(&self) -> Telemetry {
        if self.no_telemetry {
            return Telemetry::none();
        }
        let kernel: Arc<dyn Kernel> = Arc::new(SystemKernel::new());
        Telemetry::open(&kernel)
    }

    /// Writes and prints the record.
    pub(crate) fn finish(
        &self,
        record: &Record,
        directory: Option<&Path>,
        out: &mut dyn Write,
    ) -> Result<()> {
        self.finish_as(record.bench, record, directory, out)
    }

    /// Writes the record to the file of this name, and prints it.
    fn finish_as(
        &self,
        name: &str,
        record: &Record,
        directory: Option<&Path>,
        out: &mut dyn Write,
    ) -> Result<()> {
        self.finish_with(name, record, directory, out, |rows| table(rows).to_string())
    }

    /// The same for rows of any kind; `text` shows them. In a guest numbers are emulated, and `-guest` is added to the file's name.
    fn finish_with<R: CsvRow + AsMut<Row> + Clone>(
        &self,
        name: &str,
        record: &Record<R>,
        directory: Option<&Path>,
        out: &mut dyn Write,
        text: impl FnOnce(&[R]) -> String,
    ) -> Result<()> {
        let guest = memferry_guest::profile_of_this_guest();
        let of_guest = guest.as_ref().map(|profile| of_guest(record, profile));
        let record = of_guest.as_ref().unwrap_or(record);
        let name = if guest.is_some() { &format!("{name}-guest") } else { name };
        // The record first: the output may be a closed pipe.
        let written = directory.map(|directory| record.write_as(name, directory)).transpose();
        if self.json {
            output::json(out, record)?;
        } else {
            write!(out, "{}", text(&record.rows))?;
            if let Ok(Some(path)) = &written {
                writeln!(out, "\nwritten to {}", path.display())?;
            }
        }
        if let Some(profile) = guest {
            // An error of standard error cannot be reported.
            let _ = writeln!(
                io::stderr(),
                "memferry: this is a guest with the nodes of {profile}: counts and places are exact; times and rates are those of the \
                 emulation"
            );
        }
        Ok(written.map(drop)?)
    }
}

/// The record as one of a guest: the numbers of made-up nodes are emulated.
fn of_guest<R: AsMut<Row> + Clone>(record: &Record<R>, profile: &str) -> Record<R> {
    let mut record = record.clone();
    record.options["on"] = json!("guest");
    record.options["guest"] = json!(profile);
    for row in record.rows.iter_mut().map(R::as_mut).filter(|row| row.provenance == Provenance::Measured) {
        row.provenance = Provenance::Emulated;
    }
    record
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new("row | value: | unit | how | ratio: | 95 % interval | peer");
    for row in rows {
        let peer = row.peer.as_ref();
        let ratio = peer.and_then(|peer| peer.ratio).map_or(String::new(), |ratio| format!("{ratio:.3}"));
        let interval = peer.and_then(|peer| peer.ratio_low.zip(peer.ratio_high));
        let interval = interval.map_or(String::new(), |(low, high)| format!("{low:.3} to {high:.3}"));
        table.row(vec![
            row.name.clone(),
            output::number(row.value),
            row.unit.to_owned(),
            row.provenance.to_string(),
            ratio,
            interval,
            peer.map_or(String::new(), |peer| peer.name.clone()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_guest_are_emulated() {
        let machine = Machine::two_tiers().unwrap();
        let mut record: Record = start_record("x", machine, 1, json!({ "rows": 5 }));
        record.rows = vec![
            Row::median("measured", "ns", Provenance::Measured, &[1.0]),
            Row::modelled("modelled", 2.0, "ns"),
        ];
        let of_guest = of_guest(&record, "xeon-max");
        assert_eq!(of_guest.options, json!({ "rows": 5, "on": "guest", "guest": "xeon-max" }));
        let how: Vec<Provenance> = of_guest.rows.iter().map(|row| row.provenance).collect();
        assert_eq!(how, [Provenance::Emulated, Provenance::Modelled]);
    }
}
