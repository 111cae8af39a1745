//! Other engines over the same files: DuckDB and Polars, each in a Python process that waits for queries.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use datafusion::arrow::array::RecordBatch;
use memferry_query::files::FileReport;
use serde::Deserialize;
use serde_json::json;

use super::io::{FileCache, bytes_read};
use crate::QueryError;

/// The engines: the name of the Python package, and the name for people.
pub(super) const ENGINES: [(&str, &str); 2] = [("duckdb", "DuckDB"), ("polars", "Polars")];

/// A running engine.
pub(super) struct Peer {
    /// Name and version.
    pub(super) name: String,
    child: Child,
    queries: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// One run of a query.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) ms: f64,
    /// Bytes that the kernel fetched from the disk meanwhile.
    pub(super) bytes_read: u64,
    /// Of memferry's reader; empty for others.
    pub(super) report: FileReport,
    /// Columns that a scan puts out and its filter does not read, of the scan that has most; 0 for other engines.
    pub(super) late_columns: usize,
    pub(super) answer: RunAnswer,
}

/// The answer of a run, for comparison.
#[derive(Debug)]
pub(super) enum RunAnswer {
    Batches(Vec<RecordBatch>),
    /// Other engines only count their rows.
    Rows(usize),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Version { version: String },
    Done { ms: f64, rows: usize },
    Failed { error: String },
}

impl Peer {
    /// Starts `engine` over the files of a directory.
    pub(super) fn start(
        python: &Path,
        (engine, name): (&str, &str),
        files: &Path,
        threads_count: usize,
    ) -> Result<Peer, QueryError> {
        let failed = |error: &dyn std::fmt::Display| {
            QueryError::Peer(format!(
                "{name} does not start in {}: {error}; `cargo xtask setup` installs the Python packages",
                python.display()
            ))
        };
        let mut child = Command::new(python)
            .args(["-c", include_str!("peers.py"), engine])
            .arg(files)
            .arg(threads_count.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(&error))?;
        let queries = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("it was piped"));
        let mut peer = Peer { name: name.to_owned(), child, queries, answers };
        match peer.answer()? {
            Answer::Version { version } => peer.name = format!("{name} {version}"),
            _ => return Err(failed(&"its first line is no version")),
        }
        Ok(peer)
    }

    /// Runs a query. The inner error is the engine's own: it cannot run this query.
    pub(super) fn run(&mut self, sql: &str, files: &FileCache) -> Result<Result<Run, String>, QueryError> {
        files.prepare()?;
        let before = bytes_read(self.child.id())?;
        let queries = self.queries.as_mut().expect("only drop takes it");
        writeln!(queries, "{}", json!({ "sql": sql }))
            .map_err(|error| QueryError::Peer(format!("{} has ended: {error}", self.name)))?;
        Ok(match self.answer()? {
            Answer::Done { ms, rows } => {
                let bytes_read = bytes_read(self.child.id())?.saturating_sub(before);
                let (report, answer) = (FileReport::default(), RunAnswer::Rows(rows));
                Ok(Run { ms, bytes_read, report, late_columns: 0, answer })
            }
            Answer::Failed { error } => Err(error),
            Answer::Version { .. } => {
                return Err(QueryError::Peer(format!("{} answers nonsense", self.name)));
            }
        })
    }

    fn answer(&mut self) -> Result<Answer, QueryError> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        let failed =
            |why: &dyn std::fmt::Display| QueryError::Peer(format!("{} has ended: {why}", self.name));
        if read.map_err(|error| failed(&error))? == 0 {
            return Err(failed(&"it closed its output; its messages are above"));
        }
        serde_json::from_str(&line).map_err(|error| failed(&error))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The end of its input ends it.
        self.queries.take();
        let _ = self.child.wait();
    }
}
