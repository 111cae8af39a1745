//! The first query of a user: whole processes, from their start to their end.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use memferry_bench::harness::{Comparison, Pairs, Provenance, Row, try_alternate};

use super::io::{FileCache, Temperature};
use super::{ColdBenchmark, SELECTIVE_SQL};
use crate::{QueryError, tpch_file};

/// Prints the milliseconds after the import.
const DUCKDB: &str = "import sys, time, duckdb
started = time.perf_counter()
duckdb.sql(sys.argv[1]).fetchall()
print((time.perf_counter() - started) * 1e3)";

impl ColdBenchmark {
    /// `memferry sql` over one file beside a Python process that imports DuckDB and runs the same query, with the files in
    /// each state.
    pub(super) fn first_query_rows(&self, states: &[&FileCache]) -> Result<Vec<Row>, QueryError> {
        let Some(program) = &self.program else { return Ok(Vec::new()) };
        let file = tpch_file(&self.files, "lineitem").to_string_lossy().into_owned();
        let table = format!("lineitem={file}");
        let sql = SELECTIVE_SQL.replace("lineitem", &format!("'{}'", file.replace('\'', "''")));
        let mut rows = Vec::new();
        for files in states {
            let name = match files.temperature {
                Temperature::Cold => "first_query_cold",
                Temperature::Warm => "first_query_warm",
            };
            let after_import = format!("{name}_after_import");
            let ours = || {
                let mut command = Command::new(program);
                Ok(timed(program, command.args(["sql", "--table", &table, SELECTIVE_SQL]), files)?.0)
            };
            let Some(python) = &self.python else {
                let times = self.rounds_alone(ours)?;
                for name in [name, &after_import] {
                    let row = Row::median(name, "ms", Provenance::Measured, &times);
                    rows.push(row.without_peer("DuckDB in Python: not run, see --peers"));
                }
                continue;
            };
            let mut inside = Vec::new();
            let peer = || {
                let (ms, output) = timed(python, Command::new(python).args(["-c", DUCKDB, &sql]), files)?;
                let printed = String::from_utf8_lossy(&output.stdout).trim().parse();
                let nonsense = |_| QueryError::Peer("DuckDB in Python does not print its time".to_owned());
                inside.push(printed.map_err(nonsense)?);
                Ok(ms)
            };
            let (ours, whole) = self.rounds_beside(ours, peer)?;
            let compared = |name: &str, peer: &str, times: &[f64]| {
                let pairs = Pairs { ours: ours.clone(), peer: times.to_vec() };
                Row::compared(Comparison::new(name, "ms", peer, pairs), self.seed)
            };
            rows.push(compared(name, "DuckDB in Python, whole process", &whole));
            let peer = "DuckDB in Python, without the start of Python and the import";
            rows.push(compared(&after_import, peer, &inside[1..]));
        }
        Ok(rows)
    }

    /// A sample per round, after one that is not kept.
    pub(super) fn rounds_alone(
        &self,
        sample: impl FnMut() -> Result<f64, QueryError>,
    ) -> Result<Vec<f64>, QueryError> {
        let mut samples: Vec<f64> =
            std::iter::repeat_with(sample).take(self.rounds_count + 1).collect::<Result<_, _>>()?;
        samples.remove(0);
        Ok(samples)
    }

    /// The same for two ways in turns.
    pub(super) fn rounds_beside(
        &self,
        ours: impl FnMut() -> Result<f64, QueryError>,
        peer: impl FnMut() -> Result<f64, QueryError>,
    ) -> Result<(Vec<f64>, Vec<f64>), QueryError> {
        let (mut ours, mut peer) = try_alternate(self.rounds_count + 1, ours, peer)?;
        ours.remove(0);
        peer.remove(0);
        Ok((ours, peer))
    }
}

/// Runs a process over files in their state: its milliseconds and output.
fn timed(program: &Path, command: &mut Command, files: &FileCache) -> Result<(f64, Output), QueryError> {
    files.prepare()?;
    let started = Instant::now();
    let output = command.stdin(Stdio::null()).output();
    let ms = started.elapsed().as_secs_f64() * 1e3;
    let failed = |why: &dyn std::fmt::Display| {
        QueryError::Peer(format!("the query does not run in {}: {why}", program.display()))
    };
    let output = output.map_err(|error| failed(&error))?;
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok((ms, output))
}
