//! Benchmarks that a command of the program `memferry-cluster` measures.

use std::io::Write;

use anyhow::Result;
use memferry::topology::Machine;
use memferry_bench::harness::{Provenance, Record, Row};
use serde_json::Value;

use super::{BUILD_PROFILE, Keep, start_record};
use crate::cluster;

/// A benchmark and the command that measures it.
pub(super) struct Measured {
    /// Name of the benchmark, and of its rows before an underscore.
    pub(super) name: &'static str,
    /// The command of memferry-cluster. It prints one JSON object.
    pub(super) command: &'static str,
    pub(super) seed: u64,
    /// Options of the record, and with `--` those of the command, in this order.
    pub(super) options: Vec<(&'static str, Value)>,
    /// Faults in the object that was printed.
    pub(super) check: fn(&Value) -> Result<()>,
    /// The unit of a number of the object, by its name.
    pub(super) unit: fn(&str) -> &'static str,
}

impl Measured {
    /// Measures, and keeps the record. Faults are reported afterwards.
    pub(super) fn run(self, keep: &Keep, is_short: bool, out: &mut dyn Write) -> Result<()> {
        let directory = keep.directory(is_short)?;
        let mut given: Vec<String> = self
            .options
            .iter()
            .flat_map(|(name, number)| [format!("--{name}"), number.to_string()])
            .collect();
        given.extend(["--seed".to_owned(), self.seed.to_string()]);
        let options = self.options.into_iter().chain([("profile", BUILD_PROFILE.into())]);
        let options = options.map(|(name, value)| (name.to_owned(), value)).collect();
        let mut record: Record = start_record(self.name, Machine::discover()?, self.seed, options);
        let mut verdict = Ok(());
        record.rows = keep.telemetry().rows(|| {
            let measured = cluster::measured(self.command, &given)?;
            verdict = (self.check)(&measured);
            anyhow::Ok(rows(self.name, &measured, self.unit))
        })?;
        keep.finish(&record, directory, out)?;
        verdict
    }
}

/// Counts, times and bytes, with their names as rows.
pub(super) fn rows(name: &str, measured: &Value, unit: fn(&str) -> &'static str) -> Vec<Row> {
    let numbers = measured.as_object().into_iter().flatten();
    let numbers = numbers.filter_map(|(number, value)| Some((number, value.as_f64()?)));
    let row = |(number, value): (&String, f64)| {
        Row::median(format!("{name}_{number}"), unit(number), Provenance::Measured, &[value])
    };
    numbers.map(row).collect()
}
