//! A run that can be interrupted: starts with the rows of an earlier run, and saves each new row at once.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use memferry::topology::Machine;
use memferry_bench::harness::{Provenance, Record};
use memferry_bench::papers::{Columns, Metric, Skipped};
use memferry_bench::telemetry::Telemetry;
use memferry_query::load::Progress as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::options::{On, read};
use super::row::PaperRow;
use super::text;
use super::unfinished::Unfinished;
use crate::bench::{Keep, start_record};
use crate::output;
use crate::progress::Bar;

/// Arguments of all papers' benchmarks besides their own options.
#[derive(Debug, clap::Args)]
pub(super) struct RunArguments {
    /// Takes options from a TOML file, with keys as on the command line, such as `iterations = 3`; those on the command
    /// line come first.
    #[arg(long = "options", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Begins anew, even if an interrupted run could be continued.
    #[arg(long)]
    restart: bool,
    #[command(flatten)]
    pub(super) keep: Keep,
}

impl RunArguments {
    /// Options `given` on the command line, and those of the file for the missing ones.
    ///
    /// # Errors
    /// As [`read`].
    pub(super) fn options<O>(&self, given: &O, benchmark: &str) -> Result<O>
    where
        O: Clone + Serialize + DeserializeOwned,
    {
        match &self.file {
            Some(file) => or(given, &read(file, benchmark)?),
            None => Ok(given.clone()),
        }
    }
}

/// The options `given`; `others` for the missing ones.
pub(super) fn or<O: Serialize + DeserializeOwned>(given: &O, others: &O) -> Result<O> {
    let mut options = json!(others);
    if let Value::Object(given) = json!(given) {
        let is_given = |value: &Value| !value.is_null() && *value != json!(false);
        for (option, value) in given.into_iter().filter(|(_, value)| is_given(value)) {
            options[option] = value;
        }
    }
    Ok(serde_json::from_value(options)?)
}

/// The record, and the file of its rows until it is complete.
pub(super) struct Session<'a, P> {
    record: Record<PaperRow<P>>,
    name: String,
    directory: Option<&'a Path>,
    unfinished: Option<Unfinished>,
    /// Empty unless the points run on this machine.
    telemetry: Telemetry,
}

impl<'a, P: Columns> Session<'a, P> {
    /// Starts a record of the benchmark `bench` on this backend, or continues one.
    ///
    /// # Errors
    /// The record cannot be written, or there is an unfinished run with other options or of another version.
    pub(super) fn begin(
        bench: &'static str,
        on: On,
        machine: Machine,
        options: Value,
        (run, is_quick): (&'a RunArguments, bool),
    ) -> Result<Session<'a, P>> {
        let directory = run.keep.directory(is_quick)?;
        let mut record: Record<PaperRow<P>> = start_record(bench, machine, 0, options);
        let name = format!("{bench}{}", on.suffix());
        let unfinished = directory.map(|directory| Unfinished::of(&record, &name, directory));
        if let Some(unfinished) = &unfinished
            && !run.restart
            && let Some((started, rows)) = unfinished.rows(&record)?
        {
            (record.started, record.rows) = (started, rows);
        }
        let telemetry = if on == On::Machine { run.keep.telemetry() } else { Telemetry::none() };
        Ok(Session { record, name, directory, unfinished, telemetry })
    }

    /// The row of this name, if it exists.
    pub(super) fn row(&self, name: &str) -> Option<&PaperRow<P>> {
        self.record.rows.iter().find(|row| row.name() == name)
    }

    /// Adds and saves the rows of one point.
    pub(super) fn add(&mut self, rows: impl IntoIterator<Item = PaperRow<P>>) -> Result<()> {
        self.record.rows.extend(rows);
        self.unfinished.as_ref().map_or(Ok(()), |unfinished| unfinished.keep(&self.record))
    }

    /// Runs the points that have no row of the metric `main`; `rows` returns the rows of a point.
    ///
    /// # Errors
    /// A point fails. The rows of earlier points are saved.
    pub(super) fn run(
        &mut self,
        (what, points): (&'static str, &[P]),
        main: Metric,
        name: impl Fn(&P, Metric) -> String,
        provenance: impl Fn(&P) -> Provenance,
        rows: impl Fn(&Session<'_, P>, &P) -> Result<Vec<PaperRow<P>>, Skipped>,
    ) -> Result<()> {
        let bar = Bar::of(what, points.len());
        for point in points {
            bar.advance(1);
            let name = name(point, main);
            if self.row(&name).is_some() {
                continue;
            }
            let (rows, counts) = self.telemetry.watch(|| rows(self, point));
            match rows {
                Ok(rows) => self.add(PaperRow::beside(rows, counts))?,
                Err(Skipped::Cannot(why)) => {
                    self.add([PaperRow::new(name, point, main, provenance(point), Some(&why))])?;
                }
                Err(Skipped::Failed(error)) => {
                    let kept = match &self.unfinished {
                        Some(_) => "; earlier rows are kept, and the same command continues from there",
                        None => "",
                    };
                    return Err(anyhow!(error)).with_context(|| format!("{name} cannot be run{kept}"));
                }
            }
        }
        Ok(())
    }

    /// Writes and prints the record.
    pub(super) fn end(self, is_json: bool, out: &mut dyn Write) -> Result<()> {
        let Session { record, name, directory, unfinished, .. } = self;
        let written = directory.map(|directory| record.write_as(&name, directory)).transpose()?;
        if let Some(unfinished) = unfinished {
            unfinished.remove()?;
        }
        if is_json {
            return output::json(out, &record);
        }
        text(&record.rows, out)?;
        if let Some(path) = written {
            writeln!(out, "\nwritten to {}", path.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use memferry_bench::papers::{Axes, Measurement, Point};
    use memferry_bench::telemetry::{FakeKernel, Kernel};

    use super::*;

    #[test]
    fn a_point_has_the_counts_of_its_own_window() {
        let kernel = FakeKernel::new();
        let zone = "sys/class/powercap/intel-rapl:0";
        let energy = |uj: u64| kernel.write(&format!("{zone}/energy_uj"), &uj.to_string());
        kernel.write(&format!("{zone}/name"), "package-0\n");
        kernel.write(&format!("{zone}/max_energy_range_uj"), "262143328850\n");
        energy(1_000_000);
        let shared: Arc<dyn Kernel> = Arc::new(kernel.clone());
        let mut session: Session<'_, Point> = Session {
            record: start_record("submit", Machine::two_tiers().unwrap(), 0, Value::Null),
            name: "submit".to_owned(),
            directory: None,
            unfinished: None,
            telemetry: Telemetry::open(&shared),
        };
        let points = Axes { sizes_bytes: vec![4096, 8192], ..Axes::default() }.points();
        let name = |point: &Point, _| point.size_bytes.to_string();
        let take = |_: &Session<'_, Point>, point: &Point| {
            energy(1_000_000 * (1 + point.size_bytes / 4096));
            let taken = Measurement::new(Metric::LATENCY, vec![1.0]);
            let name = point.size_bytes.to_string();
            Ok(vec![PaperRow::measured("submit", name, point, Provenance::Measured, &taken)])
        };
        session.run(("testing", &points), Metric::LATENCY, name, |_| Provenance::Measured, take).unwrap();
        let counted = |row: &PaperRow<Point>| json!(row)["telemetry"]["counts"][0]["value"].clone();
        let counted: Vec<Value> = session.record.rows.iter().map(counted).collect();
        assert_eq!(counted, [json!(1.0), json!(1.0)]);
    }
}
